"""Transfers of a running job: from what its ranks tell of their calls to one time for each path and kind.

In: ``Edges``, a row per rank, step, group, operation and size, and the ``Paths`` of the job. Out: ``Cells``.
A call's duration holds waiting for who comes last; who comes last waits for nobody, so the least among the
members is the transfer. A path is a group, or the sends and receives of one rank in a group of more than two,
where nothing tells with whom. A path counts in a step where all its members told it; else it is unknown.

Two times are taken of each path: the lowest tenth of a step's calls, and the shortest of all. The first holds
waiting where each time another member comes last; the second never does, and hides what is slow now and then.
Cost: one sort of the rows.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

from clusterwatch.analysis.slow.layout import UNKNOWN, Layout, Members
from clusterwatch.analysis.slow.link_parts import crossing
from clusterwatch.analysis.slow.steps import SIZE_MIN_BYTES

Ints = NDArray[np.int64]
Floats = NDArray[np.float64]
Bools = NDArray[np.bool_]

P2P: Final = "p2p"
"""Sends and receives as one kind: both ends of one transfer."""
_P2P_OPS: Final = ("send", "recv")
TIME_MAX_S: Final = 3_600.0
"""A transfer that is said to take longer is no transfer."""


@dataclass(frozen=True, slots=True)
class Edges:
    """N rows in order of step and rank; what the wire's ``Edges`` tell, with the job's groups.

    Attributes:
        group: number of the group among the job's, ``UNKNOWN`` where the rank's inventory has no such one.
        op: index in ``ops``.
        count: calls that were timed.
        p10_s, min_s: of their durations.
        at_ns: when it was told.
    """

    rank: Ints
    step: Ints
    group: Ints
    op: Ints
    size_bytes: Ints
    count: Ints
    p10_s: Floats
    min_s: Floats
    at_ns: Ints
    ops: tuple[str, ...]

    def rows(self, which: Bools) -> Edges:
        """The rows chosen."""
        names = [name for name in Edges.__slots__ if name != "ops"]
        return Edges(**{name: getattr(self, name)[which] for name in names}, ops=self.ops)


@dataclass(frozen=True, slots=True)
class Paths:
    """What transfers go over: the job's groups, then one path for each rank's own sends and receives.

    Attributes:
        members: ranks of each path.
        key: (P,) the same for a path in every look: a group's number in the database, below 0 a rank's own.
        crosses: (P,) its calls leave an NVLink domain.
        group_count: paths that are groups; the others only support what groups show.
        is_timed_by_host: (P,) by the host's clock: sends and receives tell nothing of a transfer there.
        names: of all paths.
    """

    members: Members
    key: Ints
    crosses: Bools
    group_count: int
    is_timed_by_host: Bools
    names: tuple[str, ...]

    @property
    def count(self) -> int:
        return len(self.key)


def paths_of(
    layout: Layout, groups: Members, names: tuple[str, ...], keys: Ints, island: Ints, by_host: Bools
) -> Paths:
    """The paths of a job. Args: ``island``: (R,) index of each rank's NVLink domain, ``UNKNOWN`` if not told;
    ``keys``, ``by_host``: of the groups."""
    ranks = np.arange(layout.rank_count)
    start = np.concatenate((groups.start, groups.start[-1] + 1 + ranks))
    members = Members(start, np.concatenate((groups.ranks, ranks)))
    alone = np.ones(layout.rank_count, np.bool_)  # whom a rank sends to is not told; it is another node's
    return Paths(
        members, np.concatenate((keys, -1 - ranks)), np.concatenate((crossing(groups, island), alone)),
        groups.count, np.concatenate((by_host, np.zeros(layout.rank_count, np.bool_))),
        (*names, *(f"sends and receives of rank {rank}" for rank in ranks.tolist())),
    )  # fmt: skip


@dataclass(frozen=True, slots=True)
class Cells:
    """C measured (step, kind of call, path). A kind is operation, size, span and number of members.

    Attributes:
        row: index in ``steps``.
        kind: any number, alike for calls that should take alike.
        op, size_bytes: of the call.
        time_s, floor_s: the transfer's time by the lowest tenth and by the shortest of the calls.
        calls: a step's.
    """

    steps: Ints
    row: Ints
    path: Ints
    kind: Ints
    op: Ints
    size_bytes: Ints
    time_s: Floats
    floor_s: Floats
    calls: Floats
    ops: tuple[str, ...]


def measured(edges: Edges, steps: Ints, paths: Paths) -> Cells:
    """Transfer times in these steps (numbers, rising); what is told of other steps is left out."""
    ops = (*edges.ops, P2P)
    is_p2p_op = np.array([op in _P2P_OPS for op in ops], np.bool_)
    told = edges.rows(_usable(edges, steps, is_p2p_op, paths))
    sizes = paths.members.sizes()
    p2p = is_p2p_op[told.op] if len(told.op) else np.zeros(0, np.bool_)
    path = np.where(p2p & (sizes[told.group] > 2), paths.group_count + told.rank, told.group)
    op = np.where(p2p, len(ops) - 1, told.op)
    size, size_at = np.unique(told.size_bytes, return_inverse=True)
    row = np.searchsorted(steps, told.step)
    code = ((row * paths.count + path) * len(ops) + op) * max(1, len(size)) + size_at.reshape(-1)
    order = np.argsort(code, kind="stable")
    code, rank = code[order], told.rank[order]
    starts = np.flatnonzero(np.diff(code, prepend=-1))
    if not len(starts):
        return _none(steps, ops)
    is_new = np.concatenate(([True], (code[1:] != code[:-1]) | (rank[1:] != rank[:-1])))
    heard = np.add.reduceat(is_new.astype(np.int64), starts)
    at = order[starts]
    whole = heard == sizes[path[at]]
    time_s, floor_s = (np.minimum.reduceat(one[order], starts) for one in (told.p10_s, told.min_s))
    calls = np.add.reduceat(told.count[order], starts) / heard
    at = at[whole]
    span = sizes[path[at]] * 2 + paths.crosses[path[at]]
    kind = (span * len(ops) + op[at]) * len(size) + size_at.reshape(-1)[at]
    return Cells(
        steps, row[at], path[at], kind, op[at], told.size_bytes[at], time_s[whole], floor_s[whole],
        calls[whole], ops,
    )  # fmt: skip


def _usable(edges: Edges, steps: Ints, is_p2p_op: Bools, paths: Paths) -> Bools:
    """Rows of known paths that are large enough and whose times can be."""
    ok = (edges.group != UNKNOWN) & (edges.size_bytes >= SIZE_MIN_BYTES) & (edges.count > 0)
    ok &= (edges.min_s > 0) & (edges.p10_s >= edges.min_s) & (edges.p10_s < TIME_MAX_S)
    ok &= np.isin(edges.step, steps)
    if paths.group_count == 0:
        return np.zeros(len(ok), np.bool_)
    group = np.maximum(edges.group, 0)
    sizes = paths.members.sizes()[group]
    unclear = paths.is_timed_by_host[group] | ((sizes > 2) & ~paths.crosses[group])
    found: Bools = ok & (sizes > 1) & ~(is_p2p_op[edges.op] & unclear)
    return found


def _none(steps: Ints, ops: tuple[str, ...]) -> Cells:
    no, nothing = np.zeros(0, np.int64), np.zeros(0)
    return Cells(steps, no, no, no, no, no, nothing, nothing, nothing, ops)
