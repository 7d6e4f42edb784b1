from __future__ import annotations

import orjson
import pytest
import redis
from django.db import transaction

from clusterwatch.fleet.models import Cluster
from clusterwatch.incidents import services
from clusterwatch.incidents.models import Incident
from clusterwatch.incidents.queries import live_counts, live_summary
from clusterwatch.store import valkey as keys
from tests.incidents.sightings import SECOND, T0, diagnosis, sighting

pytestmark = pytest.mark.django_db(transaction=True)


def published(client: redis.Redis, topic: str) -> dict[str, object]:
    raw = client.get(keys.frame_full_key(topic))
    assert isinstance(raw, bytes), f"nothing was published on {topic}"
    return orjson.loads(raw)["full"]


def test_pages_are_told_of_a_new_incident(valkey: redis.Redis) -> None:
    incident, _ = services.suspect(sighting(), T0)
    listed = published(valkey, f"incidents:{incident.cluster_id}")
    row = listed["incidents"][str(incident.pk)]
    assert (row["state"], row["verdict"], row["culprits"]) == (
        "suspected",
        "missing_rank",
        [{"rank": 3, "host": "host-1"}],
    )
    assert listed["counts"]["suspected"] == 1
    assert published(valkey, f"incident:{incident.pk}")["state"] == "suspected"


def test_a_resolved_incident_leaves_the_list(valkey: redis.Redis) -> None:
    incident, _ = services.suspect(sighting(), T0)
    services.resolve(incident.pk, T0 + SECOND, "moved again")
    assert published(valkey, f"incidents:{incident.cluster_id}")["incidents"] == {}
    assert published(valkey, f"incident:{incident.pk}")["state"] == "resolved"


def test_what_was_rolled_back_is_not_announced(valkey: redis.Redis) -> None:
    seen = sighting()
    with pytest.raises(RuntimeError), transaction.atomic():
        services.suspect(seen, T0)
        raise RuntimeError("rolled back")
    assert valkey.get(keys.frame_full_key(f"incidents:{seen.cluster_id}")) is None


def test_without_valkey_the_incident_is_raised_all_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    def away(*_: object) -> None:
        raise redis.ConnectionError("away")

    monkeypatch.setattr("clusterwatch.store.frames.publish", away)
    services.suspect(sighting(), T0)
    assert Incident.objects.get().state == "suspected"


def test_the_summary_is_worst_first_and_bounded_to_live_ones(valkey: redis.Redis) -> None:
    cluster = Cluster.objects.create(name="tiny")
    for number in range(4):
        services.suspect(sighting(f"1/{number}/0/stopped", diagnosis=diagnosis(culprits=(number,))), T0)
    Incident.objects.filter(fingerprint="1/2/0/stopped").update(severity="warning")
    gone = Incident.objects.get(fingerprint="1/0/0/stopped")
    services.resolve(gone.pk, T0, "over")
    assert [row["culprit_ranks"] for row in live_summary(cluster.pk)] == [[1], [3], [2]]
    assert live_counts(cluster.pk) == {"suspected": 3, "open": 0, "acknowledged": 0, "probation": 0}
