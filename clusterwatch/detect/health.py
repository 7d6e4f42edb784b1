"""Faults of a cluster's parts become incidents, one for each, with or without a job.

In: a cluster, now (ns UTC). Out: incidents raised, opened, sharpened, resolved. What stands is kept in Valkey
and made anew from a day of events where it was lost. A critical fault opens at once when the evidence is
decisive, else when it stands for ``OPEN_AFTER_S``; a warning is suspected and pages nobody. What is gone is
resolved after ``QUIET_S``.
"""

from __future__ import annotations

import logging
from collections import defaultdict
from collections.abc import Iterable
from typing import Final

import msgspec

from clusterwatch.analysis import health
from clusterwatch.analysis.health import HealthFault, NodePlace, RankPlace
from clusterwatch.analysis.model import Severity
from clusterwatch.analysis.standing import Held, Key, Standing
from clusterwatch.detect import signals
from clusterwatch.detect.scene import is_blind
from clusterwatch.fleet.models import Node, Slot
from clusterwatch.incidents import services
from clusterwatch.incidents.models import LIVE_STATES, Incident
from clusterwatch.incidents.services import Piece, Sighting
from clusterwatch.jobs.models import Rank
from clusterwatch.store import hot

FIRST_LOOK_NS: Final = 24 * 3_600 * 10**9
OVERLAP_NS: Final = 120 * 10**9
"""Clocks of nodes differ, and events come late: so much is read again, and told twice changes nothing."""
OPEN_AFTER_S: Final = 10.0
QUIET_S: Final = 30.0
FAULTS_MAX: Final = 200
"""Incidents of one cluster at once; beyond, what is left is counted in the log."""
log = logging.getLogger(__name__)


class Memory(msgspec.Struct):
    """What is remembered of a cluster."""

    newest_ns: int = 0
    held: list[tuple[Key, Held]] = []
    gone_ns: dict[str, int] = {}
    """fingerprint of a live incident -> since when its fault is not seen any more"""


def look(cluster_id: int, now_ns: int) -> int:
    """Looks at a cluster once; returns how many faults stand. Nothing while no gateway writes.

    Cost: linear in the events since the last look and in what stands; about ten queries.
    """
    if is_blind(now_ns):
        return 0
    memory = _load(cluster_id)
    standing = Standing(dict(memory.held))
    from_ns = memory.newest_ns - OVERLAP_NS if memory.newest_ns else now_ns - FIRST_LOOK_NS
    standing.take(signals.read(cluster_id, from_ns, now_ns + OVERLAP_NS))
    standing.forget(now_ns)
    faults = _faults(standing)
    if len(faults) > FAULTS_MAX:
        log.warning("faults_left_out cluster=%d count=%d", cluster_id, len(faults) - FAULTS_MAX)
    gone = _tell(cluster_id, faults[:FAULTS_MAX], memory.gone_ns, now_ns)
    hot.save_health(cluster_id, msgspec.msgpack.encode(Memory(now_ns, list(standing.held.items()), gone)))
    return len(faults)


def prefix(cluster_id: int) -> str:
    """What the fingerprints of a cluster's own faults begin with."""
    return f"{cluster_id}/health/"


def _load(cluster_id: int) -> Memory:
    blob = hot.load_health(cluster_id)
    if blob is not None:
        try:
            return msgspec.msgpack.decode(blob, type=Memory)
        except msgspec.MsgspecError as fault:
            log.warning("health_unreadable cluster=%d reason=%s", cluster_id, fault)
    return Memory()


def _faults(standing: Standing) -> list[HealthFault]:
    told = standing.signals
    nodes = {one.node_id for one in told if one.node_id is not None}
    return health.judge(told, _places(nodes, standing.paused), _ranks(nodes)) if told else []


def _places(nodes: set[int], paused: set[int]) -> dict[int, NodePlace]:
    gpus: dict[int, dict[str, int]] = defaultdict(dict)
    slots = Slot.objects.filter(node_id__in=nodes, until__isnull=True)
    for node_id, uuid, index in slots.values_list("node_id", "gpu_uuid", "gpu_index"):
        if index is not None:
            gpus[node_id][uuid] = index
    rows = Node.objects.filter(pk__in=nodes).values_list("pk", "name", "rack", "leaf")
    return {
        pk: NodePlace(name, rack, leaf, gpus.get(pk, {}), pk in paused) for pk, name, rack, leaf in rows
    }


def _ranks(nodes: Iterable[int]) -> dict[int, list[RankPlace]]:
    found: dict[int, list[RankPlace]] = defaultdict(list)
    rows = Rank.objects.filter(node_id__in=nodes, exited_at__isnull=True, job__ended_at__isnull=True)
    for node_id, rank, key, uuid in rows.values_list("node_id", "rank", "job__key", "gpu_uuid"):
        found[node_id].append(RankPlace(rank, key, uuid))
    return found


def _tell(
    cluster_id: int, faults: list[HealthFault], gone_ns: dict[str, int], now_ns: int
) -> dict[str, int]:
    """Brings the incidents in line with the faults; returns since when the others are gone."""
    total, heard = Node.objects.filter(cluster_id=cluster_id).count(), len(hot.read_nodes().node_id)
    still: set[str] = set()
    for fault in faults:
        sighting = _sighting(cluster_id, fault, total, min(total, heard))
        still.add(sighting.fingerprint)
        incident, is_new = services.suspect(sighting, now_ns)
        changed = is_new or services.sharpen(incident.pk, sighting, now_ns)
        if changed:
            services.freeze(incident.pk, [evidence(fault)], now_ns)
        if incident.state == Incident.State.SUSPECTED:
            _open_if_due(incident, fault, now_ns)
    live = Incident.objects.filter(state__in=LIVE_STATES, fingerprint__startswith=prefix(cluster_id))
    gone = dict[str, int]()
    for pk, fingerprint in live.exclude(fingerprint__in=still).values_list("pk", "fingerprint"):
        since_ns = gone_ns.get(fingerprint, now_ns)
        if now_ns - since_ns >= QUIET_S * 1e9:
            services.resolve(pk, now_ns, f"nothing tells of it any more, for {QUIET_S:.0f} s")
        else:
            gone[fingerprint] = since_ns
    return gone


def _open_if_due(incident: Incident, fault: HealthFault, now_ns: int) -> None:
    found = fault.finding
    if found.decisive:
        services.open_(incident.pk, now_ns, "the evidence is decisive")
    elif found.severity is Severity.CRITICAL and incident.suspected_at is not None:
        stood_s = now_ns / 1e9 - incident.suspected_at.timestamp()
        if stood_s >= OPEN_AFTER_S:
            services.open_(incident.pk, now_ns, f"it stands for {stood_s:.0f} s")


def _sighting(cluster_id: int, fault: HealthFault, total: int, heard: int) -> Sighting:
    found = fault.finding
    is_critical = found.severity is Severity.CRITICAL
    waits = f"a critical fault opens after {OPEN_AFTER_S:.0f} s" if is_critical else "a warning pages nobody"
    return Sighting(
        fingerprint=(prefix(cluster_id) + fault.key)[:200],
        cluster_id=cluster_id,
        diagnosis=health.diagnosis(fault, total, heard),
        since_ns=fault.since_ns,
        node_id=fault.node_id,
        threshold_s=None if found.decisive or not is_critical else OPEN_AFTER_S,
        threshold_source="decisive evidence opens at once" if found.decisive else waits,
        gpu_count=fault.rank_count,
    )


def evidence(fault: HealthFault) -> Piece:
    """What is frozen with the incident: the lines that tell of the fault."""
    told = {"why": list(fault.finding.why)}
    return Piece("signals", "What parts and logs told", "events of nodes and devices", told, 1.0)
