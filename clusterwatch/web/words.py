"""The words and states of the screens: one table from verdicts, severities and incident states to six states.

The six states are drawn by colour, glyph, word and ink together (``static/css/system.css``).
"""

from __future__ import annotations

from dataclasses import dataclass

STATES = ("ok", "degraded", "failed", "idle", "drained", "unknown")
"""Order of the count strip and of the bytes in a map frame."""
STATE_WORDS = {
    "ok": "Healthy",
    "degraded": "Degraded",
    "failed": "Failed",
    "idle": "Idle",
    "drained": "Drained",
    "unknown": "Unknown",
}
OF_SEVERITY = {"critical": "failed", "warning": "degraded", "info": "ok", "unknown": "unknown"}
"""Severity to state; anything else is unknown."""
ANSWER_OF_SEVERITY = {"critical": "CRIT", "warning": "WARN", "info": "OK", "unknown": "UNKNOWN"}

VERDICT_WORDS = {
    "missing_rank": "missing rank",
    "dead_rank": "dead rank",
    "dead_node": "dead node",
    "queued_not_started": "queued, not started",
    "op_mismatch": "different operations",
    "order_mismatch": "calls swapped",
    "size_mismatch": "different sizes",
    "dtype_mismatch": "different types",
    "p2p_unmatched": "unmatched send or receive",
    "cross_group_cycle": "groups wait in a circle",
    "all_joined_not_finished": "all joined, none finishes",
    "suspect_no_dump": "a rank gave no trace",
    "suspect_stale_dump": "a rank's trace is old",
    "stuck_in_init": "stuck in start-up",
    "destroyed_on_one_side": "group destroyed on one side",
    "outside_collectives": "outside collectives",
    "rank_failed": "rank failed",
    "out_of_memory": "out of memory",
    "numeric": "wrong numbers",
    "restart_loop": "restart loop",
    "ended_by_scheduler": "ended by the scheduler",
    "slow_gpu": "GPU",
    "slow_nic": "network card",
    "slow_nvlink": "NVLink",
    "slow_switch": "switch",
    "slow_host": "host",
    "slow_dataloader": "data loading",
    "slow_storage": "storage",
    "gc_pauses": "garbage collection",
    "not_enough_data": "not enough data",
    "no_fault": "no fault found",
}
CLASS_WORDS = {
    "hang": "Hang",
    "crash": "Crash",
    "hardware": "Slow",
    "host": "Slow",
    "storage": "Slow",
    "software": "Slow",
    "workload": "Workload",
    "health": "Health",
    "blind": "Blind",
}


@dataclass(frozen=True, slots=True)
class Badge:
    """What a pill shows: one of the six states and its own word."""

    state: str
    word: str


LINK_BADGES = {
    "ok": Badge("ok", "Reports"),
    "silent": Badge("unknown", "Silent"),
    "closed": Badge("failed", "Agent died"),
    "stopped": Badge("idle", "Stopped"),
    "gateway_silent": Badge("unknown", "Gateway silent"),
    "unknown": Badge("unknown", "Not heard"),
}
"""How a node is heard, by the words of ``fleet.links``."""


def verdict_badge(fault_class: str, verdict: str, severity: str) -> Badge:
    """``Hang: missing rank`` in the severity's state."""
    word = VERDICT_WORDS.get(verdict, verdict.replace("_", " "))
    head = CLASS_WORDS.get(fault_class)
    return Badge(OF_SEVERITY.get(severity, "unknown"), f"{head}: {word}" if head else word.capitalize())


def incident_badge(state: str, severity: str) -> Badge:
    """An incident's own state; resolved is quiet, probation is not yet trusted."""
    if state == "resolved":
        return Badge("ok", "Resolved")
    if state == "probation":
        return Badge("idle", "Probation")
    return Badge(OF_SEVERITY.get(severity, "unknown"), state.capitalize())


def job_badge(state: str, worst_severity: str | None) -> Badge:
    """A job's state; a live incident beats what the scheduler believes."""
    if state == "running":
        if worst_severity is None:
            return Badge("ok", "Running")
        return Badge(OF_SEVERITY.get(worst_severity, "unknown"), "Incident")
    if state == "failed":
        return Badge("failed", "Failed")
    if state == "ended":
        return Badge("idle", "Ended")
    return Badge("unknown", "Unknown")
