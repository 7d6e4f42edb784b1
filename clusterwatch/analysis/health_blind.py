"""What we cannot see: agents of a whole cluster, every gateway, and a stall that no hook tells of.

In: how long nodes and gateways have been silent; values per GPU slot in numpy. Out: a ``Finding`` of class
``blind``, or None. Absence accuses nobody: these findings name no part.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

from clusterwatch.analysis.model import Finding, Owner, Severity
from clusterwatch.analysis.verdicts import CATALOGUE

VERSION: Final = "v1"
SILENT_AFTER_S: Final = 10.0
"""An agent that a service manager starts again is back by then."""
SHARE_MIN_RATIO: Final = 0.5
"""More of a cluster's agents silent at once is our own line rather than so many hosts."""
NODES_MIN: Final = 2
INGEST_AFTER_S: Final = 15.0
"""Gateways write each second; one that is started again does so within this."""
BUSY_MIN_RATIO: Final = 0.9
MOVES_MIN_MIB_PER_S: Final = 100.0
STILL_MAX_MIB_PER_S: Final = 1.0
WAITING_MAX_RATIO: Final = 0.7
"""of the GPU's own power while its port moved data: a kernel that waits draws about half of a working one"""
LEARN_RATIO: Final = 0.1
"""weight of the newest value in what a GPU usually draws"""
STALLED_AFTER_S: Final = 120.0
"""Longer than a checkpoint's quiet moments at which the GPUs still look busy."""

Floats = NDArray[np.float32]
Ints = NDArray[np.int64]
Bools = NDArray[np.bool_]


def _finding(verdict: str, summary: str, confidence: float, why: tuple[str, ...]) -> Finding:
    row = CATALOGUE[verdict]
    return Finding(
        verdict=verdict,
        fault_class=row.fault_class,
        severity=Severity(row.severity),
        summary=summary[:200],
        rule=f"health.{verdict} {VERSION}",
        confidence=confidence,
        owner=Owner.INFRA,
        why=why,
        recommended_action=row.action,
    )


def _span(seconds: NDArray[np.float64]) -> str:
    low, high = f"{seconds.min():.0f}", f"{seconds.max():.0f}"
    return low if low == high else f"{low} to {high}"


def agents_silent(silent_s: NDArray[np.float64], closed: Bools) -> Finding | None:
    """Whether most agents of a cluster are silent. Columns of length N, one row per node of living gateways.

    Args:
        closed: its connection is gone; a node that said good-bye is no row.
    """
    silent = silent_s > SILENT_AFTER_S
    count, known = int(silent.sum()), len(silent_s)
    if known < NODES_MIN or count <= known * SHARE_MIN_RATIO:
        return None
    gone = int((silent & closed).sum())
    return _finding(
        "agents_silent",
        f"{count:,} of {known:,} agents of the cluster are silent at once: nothing is known of their nodes",
        0.9,
        (
            f"{gone:,} connections are closed, {count - gone:,} are open and silent",
            f"silent for {_span(silent_s[silent])} s",
            "so many hosts do not fail at once: look at what they share on the way to us",
        ),
    )


def ingest_down(silent_s: float) -> Finding | None:
    """Whether no gateway writes. ``silent_s``: since the newest word of any of them."""
    if silent_s <= INGEST_AFTER_S:
        return None
    return _finding(
        "ingest_down",
        "No gateway writes any more: nothing new is known of any node or job",
        0.95,
        (
            f"the newest word of a gateway is {silent_s:.0f} s old",
            "agents keep what they see and send it later",
        ),
    )


# --- stalls without a hook -------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Vitals:
    """Values of now per slot, NaN where unknown."""

    util_ratio: Floats
    power_w: Floats
    moved_mib_per_s: Floats
    """sent and received by the GPU's port"""


@dataclass(slots=True)
class Watch:
    """What is remembered per slot, length S."""

    working_w: Floats
    """what the GPU draws while its port moves data, NaN before it ever did"""
    since_ns: Ints
    """since when it looks busy and moves nothing, 0: it does not"""

    @classmethod
    def empty(cls, count: int) -> Watch:
        return cls(np.full(count, np.nan, np.float32), np.zeros(count, np.int64))

    def sized(self, count: int) -> Watch:
        """For so many slots: new ones are unknown."""
        added = max(0, count - len(self.since_ns))
        return Watch(
            np.append(self.working_w, np.full(added, np.nan, np.float32))[:count],
            np.append(self.since_ns, np.zeros(added, np.int64))[:count],
        )


def watch(before: Watch, now: Vitals, now_ns: int) -> Watch:
    """The next state. Cost: O(slots) in numpy. An unknown value starts nothing and ends what was."""
    busy = now.util_ratio >= BUSY_MIN_RATIO
    moves = busy & (now.moved_mib_per_s >= MOVES_MIN_MIB_PER_S) & ~np.isnan(now.power_w)
    learnt = np.where(
        np.isnan(before.working_w),
        now.power_w,
        before.working_w + LEARN_RATIO * (now.power_w - before.working_w),
    )
    working_w = np.where(moves, learnt, before.working_w).astype(np.float32)
    still = busy & (now.moved_mib_per_s < STILL_MAX_MIB_PER_S) & (now.power_w < WAITING_MAX_RATIO * working_w)
    since_ns = np.where(still, np.where(before.since_ns > 0, before.since_ns, now_ns), 0)
    return Watch(working_w, since_ns.astype(np.int64))


def stalled_unnamed(state: Watch, node: Ints, hooked: Bools, now_ns: int) -> Finding | None:
    """GPUs of several nodes that look busy, draw the power of waiting and move nothing, without any hook.

    Args:
        node: of each slot, 0: none.
        hooked: a rank with a hook is on the node; its own job's rules judge it.
    """
    mine = (node > 0) & ~hooked
    still = mine & (state.since_ns > 0) & (now_ns - state.since_ns >= STALLED_AFTER_S * 1e9)
    nodes, gpus = np.unique(node[still], return_counts=True)
    whole, of_node = np.unique(node[mine & ~np.isnan(state.working_w)], return_counts=True)
    size = of_node[np.searchsorted(whole, nodes)] if len(nodes) else gpus
    stuck = nodes[gpus == size]
    if len(stuck) < NODES_MIN:
        return None
    count = int(gpus[gpus == size].sum())
    for_s = (now_ns - int(state.since_ns[still & np.isin(node, stuck)].max())) / 1e9
    return _finding(
        "stalled_unnamed",
        f"{count:,} GPUs of {len(stuck):,} nodes look busy, draw the power of waiting and move no data; "
        "no hook tells which rank they wait for",
        0.5,
        (
            f"for at least {for_s:.0f} s, after they had moved data while busy",
            f"power below {WAITING_MAX_RATIO:.0%} of what each drew then",
            "without a hook nobody can be named: start the job with clusterwatch-run",
        ),
    )
