"""The way from an incident's changes to receivers: nothing lost, nothing doubled, nothing out of order."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from clusterwatch.alerts import deliver, services, tasks
from clusterwatch.alerts.models import Delivery, Receiver
from clusterwatch.alerts.receivers import Outcome
from clusterwatch.fleet.models import Cluster
from clusterwatch.fleet.services import set_observe_only
from clusterwatch.incidents import services as incidents
from clusterwatch.incidents.models import Incident
from tests.alerts.servers import Hook, status
from tests.incidents.sightings import SECOND, T0, diagnosis, sighting

pytestmark = pytest.mark.django_db
NOW = datetime(2026, 12, 3, 9, tzinfo=UTC)
OK = Outcome(True, False, "accepted")
DOWN = Outcome(False, False, "503")


def receiver(address: str = "https://pager.example.org/hook", **changes: Any) -> Receiver:
    made = services.add_receiver(changes.pop("name", "pager"), "webhook", address, None, "test")
    Receiver.objects.filter(pk=made.pk).update(**changes)
    return Receiver.objects.get(pk=made.pk)


def incident(fingerprint: str = "1/1/0/stopped") -> Incident:
    made, _ = incidents.suspect(sighting(fingerprint), T0)
    return made


def opened(fingerprint: str = "1/1/0/stopped") -> Incident:
    made = incident(fingerprint)
    incidents.open_(made.pk, T0 + SECOND, "test")
    return made


def states() -> list[str]:
    return [row.state for row in Delivery.objects.order_by("pk")]


def later(seconds: float) -> datetime:
    return NOW + timedelta(seconds=seconds)


def test_a_suspicion_tells_nobody_and_an_opening_everybody(db: None) -> None:
    first, _second = receiver(), receiver(name="second")
    made = incident()
    assert services.enqueue(NOW) == 0
    incidents.open_(made.pk, T0 + SECOND, "test")
    assert services.enqueue(NOW) == 2 and services.enqueue(NOW) == 0
    assert services.receivers_due(NOW) == [first.pk, first.pk + 1]


def test_a_suspicion_that_ends_tells_nobody() -> None:
    receiver()
    incidents.resolve(incident().pk, T0 + SECOND, "moves again")
    assert services.enqueue(NOW) == 0


def test_a_receiver_of_later_hears_nothing_of_before() -> None:
    opened()
    services.enqueue(NOW)
    receiver()
    assert services.enqueue(NOW) == 0


@pytest.mark.parametrize("how", ["simulated", "observed"])
def test_simulated_and_observed_clusters_tell_nobody(how: str) -> None:
    receiver()
    opened()
    if how == "simulated":
        Cluster.objects.update(simulated=True)
    else:
        assert set_observe_only("tiny", True, "test")
    assert services.enqueue(NOW) == 0
    set_observe_only("tiny", False, "test")
    Cluster.objects.update(simulated=False)
    assert services.enqueue(NOW) == 0, "what was not told then is not told later"


def test_a_receiver_of_one_cluster_hears_of_that_one_even_simulated() -> None:
    made = opened()
    Cluster.objects.update(simulated=True)
    other = Cluster.objects.create(name="other")
    receiver(cluster=made.cluster)
    receiver(name="elsewhere", cluster=other)
    assert services.enqueue(NOW) == 1


def test_what_is_true_now_is_sent_once_although_much_has_changed() -> None:
    pager, made = receiver(), opened()
    incidents.sharpen(made.pk, sighting(diagnosis=diagnosis("dead_rank")), T0 + 2 * SECOND)
    incidents.resolve(made.pk, T0 + 3 * SECOND, "moves again")
    assert services.enqueue(NOW) == 3
    claimed = services.claim(pager.pk, NOW)
    assert claimed is not None and claimed.change.after == "resolved"
    assert states() == ["superseded", "superseded", "sending"]
    services.settle(claimed, OK, NOW)
    assert services.claim(pager.pk, NOW) is None and states()[-1] == "sent"


def test_two_incidents_are_two_notices() -> None:
    pager = receiver()
    opened()
    opened("2/2/0/stopped")
    services.enqueue(NOW)
    first, second = services.claim(pager.pk, NOW), services.claim(pager.pk, NOW)
    assert first is not None and second is not None and first.incident_id != second.incident_id


def test_nothing_of_an_incident_is_sent_while_another_worker_has_it_in_hand() -> None:
    pager, made = receiver(), opened()
    services.enqueue(NOW)
    first = services.claim(pager.pk, NOW)
    incidents.resolve(made.pk, T0 + 3 * SECOND, "moves again")
    services.enqueue(NOW)
    assert first is not None and services.claim(pager.pk, later(1)) is None
    services.settle(first, OK, later(2))
    then = services.claim(pager.pk, later(3))
    assert then is not None and then.change.after == "resolved"


def test_a_killed_worker_loses_nothing_and_its_late_word_doubles_nothing() -> None:
    pager = receiver()
    opened()
    services.enqueue(NOW)
    dead = services.claim(pager.pk, NOW)
    assert dead is not None and services.claim(pager.pk, later(59)) is None
    assert services.receivers_due(later(61)) == [pager.pk]
    again = services.claim(pager.pk, later(61))
    assert again is not None and (again.pk, again.key, again.attempts) == (dead.pk, dead.key, 2)
    services.settle(dead, DOWN, later(62))
    assert states() == ["sending"]
    services.settle(again, OK, later(63))
    assert states() == ["sent"]


def test_failures_wait_longer_and_longer_and_hold_up_nobody_else() -> None:
    pager, other = receiver(), receiver(name="other")
    opened()
    services.enqueue(NOW)
    at, waits = NOW, []
    for _ in range(9):
        claimed = services.claim(pager.pk, at)
        assert claimed is not None
        services.settle(claimed, DOWN, at)
        after = Receiver.objects.get(pk=pager.pk).resume_at
        assert after is not None and services.receivers_due(at) == [other.pk]
        waits.append((after - at).total_seconds())
        at = max(after, Delivery.objects.get(pk=claimed.pk).due_at)
    assert 4 <= waits[0] <= 6 and 480 <= waits[-1] <= 720 and waits[3] > 2 * waits[0]
    assert Receiver.objects.get(pk=pager.pk).failures == 9


def test_a_notice_that_is_always_refused_holds_up_no_other_incident() -> None:
    pager = receiver()
    bad, good = opened(), opened("2/2/0/stopped")
    services.enqueue(NOW)
    at, told = NOW, []
    for _ in range(40):
        at += timedelta(seconds=2)
        if pager.pk in services.receivers_due(at) and (claimed := services.claim(pager.pk, at)) is not None:
            is_bad = claimed.incident_id == bad.pk
            services.settle(claimed, DOWN if is_bad else OK, at)
            told.append(claimed.incident_id)
    assert told[:2] == [bad.pk, good.pk] and told.count(bad.pk) >= 3 and told.count(good.pk) == 1


def test_the_other_side_may_say_how_long_to_wait() -> None:
    pager = receiver()
    opened()
    services.enqueue(NOW)
    claimed = services.claim(pager.pk, NOW)
    assert claimed is not None
    services.settle(claimed, Outcome(False, False, "429", 90.0), NOW)
    assert services.receivers_due(later(89)) == [] and services.receivers_due(later(91)) == [pager.pk]


def test_it_gives_up_after_a_day_or_at_once_where_it_is_for_good() -> None:
    pager = receiver()
    opened()
    services.enqueue(NOW)
    claimed = services.claim(pager.pk, later(86_400))
    assert claimed is not None
    services.settle(claimed, DOWN, later(86_401))
    opened("2/2/0/stopped")
    services.enqueue(later(86_402))
    Receiver.objects.update(resume_at=None)
    claimed = services.claim(pager.pk, later(86_402))
    assert claimed is not None
    services.settle(claimed, Outcome(False, True, "410 gone"), later(86_403))
    assert states() == ["failed", "failed"] and services.receivers_due(later(90_000)) == []


def test_the_tasks_send_an_opening_and_its_end_in_order(hook: Hook, valkey: object) -> None:
    pager, made = receiver(hook.url), opened()
    assert tasks.deliver_all.run.__name__
    services.enqueue(datetime.now(UTC))
    assert tasks.deliver_to(pager.pk) == 1
    incidents.sharpen(made.pk, sighting(diagnosis=diagnosis("dead_rank")), T0 + 2 * SECOND)
    services.enqueue(datetime.now(UTC))
    assert deliver.to_receiver(pager.pk) == 1
    hook.answer = lambda handler: status(handler, 503)
    incidents.resolve(made.pk, T0 + 3 * SECOND, "moves again")
    services.enqueue(datetime.now(UTC))
    assert deliver.to_receiver(pager.pk) == 0
    hook.answer = lambda handler: status(handler, 204)
    Receiver.objects.update(resume_at=None)
    Delivery.objects.update(due_at=NOW - timedelta(days=300))
    assert deliver.to_receiver(pager.pk) == 1
    assert hook.events == [
        ("opened", "open"), ("verdict_changed", "open"), ("resolved", "resolved"), ("resolved", "resolved"),
    ]  # fmt: skip
    keys = [one["Idempotency-Key"] for one in hook.headers]
    assert keys[2] == keys[3] and len(set(keys)) == 3
