"""Faults of a cluster's parts become incidents, one for each, with or without a job.

In: a cluster, now (ns UTC). Out: incidents raised, opened, sharpened, resolved. A critical fault opens at
once when the evidence is decisive, else when it stands for ``OPEN_AFTER_S``; a warning, and what a scheduler
has drained already, is suspected and pages nobody. What is gone is resolved after ``QUIET_S``. What is
remembered between two looks: ``health_memory``.
"""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Container, Mapping
from typing import Final

from django.db.models import Max

from clusterwatch.analysis import health
from clusterwatch.analysis import health_kinds as kinds
from clusterwatch.analysis.health import HealthFault
from clusterwatch.analysis.model import Severity
from clusterwatch.analysis.standing import Key, Standing
from clusterwatch.detect import health_cast, health_memory, signals
from clusterwatch.detect.health_memory import Memory
from clusterwatch.detect.scene import is_blind
from clusterwatch.fleet.models import Node, Slot
from clusterwatch.fleet.queries import slot_count
from clusterwatch.incidents import services
from clusterwatch.incidents.models import LIVE_STATES, Incident
from clusterwatch.incidents.services import Sighting
from clusterwatch.store import hot

OPEN_AFTER_S: Final = 10.0
QUIET_S: Final = 30.0
"""One that comes back within it is the same incident."""
SAID_AGAIN_NS: Final = 30 * 10**9
"""How often an incident says that nothing has changed."""
FAULTS_MAX: Final = 200
"""Incidents of one cluster at once, the worst first; beyond, what is left is counted in the log."""
ANSWER_METRIC: Final = "gpu_power_w"
ANSWER_AFTER_NS: Final = 60 * 10**9
"""A value that is younger than a GPU's loss by less may be one from before."""
PART_OF: Final = "part of: "
log = logging.getLogger(__name__)


def look(cluster_id: int, now_ns: int) -> int:
    """Looks at a cluster once; returns how many faults stand. Nothing while no gateway writes.

    Cost: linear in the events since the last look and in what stands; about fifteen queries, and some for
    each fault that is new or has changed.
    """
    if is_blind(now_ns):
        return 0
    memory = health_memory.load(cluster_id, prefix(cluster_id))
    standing = Standing(dict(memory.held))
    from_ns = memory.span(now_ns)
    standing.take(signals.read(cluster_id, from_ns, now_ns + health_memory.OVERLAP_NS, kinds.READ))
    _take_hot(cluster_id, standing, now_ns)
    standing.forget(now_ns)
    held = standing.faults
    faults = health.judge(held, health_cast.gather(cluster_id, standing, held), memory.keys) if held else []
    left_out = max(0, len(faults) - FAULTS_MAX) + standing.left_out
    if left_out:
        log.warning("faults_left_out cluster=%d count=%d", cluster_id, left_out)
    _tell(cluster_id, faults, memory, now_ns)
    memory.held = list(standing.held.items())
    memory.keys = [one.key for one in faults]
    health_memory.save(cluster_id, memory)
    return len(faults)


def prefix(cluster_id: int) -> str:
    """What the fingerprints of a cluster's own faults begin with."""
    return f"{cluster_id}/health/"


def fingerprint(cluster_id: int, key: str) -> str:
    """Of a long key the end is a digest: two faults never share one."""
    whole = prefix(cluster_id) + key
    if len(whole) <= 200:
        return whole
    return f"{whole[:160]}#{hashlib.blake2b(whole.encode(), digest_size=12).hexdigest()}"


# --- what hot frames say -----------------------------------------------------------------------------------


def _take_hot(cluster_id: int, standing: Standing, now_ns: int) -> None:
    """Clocks that are held down, and lost GPUs that have values again."""
    throttled = {
        (held.signal.node_id, held.signal.part): held.signal
        for held in standing.held.values()
        if held.signal.source == signals.FRAMES and held.signal.node_id is not None
    }
    standing.take(signals.held_down(cluster_id, throttled, now_ns))
    lost = {
        key: held.told_ns
        for key, held in standing.held.items()
        if kinds.verdict_of(held.signal) == "gpu_lost" and not held.signal.stands
    }
    standing.answer(_answering(cluster_id, lost, now_ns) if lost else (), now_ns)


def _answering(cluster_id: int, lost: dict[Key, int], now_ns: int) -> list[Key]:
    """Lost GPUs that have a value of now."""
    count = slot_count(cluster_id)
    array = hot.read_metric(cluster_id, ANSWER_METRIC, count)
    slots = Slot.objects.filter(node_id__in={key[0] for key in lost}, until__isnull=True)
    rows = slots.exclude(gpu_uuid="").values_list("node_id", "gpu_uuid", "number")
    number_of = {(node_id, f"gpu/{uuid}"): number for node_id, uuid, number in rows}
    found = []
    for key, told_ns in lost.items():
        number = number_of.get((key[0], key[1]))
        if number is None or number >= count:
            continue
        seen_ns, value = int(array.seen_ns[number]), float(array.values[number])
        is_known = value == value and now_ns - seen_ns < signals.FRESH_NS  # NaN: no value
        if is_known and seen_ns - told_ns > ANSWER_AFTER_NS:
            found.append(key)
    return found


# --- incidents ---------------------------------------------------------------------------------------------


def _tell(cluster_id: int, faults: list[HealthFault], memory: Memory, now_ns: int) -> None:
    """Brings the incidents in line with the faults."""
    live = {
        one.fingerprint: one
        for one in Incident.objects.filter(
            state__in=LIVE_STATES, fingerprint__startswith=prefix(cluster_id)
        ).defer("diagnosis")
    }
    total = Node.objects.filter(cluster_id=cluster_id).count() if faults else 0
    nodes = hot.read_nodes()
    heard = int(((nodes.cluster_id == cluster_id) & (now_ns - nodes.seen_ns < signals.FRESH_NS)).sum())
    raised = 0
    named = {fingerprint(cluster_id, fault.key): fault for fault in faults}
    closed = _closed(named, live)
    for name, fault in named.items():
        incident = live.pop(name, None)
        if incident is None and (name in closed or len(live) + raised >= FAULTS_MAX):
            continue
        raised += 1
        memory.gone_ns.pop(name, None)
        sighting = _sighting(cluster_id, name, fault, (total, min(total, heard)))
        incident = _say(incident, sighting, fault, memory, now_ns)
        if incident.state == Incident.State.SUSPECTED:
            _open_if_due(incident, fault, now_ns)
    _resolve(live, faults, memory, cluster_id, now_ns)


def _closed(named: Mapping[str, HealthFault], live: Container[str]) -> set[str]:
    """Faults whose incident was closed since anything was told of them: nothing new, whoever closed it."""
    fresh = {name: fault for name, fault in named.items() if name not in live}
    if not fresh:
        return set()
    rows = (
        Incident.objects.filter(fingerprint__in=fresh, state=Incident.State.RESOLVED)
        .exclude(resolution__startswith=PART_OF)
        .order_by()
        .values_list("fingerprint")
        .annotate(Max("resolved_at"))
    )
    return {
        name
        for name, at in rows
        if at is not None and at.timestamp() * 1e9 >= max(one.held.told_ns for one in fresh[name].cases)
    }


def _say(
    incident: Incident | None, sighting: Sighting, fault: HealthFault, memory: Memory, now_ns: int
) -> Incident:
    """Raises or sharpens; what has not changed is said again from time to time only."""
    name, found = sighting.fingerprint, fault.finding
    said = f"{found.verdict}/{found.severity}/{found.cause}/{fault.rank_count}/{found.summary}"
    digest = hashlib.blake2b(said.encode(), digest_size=8).hexdigest()
    before, at_ns = memory.told.get(name, ("", 0))
    if incident is not None and before == digest and now_ns - at_ns < SAID_AGAIN_NS:
        return incident
    memory.told[name] = (digest, now_ns)
    is_new = False
    if incident is None:
        incident, is_new = services.suspect(sighting, now_ns)
    if is_new or services.sharpen(incident.pk, sighting, now_ns):
        services.freeze(incident.pk, [health_memory.evidence(fault)], now_ns)
    return incident


def _resolve(
    gone: dict[str, Incident], faults: list[HealthFault], memory: Memory, cluster_id: int, now_ns: int
) -> None:
    """Of incidents without a fault: part of another one now, or over when it has been so for a while."""
    taken = {fingerprint(cluster_id, key): fault for fault in faults for key in fault.absorbs}
    for name, incident in gone.items():
        since_ns = memory.gone_ns.setdefault(name, now_ns)
        if name in taken:
            services.resolve(incident.pk, now_ns, f"{PART_OF}{taken[name].finding.summary}")
        elif now_ns - since_ns >= QUIET_S * 1e9:
            services.resolve(incident.pk, now_ns, f"it is over, and has been quiet for {QUIET_S:.0f} s")
        else:
            continue
        memory.told.pop(name, None)
    memory.gone_ns = {name: at_ns for name, at_ns in memory.gone_ns.items() if name in gone}
    memory.told = {name: told for name, told in memory.told.items() if now_ns - told[1] < 10 * SAID_AGAIN_NS}


def _open_if_due(incident: Incident, fault: HealthFault, now_ns: int) -> None:
    found = fault.finding
    if fault.is_expected:
        return
    if found.decisive:
        services.open_(incident.pk, now_ns, "the evidence is decisive")
    elif found.severity is Severity.CRITICAL and incident.suspected_at is not None:
        stood_s = now_ns / 1e9 - incident.suspected_at.timestamp()
        if stood_s >= OPEN_AFTER_S:
            services.open_(incident.pk, now_ns, f"it stands for {stood_s:.0f} s")


def _sighting(cluster_id: int, name: str, fault: HealthFault, nodes: tuple[int, int]) -> Sighting:
    """``nodes``: how many the cluster has, and how many are heard."""
    found = fault.finding
    waits = found.severity is Severity.CRITICAL and not found.decisive and not fault.is_expected
    return Sighting(
        fingerprint=name,
        cluster_id=cluster_id,
        diagnosis=health.diagnosis(fault, *nodes),
        since_ns=fault.since_ns,
        node_id=fault.node_id,
        threshold_s=OPEN_AFTER_S if waits else None,
        threshold_source=_threshold_words(fault),
        gpu_count=fault.rank_count,
    )


def _threshold_words(fault: HealthFault) -> str:
    if fault.is_expected:
        return "pages nobody: its scheduler has drained it"
    if fault.finding.decisive:
        return "decisive evidence opens at once"
    if fault.finding.severity is Severity.CRITICAL:
        return f"a critical fault opens when it has stood for {OPEN_AFTER_S:.0f} s"
    return "a warning pages nobody"
