"""A job's calls with the layout that fits them, and the end of the log for the hang side.

In: ``Calls`` as read, a ``Layout`` as declared. Out: ``CallLog``.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

import numpy as np
from numpy.typing import NDArray

from clusterwatch.analysis.slow import tail
from clusterwatch.analysis.slow.calls import Calls, tidied
from clusterwatch.analysis.slow.layout import UNKNOWN, Layout, Members, derived, is_consistent
from collectors.formats.columns import TraceColumns

Ints = NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class CallLog:
    """Made by ``call_log``: calls tidied, layout checked."""

    calls: Calls
    layout: Layout
    members: Members
    is_layout_told: bool
    """the declared layout fits the calls"""
    names: Mapping[int, str] = field(default_factory=dict)
    """where nothing tells the ranks: process id by number, the hosts are those of the layout"""
    is_inspected: bool = False
    """made of NCCL Inspector logs: hosts have names, steps are counted from the beginning of the logs"""
    has_steps: bool = True
    """False where the steps are but equal parts of the log"""
    is_lossy: bool = False
    """lines are known to be lost"""
    is_blind: bool = False
    """calls that ranks may have waited in are not logged, so that no gap is known to be work"""

    @property
    def reported(self) -> int:
        """Ranks with any call."""
        return len(np.unique(self.calls.rank))


def call_log(calls: Calls, layout: Layout) -> CallLog:
    """Puts calls in order and checks the layout against them; where it lies, it is derived."""
    calls = tidied(calls.rows((calls.rank < layout.rank_count) & (calls.peer < layout.rank_count)))
    told = _stage_told(calls, layout.rank_count)
    members = Members.of(calls.group, calls.rank, len(calls.groups))
    fits = bool(np.all((told == UNKNOWN) | (told == layout.stage)))
    if layout.is_declared and fits and is_consistent(layout.stage, layout.replica, members):
        return CallLog(calls, layout, members, True)
    sizes = members.sizes()
    batched = np.bincount(calls.group, calls.microbatch >= 0, len(calls.groups)) > 0
    stage, replica = derived(
        layout.rank_count, members, told, batched.tolist(),
        (sizes == layout.rank_count).tolist(),
    )  # fmt: skip
    known = replace(layout, stage=stage, replica=replica, is_declared=False)
    return CallLog(calls, known, members, False)


def _stage_told(calls: Calls, rank_count: int) -> Ints:
    """Stage by rank from names such as ``recv_f1``: the stage of the rank that makes the call."""
    told = [int(op[6:]) if op[:4] in ("send", "recv") and op[6:].isdecimal() and len(op) < 10 else UNKNOWN
            for op in calls.ops]  # fmt: skip
    found = np.full(rank_count, UNKNOWN)
    by_row = np.array(told, np.int64)[calls.op] if told else np.zeros(0, np.int64)
    np.maximum.at(found, calls.rank, by_row)
    return found


def hang_traces(log: CallLog) -> tuple[TraceColumns, ...]:
    """The log's end for the hang side; empty where every call ended."""
    return tail.traces(log.calls, log.members)
