"""Asks a stalled job for traces and stacks, and makes an ``Observation`` of what came.

In: a ``Scene``, the captures of the stall. Out: ``Observation`` per world. A damaged trace is a named
problem, never a lost observation.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

from clusterwatch.analysis.model import (
    InputProblem,
    Observation,
    ProcessState,
    RankFacts,
    RankStacks,
    StackThread,
)
from clusterwatch.detect.scene import Scene
from clusterwatch.jobs.models import Capture
from clusterwatch.jobs.services import request_capture
from clusterwatch.store import captures as stored
from collectors import ras_event
from collectors.formats.columns import TraceColumns, unpack
from collectors.formats.trace import TraceError
from collectors.ras_event import Told
from collectors.wire.records import CaptureWant

BY: Final = "detect"
AGAIN_AFTER_NS: Final = 30_000_000_000
"""A stall that lasts is captured again so often while its verdict is not decisive."""
PARTIAL_AFTER_NS: Final = 3_000_000_000
"""What has come by then is analysed; the rest sharpens the verdict."""
DEADLINE_S: Final = 8.0
RINGS_MAX_RANKS: Final = 1024
"""Up to so many ranks every one is asked for its whole ring; of larger jobs only the suspects."""
SUSPECTS_MAX: Final = 32
RAS_CLOCKS_NS: Final = 60 * 10**9
"""By how much a node's clock may be behind ours."""


@dataclass(frozen=True, slots=True)
class Answers:
    """Captures of a stall and how much has come of them."""

    ids: tuple[int, ...] = ()
    trace_count: int = 0
    stack_count: int = 0
    ready: bool = False
    """everybody has answered, or enough time has passed to judge by what is there"""
    complete: bool = False

    @property
    def basis(self) -> str:
        """Changes when there is something new to analyse."""
        if not self.ready:
            return ""
        return f"{self.ids}/{self.trace_count}/{self.stack_count}/{self.complete}"


def ask(scene: Scene, suspects: Sequence[int], reason: str, *, is_first: bool) -> list[int]:
    """Asks every rank for its open window, ring and stacks, and the suspects by name, whom agents then also
    look at from outside (py-spy). Returns the captures' ids.

    Args:
        is_first: of this stall. Then NCCL's RAS is asked, too; not again, since jobs have died of polling it.
    """
    everyone: tuple[CaptureWant, ...] = ("window", "ring", "stacks")
    if len(scene.ranks) > RINGS_MAX_RANKS:
        everyone = ("window", "stacks")
    wanted: list[tuple[tuple[CaptureWant, ...], list[int] | None]] = [(everyone, None)]
    if suspects:
        wanted.insert(0, (("ring", "stacks"), list(suspects)[:SUSPECTS_MAX]))
    ras_rank = _speaker(scene, suspects) if is_first else None
    return [
        request_capture(
            scene.job.pk,
            want=want,
            ranks=ranks,
            by=BY,
            reason=reason,
            deadline_s=DEADLINE_S,
            ras_rank=ras_rank if ranks is None else None,
        ).pk
        for want, ranks in wanted
    ]


def _speaker(scene: Scene, suspects: Sequence[int]) -> int | None:
    """Whose RAS is asked for all: the lowest rank that runs and is no suspect, else the lowest that runs.

    One query gathers from the whole job, and any rank's answer is as good; a suspect may hang itself, so that
    asking there would tell less. None: no rank of NCCL runs.
    """
    running = [
        rank
        for world in scene.facts.values()
        for rank, fact in world.items()
        if fact.process is ProcessState.RUNNING
    ]
    without_nccl = {row.rank for row in scene.ranks if row.backend and "nccl" not in row.backend}
    able = sorted(set(running) - without_nccl)
    return min(set(able) - set(suspects), default=min(able, default=None))


def ras_answers(scene: Scene, since_ns: int) -> list[Told]:
    """What NCCL's RAS said at this stall, newest first; also why it said nothing."""
    rows = stored.ras_events(scene.job.pk, since_ns - RAS_CLOCKS_NS)
    return [ras_event.read(fields) for fields in rows]


def answers(ids: Sequence[int], asked_ns: int, now_ns: int) -> Answers:
    """What has come of captures that were asked for at ``asked_ns``."""
    if not ids:
        return Answers()
    states = Capture.objects.filter(pk__in=ids).values_list("state", flat=True)
    traces, stacks = stored.counts(ids)
    complete = all(state != Capture.State.REQUESTED for state in states)
    ready = complete or (bool(traces + stacks) and now_ns - asked_ns >= PARTIAL_AFTER_NS)
    return Answers(tuple(ids), traces, stacks, ready, complete)


def observe(scene: Scene, world: int, found: Answers, stall_s: float | None, advanced: bool) -> Observation:
    """All evidence on one world now; without captures, facts and groups alone."""
    traces, problems = _traces(scene, world, found)
    stacks = _stacks(scene, world, found)
    facts = {rank: _seen_stopped(fact, stacks) for rank, fact in scene.facts[world].items()}
    sizes = [r.world_size for r in scene.ranks if r.world == scene.worlds[world]]
    return Observation(
        job=scene.job.key,
        world_size=max(sizes, default=None),
        traces=tuple(traces),
        stacks=tuple(stacks),
        facts=facts,
        groups=tuple(scene.known_groups(world).values()),
        stall_s=stall_s,
        advanced=advanced,
        now_ns=scene.now_ns,
        live=True,
        problems=tuple(problems),
    )


def _traces(scene: Scene, world: int, found: Answers) -> tuple[list[TraceColumns], list[InputProblem]]:
    traces: dict[int, TraceColumns] = {}
    problems: list[InputProblem] = []
    for row in stored.traces(found.ids, scene.job.attempt) if found.ids else ():
        if row.world != scene.worlds[world]:
            continue
        source = f"capture {row.capture_id}"
        try:
            one = unpack(row.columns)
        except TraceError as fault:
            problems.append(InputProblem(source, str(fault), row.rank))
            continue
        held = traces.get(row.rank)
        if held is None or len(one.entries) > len(held.entries):
            traces[row.rank] = replace(one, rank=row.rank, source=source, taken_ns=row.t_ns)
    return list(traces.values()), problems


def _stacks(scene: Scene, world: int, found: Answers) -> list[RankStacks]:
    """One per rank: the hook's, which names more threads, unless only the look from outside has any."""
    best: dict[int, RankStacks] = {}
    for row in stored.stacks(found.ids, scene.job.attempt) if found.ids else ():
        if row.world != scene.worlds[world]:
            continue
        held = best.get(row.rank)
        if held is None or not held.threads or (row.threads and row.source == "hook"):
            best[row.rank] = RankStacks(
                row.rank,
                row.source,
                tuple(_thread(thread) for thread in row.threads),
                row.t_ns,
                row.process_state,
                row.wchan,
                row.error,
            )
    return list(best.values())


def _thread(raw: dict[str, Any]) -> StackThread:
    frames = raw.get("frames") or ()
    return StackThread(str(raw.get("name", "")), tuple(str(f) for f in frames), bool(raw.get("main", False)))


def _seen_stopped(fact: RankFacts, stacks: Sequence[RankStacks]) -> RankFacts:
    """A process that was in state T when its stacks were taken is stopped, whatever was known before."""
    if fact.process is not ProcessState.RUNNING:
        return fact
    if any(s.rank == fact.rank and s.process_state[:1] in ("T", "t") for s in stacks):
        return replace(fact, process=ProcessState.STOPPED)
    return fact
