"""Parts with a past, receivers that were told, and incidents of parts and of what nobody sees."""

from __future__ import annotations

import time
from datetime import UTC, datetime, timedelta

import numpy as np

from clusterwatch.alerts import services as alerts
from clusterwatch.alerts.receivers import Outcome
from clusterwatch.analysis import health_blind
from clusterwatch.analysis.health import diagnosis, judge
from clusterwatch.analysis.health_places import Cast, NodePlace, RankPlace
from clusterwatch.analysis.model import Coverage, Severity
from clusterwatch.analysis.signals import Signal
from clusterwatch.analysis.standing import Held
from clusterwatch.detect import health_blind as blind
from clusterwatch.detect.health_memory import evidence as health_evidence
from clusterwatch.fleet import parts
from clusterwatch.fleet.models import Node, Part
from clusterwatch.incidents import services
from clusterwatch.incidents.models import Incident, IncidentChange


def seed_parts(node: Node, incident: Incident) -> tuple[int, int]:
    """A GPU that moved and was named three times, two receivers: ids of the part and the newest incident."""
    now, now_ns = datetime.now(UTC), time.time_ns()
    others = [parts.Seen("psu", f"PSU-77-{n}", node.name, f"psu/{n}", node.pk, "3 kW") for n in range(1, 7)]
    for days, host, serial in ((40, "node-b", "1650224018811"), (10, "node-a", "1650224018811")):
        gpu = parts.Seen("gpu", serial, host, "gpu/3", None, "NVIDIA H100 80GB HBM3", "GPU-lost")
        parts.take(node.cluster_id, [gpu, *others], now - timedelta(days=days))
    signal = Signal(
        "xid", now_ns - 90 * 10**9, None, node.pk, node.name, "gpu/GPU-lost", Severity.CRITICAL,
        "Xid 79: GPU has fallen off the bus", "kernel_log", 79,
    )  # fmt: skip
    ranks = {node.pk: [RankPlace("88213", incident.job_id or 0, "GPU-lost", 3)]}
    cast = Cast({node.pk: NodePlace(node.name, gpus={"GPU-lost": 3})}, ranks)
    (fault,) = judge([Held(signal, signal.at_ns)], cast)
    found = 0
    for days in (8, 3, 0):
        sighting = services.Sighting(
            f"{node.cluster_id}/health/{days}", node.cluster_id, diagnosis(fault, 2, 2),
            now_ns - days * 86_400 * 10**9, node_id=node.pk, gpu_count=1,
        )  # fmt: skip
        made, _ = services.suspect(sighting, now_ns - days * 86_400 * 10**9)
        services.freeze(made.pk, [health_evidence(fault)], now_ns)
        services.open_(made.pk, now_ns - days * 86_400 * 10**9, "the evidence is decisive")
        if days:
            services.resolve(made.pk, now_ns - days * 86_000 * 10**9, "the GPU was replaced")
        found = made.pk
    alerts.add_receiver("night-shift", "email", "oncall@example.org", None, "shots")
    alerts.add_receiver("pager", "webhook", "https://pager.example.org/hook", None, "shots")
    IncidentChange.objects.exclude(incident_id__in=(incident.pk, found)).update(queued_at=now)
    alerts.enqueue(now)
    for receiver, outcome in ((1, Outcome(True, False, "accepted")), (2, Outcome(False, False, "503 busy"))):
        if (delivery := alerts.claim(receiver, now)) is not None:
            alerts.settle(delivery, outcome, now)
    return Part.objects.get(kind="gpu").pk, found


def seed_blind(cluster_id: int) -> int:
    """A cluster of which most agents are silent: the id of its incident."""
    now_ns = time.time_ns()
    silent_s = np.array([14.0] * 40 + [0.5] * 24)
    found = health_blind.agents_silent(silent_s, silent_s > 0)
    assert found is not None
    seen = blind.Seen(found, True, Coverage(expected=64, reported=24, stale=40), now_ns - 14 * 10**9)
    blind.tell(cluster_id, "agents_silent", seen, now_ns)
    live = services.live_incident(blind.fingerprint(cluster_id, "agents_silent"))
    assert live is not None
    return live.pk
