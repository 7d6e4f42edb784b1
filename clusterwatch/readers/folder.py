"""Flight-recorder dumps as they lie on a cluster -> a window per rank, and what could not be used.

In: a file, a folder (nested, one per node), an archive. Out: ``Folder``. Files are listed once, which tells
the ranks (``names``), then read one after the other by all cores (``workers``), reduced (``dumps``) and
sorted into runs and jobs (``runs``). Files are never all held, and their order changes nothing.
"""

from __future__ import annotations

import contextlib
import itertools
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Final

from clusterwatch.analysis.model import InputProblem
from clusterwatch.analysis.tables import Window
from clusterwatch.readers import dumps, hosts, names, runs, tasks
from clusterwatch.readers.archives import Blob, Stream, Survey, UnreadableError, label, members, survey
from clusterwatch.readers.dumps import Dump, Unusable
from clusterwatch.readers.names import Named
from clusterwatch.readers.numbering import Numbering
from clusterwatch.readers.progress import Progress, Show
from clusterwatch.readers.runs import Job
from collectors.formats.columns import TraceColumns
from collectors.formats.trace import TraceError

__all__ = ["Folder", "Progress", "Show", "read", "traces"]

PROBLEMS_MAX: Final = 1_000
_SNIFFED_MAX: Final = 64
"""Files of a folder without any dump that are looked into, to say which may be some."""
_SNIFFED_BYTES: Final = 64 * 1024**2


@dataclass(frozen=True, slots=True)
class Folder:
    """What was found: the newest run of the largest job, and what was left out of it."""

    windows: tuple[Window, ...]
    """by rank, one each"""
    problems: tuple[InputProblem, ...] = ()
    """by source"""
    files: int = 0
    """dumps read, usable or not"""
    nothing: InputProblem | None = None
    """the problem that no file is a dump, where that is so"""
    world_size: int | None = None
    """ranks of the job, when its dumps tell it"""
    stale_ranks: frozenset[int] = frozenset()
    """ranks that left a dump of an earlier time only; it is not in ``windows``"""
    hosts: Mapping[int, str] = field(default_factory=dict)
    """host by rank, where the paths of all dumps tell it"""
    other_jobs: tuple[Job, ...] = ()
    """jobs whose files lie here too; nothing of them is in ``windows``"""
    job: Job | None = None
    """the job of ``windows``"""
    unread_ranks: frozenset[int] = frozenset()
    """ranks whose files are here and cannot be used"""
    earlier: Job | None = None
    """the run before it; nothing of it is in ``windows``"""
    unranked: tuple[Window, ...] = ()
    """dumps whose rank nothing tells, under numbers that are no ranks; ``windows`` is empty then"""
    alike: bool = False
    """under any numbers ``unranked`` would be judged alike"""


@dataclass(slots=True)
class _Listing:
    """What lies there. ``tasks``: blobs, and packed archives, which are read in one go."""

    tasks: list[Blob | Stream] = field(default_factory=list)
    named: dict[str, Named] = field(default_factory=dict)
    problems: list[InputProblem] = field(default_factory=list)
    others: int = 0
    """files that are no dump by name"""
    rankless: int = 0
    """of these, files that are called as dumps are and have no number that could be a rank"""


def read(
    path: Path, show: Show | None = None, processes: int | None = None, found: Survey | None = None
) -> Folder:
    """All dumps at or below ``path``.

    Args:
        path: a folder, a dump or an archive.
        show: called after each file.
        processes: how many read at a time; as many as the cores and the amount suggest when not given.
        found: what ``archives.survey`` gave for ``path``; looked at anew when not given.

    Raises:
        FileNotFoundError: there is nothing at ``path``.
        OSError: it cannot be listed, or is no file or folder.
    """
    listing = _listed(survey(path) if found is None else found)
    usable: list[Dump] = []
    one_copy = _OneCopy()
    unusable: list[InputProblem] = []
    for item in _results(listing, show, processes):
        if isinstance(item, Dump):
            usable.append(one_copy.of(item))
        else:
            unusable.append(item)
    choice = runs.choose(usable)
    problems = listing.problems + unusable
    problems += [InputProblem(o.dump.source, o.reason, o.dump.rank) for o in choice.left_out]
    problems += _about_clocks(choice)
    problems += _about_jobs(choice.jobs[0], choice.jobs[1:]) if choice.jobs else ()
    problems += _about_mixed(choice)
    nothing = None if usable or unusable else InputProblem(_title(path), _nothing(listing))
    problems += [nothing] if nothing is not None else []
    if choice.numbering is not None:
        problems.append(InputProblem(_title(path), _about_names(choice.numbering)))
    return replace(
        _chosen(choice),
        problems=_bounded(problems, path),
        files=len(usable) + len(unusable),
        nothing=nothing,
        unread_ranks=frozenset(problem.rank for problem in unusable if problem.rank is not None),
    )


def _chosen(choice: runs.Choice) -> Folder:
    """The first job; its dumps are nobody's windows where nothing tells their ranks."""
    first = choice.jobs[0] if choice.jobs else Job("", (), None)
    windows = tuple(dump.window for dump in first.dumps)
    numbering = choice.numbering
    if numbering is not None and numbering.unranked:
        return Folder((), world_size=first.world_size, unranked=windows, alike=numbering.alike)
    return Folder(
        windows=windows,
        world_size=first.world_size,
        stale_ranks=frozenset(dump.rank for dump in choice.stale_only),
        hosts=hosts.of({dump.source: dump.rank for dump in first.dumps}),
        other_jobs=tuple(choice.jobs[1:]),
        job=first,
        earlier=choice.earlier,
    )


def judging(found: Folder, job: Job) -> Folder:
    """``found`` with one of its other jobs in the place of the first."""
    if found.job is None or job not in found.other_jobs:
        return found
    others = (found.job, *(other for other in found.other_jobs if other is not job))
    about = set(_about_jobs(found.job, found.other_jobs))
    kept = (problem for problem in found.problems if problem not in about)
    return replace(
        found,
        windows=tuple(dump.window for dump in job.dumps),
        world_size=job.world_size,
        stale_ranks=frozenset(),
        hosts=hosts.of({dump.source: dump.rank for dump in job.dumps}),
        problems=tuple(sorted((*kept, *_about_jobs(job, others)), key=lambda p: (p.source, p.reason))),
        other_jobs=others,
        job=job,
        earlier=None,
    )


class _OneCopy:
    """Equal tables of different ranks become one object: ranks of one pipeline stage run one program. With
    24,576 ranks that is 150 MB instead of 420 MB.
    """

    def __init__(self) -> None:
        self._held: dict[bytes, bytes] = {}

    def of(self, dump: Dump) -> Dump:
        window, held = dump.window, self._held
        return replace(
            dump,
            window=replace(
                window,
                pair_bytes=held.setdefault(window.pair_bytes, window.pair_bytes),
                tail_bytes=held.setdefault(window.tail_bytes, window.tail_bytes),
                signature_bytes=held.setdefault(window.signature_bytes, window.signature_bytes),
                group_texts=held.setdefault(window.group_texts, window.group_texts),
                call_texts=held.setdefault(window.call_texts, window.call_texts),
            ),
        )


def traces(
    path: Path, ranks: Collection[int] | None = None, windows: Iterable[Window] | None = None
) -> Iterator[TraceColumns]:
    """Whole rings of ``ranks`` (all when None): the same dumps that ``read`` chose, in no certain order.

    Args:
        windows: what ``read`` gave for ``path``; read anew when not given.

    Cost: lists the folder and reads each ring as it is asked for; holds one ring at a time.

    Raises:
        FileNotFoundError, OSError: as ``read``.
    """
    found = survey(path)
    listing = _listed(found)
    chosen = read(path, found=found).windows if windows is None else windows
    wanted = {w.source: w.rank for w in chosen if ranks is None or w.rank in ranks}
    for task in listing.tasks:
        for blob in members(task):
            rank = wanted.pop(blob.name, None)
            if rank is not None:
                with contextlib.suppress(TraceError, UnreadableError):  # gone or changed since it was chosen
                    yield dumps.decoded(blob, rank)


def dump_names(found: Survey) -> set[str]:
    """Names of the files that are dumps by their name."""
    return set(_listed(found).named)


def _listed(found: Survey) -> _Listing:
    """Every file that may be a dump, with its rank."""
    listing = _Listing()
    blobs = found.blobs
    for name, reason in found.not_opened:
        if not name.lower().endswith(".pipe"):  # the recorder's own leftovers: one per rank, always empty
            listing.problems.append(InputProblem(name, reason))
    every = [*blobs, *(name for _, inside in found.streams for name in inside)]
    listing.named = {n.name: n for n in names.assign(every, lambda asked: _members_in(asked, blobs))}
    listing.tasks += [blob for name, blob in blobs.items() if name in listing.named]
    listing.tasks += [stream for stream, inside in found.streams if any(n in listing.named for n in inside)]
    listing.others = len(every) - len(listing.named)
    listing.rankless = sum(name not in listing.named and names.is_dump_like(name) for name in every)
    if not listing.named and not listing.rankless:
        listing.rankless = sum(map(_begins_as_pickle, itertools.islice(blobs.values(), _SNIFFED_MAX)))
    return listing


def _begins_as_pickle(blob: Blob) -> bool:
    """Whether a file of any name may be a dump: PyTorch pickles by protocol 2."""
    try:
        return next(iter(blob.stream(_SNIFFED_BYTES)), b"").startswith(b"\x80\x02")
    except UnreadableError:
        return False


def _members_in(asked: Sequence[tuple[str, int]], blobs: dict[str, Blob]) -> int:
    return sum(dumps.groups_with(blobs[name], rank) for name, rank in asked if name in blobs)


def _results(listing: _Listing, show: Show | None, processes: int | None) -> Iterator[Dump | InputProblem]:
    """Every dump, reduced, and every file that cannot be used."""
    named = listing.named
    several = {rank for rank, count in Counter(n.rank for n in named.values()).items() if count > 1}

    def each(blob: Blob) -> Iterator[Dump | InputProblem]:
        what = named.get(blob.name)
        result = None if what is None else dumps.load(blob, what, marked=what.rank in several)
        if isinstance(result, Unusable):
            yield InputProblem(result.source, result.reason, result.rank)
        elif result is not None:
            yield result

    order = _order(listing.tasks)
    for item in tasks.read(listing.tasks, each, show=show, processes=processes, order=order):
        if isinstance(item, InputProblem) and item.rank is None and item.source in named:
            yield replace(item, rank=named[item.source].rank)
        else:
            yield item


def _order(every: Sequence[Blob | Stream]) -> list[int]:
    return tasks.large_first(every)


def _title(path: Path) -> str:
    return label(path.name or str(path))


def _nothing(listing: _Listing) -> str:
    count = listing.others + len(listing.named) + len(listing.problems)
    if listing.rankless:
        return (
            f"{listing.rankless} of the {count} files may be dumps, but nothing in their names tells a rank: "
            "name them after it, as in trace_rank_3"
        )
    if count < 2:
        return "the file is no dump" if count else "the folder is empty"
    return f"none of the {count} files is a dump"


def _about_jobs(first: Job, others: Iterable[Job]) -> Iterator[InputProblem]:
    """Says that files of several jobs lie here, once per job that is not judged."""
    for job in others:
        yield InputProblem(
            job.name,
            f"files of another job, of {len(job.dumps)} ranks; judged here is {first.name} of "
            f"{len(first.dumps)} ranks, and nothing is mixed",
        )


def _about_clocks(choice: runs.Choice) -> Iterator[InputProblem]:
    if (one := choice.mended) is None:
        return
    ahead = runs.span(one.ahead_ns)
    reason = (
        f"its clock is {ahead} ahead of its peers': its times are set back by that"
        if one.clock
        else f"the time of a call lies {ahead} after all others and is passed over"
    )
    yield InputProblem(one.dump.source, reason, one.dump.rank)


def _about_mixed(choice: runs.Choice) -> Iterator[InputProblem]:
    """Says that ranks left dumps of two processes that nothing tells apart."""
    if choice.mixed_ranks:
        few = ", ".join(map(str, choice.mixed_ranks[:8])) + (", ..." if len(choice.mixed_ranks) > 8 else "")
        yield InputProblem(
            choice.jobs[0].dumps[0].source,
            f"ranks {few} left dumps of two processes at one time: files of two jobs may be mixed here, "
            "and no name tells them apart. The newer of each is judged",
        )


def _about_names(found: Numbering) -> str:
    if not found.unranked:
        return "file names number the processes of each host; the ranks are told by the groups in the dumps"
    return (
        "file names number the processes of each host, and the groups in the dumps do not tell which ranks "
        "these are: no rank can be named. Name the files after the global rank (TORCH_FR_DUMP_TEMP_FILE)"
    )


def _bounded(problems: list[InputProblem], path: Path) -> tuple[InputProblem, ...]:
    """By source, so many; the rest is counted."""
    ordered = sorted(problems, key=lambda problem: (problem.source, problem.reason))
    more = len(ordered) - PROBLEMS_MAX
    if more > 0:
        ordered[PROBLEMS_MAX:] = [InputProblem(_title(path), f"and {more} more files that cannot be used")]
    return tuple(ordered)
