"""Sightings of faults, for tests of the incidents room."""

from __future__ import annotations

from clusterwatch.analysis.model import Coverage, Culprit, Diagnosis, Finding, Severity
from clusterwatch.fleet.models import Cluster
from clusterwatch.incidents.services import Sighting

T0 = 1_790_000_000_000_000_000
SECOND = 1_000_000_000


def diagnosis(
    verdict: str = "missing_rank", *, culprits: tuple[int, ...] = (3,), confidence: float = 0.9
) -> Diagnosis:
    finding = Finding(
        verdict=verdict,
        fault_class="hang",
        severity=Severity.CRITICAL,
        summary=f"{verdict} of {culprits}",
        rule="test v1",
        confidence=confidence,
        culprit_ranks=culprits,
        culprits=tuple(Culprit(rank, host="host-1") for rank in culprits),
    )
    return Diagnosis((finding,), Coverage(8, 8, 0, 0))


def sighting(fingerprint: str = "1/1/0/stopped", **changes: object) -> Sighting:
    cluster, _ = Cluster.objects.get_or_create(name="tiny")
    said = changes.pop("diagnosis", None) or diagnosis()
    return Sighting(fingerprint, cluster.pk, said, T0, threshold_s=10.0, threshold_source="test", **changes)  # type: ignore[arg-type]
