"""Whether a signal can be the cause by its time: ends, clocks, order across hosts, and NCCL's patience.

In: signals, an onset. Out: a word on each, the first of several, how long a link may be down. Times of two
machines are compared only as far as their clocks are known to agree.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import replace
from enum import StrEnum
from typing import Final

from clusterwatch.analysis.correlate_model import Candidate, Onset, Retries
from clusterwatch.analysis.health_kinds import ENDS, OVER
from clusterwatch.analysis.signals import Signal

CLOCK_ERROR_S: Final = 1.0
"""Of a machine that does not say how well its clock is kept; as a rule it is within milliseconds."""
CLOCK_LOST_S: Final = 3_600.0
"""Of a machine that says that nothing keeps its clock, or that it was set."""
CLOCK_FAULTS: Final = frozenset({"clock_unsynchronised", "clock_step"})
NEAR_S: Final = 60.0
RECENT_S: Final = 600.0
OLD_S: Final = 3_600.0
"""A fault that the job has lived with for longer is context."""
NEAR_WEIGHT: Final = 1.0
RECENT_WEIGHT: Final = 0.75
EARLIER_WEIGHT: Final = 0.5
LATE_S: Final[Mapping[str, float]] = {
    "throttle": 30.0, "rate_degraded": 10.0, "pcie_degraded": 10.0, "nfs_server_stalled": 30.0,
    "mount_stall": 30.0, "mount_probe_stuck": 120.0, "gpu_read_hung": 30.0, "link_down": 2.0,
    "gpu_lost": 15.0, "recovery_action": 15.0, "ecc": 15.0, "fabric_fault": 15.0,
}  # fmt: skip
"""How long after its beginning a fault may be told. Source: periods and hold times of ``collectors.sources``;
a line of the kernel's log has its own time."""
FROM_LOG: Final = "kernel_log"
FLAP_S: Final = 2.0
"""A ``link_flap`` is told where a port was seen down and up within one look."""

ACK_UNIT_S: Final = 4.096e-6
"""Source: InfiniBand Architecture Specification, volume 1, Local ACK Timeout: 4.096 us x 2^timeout; a
requester may wait up to four times as long for each try."""
ACK_STRETCH: Final = 4.0
RETRY_COUNT: Final = 7
TIMEOUTS: Final = (18, 20)
"""Defaults of NCCL before and since 2.23. Source: NCCL user guide, NCCL_IB_TIMEOUT, NCCL_IB_RETRY_CNT."""
TIMEOUT_ENDLESS: Final = 32
"""0, or from here on, NCCL's transport waits without end."""


class When(StrEnum):
    FITS = "fits"
    AFTER = "began after the trouble did, beyond what the clocks may be off"
    BEFORE = "was over before the trouble began"
    OLD = "the job had lived with it for over an hour"


def with_ends(signals: Sequence[Signal]) -> list[Signal]:
    """Signals in the order of their times, with the ends that others tell of them; those are left out."""
    told: list[Signal] = []
    begun: dict[tuple[int | None, str, str], list[int]] = defaultdict(list)
    for one in sorted(signals, key=lambda one: one.at_ns):
        ended = one.fields.get("kind", "") if one.kind == OVER else ENDS.get(one.kind)
        if ended is not None:
            for place in begun.pop((one.node_id, one.part, ended), []):
                told[place] = replace(told[place], until_ns=one.at_ns)
            continue
        if one.kind == "link_flap" and one.until_ns is None:
            told.append(replace(one, until_ns=one.at_ns, at_ns=one.at_ns - int(FLAP_S * 1e9)))
            continue
        if one.until_ns is None:
            begun[one.node_id, one.part, one.kind].append(len(told))
        told.append(one)
    return told


def with_clocks(signals: Sequence[Signal], errors_s: Mapping[int, float]) -> list[Signal]:
    """Signals with how far their machine's clock may be off, by what it says itself or in these signals."""
    lost = {one.node_id for one in signals if one.kind in CLOCK_FAULTS}
    return [
        replace(one, clock_error_s=CLOCK_LOST_S if one.node_id in lost else errors_s.get(one.node_id or 0))
        if one.clock_error_s is None
        else one
        for one in signals
    ]


def error_s(signal: Signal) -> float:
    """How far its time may be off."""
    return CLOCK_ERROR_S if signal.clock_error_s is None else signal.clock_error_s


def when(signal: Signal, onset: Onset) -> When:
    """Whether it can have brought about what began at the onset."""
    is_own = onset.node_id is not None and signal.node_id == onset.node_id
    off_s = 0.0 if is_own else error_s(signal) + onset.clock_error_s
    late_s = 0.0 if signal.source == FROM_LOG else LATE_S.get(signal.kind, 0.0)
    began_after_s = (signal.at_ns - onset.at_ns) / 1e9
    if began_after_s - late_s > onset.slack_s + off_s:
        return When.AFTER
    if signal.until_ns is not None:
        over_before_s = (onset.at_ns - signal.until_ns) / 1e9
        if over_before_s > onset.lasting_s + off_s:
            return When.BEFORE
    return When.OLD if -began_after_s > OLD_S + off_s else When.FITS


def closeness(signal: Signal, onset: Onset) -> float:
    """What its distance from the onset is worth, 0 to 1."""
    before_s = (onset.at_ns - signal.at_ns) / 1e9 - error_s(signal)
    if before_s <= NEAR_S:
        return NEAR_WEIGHT
    return RECENT_WEIGHT if before_s <= RECENT_S else EARLIER_WEIGHT


def first_of(candidates: Sequence[Candidate]) -> tuple[Candidate | None, tuple[Candidate, ...]]:
    """(the one that was first beyond doubt, those that cannot be told apart in time).

    On one host one clock orders them; between hosts the gap must be beyond both clocks' errors.
    """
    if not candidates:
        return None, ()
    ordered = sorted(candidates, key=lambda one: (one.at_ns, one.part.label))
    head = ordered[0]
    tied = [one for one in ordered[1:] if not _is_before(head.first, one.first)]
    return (None, (head, *tied)) if tied else (head, ())


def _is_before(early: Signal, late: Signal) -> bool:
    if early.node_id is not None and early.node_id == late.node_id:
        return early.at_ns < late.at_ns
    return (late.at_ns - early.at_ns) / 1e9 > error_s(early) + error_s(late)


def patience_s(retries: Retries) -> tuple[float, float]:
    """(shortest, longest) time a link may be down before NCCL gives up its connection; inf: it never does."""
    known = retries.timeout
    if known is not None and (known <= 0 or known >= TIMEOUT_ENDLESS):
        return float("inf"), float("inf")
    count = RETRY_COUNT if retries.retry_count is None else max(0, retries.retry_count)
    low, high = TIMEOUTS if known is None else (known, known)
    return ACK_UNIT_S * 2.0**low * max(1, count), ACK_UNIT_S * 2.0**high * ACK_STRETCH * (count + 1)


def patience_words(retries: Retries) -> str:
    """How long NCCL waits, and where that is from."""
    low_s, high_s = patience_s(retries)
    if low_s == float("inf"):
        return f"NCCL waits without end (NCCL_IB_TIMEOUT={retries.timeout})"
    told = [
        f"{name}={value}" if value is not None else f"{name} not told: NCCL's default"
        for name, value in (("NCCL_IB_TIMEOUT", retries.timeout), ("NCCL_IB_RETRY_CNT", retries.retry_count))
    ]
    return f"NCCL gives up after {low_s:.1f} to {high_s:.0f} s ({', '.join(told)})"
