"""Nodes of a running job that we no longer see although the job goes on: a blind spot, told as one incident.

A closed connection is an agent that died: its host answered last we knew, so it is never called a dead node.
Silence without a close is the host or its network; while peers wait for its ranks ``stall`` names it, here it
is only said that we do not see it. One incident per job, however many agents are gone.
"""

from __future__ import annotations

from collections import defaultdict
from typing import Final

from clusterwatch.analysis.model import (
    Coverage,
    Diagnosis,
    Finding,
    Owner,
    ProcessState,
    Severity,
)
from clusterwatch.analysis.progress import PROCESS_CODES, Judgement
from clusterwatch.detect import last_minutes
from clusterwatch.detect.scene import Scene
from clusterwatch.incidents import services
from clusterwatch.incidents.services import Sighting

SUSPECT_AFTER_S: Final = 3.0
"""A restarted agent is back within this."""
OPEN_AFTER_S: Final = 10.0
"""One that a service manager restarts is back by then."""
_UNSEEN: Final = (ProcessState.AGENT_GONE, ProcessState.NODE_SILENT)
_SEEN_ALIVE: Final = (ProcessState.RUNNING, ProcessState.STOPPED, ProcessState.BLOCKED)
_HOSTS_NAMED: Final = 4


def fingerprint(scene: Scene) -> str:
    return f"{scene.job.cluster_id}/{scene.job.pk}/agents"


def handle(scene: Scene, judgement: Judgement) -> None:
    """Raises, opens or resolves the incident of unseen nodes."""
    live = services.live_incident(fingerprint(scene))
    unseen = _unseen(scene)
    longest_s = max((scene.node_silent_s.get(node, 0.0) for node in unseen), default=0.0)
    over = not _goes_on(scene)
    if not unseen or over:
        if live is not None:
            reason = "no process of the job is seen any more" if over else "every agent of the job is back"
            services.resolve(live.pk, scene.now_ns, reason)
        return
    if longest_s < SUSPECT_AFTER_S or (live is None and judgement.stalled):
        return
    sighting = Sighting(
        fingerprint=fingerprint(scene),
        cluster_id=scene.job.cluster_id,
        diagnosis=_diagnosis(scene, unseen, judgement),
        since_ns=scene.now_ns - int(longest_s * 1e9),
        job_id=scene.job.pk,
        threshold_s=OPEN_AFTER_S,
        threshold_source=f"an agent may be away for {OPEN_AFTER_S:.0f} s",
    )
    if live is None:
        live, changed = services.suspect(sighting, scene.now_ns)
    else:
        changed = services.sharpen(live.pk, sighting, scene.now_ns)
    if longest_s > OPEN_AFTER_S:
        changed |= services.open_(live.pk, scene.now_ns, f"not seen for {longest_s:.0f} s")
    if changed and (kept := last_minutes.piece(scene)):
        services.freeze(live.pk, [kept], scene.now_ns)


def _goes_on(scene: Scene) -> bool:
    """Some process of the job is seen alive: then the unseen ones are a blind spot of a living job."""
    return any(PROCESS_CODES[code] in _SEEN_ALIVE for code in scene.look.process.tolist())


def _unseen(scene: Scene) -> dict[int, list[int]]:
    """Rows of ranks that live on nodes we do not see, by node id."""
    found: dict[int, list[int]] = defaultdict(list)
    for row, code in enumerate(scene.look.process.tolist()):
        if PROCESS_CODES[code] in _UNSEEN:
            found[scene.ranks[row].node_id].append(row)
    return found


def _diagnosis(scene: Scene, unseen: dict[int, list[int]], judgement: Judgement) -> Diagnosis:
    rows = [row for rows in unseen.values() for row in rows]
    hosts = sorted({scene.ranks[row].host for row in rows})
    gone = {PROCESS_CODES[int(scene.look.process[row])] for row in rows}
    shown = ", ".join(hosts[:_HOSTS_NAMED]) + (" and others" if len(hosts) > _HOSTS_NAMED else "")
    if gone == {ProcessState.AGENT_GONE}:
        what = f"The agent on {shown} is gone; its host answered last we knew"
        action = "Restart clusterwatch-agent there; the training processes are not touched by its loss."
    else:
        what = f"{shown} went silent without closing its connection: the host or its network"
        action = "Check the host's console and network."
    count = len(rows)
    finding = Finding(
        verdict="agents_silent",
        fault_class="blind",
        severity=Severity.WARNING,
        summary=f"{what}; {count} rank{'s' if count != 1 else ''} unseen"[:200],
        rule="live.agents v1",
        confidence=0.95,
        owner=Owner.INFRA,
        suspect_ranks=tuple(sorted(scene.ranks[row].rank for row in rows)),
        node=hosts[0] if len(hosts) == 1 else None,
        why=tuple(_why(scene, node, rows) for node, rows in list(unseen.items())[:_HOSTS_NAMED]),
        recommended_action=action,
    )
    return Diagnosis((finding,), Coverage(judgement.coverage.expected, judgement.coverage.reported, count, 0))


def _why(scene: Scene, node: int, rows: list[int]) -> str:
    ranks = ", ".join(str(scene.ranks[row].rank) for row in rows[:16])
    host, silent_s = scene.ranks[rows[0]].host, scene.node_silent_s.get(node, 0.0)
    word = PROCESS_CODES[int(scene.look.process[rows[0]])]
    how = "connection closed" if word is ProcessState.AGENT_GONE else "silent, connection still open"
    return f"{host}: {how}, last word {silent_s:.0f} s ago; ranks {ranks}"
