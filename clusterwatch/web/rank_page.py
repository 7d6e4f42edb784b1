"""One rank as its page shows it: facts, groups, parts of its last steps, newest calls, stacks."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

import numpy as np
from numpy.typing import NDArray

from clusterwatch.analysis.sentence import group_title
from clusterwatch.jobs.models import Capture, Job
from clusterwatch.jobs.progress import GroupView, RankView
from clusterwatch.store.rank_history import NewestStacks, NewestTrace
from clusterwatch.store.step_history import StepColumns
from clusterwatch.web.job_page import RANK_BADGES
from clusterwatch.web.words import Badge
from collectors.formats.columns import NULL, STATES, TraceColumns, unpack
from collectors.formats.trace import TraceError

STEPS_SHOWN = 12
CALLS_SHOWN = 30
FRAMES_SHOWN = 40
THREADS_SHOWN = 8


@dataclass(frozen=True, slots=True)
class StepParts:
    """Where a step's time went, seconds; None = not known."""

    step: int
    ended_at: datetime
    duration_s: float | None
    work_s: float | None
    node_work_s: float | None
    """median own work of the ranks on the same node in that step"""
    wait_s: float | None
    data_wait_s: float | None
    checkpoint_s: float | None
    gc_s: float | None


@dataclass(frozen=True, slots=True)
class Call:
    """One line of the recorder. None = the recorder does not say."""

    group: str
    number: int | None
    op: str
    state: str
    badge: Badge
    sizes: str
    created_at: datetime | None
    duration_ms: float | None


@dataclass(frozen=True, slots=True)
class TraceView:
    recorder: str
    want: str
    taken_at: datetime
    calls: tuple[Call, ...]
    """newest first"""
    held: int
    truncated: bool
    problem: str = ""


@dataclass(frozen=True, slots=True)
class ThreadView:
    name: str
    main: bool
    frames: tuple[str, ...]
    """outermost first"""


@dataclass(frozen=True, slots=True)
class StacksView:
    source: str
    taken_at: datetime
    process_state: str
    wchan: str
    error: str
    threads: tuple[ThreadView, ...]


@dataclass(frozen=True, slots=True)
class RankPage:
    job: Job
    view: RankView
    badge: Badge
    groups: Sequence[GroupView]
    steps: tuple[StepParts, ...]
    """newest first"""
    traces: tuple[TraceView, ...]
    stacks: tuple[StacksView, ...]
    why_no_trace: str
    why_no_stacks: str


_CALL_BADGES = {
    "completed": Badge("ok", "completed"),
    "started": Badge("degraded", "started"),
    "scheduled": Badge("degraded", "scheduled"),
}


def build(
    job: Job,
    view: RankView,
    groups: Sequence[GroupView],
    steps: StepColumns,
    traces: Sequence[NewestTrace],
    stacks: Sequence[NewestStacks],
    captures: Sequence[Capture],
) -> RankPage:
    """Arranges what was read; a damaged trace is told in words."""
    return RankPage(
        job=job,
        view=view,
        badge=RANK_BADGES[view.state],
        groups=groups,
        steps=_steps(steps, view.world, view.rank),
        traces=tuple(_trace(trace) for trace in traces),
        stacks=tuple(_stacks(stack) for stack in stacks),
        why_no_trace=_why(view, captures, "ring", "window"),
        why_no_stacks=_why(view, captures, "stacks"),
    )


def _steps(told: StepColumns, world: str, rank: int) -> tuple[StepParts, ...]:
    if world not in told.worlds:
        return ()
    of_world = told.world == told.worlds.index(world)
    mine = np.flatnonzero(of_world & (told.rank == rank))
    mine = mine[np.argsort(-told.end_ns[mine], kind="stable")][:STEPS_SHOWN]
    return tuple(_parts(told, int(place), of_world) for place in mine)


def _parts(told: StepColumns, place: int, of_world: NDArray[np.bool_]) -> StepParts:
    step = int(told.step[place])
    work_s = told.work_s[of_world & (told.step == step)]
    known = work_s[np.isfinite(work_s)]
    return StepParts(
        step,
        _moment(int(told.end_ns[place])),
        _seconds(told.duration_s[place]),
        _seconds(told.work_s[place]),
        float(np.median(known)) if len(known) > 1 else None,
        _seconds(told.wait_s[place]),
        _seconds(told.data_wait_s[place]),
        _seconds(told.checkpoint_s[place]),
        _seconds(told.gc_s[place]),
    )


def _seconds(value: np.float32) -> float | None:
    return float(value) if np.isfinite(value) else None


def _why(view: RankView, captures: Sequence[Capture], *wanted: str) -> str:
    """Why there is nothing, in words; the newest capture that asked for it decides."""
    asked = [c for c in captures if set(wanted) & set(c.want) and (c.ranks is None or view.rank in c.ranks)]
    if not asked:
        return "Not captured yet: rings and stacks are read only when a stall is suspected, to spare the job."
    newest = asked[0]
    reason = newest.silent_ranks.get(str(view.rank))
    if reason:
        return f"Asked at {newest.requested_at:%H:%M:%S} UTC, but the rank gave none: {reason}"
    if newest.state == Capture.State.REQUESTED:
        return f"Asked at {newest.requested_at:%H:%M:%S} UTC; the answer is on its way."
    if view.node_id not in newest.answered_nodes:
        return f"Asked at {newest.requested_at:%H:%M:%S} UTC, but {view.host} did not answer."
    return f"Asked at {newest.requested_at:%H:%M:%S} UTC, but this rank was not in the answer."


def _trace(stored: NewestTrace) -> TraceView:
    taken_at = _moment(stored.t_ns)
    try:
        trace = unpack(stored.columns)
    except TraceError as fault:
        return TraceView(stored.recorder, stored.want, taken_at, (), 0, False, problem=str(fault))
    calls = tuple(_call(trace, row) for row in reversed(range(len(trace.entries))))
    return TraceView(stored.recorder, stored.want, taken_at, calls[:CALLS_SHOWN], len(calls), trace.truncated)


def _call(trace: TraceColumns, row: int) -> Call:
    entries = trace.entries
    group, what = trace.groups[entries.group[row]], trace.signatures[entries.signature[row]]
    state = STATES[entries.state[row]]
    number = _known(entries.p2p_sequence[row] if what.is_p2p else entries.sequence[row])
    created, duration = _known(entries.created_ns[row]), _known(entries.duration_ns[row])
    return Call(
        group=group_title(group.name, group.desc),
        number=number,
        op=what.op,
        state=state,
        badge=_CALL_BADGES[state],
        sizes=_sizes(what.input_sizes, what.input_dtypes),
        created_at=None if created is None else _moment(created),
        duration_ms=None if duration is None else duration / 1e6,
    )


def _known(value: int) -> int | None:
    return None if value == NULL else value


def _sizes(sizes: Sequence[Sequence[int]], dtypes: Sequence[str]) -> str:
    shapes = ["x".join(map(str, shape)) or "scalar" for shape in sizes[:3]]
    text = ", ".join(shapes) + (", ..." if len(sizes) > 3 else "")
    return f"{text} {dtypes[0]}" if dtypes and text else text


def _stacks(stored: NewestStacks) -> StacksView:
    threads = sorted(stored.threads, key=lambda thread: not thread.get("main"))
    return StacksView(
        source=stored.source,
        taken_at=_moment(stored.t_ns),
        process_state=stored.process_state,
        wchan=stored.wchan,
        error=stored.error,
        threads=tuple(_thread(thread) for thread in threads[:THREADS_SHOWN]),
    )


def _thread(raw: dict[str, Any]) -> ThreadView:
    frames = tuple(str(frame) for frame in raw.get("frames") or ())
    return ThreadView(str(raw.get("name") or "thread"), bool(raw.get("main")), frames[-FRAMES_SHOWN:])


def _moment(ns: int) -> datetime:
    return datetime.fromtimestamp(ns / 1e9, UTC)
