"""States of the live topics ``cluster:`` and ``job:``, as ``live/README.md`` lists their fields. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from clusterwatch.analysis import motion
from clusterwatch.analysis.motion import RANK_STATES, STILL_AFTER_NS
from clusterwatch.fleet.overview import STATE_OF_BYTE, STATES
from clusterwatch.ingest import ranks_now
from clusterwatch.ingest.layout import ClusterLayout, JobLayout
from clusterwatch.ingest.ranks_now import Column, RanksNow
from clusterwatch.store import hot
from collectors.wire.records import PHASES

NO_SLOT: Final = 255
SILENT_SHOWN: Final = 50
JOBS_SHOWN: Final = 200
OPEN_CALLS_SHOWN: Final = 16
MISSING_SHOWN: Final = 16
HOOK_SILENT_AFTER_NS: Final = 5_000_000_000
GATEWAY_SILENT_AFTER_NS: Final = 3_000_000_000
_BYTE: Final = {word: byte for byte, word in STATE_OF_BYTE.items()}
GATEWAY_SILENT: Final = "gateway_silent"
_LINKS: Final = {hot.OPEN: "open", hot.CLOSED: "closed", hot.CLOSED_CLEAN: "closed_clean"}
_WORST_LAST: Final = ("idle", "ok", "unknown", "degraded", "failed")
"""What a slot shows when several processes use it: the last of these."""
_SLOT_WORD: Final = {
    "unknown": "unknown", "moving": "ok", "waiting": "ok", "still": "ok", "behind": "degraded",
    "stopped": "degraded", "failed": "failed", "ended": "idle",
}  # fmt: skip
_SEVERITY: Final = np.array([_WORST_LAST.index(_SLOT_WORD[word]) for word in RANK_STATES], np.uint8)
_BYTE_OF_SEVERITY: Final = np.array([_BYTE[word] for word in _WORST_LAST], np.uint8)

State = dict[str, Any]


@dataclass(frozen=True, slots=True)
class JobNow:
    """One job at one moment."""

    layout: JobLayout
    ranks: RanksNow
    step_rate: float | None
    """steps per second"""
    slots: Column
    """slot of each rank, -1 where none is known: ``slots_of``"""


def gateway_silent_since_ms(word_ns: int | None, now_ns: int) -> int | None:
    """None while a gateway writes, else its last word; 0 when there never was one."""
    if word_ns is None:
        return 0
    return word_ns // 1_000_000 if now_ns - word_ns > GATEWAY_SILENT_AFTER_NS else None


# --- cluster ----------------------------------------------------------------------------------------------


def cluster_state(
    layout: ClusterLayout, nodes: hot.NodesRead, jobs: Sequence[JobNow], now_ns: int, gateway_ns: int | None
) -> State:
    """The state of ``cluster:<id>`` without ``bands``. Cost: linear in slots, nodes and ranks.

    Args:
        nodes: of all clusters.
        jobs: of this cluster.
    """
    seen = dict(zip(nodes.node_id.tolist(), nodes.seen_ns.tolist(), strict=True))
    fresh = {node for node in layout.names if now_ns - seen.get(node, 0) <= ranks_now.SILENT_AFTER_NS}
    slots = _slot_bytes(layout, fresh, jobs)
    counts = np.bincount(slots, minlength=NO_SLOT + 1)
    return {
        "slots": slots.tobytes(),
        "slots_version": layout.slots_version,
        "counts": {word: int(counts[_BYTE[word]]) for word in STATES},
        "total": int(len(slots) - counts[NO_SLOT]),
        "coverage": {"expected": len(layout.names), "reported": len(fresh)},
        "silent": _silent(layout, fresh, nodes, now_ns),
        "gateway_silent_since_ms": gateway_silent_since_ms(gateway_ns, now_ns),
        "jobs": _job_rows(jobs, now_ns),
    }


def _slot_bytes(layout: ClusterLayout, fresh: set[int], jobs: Sequence[JobNow]) -> NDArray[np.uint8]:
    severity = np.zeros(len(layout.node), np.uint8)
    for job in jobs:
        used = job.slots >= 0
        np.maximum.at(severity, job.slots[used], _SEVERITY[job.ranks.state[used]])
    states = _BYTE_OF_SEVERITY[severity]
    heard = np.isin(layout.node, np.fromiter(fresh, np.int64, len(fresh)))
    states[~heard] = _BYTE["unknown"]
    states[layout.node < 0] = NO_SLOT
    return states


def slots_of(layout: ClusterLayout, job: JobLayout) -> Column:
    """The slot each rank of a job uses, -1 where none is known. Cost: a sort of all slots."""
    # Node and GPU index as one number: a node has far fewer than 2**16 GPUs; NO_GPU is one more place.
    held, wanted = (layout.node << 16) + layout.gpu + 1, (job.node << 16) + job.gpu + 1
    return ranks_now.rows(held=held, wanted=wanted)


def _silent(layout: ClusterLayout, fresh: set[int], nodes: hot.NodesRead, now_ns: int) -> dict[int, State]:
    """The longest silent nodes; of a gateway that is silent itself the link says so."""
    words = [_LINKS[link] for link in nodes.link.tolist()]
    for row in np.flatnonzero(nodes.word_ns < now_ns - GATEWAY_SILENT_AFTER_NS).tolist():
        words[row] = GATEWAY_SILENT
    row_of = {node: row for row, node in enumerate(nodes.node_id.tolist())}
    silent = [(int(nodes.seen_ns[row_of[n]]) if n in row_of else 0, n) for n in layout.names.keys() - fresh]
    rows = {}
    for seen_ns, node in sorted(silent)[:SILENT_SHOWN]:
        link = words[row_of[node]] if node in row_of else "unknown"
        rows[node] = {"name": layout.names[node], "since_ms": seen_ns // 1_000_000 or None, "link": link}
    return rows


def _job_rows(jobs: Sequence[JobNow], now_ns: int) -> dict[int, State]:
    """One line per active job, the largest first."""
    active = [job for job in jobs if job.layout.state == "running"]
    largest = sorted(active, key=lambda job: -len(job.layout.rank_id))[:JOBS_SHOWN]
    return {
        job.layout.id: _job_head(job, now_ns)
        | {"ranks": len(job.layout.rank_id), "reported": int(_reports(job.ranks, now_ns).sum())}
        for job in largest
    }


def _reports(ranks: RanksNow, now_ns: int) -> NDArray[np.bool_]:
    return now_ns - ranks.seen_ns <= ranks_now.SILENT_AFTER_NS


def _job_head(job: JobNow, now_ns: int) -> State:
    """What a job's line and its own topic both say."""
    step, phase, moved_ns = ranks_now.job_line(job.ranks)
    still = moved_ns > 0 and now_ns - moved_ns > STILL_AFTER_NS
    return {
        "key": job.layout.key,
        "name": job.layout.name,
        "state": job.layout.state,
        "attempt": job.layout.attempt,
        "step": step,
        "step_rate": job.step_rate,
        "phase": PHASES[phase] if phase < len(PHASES) else PHASES[0],
        "still_since_ms": moved_ns // 1_000_000 if still else None,
    }


# --- job --------------------------------------------------------------------------------------------------


def job_state(job: JobNow, now_ns: int, gateway_ns: int | None) -> State:
    """The state of ``job:<id>``. Cost: linear in ranks and (rank, group) rows."""
    layout, ranks = job.layout, job.ranks
    newest_step = ranks.step.max(initial=-1)
    counts = np.bincount(ranks.state, minlength=len(RANK_STATES))
    return (
        _job_head(job, now_ns)
        | {
            "newest_ms": int(ranks.seen_ns.max(initial=0)) // 1_000_000 or None,
            "coverage": {"expected": len(layout.rank_id), "reported": int(_reports(ranks, now_ns).sum())},
            "gateway_silent_since_ms": gateway_silent_since_ms(gateway_ns, now_ns),
            "rank": layout.rank.tolist(),
            "rank_id": layout.rank_id.tolist(),
            "gpu": _or_none(layout.gpu, layout.gpu < 0),
            "host": layout.host.tolist(),
            "hosts": list(layout.hosts),
            "states": ranks.state.tobytes(),
            "phases": ranks.phase.astype(np.uint8).tobytes(),
            "phase_names": list(PHASES),
            "steps_behind": _or_none(newest_step - ranks.step, ranks.step < 0),
            "still_since_s": _since_s(ranks.moved_ns, now_ns - STILL_AFTER_NS),
            "hook_silent_since_s": _since_s(ranks.heard_ns, now_ns - HOOK_SILENT_AFTER_NS),
            "behind": _or_none(ranks.behind, ranks.seen_ns == 0),
            "rank_counts": {word: int(count) for word, count in zip(RANK_STATES, counts, strict=True)},
        }
        | _groups(job, now_ns)
    )


def _or_none(values: Column, unknown: NDArray[np.bool_]) -> list[int | None]:
    hidden = unknown.tolist()
    return [None if hide else value for value, hide in zip(values.tolist(), hidden, strict=True)]


def _since_s(at_ns: Column, fresh_after_ns: int) -> list[int | None]:
    """0 for what is fresh, else when it was, None where it never was: healthy ranks cost no traffic."""
    return _or_none(np.where(at_ns >= fresh_after_ns, 0, at_ns // 1_000_000_000), at_ns == 0)


def _groups(job: JobNow, now_ns: int) -> State:
    """Groups by shape, and the open calls of those that are stuck."""
    is_open, is_stuck, moved_ns = ranks_now.stuck_groups(job.ranks, now_ns)
    row_of = {group: row for row, group in enumerate(job.ranks.calls.group_ids.tolist())}
    shapes: dict[str, State] = {}
    for group_id, group in job.layout.groups.items():
        desc, size, row = group.desc or "group", len(group.ranks), row_of.get(group_id)
        blank = {"desc": desc, "size": size, "count": 0, "open": 0, "stuck": 0}
        shape = shapes.setdefault(f"{desc} x {size}", blank)
        shape["count"] += 1
        shape["open"] += row is not None and int(is_open[row])
        shape["stuck"] += row is not None and int(is_stuck[row])
    stuck = np.flatnonzero(is_stuck)
    oldest = stuck[np.argsort(moved_ns[stuck], kind="stable")][:OPEN_CALLS_SHOWN]
    calls = {
        int(job.ranks.calls.group_ids[row]): _open_call(job, int(row), int(moved_ns[row])) for row in oldest
    }
    return {"shapes": shapes, "open_calls": {group: call for group, call in calls.items() if call}}


def _open_call(job: JobNow, row: int, moved_ns: int) -> State | None:
    """The call a stuck group waits in; None for a group the database does not know yet."""
    calls = job.ranks.calls
    group = job.layout.groups.get(int(calls.group_ids[row]))
    if group is None:
        return None
    mine = calls.group == row
    front = int(motion.waiters_front(calls)[row])
    numbers = dict(zip(job.layout.rank[calls.place[mine]].tolist(), calls.number[mine].tolist(), strict=True))
    missing = [rank for rank in sorted(numbers) if numbers[rank] < front]
    return {
        "name": group.name,
        "desc": group.desc,
        "size": len(group.ranks),
        "sequence": front if bool(calls.has_sequence[mine].all()) else None,
        "joined": len(numbers) - len(missing),
        "missing": missing[:MISSING_SHOWN],
        "missing_count": len(missing),
        "unreported_count": max(0, len(group.ranks) - len(numbers)),
        "since_s": moved_ns // 1_000_000_000 or None,
    }
