"""A job some process of which failed: one incident, opened at once, that names the first to fail.

In: ``Scene``, ``Judgement``, ``Memory``. Out: moves of the same incident that a stall of the attempt has. It
stays open when the job has ended: until a person closes it, or the job is back and makes progress.
"""

from __future__ import annotations

from dataclasses import replace

from clusterwatch import analysis
from clusterwatch.analysis.ending import Ending
from clusterwatch.analysis.model import Diagnosis, Observation
from clusterwatch.analysis.preliminary import diagnose_failure
from clusterwatch.analysis.progress import Judgement, WorldState
from clusterwatch.detect import captures, causes, evidence
from clusterwatch.detect.exits import (
    VANISHED_SETTLE_NS,
    are_aftermath,
    is_failure,
    may_become_failure,
)
from clusterwatch.detect.memory import Memory
from clusterwatch.detect.scene import Scene
from clusterwatch.detect.stall import age, better, capture_again, fate, fingerprint
from clusterwatch.incidents import services
from clusterwatch.incidents.models import Incident
from clusterwatch.incidents.services import Piece, Sighting
from clusterwatch.jobs.exits import ending


def handle(scene: Scene, judgement: Judgement, memory: Memory) -> bool:
    """Brings the incident of a failure up to date.

    Returns: False when nothing failed, and the job's motion decides; True also while it is too soon to say.
    """
    if not may_become_failure(scene.ranks):
        memory.gone_ns = 0
        return False
    memory.gone_ns = memory.gone_ns or scene.now_ns
    gone_for_ns = scene.now_ns - memory.gone_ns
    if not is_failure(scene.ranks, gone_for_ns):
        return gone_for_ns < VANISHED_SETTLE_NS
    world = _world_of_failure(scene)
    state = next((one for one in judgement.stalled if one.world == world), None)
    live = services.live_incident(fingerprint(scene))
    if live is not None and are_aftermath(scene.ranks, live):
        services.confirm(live.pk, scene.now_ns)
        return True
    found = captures.Answers()
    if state is not None and live is not None:
        capture_again(scene, state, live, memory)
        found = captures.answers(memory.capture_ids, memory.captured_ns, scene.now_ns)
    told = f"{_told(scene)}|{found.basis}|{state is not None}|{age(gone_for_ns / 1e9)}"
    basis = f"failed|{fate(scene)}|{told}"
    if live is not None and basis == memory.basis:
        services.confirm(live.pk, scene.now_ns)
        return True
    seen = _observe(scene, judgement, world, state, found)
    verdict = better(diagnose_failure(scene.job.key, seen.facts, judgement.coverage), analysis.diagnose(seen))
    if not found.ready:
        verdict = replace(verdict, coverage=judgement.coverage)
    verdict, pieces = causes.of_crash(scene, world, memory.gone_ns, verdict)
    pieces += evidence.pieces(scene, state, seen, verdict)
    _write(scene, live, _sighting(scene, memory, verdict), pieces)
    memory.basis = basis
    return True


def _write(scene: Scene, live: Incident | None, sighting: Sighting, pieces: list[Piece]) -> None:
    incident, is_new = (live, False) if live is not None else services.suspect(sighting, scene.now_ns)
    changed = is_new or services.sharpen(incident.pk, sighting, scene.now_ns)
    opened = services.open_(incident.pk, scene.now_ns, "a process of the job failed")
    if changed or opened:
        services.freeze(incident.pk, pieces, scene.now_ns)


def _observe(
    scene: Scene, judgement: Judgement, world: int, state: WorldState | None, found: captures.Answers
) -> Observation:
    stall_s = state.stall_s(scene.now_ns) if state is not None else None
    ready = found if found.ready else captures.Answers()
    return captures.observe(scene, world, ready, stall_s, judgement.moving)


def _sighting(scene: Scene, memory: Memory, diagnosis: Diagnosis) -> Sighting:
    return Sighting(
        fingerprint=fingerprint(scene),
        cluster_id=scene.job.cluster_id,
        diagnosis=diagnosis,
        since_ns=memory.gone_ns,
        job_id=scene.job.pk,
        threshold_source="a process that failed needs no limit",
        gpu_count=len(scene.ranks),
    )


def _world_of_failure(scene: Scene) -> int:
    """The world of the first process that failed, by its node's clock."""
    bad = [
        (rank.exit_ns or scene.now_ns, row)
        for row, rank in enumerate(scene.ranks)
        if ending(rank) in (Ending.FAILED, Ending.VANISHED)
    ]
    return int(scene.look.world[min(bad)[1]])


def _told(scene: Scene) -> int:
    """How much is known of the ends: grows when a status or an exception comes later than the exit."""
    return sum(
        (rank.exit_code is not None) + (rank.exit_signal is not None) + (rank.exception is not None)
        for rank in scene.ranks
    )
