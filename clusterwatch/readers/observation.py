"""What ``clusterwatch analyze`` judges: a folder and a topology file as an ``Observation``.

For a notebook: ``diagnose(observe(Path("dumps")))`` gives the ``Diagnosis``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

from clusterwatch.analysis import Observation, diagnose
from clusterwatch.analysis.model import InputProblem, RankFacts, RankStacks, StackThread
from clusterwatch.analysis.stacks import RECORDER
from clusterwatch.analysis.tables import Window
from clusterwatch.readers import folder, job_logs, topology
from clusterwatch.readers.archives import label, survey
from clusterwatch.readers.runs import Job


class NoInputError(Exception):
    """The input cannot be had; the text says why."""


def observe(
    path: Path,
    topology_file: Path | None = None,
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
    """
    try:
        facts = topology.read(topology_file) if topology_file is not None else {}
        looked = survey(path)
        found = folder.read(path, show, found=looked)
        told = job_logs.read(path, show, found=looked)
    except topology.TopologyError as error:
        raise NoInputError(f"--topology {label(str(error))}") from error
    except FileNotFoundError as error:
        raise NoInputError(f"there is nothing at {label(str(path))}") from error
    except OSError as error:
        raise NoInputError(f"{label(str(path))} cannot be read: {error.strerror}") from error
    problems = (*_problems(found, told), *map(_told_apart, found.other_jobs))
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
    )


def _size_told(asked: int | None, found: folder.Folder) -> tuple[int | None, tuple[InputProblem, ...]]:
    """The size the user tells, unless the dumps prove that the job is larger, which is said then."""
    highest = max((window.rank for window in found.windows), default=-1)
    known = max(highest + 1, found.world_size or 0, len(found.unranked))
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


def _told_apart(job: Job) -> InputProblem:
    """What a job whose files lie here too suffers from, in one sentence of its own."""
    windows = tuple(dump.window for dump in job.dumps)
    verdict = diagnose(Observation(windows=windows)).worst
    return InputProblem(job.name, f"that job on its own: {verdict.verdict}. {verdict.summary}")
