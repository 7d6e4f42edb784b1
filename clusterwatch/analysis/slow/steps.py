"""What each rank did in each step: its own work, its input, its checkpoint, and how long transfers took.

In: ``Calls`` and a ``Layout``. Out: ``StepTable``, arrays of steps x ranks and steps x groups. The gap before
a blocking call is the time from leaving the one before it, on one clock: work, being fed late, or a host that
was late to launch. Sends run beside the work and bound no gap. Gaps count where peers of the same stage have
them too, so that lost rows and steps of another shape compare like with like. Cost: O(n log n).
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from clusterwatch.analysis.slow import quantiles
from clusterwatch.analysis.slow.calls import COMPLETED, NEVER, Calls, coded
from clusterwatch.analysis.slow.layout import Layout, Members

Ints = NDArray[np.int64]
Floats = NDArray[np.float64]
Bools = NDArray[np.bool_]

NS_PER_S = 1e9
USUAL_RATIO = 0.2
"""A gap that fewer rank-steps of a stage have than this is of a rare kind: an evaluation, a lost row."""
EVERY_RATIO = 0.9
"""A barrier that fewer steps have than this ends something rare: a checkpoint."""
KNOWN_RATIO = 0.5
"""Of a step's usual work at least this much must be known, else the rank's step is unknown."""
LATE_LAUNCH_RATIO = 0.3
"""A call enqueued less than this share of its gap before it started: the host no longer runs ahead."""
_WINDOW_NS = 2**38
"""A step of a rank is shorter than this (275 s); what is longer counts as no time."""


@dataclass(frozen=True, slots=True)
class StepTable:
    """Times in seconds, NaN where unknown. S steps (``steps`` holds their numbers), R ranks.

    Attributes:
        work: (S, R) own work between calls, in parts that peers have, too.
        usual: (S, R) what the same parts take usually on a rank of that stage.
        first_gap: (S, R) before the first call of a step: the input.
        rare_gap: (S, R) before a barrier that not every step has: the checkpoint's write.
        late_launch: (S, R) share of calls that the host enqueued only just before they started, 0 to 1.
        step_s: (S,) from step to step, the median over ranks.
        stage_work: (stages,) usual work of a step by stage, with the work before its first call.
        transfers: one per kind of call and size.
        paths: ranks of each group, and behind the groups of each pair that sends point to point.
    """

    steps: Ints
    work: Floats
    usual: Floats
    first_gap: Floats
    rare_gap: Floats
    late_launch: Floats
    step_s: Floats
    stage_work: Floats
    transfers: tuple[Transfer, ...]
    layout: Layout
    paths: Members
    path_names: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Transfer:
    """Calls of one kind that should take alike: same operation, size and span.

    Attributes:
        groups: (G,) indices of the paths that make them: groups, and pairs of ranks that send to each other.
        time_s: (S, G) transfer time of the last to arrive, which waits for nobody; NaN where unknown.
        calls: calls a step.
    """

    op: str
    size_bytes: int
    crosses_nodes: bool
    groups: Ints
    time_s: Floats
    calls: float


def table(calls: Calls, layout: Layout, members: Members) -> StepTable:
    """Everything the detectors need. ``calls`` must be tidied and of ranks of the layout."""
    done = calls.rows((calls.state == COMPLETED) & (calls.start_ns != NEVER) & (calls.end_ns != NEVER))
    path, paths, names = _paths(done, members)
    blocking = done.rows(~done.is_send)
    steps = np.unique(blocking.step)
    shape = (len(steps), layout.rank_count)
    row = np.searchsorted(steps, blocking.step)
    cell = row * shape[1] + blocking.rank
    gap_s, is_first = _gaps(blocking, cell)
    gap_s[_near_lost(blocking)] = np.nan
    pair = _pairs(blocking, layout, is_first)
    is_rare = blocking.is_barrier & (_share(blocking) < EVERY_RATIO)
    work, usual, stage_work = _work(gap_s, pair, cell, ~is_first & ~is_rare, shape, layout.stage)
    stage_work = stage_work + _first_work(blocking, gap_s, is_first, ~is_first & ~is_rare, layout.stage)
    return StepTable(
        steps=steps,
        work=work,
        usual=usual,
        first_gap=_placed(gap_s, cell, is_first, shape),
        rare_gap=_placed(gap_s, cell, is_rare & ~is_first, shape),
        late_launch=_late_launch(blocking, gap_s, cell, shape),
        step_s=_step_s(blocking, cell, shape),
        stage_work=stage_work,
        transfers=_transfers(done, path, steps, paths, layout),
        layout=layout,
        paths=paths,
        path_names=names,
    )


def _gaps(calls: Calls, cell: Ints) -> tuple[Floats, Bools]:
    """(seconds from the end of all earlier calls of the rank's step to each start, first of its step).

    Before the first call of a step stands the gap from the step before. Calls that overlap an earlier one
    have no gap.
    """
    count = len(calls)
    if not count:
        return np.zeros(0), np.zeros(0, np.bool_)
    is_first = np.concatenate(([True], cell[1:] != cell[:-1]))
    begin = np.flatnonzero(is_first)
    index = np.cumsum(is_first) - 1
    origin = calls.start_ns[begin][index]
    end = np.clip(calls.end_ns - origin, 0, _WINDOW_NS - 1) + index * _WINDOW_NS
    latest = np.maximum.accumulate(end)
    gap = np.full(count, np.nan)
    inner = np.flatnonzero(~is_first)
    gap[inner] = calls.start_ns[inner] - origin[inner] - (latest[inner - 1] - index[inner] * _WINDOW_NS)
    last = np.concatenate((begin[1:], [count])) - 1
    last_end = latest[last] - index[last] * _WINDOW_NS + origin[last]
    follows = (calls.rank[begin[1:]] == calls.rank[begin[:-1]]) & (
        calls.step[begin[1:]] == calls.step[begin[:-1]] + 1
    )
    between = calls.start_ns[begin[1:]] - last_end[:-1]
    gap[begin[1:]] = np.where(follows, between, np.nan)
    return np.maximum(gap, 0) / NS_PER_S, is_first


def _near_lost(calls: Calls) -> Bools:
    """Gaps that may hold a call whose row is lost: those since the rank's last call of a stream that jumps.

    A stream has one counter: a group's collectives, or its calls of one point-to-point operation.
    """
    stream = np.where(calls.is_p2p, calls.op + 1, 0)
    order = np.lexsort((calls.sequence, stream, calls.group, calls.rank))
    same = np.ones(max(0, len(order) - 1), np.bool_)
    for column in (calls.rank, calls.group, stream):
        same &= column[order[1:]] == column[order[:-1]]
    jumps = same & (calls.sequence[order[1:]] - calls.sequence[order[:-1]] > 1)
    edge = np.zeros(len(calls) + 1, np.int64)
    first = np.minimum(order[:-1], order[1:])[jumps] + 1
    last = np.maximum(order[:-1], order[1:])[jumps] + 1
    np.add.at(edge, first, 1)
    np.add.at(edge, last, -1)
    found: Bools = np.cumsum(edge[:-1]) > 0
    return found


def _pairs(calls: Calls, layout: Layout, is_first: Bools) -> Ints:
    """A number for each kind of gap: stage, and both calls' operation, micro-batch and sort of group."""
    kind = _kinds(calls)
    before = np.concatenate(([0], kind[:-1] + 1))
    before[is_first] = 0
    span = int(kind.max(initial=0)) + 2
    stage = layout.stage[calls.rank] + 1
    code = (stage * span + before) * span + kind
    return coded(code)[1]


def _kinds(calls: Calls) -> Ints:
    """A number for each sort of call: operation, micro-batch, size."""
    sizes = coded(calls.size_bytes)[1]
    batches = calls.microbatch - calls.microbatch.min(initial=0)
    wide = int(batches.max(initial=0)) + 1
    code = (sizes * (len(calls.ops) + 1) + calls.op) * wide + batches
    return coded(code)[1]


def _share(calls: Calls) -> Floats:
    """Share of the steps in which a call's operation happens at all, by call."""
    steps = calls.step
    wide = int(steps.max(initial=0)) + 1
    seen = np.unique(calls.op * wide + steps)
    per_op = np.bincount(seen // wide, minlength=len(calls.ops))
    found: Floats = (per_op / max(1, len(np.unique(steps))))[calls.op]
    return found


def _work(
    gap_s: Floats, pair: Ints, cell: Ints, counts: Bools, shape: tuple[int, int], stage: Ints
) -> tuple[Floats, Floats, Floats]:
    """(work, usual work of the same parts, usual work by stage)."""
    pair_count = int(pair.max(initial=-1)) + 1
    typical = _typical(gap_s, pair, counts, pair_count)
    stage_count = int(stage.max(initial=0)) + 1
    heard = np.bincount(stage[np.unique(cell) % shape[1]], minlength=stage_count)
    pair_stage = np.zeros(pair_count, np.int64)
    pair_stage[pair] = stage[cell % shape[1]] if len(pair) else 0
    often = np.bincount(pair[counts], minlength=pair_count) / np.maximum(1, heard[pair_stage])
    is_usual = often >= USUAL_RATIO
    use = counts & is_usual[pair] & ~np.isnan(gap_s)
    work = _sums(cell[use], gap_s[use], shape[0] * shape[1]).reshape(shape)
    usual = _sums(cell[use], typical[pair[use]], shape[0] * shape[1]).reshape(shape)
    expected = np.where(is_usual, typical * np.minimum(1, often), 0.0)
    whole = _sums(pair_stage, expected, stage_count)
    known = usual >= KNOWN_RATIO * whole[stage][None, :]
    known &= usual > 0
    return np.where(known, work, np.nan), np.where(known, usual, np.nan), whole


_FIRST_RATIO = 0.2
"""Quantile of the gaps before calls like a step's first: forward passes, shorter than backward ones."""


def _first_work(calls: Calls, gap_s: Floats, is_first: Bools, counts: Bools, stage: Ints) -> Floats:
    """What of the gap before a step's first call is work, by stage, seconds.

    A first stage computes its first micro-batch there, behind the input; the others wait for a message. It is
    as much as comes before calls of that kind later in the step, and no more than the gap.
    """
    sort = calls.op * (int(calls.size_bytes.max(initial=0)) + 1) + calls.size_bytes
    mine, known = stage[calls.rank], ~np.isnan(gap_s)
    found = np.zeros(int(stage.max(initial=0)) + 1)
    for number in range(len(found)):
        first = np.flatnonzero(is_first & known & (mine == number))
        if not len(first):
            continue
        kinds, times = np.unique(sort[first], return_counts=True)
        alike = counts & known & (mine == number) & (sort == kinds[np.argmax(times)])
        if alike.any():
            found[number] = min(float(quantiles.low(gap_s[rows], _FIRST_RATIO)) for rows in (alike, first))
    return found


def _sums(place: Ints, values: Floats, count: int) -> Floats:
    """Sum of the values by place."""
    return np.bincount(place, values, count).astype(np.float64)


def _typical(gap_s: Floats, pair: Ints, counts: Bools, pair_count: int) -> Floats:
    """Median gap of each kind, seconds."""
    rows = np.flatnonzero(counts & ~np.isnan(gap_s))
    order = rows[np.lexsort((gap_s[rows], pair[rows]))]
    per_pair = np.bincount(pair[rows], minlength=pair_count)
    start = np.concatenate(([0], np.cumsum(per_pair)[:-1])).astype(np.int64)
    typical = np.zeros(pair_count)
    some = per_pair > 0
    typical[some] = gap_s[order[start[some] + (per_pair[some] - 1) // 2]]
    return typical


def _placed(gap_s: Floats, cell: Ints, which: Bools, shape: tuple[int, int]) -> Floats:
    found = np.full(shape[0] * shape[1], np.nan)
    found[cell[which]] = gap_s[which]
    return found.reshape(shape)


def _late_launch(calls: Calls, gap_s: Floats, cell: Ints, shape: tuple[int, int]) -> Floats:
    """Share of each rank-step's calls with a gap that the host enqueued only just before they started."""
    counts = (gap_s > 0) & (calls.enqueue_ns != NEVER)
    ahead_s = (calls.start_ns - calls.enqueue_ns) / NS_PER_S
    late = counts & (ahead_s < LATE_LAUNCH_RATIO * gap_s)
    total = _sums(cell[counts], gap_s[counts], shape[0] * shape[1])
    share = _sums(cell[late], gap_s[late], shape[0] * shape[1]) / np.where(total > 0, total, np.nan)
    return share.reshape(shape)


def _step_s(calls: Calls, cell: Ints, shape: tuple[int, int]) -> Floats:
    """From the last end of one step to the last end of the next, the median over ranks, seconds."""
    last = np.full(shape[0] * shape[1], np.iinfo(np.int64).min)
    np.maximum.at(last, cell, calls.end_ns)
    ends = last.reshape(shape)
    known = ends != np.iinfo(np.int64).min
    length = np.full(shape, np.nan)
    both = known[1:] & known[:-1]
    length[1:][both] = (ends[1:] - ends[:-1])[both] / NS_PER_S
    return quantiles.median(length, axis=1)


# --- transfers -------------------------------------------------------------------------------------------

SIZE_MIN_BYTES = 65_536
"""Smaller messages tell of latency and of noise, not of a link."""
_EARLY_RATIO = 0.3
"""Of a step's calls of one kind this quantile stands for the step."""


def _paths(calls: Calls, members: Members) -> tuple[Ints, Members, tuple[str, ...]]:
    """(path by call, ranks by path, names): groups, and behind them the pairs of point-to-point calls."""
    is_p2p = calls.is_p2p & (calls.peer >= 0)
    one, other = calls.rank[is_p2p], calls.peer[is_p2p]
    wide = int(max(one.max(initial=0), other.max(initial=0))) + 1
    codes, place = coded(np.minimum(one, other) * wide + np.maximum(one, other))
    pairs = np.stack((codes // wide, codes % wide))
    path = calls.group.copy()
    path[is_p2p] = members.count + place
    start = members.start[-1] + 2 * np.arange(1, pairs.shape[1] + 1)
    both = Members(
        np.concatenate((members.start, start)), np.concatenate((members.ranks, pairs.T.reshape(-1)))
    )
    names = (*calls.groups, *(f"{one} and {other}" for one, other in pairs.T.tolist()))
    return path, both, names


def _transfers(done: Calls, path: Ints, steps: Ints, paths: Members, layout: Layout) -> tuple[Transfer, ...]:
    """Transfer times by kind; a call counts where all its members are known."""
    is_big = done.size_bytes >= SIZE_MIN_BYTES
    big, path = done.rows(is_big), path[is_big]
    if not len(big):
        return ()
    direction = np.fromiter((_direction(op) for op in big.ops), np.int64, len(big.ops))[big.op]
    what = np.where(big.is_p2p, len(big.ops) + direction, big.op)
    size, size_of = coded(big.size_bytes)
    kind, row = what * len(size) + size_of, np.searchsorted(steps, big.step)
    key = np.stack((kind, big.sequence, path * len(steps) + row))
    order = np.lexsort(key)
    key = key[:, order]
    begin = np.flatnonzero(np.concatenate(([True], np.any(key[:, 1:] != key[:, :-1], axis=0))))
    count = np.diff(np.concatenate((begin, [key.shape[1]])))
    time_s = np.minimum.reduceat((big.end_ns - big.start_ns)[order] / NS_PER_S, begin)
    (kind, _, place), wide = key[:, begin], len(steps)
    path, rows = place // wide, place % wide
    sizes, crosses = paths.sizes(), _crosses(paths, layout)
    whole = (count == sizes[path]) & (time_s > 0) & (sizes[path] > 1)
    span, spans = coded((sizes * 2 + crosses)[path])
    kinds, number_of = coded((kind * len(span) + spans)[whole])
    path, rows, time_s, found = path[whole], rows[whole], time_s[whole], []
    for number, code in enumerate(kinds.tolist()):
        mine = number_of == number
        op_number, size_number = divmod(code // len(span), len(size))
        op = big.ops[op_number] if op_number < len(big.ops) else f"p2p_{'fb'[op_number - len(big.ops)]}"
        measured = _measured(path[mine], rows[mine], time_s[mine], len(steps))
        is_far = bool(span[code % len(span)] % 2)
        found.append(Transfer(op, int(size[size_number]), is_far, *measured))
    return tuple(found)


def _direction(op: str) -> int:
    """0 forward, 1 backward."""
    return 1 if op[:6] in ("send_b", "recv_b") else 0


def _crosses(members: Members, layout: Layout) -> Ints:
    """1 for groups with members on more than one node, by group."""
    sizes = members.sizes()
    if not len(members.ranks):
        return np.zeros(members.count, np.int64)
    node = layout.node[members.ranks]
    start = np.minimum(members.start[:-1], len(node) - 1)
    differs = np.maximum.reduceat(node, start) != np.minimum.reduceat(node, start)
    return np.where(sizes > 0, differs, False).astype(np.int64)


def _measured(path: Ints, row: Ints, time_s: Floats, step_count: int) -> tuple[Ints, Floats, float]:
    """(paths, their transfer time by step, calls a step) of one kind."""
    paths, column = np.unique(path, return_inverse=True)
    cell = row * len(paths) + column.reshape(-1)
    order = np.lexsort((time_s, cell))
    per_cell = np.bincount(cell, minlength=step_count * len(paths))
    start = np.concatenate(([0], np.cumsum(per_cell)[:-1])).astype(np.int64)
    some = np.flatnonzero(per_cell)
    place = start[some] + (_EARLY_RATIO * (per_cell[some] - 1)).astype(np.int64)
    found = np.full(step_count * len(paths), np.nan)
    found[some] = time_s[order][place]
    calls = float(per_cell.sum()) / max(1, len(some))
    return paths.astype(np.int64), found.reshape(step_count, len(paths)), calls
