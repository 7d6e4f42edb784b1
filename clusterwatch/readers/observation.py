"""What ``clusterwatch analyze`` judges: a folder and a topology file as an ``Observation``.

For a notebook: ``diagnose(observe(Path("dumps")))`` gives the ``Diagnosis``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Final

from clusterwatch.analysis import Observation, diagnose, exit_code
from clusterwatch.analysis.model import Finding, InputProblem, RankFacts, RankStacks, StackThread
from clusterwatch.analysis.slow.log import call_log, hang_traces
from clusterwatch.analysis.stacks import RECORDER
from clusterwatch.analysis.tables import Window
from clusterwatch.readers import (
    collective_log,
    folder,
    inspected,
    inspector_log,
    job_logs,
    library_versions,
    topology,
)
from clusterwatch.readers.archives import label, survey
from clusterwatch.readers.names import PARTS
from clusterwatch.readers.runs import Job
from collectors.formats.job_log import JobLog


class NoInputError(Exception):
    """The input cannot be had; the text says why."""


class FormatError(NoInputError):
    """A file is there and is not what it should be."""


def observe(
    path: Path | str,
    topology_file: Path | str | None = None,
    world_size: int | None = None,
    show: Callable[[folder.Progress], None] | None = None,
) -> Observation:
    """Reads everything at ``path``.

    Args:
        path: a folder of dumps and logs, one of these, or an archive.
        topology_file: ``topology.json`` with host and GPU of each rank.
        world_size: ranks the job should have, where the dumps do not tell.
        show: called with the progress of reading.

    Raises:
        NoInputError: one of the files is not there or cannot be read.
        FormatError: the topology file is there and is none.
    """
    path = Path(path)
    try:
        facts = topology.read(Path(topology_file)) if topology_file is not None else {}
        looked = survey(path)
        if (log := collective_log.found_in(looked)) is not None:
            return _of_calls(log, topology_file)
        inspector = inspector_log.names_in(looked)
        rest = inspector_log.without(looked, inspector)
        found = folder.read(path, show, found=rest)
        told = job_logs.read(path, show, found=rest)
        if inspector and not found.windows and not found.unranked:
            return inspected.observed(looked, inspector, told, topology_file, world_size, show)
    except collective_log.CollectiveLogError as error:
        raise FormatError(label(str(error))) from error
    except topology.FormatError as error:
        raise FormatError(f"--topology {label(str(error))}") from error
    except topology.TopologyError as error:
        raise NoInputError(f"--topology {label(str(error))}") from error
    except FileNotFoundError as error:
        raise NoInputError(f"there is nothing at {label(str(path))}") from error
    except OSError as error:
        raise NoInputError(f"{label(str(path))} cannot be read: {error.strerror}") from error
    found, apart = _worst_first(found)
    told = replace(told, logs=tuple(_logs_of(found, told.logs)))
    problems = (*_problems(found, told), *apart, *_of_earlier(found), *inspected.unused(inspector))
    world_size, less = _size_told(world_size, found)
    problems += less
    if found.unranked:
        return _unranked(found, told, world_size, problems)
    return Observation(
        windows=found.windows,
        stale_ranks=found.stale_ranks,
        stacks=tuple(recorded_stacks(found.windows)),
        facts=_placed(found, facts),
        world_size=world_size,
        problems=problems,
        logs=told.logs,
        versions=library_versions.versions(rest, told.logs),
    )


def _of_calls(found: collective_log.Found, topology_file: Path | str | None) -> Observation:
    """A collective log: its calls for the slow side, its open end for the hang side."""
    told = Path(topology_file).read_bytes() if topology_file is not None else None
    read = collective_log.read(found, told)
    calls = call_log(read.calls, read.layout)
    problems = read.problems
    if not calls.is_layout_told:
        reason = "its stages and replicas do not fit the calls: they are taken from the calls"
        problems += (InputProblem(collective_log.TOPOLOGY, reason),)
    return Observation(
        world_size=read.layout.rank_count,
        traces=hang_traces(calls),
        facts=read.facts,
        problems=problems,
        call_log=calls,
    )


_NAMED_RANKS_MAX: Final = 131_072
"""A larger number in the name of a file that cannot be used is a time or a process id, not a rank."""


def _size_told(asked: int | None, found: folder.Folder) -> tuple[int | None, tuple[InputProblem, ...]]:
    """The size the user tells, unless the dumps prove that the job is larger, which is said then."""
    highest = max((window.rank for window in found.windows), default=-1)
    known = max(highest + 1, found.world_size or 0, len(found.unranked))
    if asked is None and found.world_size is None and not found.unranked and found.unread_ranks:
        named = max(found.unread_ranks) + 1
        return (named if known < named <= _NAMED_RANKS_MAX else None), ()
    if asked is None or asked >= known:
        return asked, ()
    return None, (
        InputProblem("--world-size", f"{asked} is less than the {known} ranks told here: not used"),
    )


def _unranked(
    found: folder.Folder, told: job_logs.Logs, world_size: int | None, problems: tuple[InputProblem, ...]
) -> Observation:
    """Dumps without ranks are judged where numbers do not matter, and where no log speaks of ranks."""
    if told.logs or not found.alike:
        return Observation(world_size=world_size or found.world_size, problems=problems, logs=told.logs)
    sources = {window.rank: window.source for window in found.unranked}
    return Observation(windows=found.unranked, world_size=world_size, problems=problems, unranked=sources)


def _problems(found: folder.Folder, told: job_logs.Logs) -> Iterator[InputProblem]:
    """What could not be used. That there are no dumps is nobody's problem where logs are."""
    yield from (problem for problem in found.problems if problem != found.nothing or not told.logs)
    yield from told.problems


def _placed(found: folder.Folder, facts: dict[int, RankFacts]) -> dict[int, RankFacts]:
    """Facts with the hosts that the dumps' paths tell; a topology knows better."""
    told = {rank: RankFacts(rank, host=host) for rank, host in found.hosts.items()}
    return told | facts


def recorded_stacks(windows: Iterable[Window]) -> Iterator[RankStacks]:
    """The stack of each rank's newest call, as the recorder took it when the call was issued."""
    for window in windows:
        if window.stack:
            thread = StackThread("main", tuple(reversed(window.stack)), main=True)
            yield RankStacks(window.rank, RECORDER, (thread,))


def _worst_first(found: folder.Folder) -> tuple[folder.Folder, list[InputProblem]]:
    """The job with the worst verdict is the one judged; of the others one sentence each is told."""
    if found.job is None or not found.other_jobs:
        return found, []
    verdicts = [(job, _alone(job)) for job in (found.job, *found.other_jobs)]
    worst, _ = max(verdicts, key=lambda one: _GRAVITY[_code(one[1])])
    told = [
        InputProblem(job.name, f"that job on its own: {verdict.verdict}. {verdict.summary}")
        for job, verdict in verdicts
        if job is not worst
    ]
    return folder.judging(found, worst), told


def _alone(job: Job) -> Finding:
    """The worst finding on the dumps of one job."""
    windows = tuple(dump.window for dump in job.dumps)
    return diagnose(Observation(windows=windows, world_size=job.world_size)).worst


def _code(verdict: Finding) -> int:
    return exit_code(verdict.verdict, verdict.fault_class, verdict.severity)


_GRAVITY: Final = {2: 3, 1: 2, 3: 1, 0: 0}
"""Exit codes by what a reader must see first: a hang, slowness, something unknown, nothing."""


def _of_earlier(found: folder.Folder) -> Iterator[InputProblem]:
    """What the dumps of the run before suffer from, when that is a hang: they may be why somebody asks."""
    if found.earlier is None:
        return
    verdict = _alone(found.earlier)
    if verdict.fault_class == "hang" and (verdict.culprit_ranks or verdict.suspect_ranks):
        sources = found.earlier.dumps[0].source
        yield InputProblem(
            sources, f"the dumps of an earlier run show a hang: {verdict.verdict}. {verdict.summary}"
        )


def _logs_of(found: folder.Folder, logs: Iterable[JobLog]) -> Iterator[JobLog]:
    """Logs without those that lie in the folder of a job that is not judged."""
    others = {job.name for job in found.other_jobs}
    mine = found.job.name if found.job is not None else ""
    for log in logs:
        folders = set(PARTS.split(log.source)[:-1])
        if mine in folders or not folders & others:
            yield log
