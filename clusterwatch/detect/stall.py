"""A job that stands still: suspected, captured, named, opened; resolved when it moves again.

In: ``Scene``, ``Judgement``, ``Memory``. Out: moves of one incident per (job, attempt). The judging is done
by ``analysis``; here is only the order of things and when each happens.
"""

from __future__ import annotations

import math
from collections.abc import Container
from dataclasses import replace
from typing import Final

from clusterwatch import analysis
from clusterwatch.analysis.gaps import Limits, limits
from clusterwatch.analysis.model import Diagnosis, ProcessState
from clusterwatch.analysis.preliminary import diagnose_stall
from clusterwatch.analysis.progress import Judgement, WorldState
from clusterwatch.detect import captures, causes, evidence
from clusterwatch.detect.exits import are_aftermath, ended_without_failure
from clusterwatch.detect.memory import Memory, WorldMemory
from clusterwatch.detect.scene import Scene
from clusterwatch.incidents import services
from clusterwatch.incidents.models import Incident
from clusterwatch.incidents.services import Sighting

VERDICTS_OF_NOTHING: Final = frozenset({"no_fault", "not_enough_data"})


def fingerprint(scene: Scene) -> str:
    """One story per attempt of a job: a hang that turns out to be a death stays the same incident."""
    return f"{scene.job.cluster_id}/{scene.job.pk}/{scene.job.attempt}/stopped"


def handle(scene: Scene, judgement: Judgement, memory: Memory) -> None:
    """Brings the job's incident up to date while some world of it stands still."""
    state = max(judgement.stalled, key=lambda world: world.stall_s(scene.now_ns))
    if not state.waiting and any(rank.exited_at is not None for rank in scene.ranks):
        return  # it is shutting down: some have ended, and nobody waits for them
    stall_s = state.stall_s(scene.now_ns)
    history = memory.worlds.get(state.world, WorldMemory()).history(state.phase)
    limit = limits(state.phase, history, _is_in_kernel(scene, state))
    first = diagnose_stall(
        scene.job.key,
        state,
        stall_s,
        scene.facts[state.world],
        scene.known_groups(state.world),
        judgement.coverage,
    )
    live = services.live_incident(fingerprint(scene))
    due = stall_s >= (limit.suspect_s if state.waiting else max(limit.suspect_s, limit.open_s / 2))
    if live is None and not due and not _is_decisive(first.worst.decisive, first.worst.verdict, scene):
        return
    sighting = _sighting(scene, state, first, limit)
    if live is None:
        live, _new = services.suspect(sighting, scene.now_ns)
        memory.basis = ""
    elif are_aftermath(scene.ranks, live):
        services.confirm(live.pk, scene.now_ns)
        return
    capture_again(scene, state, live, memory)
    _judge(scene, state, live, sighting, memory, limit)
    _open_if_due(scene, live, stall_s, limit)


def _is_in_kernel(scene: Scene, state: WorldState) -> bool:
    facts = scene.facts[state.world]
    return any(facts[rank].process is ProcessState.BLOCKED for rank in state.suspects if rank in facts)


def _sighting(scene: Scene, state: WorldState, diagnosis: Diagnosis, limit: Limits) -> Sighting:
    return Sighting(
        fingerprint=fingerprint(scene),
        cluster_id=scene.job.cluster_id,
        diagnosis=diagnosis,
        since_ns=state.since_ns,
        job_id=scene.job.pk,
        threshold_s=limit.open_s,
        threshold_source=limit.source,
        gpu_count=state.rank_count,
    )


def capture_again(scene: Scene, state: WorldState, incident: Incident, memory: Memory) -> None:
    """Asks for traces once per stall, and again while it lasts without a decisive verdict."""
    asked_for_this = memory.captured_ns >= state.since_ns
    if asked_for_this and bool(incident.diagnosis.get("decisive")):
        return
    if asked_for_this and scene.now_ns - memory.captured_ns < captures.AGAIN_AFTER_NS:
        return
    reason = f"incident {incident.pk}: no progress for {state.stall_s(scene.now_ns):.0f} s"
    memory.earlier_ids = memory.capture_ids if asked_for_this else []
    memory.capture_ids = captures.ask(scene, state.suspects, reason, is_first=not asked_for_this)
    memory.captured_ns = scene.now_ns


def _judge(
    scene: Scene, state: WorldState, incident: Incident, sighting: Sighting, memory: Memory, limit: Limits
) -> None:
    """Analyses what there is, unless it is what was analysed before."""
    found = _best_answers(scene, memory)
    stall_s = state.stall_s(scene.now_ns)
    parts = (found.basis, fate(scene), str(state.suspects), str(state.reasons), age(stall_s))
    basis = "|".join(parts)
    if basis == memory.basis:
        services.confirm(incident.pk, scene.now_ns)
        return
    seen = captures.observe(scene, state.world, found if found.ready else captures.Answers(), stall_s, False)
    verdict = better(sighting.diagnosis, analysis.diagnose(seen), state.waiting)
    if not found.ready:
        verdict = replace(verdict, coverage=sighting.diagnosis.coverage)
    verdict, told = causes.of_stall(scene, state.world, state.since_ns, limit.suspect_s, verdict)
    changed = services.sharpen(incident.pk, replace(sighting, diagnosis=verdict), scene.now_ns)
    if changed or found.complete:
        services.freeze(incident.pk, [*evidence.pieces(scene, state, seen, verdict), *told], scene.now_ns)
    memory.basis = basis
    incident.diagnosis = verdict.to_dict()


def _best_answers(scene: Scene, memory: Memory) -> captures.Answers:
    """The newest captures, once all have answered; until then the ones before, where this stall has any.

    A capture under way says less than the one it repeats: without this the verdict would fall back to what
    progress alone tells, for a few seconds every half minute.
    """
    found = captures.answers(memory.capture_ids, memory.captured_ns, scene.now_ns)
    if found.complete or not memory.earlier_ids:
        return found
    earlier = captures.answers(memory.earlier_ids, memory.captured_ns, scene.now_ns)
    return earlier if earlier.trace_count + earlier.stack_count else found


def better(first: Diagnosis, captured: Diagnosis, waiting: Container[int] = ()) -> Diagnosis:
    """The finding that says more, with all that was captured.

    Args:
        first: from progress and process evidence alone.
        captured: from traces and stacks, and the same process evidence.
        waiting: ranks that wait in an open call themselves by their own live word.
    """
    return replace(captured, findings=first.findings) if _says_more(first, captured, waiting) else captured


def _says_more(first: Diagnosis, captured: Diagnosis, waiting: Container[int]) -> bool:
    early, late = first.worst, captured.worst
    if late.verdict in VERDICTS_OF_NOTHING:
        return early.verdict not in VERDICTS_OF_NOTHING
    if late.culprit_ranks or not (early.culprit_ranks or early.suspect_ranks):
        return False
    # A rank without a usable trace is suspected offline; live, its own numbers may show that it waits.
    contradicted = bool(late.suspect_ranks) and all(rank in waiting for rank in late.suspect_ranks)
    return bool(early.culprit_ranks) or not late.suspect_ranks or contradicted


def age(stall_s: float) -> str:
    """Changes when the stall has doubled: then its length is told anew, and late signals are read."""
    return str(int(math.log2(stall_s + 1)))


def fate(scene: Scene) -> str:
    """Changes when the state of any process does."""
    counts = [0] * len(ProcessState)
    for code in scene.look.process.tolist():
        counts[code] += 1
    return ",".join(map(str, counts))


def _is_decisive(decisive: bool, verdict: str, scene: Scene) -> bool:
    """A process that ended normally, or was told to, is no proof of a fault: a job may be shutting down."""
    return decisive and not (verdict == "dead_rank" and ended_without_failure(scene.ranks))


def _open_if_due(scene: Scene, incident: Incident, stall_s: float, limit: Limits) -> None:
    if incident.state != Incident.State.SUSPECTED:
        return
    diagnosis = incident.diagnosis
    if _is_decisive(bool(diagnosis.get("decisive")), str(diagnosis.get("verdict")), scene):
        services.open_(incident.pk, scene.now_ns, "the evidence is decisive")
    elif stall_s > limit.open_s:
        services.open_(
            incident.pk,
            scene.now_ns,
            f"no progress for {stall_s:.0f} s, limit {limit.open_s:.0f} s ({limit.source})",
        )
