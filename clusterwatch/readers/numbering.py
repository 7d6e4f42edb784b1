"""Ranks of dumps whose names count the processes of each host, or contradict the groups in the dumps.

In: dumps of one run with the number that each file's name gives. Out: the same dumps under their ranks, or
the word that nothing tells them. A process is a member of every group its dump lists, and a send or receive
says which member it is, so groups that cross (tensor x data parallel) leave one rank per dump. Where they
leave several, the files of one series (a host's folder) are taken for consecutive ranks, as launchers place
them, and a rank is taken only if no other placing of the series fits.
"""

from __future__ import annotations

import functools
import re
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Final

from clusterwatch.analysis.tables import Window
from clusterwatch.readers.dumps import Dump
from collectors.formats.columns import members_of

_OWN_NUMBER: Final = re.compile(r"(?:send|recv) (\d{1,7})(?:->|<-)\d{1,7}")
"""A send or receive as the recorder names it: the first number is the process's own rank in the group."""
_SERIES_MAX: Final = 4_096
"""Folders whose placing is tried: one per host of the largest job."""
_ONE_CALL_NS: Final = 2_000_000_000
"""The members of a group issue a call so close together; clocks of hosts differ by less."""

Ranks = frozenset[int]


@dataclass(frozen=True, slots=True)
class Numbering:
    """Dumps with the ranks that hold."""

    dumps: list[Dump]
    renumbered: bool = False
    """ranks were read from the groups in the dumps, not from the names"""
    unranked: Mapping[int, Dump] = field(default_factory=dict)
    """dump by a number that is no rank: nothing tells which process of the job it is"""
    alike: bool = False
    """the groups cannot tell the unranked apart at all: under any numbers the verdict is the same"""


def settle(dumps: Sequence[Dump], clashing: bool) -> Numbering:
    """The dumps under their ranks.

    Args:
        dumps: of one run, each with the number in its name.
        clashing: files of different series bear one number at one time.

    Cost: O(dumps x groups).
    """
    held = {dump.source: _possible(dump.as_told or dump.window) for dump in dumps}
    hosts = clashing and _one_job_by_hosts(dumps)
    wrong = any(may is not None and dump.rank not in may for dump in dumps if (may := held[dump.source]))
    if not wrong and not hosts:
        return Numbering(list(dumps))
    ranks = _placed(dumps, held)
    if len(ranks) == len(dumps):
        again = [_under(dump, ranks[dump.source]) for dump in dumps]
        return Numbering(again, renumbered=ranks != {dump.source: dump.rank for dump in dumps})
    if not hosts:
        return Numbering(list(dumps))  # lists of members are known to lie; the names may be right
    order = sorted(dumps, key=lambda dump: (dump.series, dump.rank, dump.source))
    made = {number: _under(dump, number) for number, dump in enumerate(order)}
    alike = len(set(held.values())) == 1
    return Numbering(list(made.values()), unranked=made, alike=alike)


def _under(dump: Dump, rank: int) -> Dump:
    if rank == dump.rank:
        return dump
    return replace(dump, rank=rank, window=replace(dump.as_told or dump.window, rank=rank))


def _one_job_by_hosts(dumps: Iterable[Dump]) -> bool:
    """Whether equal numbers can be of one job's hosts: no series holds a whole job of its own.

    Two jobs side by side have a series each that is as long as its world, or more dumps than one world has.
    """
    every = list(dumps)
    sizes = {dump.world[0] for dump in every if dump.world}
    numbers: dict[str, set[int]] = defaultdict(set)
    for dump in every:
        numbers[dump.series].add(dump.rank)
    longest = max(map(len, numbers.values()))
    if len(numbers) < 2 or len(sizes) > 1 or sum(map(len, numbers.values())) != len(every):
        return False
    if not sizes:
        return _in_step(every)
    return longest < min(sizes) and len(every) <= min(sizes) and max(d.rank for d in every) < min(sizes)


def _in_step(dumps: Sequence[Dump]) -> bool:
    """Whether dumps that tell no members (gloo) are of one job: what two series share happens at one moment.

    A job numbers its groups through, so series that share no group have different numbers for equal roles;
    of two jobs each begins anew.
    """
    moments: dict[tuple[str, str, int], dict[str, int]] = defaultdict(dict)
    users: dict[tuple[str, str], set[str]] = defaultdict(set)
    for dump in dumps:
        told, calls = dump.window.told_groups, dump.window.calls
        rows = zip(*(calls[name].tolist() for name in ("group", "sequence", "created_ns")), strict=True)
        for group, sequence, created in rows:
            name, desc = told[group].name, told[group].desc
            users[name, desc].add(dump.series)
            moments[name, desc, sequence].setdefault(dump.series, created)
    shared = [times.values() for times in moments.values() if len(times) > 1]
    if not shared:
        descs = [
            {desc for (_, desc), names in users.items() if one in names} for one in {d.series for d in dumps}
        ]
        return all(len(names) == 1 for names in users.values()) and all(d == descs[0] for d in descs)
    return all(max(times) - min(times) <= _ONE_CALL_NS for times in shared)


def _possible(window: Window) -> Ranks | None:
    """Ranks that a dump can be of: members of all its groups. None where it tells of no group."""
    may: Ranks | None = None
    told = window.told_groups
    for group in told:
        if members := _member_set(group.runs):
            may = members if may is None else may & members
    for at, number in _own_numbers(window):
        ranks = told[at].ranks
        if number < len(ranks) and may is not None:
            may &= {ranks[number]}
    return may


@functools.lru_cache(maxsize=65_536)
def _member_set(runs: bytes) -> Ranks:
    """Cached: every rank of a job lists the world."""
    return frozenset(members_of(runs))


def _own_numbers(window: Window) -> set[tuple[int, int]]:
    """(group, rank in it) of the process, as its sends and receives tell."""
    found: set[tuple[int, int]] = set()
    both = [rows for rows in (window.p2p, window.p2p_pairs) if len(rows)]
    signatures = window.call_signatures if both else ()
    for rows in both:
        for group, signature in zip(rows["group"].tolist(), rows["signature"].tolist(), strict=True):
            match = _OWN_NUMBER.match(signatures[signature].op)
            if match is not None:
                found.add((group, int(match[1])))
    return found


def _placed(dumps: Sequence[Dump], held: Mapping[str, Ranks | None]) -> dict[str, int]:
    """Rank by source, of those that are certain; none twice."""
    ranks = {source: next(iter(may)) for source, may in held.items() if may is not None and len(may) == 1}
    series: dict[str, list[Dump]] = defaultdict(list)
    for dump in dumps:
        series[dump.series].append(dump)
    if len(series) <= _SERIES_MAX:
        shifts = _shifts(series, held)
        for name, members in series.items():
            if shifts.get(name) is not None:
                for dump in members:
                    ranks.setdefault(dump.source, dump.rank + (shifts[name] or 0))
    if len(set(ranks.values())) != len(ranks):
        return {}
    return ranks


def _shifts(series: Mapping[str, list[Dump]], held: Mapping[str, Ranks | None]) -> dict[str, int | None]:
    """What to add to the numbers of each series, where one value alone fits and leaves the others room."""
    fitting = {name: _fitting(members, held) for name, members in series.items()}
    found: dict[str, int | None] = {}
    taken: set[int] = set()
    while True:
        sure = [name for name, shifts in fitting.items() if name not in found and len(shifts) == 1]
        if not sure:
            return found
        for name in sure:
            found[name] = shift = next(iter(fitting[name]))
            taken |= {dump.rank + shift for dump in series[name]}
        for name, shifts in fitting.items():
            if name not in found:
                numbers = [dump.rank for dump in series[name]]
                fitting[name] = {s for s in shifts if not any(number + s in taken for number in numbers)}


def _fitting(members: Sequence[Dump], held: Mapping[str, Ranks | None]) -> set[int]:
    """Shifts under which each dump of a series is of a rank it can be of."""
    known = [(dump.rank, may) for dump in members if (may := held[dump.source]) is not None]
    if not known:
        return set()
    number, fewest = min(known, key=lambda one: (len(one[1]), one[0]))
    return {rank - number for rank in fewest if all(other + rank - number in may for other, may in known)}
