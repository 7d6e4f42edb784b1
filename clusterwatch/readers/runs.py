"""Which of the dumps in a folder belong together: jobs side by side, earlier runs, several dumps of a rank.

In: all dumps. Out: ``Choice``: one ``Job`` or several, at most one dump per rank in each, and the dumps that
are left out, each with the reason. Nothing here depends on the order of the files.

How it is told: dumps far apart in time are of different runs; two dumps of a rank that share records are of
one process; two processes of one rank at one time are of two jobs; two after each other are a restart.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from itertools import pairwise
from typing import Final

from clusterwatch.readers import clocks, numbering
from clusterwatch.readers.clocks import Mended
from clusterwatch.readers.dumps import Dump, same_process
from clusterwatch.readers.names import PARTS
from clusterwatch.readers.numbering import Numbering

RUN_GAP_NS: Final = 30 * 60 * 1_000_000_000
"""Dumps of one stall hold calls of about one moment: no rank runs on for half an hour (the longest default
time-out of torch.distributed) while its peers wait in a call of a common group."""

RESTART_MIN_NS: Final = 2_000_000_000
"""No process is started anew and in its first collective within two seconds: importing torch takes longer."""

_DEPTH_MAX: Final = 12
_FOLDERS_MAX: Final = 64
"""More folders that each hold a whole job are runs of one, kept by its scheduler."""
_RESTART_FOLDER: Final = re.compile(r"(?:attempt|restart|retry|requeue)", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class Job:
    """Dumps of one run of one job, one per rank, by rank."""

    name: str
    """what its files have in common that those of other jobs have not; empty when there is one job only"""
    dumps: tuple[Dump, ...]
    world_size: int | None
    """size of the default group, when a dump tells it"""

    @property
    def newest_ns(self) -> int:
        return max((dump.newest_ns or 0 for dump in self.dumps), default=0)


@dataclass(frozen=True, slots=True)
class LeftOut:
    dump: Dump
    reason: str


@dataclass(slots=True)
class Choice:
    jobs: list[Job] = field(default_factory=list)
    """of the newest run: the largest first"""
    left_out: list[LeftOut] = field(default_factory=list)
    stale_only: list[Dump] = field(default_factory=list)
    """newest dump of each rank of which the first job has an old one only"""
    mixed_ranks: tuple[int, ...] = ()
    """ranks with dumps of two processes at one time that nothing tells apart"""
    mended: Mended | None = None
    """the dump whose times were ahead of its peers' and are used with earlier ones"""
    numbering: Numbering | None = None
    """of the newest run, where its names do not tell the ranks"""
    earlier: Job | None = None
    """the run before that of the first job, where its dumps are of as many ranks"""


def choose(dumps: Iterable[Dump]) -> Choice:
    """Sorts dumps into jobs and leaves out what is old. Cost: O(dumps x log dumps).

    Folders that hold all ranks of a job each are of different jobs, at whatever times these ran.
    """
    every = list(dumps)
    folders = _whole_jobs(every)
    parts = [(name, _choose(members)) for name, members in folders]
    if not parts or any(part.numbering is not None or len(part.jobs) != 1 for _, part in parts):
        return _choose(every)
    parts.sort(key=lambda part: (-len(part[1].jobs[0].dumps), -part[1].jobs[0].newest_ns, part[0]))
    first = parts[0][1]
    return replace(
        first,
        jobs=[replace(part.jobs[0], name=name) for name, part in parts],
        left_out=[left for _, part in parts for left in part.left_out],
    )


def _whole_jobs(dumps: list[Dump]) -> list[tuple[str, list[Dump]]]:
    """The folders, where each of several holds every rank of a job of its own; else none.

    Folders of restarts, and later looks at the processes of another folder, are of one job.
    """
    for depth in range(_DEPTH_MAX):
        folders = _split(dumps, _folder_key(depth)) if dumps else []
        if len(folders) < 2:
            continue
        whole = len(folders) <= _FOLDERS_MAX and all(map(_is_whole, folders))
        apart = whole and not any(
            _one_life(one, other)
            for number, (_, mine) in enumerate(folders)
            for _, theirs in folders[number + 1 :]
            for one, other in _same_rank(mine, theirs)
        )
        return folders if apart else []
    return []


def _is_whole(folder: tuple[str, list[Dump]]) -> bool:
    """Whether a folder holds a dump of each rank of its job, and is not called after a restart."""
    name, dumps = folder
    size = max((dump.world[0] for dump in dumps if dump.world), default=0)
    whole = size > 1 and {dump.rank for dump in dumps} >= set(range(size))
    return whole and not _RESTART_FOLDER.search(name)


def _same_rank(mine: list[Dump], theirs: list[Dump]) -> Iterator[tuple[Dump, Dump]]:
    """Pairs of one rank."""
    known = {dump.rank: dump for dump in mine}
    return ((known[dump.rank], dump) for dump in theirs if dump.rank in known)


def _one_life(one: Dump, other: Dump) -> bool:
    """Whether two rings can be of one process: they share records, or one begins after the other's last."""
    if same_process(one, other):
        return True
    if one.marks is None or other.marks is None or not len(one.marks[0]) or not len(other.marks[0]):
        return False
    old, new = sorted((one, other), key=_age_order)
    return old.marks is not None and new.marks is not None and bool(old.marks[0].max() < new.marks[0].min())


def _choose(dumps: Iterable[Dump]) -> Choice:
    """The jobs of the newest run."""
    choice = Choice()
    newest = _newest_run(sorted(dumps, key=_age_order), choice)
    conflicts = _conflicts(newest)
    settled = numbering.settle(newest, _clashing(newest))
    if settled.renumbered or settled.unranked:
        choice.numbering, newest = settled, settled.dumps
        conflicts = _conflicts(newest)
    parts = _parts(newest, conflicts)
    if len(parts) == 1 and conflicts:
        choice.mixed_ranks = tuple(sorted({one.rank for one, _ in conflicts}))
    for name, members in parts:
        choice.jobs.append(_job(name, members, choice))
    choice.jobs.sort(key=lambda job: (-len(job.dumps), -job.newest_ns, job.name))
    if choice.jobs:
        heard = {dump.rank for dump in choice.jobs[0].dumps}
        gone = {
            left.dump.rank: left.dump for left in sorted(choice.left_out, key=lambda x: _age_order(x.dump))
        }
        first = choice.jobs[0]
        alone = len(choice.jobs) == 1
        choice.stale_only = [gone[r] for r in sorted(gone.keys() - heard) if alone and _in_world(r, first)]
        choice.earlier = _earlier_run(choice.left_out, first)
    return choice


def _earlier_run(left_out: Iterable[LeftOut], first: Job) -> Job | None:
    """The newest of the older dumps that are of other processes than the first job's, one per rank."""
    kept = {dump.rank: dump for dump in first.dumps}
    older: dict[int, Dump] = {}
    for dump in sorted((left.dump for left in left_out), key=_age_order):
        if dump.rank in kept and not _one_life(dump, kept[dump.rank]):
            older[dump.rank] = dump
    if len(older) < 2 or len(older) < len(kept):
        return None
    return Job("an earlier run", tuple(older[rank] for rank in sorted(older)), first.world_size)


def _in_world(rank: int, job: Job) -> bool:
    return job.world_size is None or rank < job.world_size


def _age_order(dump: Dump) -> tuple[int, int, int, str]:
    """Oldest first. At equal times the dump with more calls, then with fewer open ones, is the newer."""
    window = dump.window
    return (dump.newest_ns or 0, window.entry_count, -int(window.groups["open_count"].sum()), dump.source)


def _newest_run(dumps: Sequence[Dump], choice: Choice) -> list[Dump]:
    """The dumps close in time to the newest one; the rest is left out. An empty ring tells no time."""
    timed = [dump for dump in dumps if dump.newest_ns is not None]
    start = max(0, len(timed) - 1)
    while start > 0 and (timed[start].newest_ns or 0) - (timed[start - 1].newest_ns or 0) <= RUN_GAP_NS:
        start -= 1
    if start and (mended := clocks.mend(timed[start:], timed[:start])) is not None:
        choice.mended = mended
        return sorted(
            [*(dump for dump in dumps if dump.newest_ns is None), *timed[:start], mended.dump], key=_age_order
        )
    last = timed[-1].newest_ns or 0 if timed else 0
    for dump in timed[:start]:
        choice.left_out.append(LeftOut(dump, _earlier(dump, last)))
    return [dump for dump in dumps if dump.newest_ns is None] + timed[start:]


def _earlier(dump: Dump, last_ns: int) -> str:
    mine = dump.newest_ns or 0
    return (
        f"stale: of an earlier run, its newest call is of {moment(mine)}, "
        f"{span(last_ns - mine)} before the newest dump here"
    )


def moment(at_ns: int) -> str:
    return f"{datetime.fromtimestamp(at_ns / 1e9, UTC):%Y-%m-%d %H:%M:%S} UTC"


def span(ns: int) -> str:
    seconds = ns / 1e9
    for unit, size in (("days", 86_400), ("h", 3_600), ("min", 60)):
        if seconds >= 2 * size:
            return f"{seconds / size:.0f} {unit}"
    return f"{seconds:.1f} s"


def _by_rank(dumps: Iterable[Dump]) -> dict[int, list[Dump]]:
    ranks: dict[int, list[Dump]] = defaultdict(list)
    for dump in dumps:
        ranks[dump.rank].append(dump)
    return ranks


def _conflicts(dumps: Sequence[Dump]) -> list[tuple[Dump, Dump]]:
    """Pairs of dumps of one rank whose processes ran at the same time: these cannot be of one job."""
    found = []
    for several in _by_rank(dumps).values():
        for number, one in enumerate(several):
            for other in several[number + 1 :]:
                if _overlap(one, other) and not same_process(one, other):
                    found.append((one, other))
    return found


def _clashing(dumps: Iterable[Dump]) -> bool:
    """Whether files of different series bear one number so close in time that none is of a restart."""
    return any(
        one.series != other.series and _overlap(one, other, RESTART_MIN_NS) and not same_process(one, other)
        for several in _by_rank(dumps).values()
        for one, other in pairwise(sorted(several, key=_age_order))
    )


def _overlap(one: Dump, other: Dump, apart_ns: int = 0) -> bool:
    """Whether two rings are of one time, or at most ``apart_ns`` apart."""
    if one.newest_ns is None or other.newest_ns is None:
        return False
    begun, other_begun = (one.oldest_ns or 0) - apart_ns, (other.oldest_ns or 0) - apart_ns
    return begun <= other.newest_ns and other_begun <= one.newest_ns


def _parts(dumps: list[Dump], conflicts: list[tuple[Dump, Dump]]) -> list[tuple[str, list[Dump]]]:
    """The dumps of each job, with what names the job. One part when nothing speaks for two."""
    if not dumps:
        return []
    if not conflicts:
        if len({dump.world for dump in dumps if dump.world}) < 2 or _is_resized(dumps):
            return [("", dumps)]
        split = next((key for key in _KEYS if _follows_world(dumps, key)), None)
        return _split(dumps, split) if split is not None else [("", dumps)]
    fitting = [key for key in (_world_key, *_KEYS) if all(key(a) != key(b) for a, b in conflicts)]
    if not fitting:
        return [("", dumps)]
    return _split(dumps, min(fitting, key=lambda key: len({key(dump) for dump in dumps})))


def _is_resized(dumps: list[Dump]) -> bool:
    """Whether a rank was started anew in a world of another size, as an elastic restart does."""
    timed = [dump for dump in dumps if dump.world and dump.newest_ns is not None]
    return any(
        one.world != other.world and not _overlap(one, other, RESTART_MIN_NS)
        for several in _by_rank(timed).values()
        for one, other in pairwise(sorted(several, key=_age_order))
    )


def _split(dumps: list[Dump], key: Callable[[Dump], Hashable]) -> list[tuple[str, list[Dump]]]:
    parts: dict[Hashable, list[Dump]] = defaultdict(list)
    for dump in dumps:
        parts[key(dump)].append(dump)
    named = [(_name(members, key), members) for members in parts.values()]
    return sorted(named, key=lambda part: (part[0], part[1][0].source))


def _name(members: list[Dump], key: Callable[[Dump], Hashable]) -> str:
    value = key(members[0])
    if isinstance(value, str) and value:
        return value
    return min(dump.source for dump in members)


def _follows_world(dumps: list[Dump], key: Callable[[Dump], Hashable]) -> bool:
    """Whether the names tell the worlds apart: each value of ``key`` has one world, and there are several.

    Without this, two lists of members in one set of files are two views of one job: the analysis judges.
    """
    worlds: dict[Hashable, set[Hashable]] = defaultdict(set)
    for dump in dumps:
        worlds[key(dump)].add(dump.world)
    return len(worlds) > 1 and all(len(found) == 1 for found in worlds.values()) and len(worlds) <= 8


def _world_key(dump: Dump) -> Hashable:
    return dump.world


def _prefix_key(dump: Dump) -> Hashable:
    return dump.prefix


def _folder_key(depth: int) -> Callable[[Dump], Hashable]:
    def key(dump: Dump) -> Hashable:
        folders = PARTS.split(dump.source)[:-1]
        return folders[depth] if depth < len(folders) else ""

    return key


_KEYS: Final = (_prefix_key, *map(_folder_key, range(_DEPTH_MAX)))
"""What of a name may tell jobs apart."""


def _job(name: str, dumps: list[Dump], choice: Choice) -> Job:
    """The newest dump of each rank, without those that a restart has overtaken."""
    kept: dict[int, Dump] = {}
    restarts = []
    for rank, several in sorted(_by_rank(dumps).items()):
        *older, kept[rank] = sorted(several, key=_age_order)
        for dump in older:
            choice.left_out.append(LeftOut(dump, _outdone(dump, kept[rank])))
            if not _overlap(dump, kept[rank]) and kept[rank].oldest_ns is not None:
                restarts.append(kept[rank].oldest_ns or 0)
    begun = min(restarts, default=0)
    for rank, dump in list(kept.items()):
        if dump.newest_ns is not None and dump.newest_ns < begun:
            del kept[rank]
            reason = (
                f"stale: its newest call is of {moment(dump.newest_ns)}, newer rings begin {moment(begun)}"
            )
            choice.left_out.append(LeftOut(dump, reason))
    sizes = [dump.world[0] for dump in kept.values() if dump.world]
    return Job(name, tuple(kept.values()), max(sizes, default=None))


def _outdone(dump: Dump, newer: Dump) -> str:
    if dump.newest_ns == newer.newest_ns and dump.window.entry_count == newer.window.entry_count:
        return f"stale: the same moment of rank {dump.rank} as in {newer.source}"
    return f"stale: an older dump of rank {dump.rank}; {newer.source} is newer"
