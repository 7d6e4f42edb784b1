"""The end of a collective log as flight-recorder traces: the hang side judges it as it judges dumps.

In: ``Calls``. Out: a trace per rank with its newest calls, where some call never ended; none where all did. A
row that says a call is open while the same rank went on in the same group is an old view of it, not a hang.
"""

from __future__ import annotations

from typing import Final

import numpy as np
from numpy.typing import NDArray

from clusterwatch.analysis.slow.calls import COMPLETED, NEVER, Calls
from clusterwatch.analysis.slow.layout import Members
from clusterwatch.analysis.tables import COLLECTIVE_LOG
from collectors.formats.columns import NULL, Entries, Signature, TraceColumns
from collectors.formats.trace import TraceGroup

Ints = NDArray[np.int64]

KEPT_CALLS: Final = 96
"""Newest calls of a rank that are kept: several micro-batches."""


def open_rows(calls: Calls) -> NDArray[np.bool_]:
    """Calls that never ended and that no later call of the rank in that group and kind outdates."""
    is_open = calls.state != COMPLETED
    if not is_open.any():
        return np.zeros(len(calls), np.bool_)
    place = np.where(calls.is_p2p, calls.op + 1, 0)
    key = (calls.rank * (int(calls.group.max()) + 1) + calls.group) * (len(calls.ops) + 2) + place
    keys, index = np.unique(key, return_inverse=True)
    newest = np.full(len(keys), -1)
    done = ~is_open
    np.maximum.at(newest, index[done], calls.sequence[done])
    current: NDArray[np.bool_] = is_open & (calls.sequence > newest[index])
    return current


def stuck_step(calls: Calls) -> int | None:
    """The earliest step with a call that never ended."""
    rows = np.flatnonzero(open_rows(calls))
    return int(calls.step[rows].min()) if len(rows) else None


def traces(calls: Calls, members: Members) -> tuple[TraceColumns, ...]:
    """One per rank with rows. ``calls`` are tidied."""
    is_open = open_rows(calls)
    if not is_open.any():
        return ()
    calls = calls.rows((calls.state == COMPLETED) | is_open)
    groups = tuple(
        TraceGroup(name, name.partition(":")[0], tuple(members.of_group(group).tolist()))
        for group, name in enumerate(calls.groups)
    )
    begin = np.searchsorted(calls.rank, np.unique(calls.rank))
    ends = np.concatenate((begin[1:], [len(calls)]))
    return tuple(
        _trace(
            calls.rows(np.arange(max(first, end - KEPT_CALLS), end)),
            end - first > KEPT_CALLS,
            groups,
            members,
        )
        for first, end in zip(begin.tolist(), ends.tolist(), strict=True)
    )


def _trace(calls: Calls, is_cut: bool, groups: tuple[TraceGroup, ...], members: Members) -> TraceColumns:
    rank, entries = int(calls.rank[0]), Entries()
    signatures: dict[Signature, int] = {}
    used = {group: number for number, group in enumerate(np.unique(calls.group).tolist())}
    sends: dict[int, int] = {}
    is_p2p = calls.is_p2p.tolist()
    for row in range(len(calls)):
        group = int(calls.group[row])
        call = _signature(calls, row, rank, members, is_p2p[row])
        sends[group] = sends.get(group, 0) + is_p2p[row]
        values = {
            "record_id": row + is_cut,
            "group": used[group],
            "sequence": 0 if is_p2p[row] else int(calls.sequence[row]),
            "p2p_sequence": sends[group] if is_p2p[row] else 0,
            "op_id": row,
            "signature": signatures.setdefault(call, len(signatures)),
            "stack": 0,
            "state": int(calls.state[row]),
            "retired": int(calls.state[row] == COMPLETED),
            "created_ns": int(calls.enqueue_ns[row]),
            "started_ns": _time(int(calls.start_ns[row])),
            "completed_ns": _time(int(calls.end_ns[row])),
            "duration_ns": NULL,
            "timeout_ms": NULL,
        }
        for name, value in values.items():
            getattr(entries, name).append(value)
    mine = tuple(groups[group] for group in used)
    return TraceColumns(rank, COLLECTIVE_LOG, "nccl", mine, tuple(signatures), ((),), entries)


def _time(value: int) -> int:
    return NULL if value == NEVER else value


def _signature(calls: Calls, row: int, rank: int, members: Members, is_p2p: bool) -> Signature:
    op, size = calls.ops[calls.op[row]], ((int(calls.size_bytes[row]),),)
    if not is_p2p:
        return Signature(op, False, size, size, ("Byte",), ("Byte",))
    ranks = members.of_group(int(calls.group[row]))
    own, peer = np.searchsorted(ranks, rank), np.searchsorted(ranks, calls.peer[row])
    return Signature(
        f"{op[:4]} {own}{'->' if op.startswith('send') else '<-'}{peer}",
        True,
        size,
        size,
        ("Byte",),
        ("Byte",),
    )
