"""Minutes of a fleet are built when they are due, once, and again for what came late."""

from __future__ import annotations

import pytest
import redis
from django_celery_beat.models import PeriodicTask

from clusterwatch.fleet.models import Cluster
from clusterwatch.ingest import fleet_minutes, schedule, tasks
from clusterwatch.ingest.fleet_minutes import MINUTE_NS, Built, build_due
from clusterwatch.project.celery_app import app
from clusterwatch.store import hot, late_minutes
from clusterwatch.store.late_minutes import LateMinute

T0 = 29_900_000 * MINUTE_NS
NOW_NS = T0 + 2 * MINUTE_NS
"""The minute T0 became due this very moment."""

pytestmark = pytest.mark.django_db


@pytest.fixture
def cluster() -> Cluster:
    made = Cluster.objects.create(name="tiny")
    late_minutes.move_horizon(made.pk, T0 - MINUTE_NS)
    late_minutes.finish(made.pk, LateMinute(T0 - MINUTE_NS, 0))
    return made


@pytest.fixture
def built(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Minutes that were built, counted from T0, without building."""
    seen: list[int] = []

    def build(cluster_id: int, t_ns: int, slots: object) -> int:
        seen.append((t_ns - T0) // MINUTE_NS)
        return 1

    monkeypatch.setattr(fleet_minutes, "build_fleet_minute", build)
    return seen


def test_a_minute_is_built_once_a_minute_after_its_end(cluster: Cluster, built: list[int]) -> None:
    assert build_due(cluster.pk, NOW_NS - 1) == Built()
    assert build_due(cluster.pk, NOW_NS) == Built(fresh=1)
    assert build_due(cluster.pk, NOW_NS + 30 * 10**9) == Built()
    assert built == [0]


def test_minutes_of_a_pause_are_made_up_for_in_order(cluster: Cluster, built: list[int]) -> None:
    assert build_due(cluster.pk, NOW_NS + 3 * MINUTE_NS) == Built(fresh=4)
    assert built == [0, 1, 2, 3]


def test_a_long_pause_is_made_up_for_in_several_runs(
    cluster: Cluster, built: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fleet_minutes, "RUN_MAX_S", -1.0)
    assert build_due(cluster.pk, NOW_NS + 3 * MINUTE_NS) == Built()
    monkeypatch.setattr(fleet_minutes, "RUN_MAX_S", 25.0)
    build_due(cluster.pk, NOW_NS + 3 * MINUTE_NS)
    assert built == [0, 1, 2, 3]


def test_a_new_cluster_begins_an_hour_back(built: list[int]) -> None:
    build_due(Cluster.objects.create(name="new").pk, NOW_NS)
    assert built == list(range(-60, 1))


def test_what_came_late_is_built_again_and_only_once(cluster: Cluster, built: list[int]) -> None:
    late_minutes.note({(cluster.pk, T0 - 5 * MINUTE_NS), (cluster.pk, T0 + 5 * MINUTE_NS)})
    assert build_due(cluster.pk, NOW_NS) == Built(fresh=1, again=1)
    assert build_due(cluster.pk, NOW_NS) == Built()
    assert built == [0, -5]


def test_a_minute_whose_building_failed_is_tried_again(
    cluster: Cluster, built: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object) -> int:
        raise MemoryError

    with monkeypatch.context() as broken:
        broken.setattr(fleet_minutes, "build_fleet_minute", fail)
        with pytest.raises(MemoryError):
            build_due(cluster.pk, NOW_NS)
    assert build_due(cluster.pk, NOW_NS) == Built(again=1)
    assert built == [0]


def test_one_task_builds_a_cluster_at_a_time(valkey: redis.Redis, cluster: Cluster, built: list[int]) -> None:
    lease = f"ingest:fleet_minutes:{cluster.pk}"
    hot.take_lease(lease, "another task", 5)
    assert tasks.build_cluster_minutes(cluster.pk) is False and built == []
    hot.drop_lease(lease, "another task")
    assert tasks.build_cluster_minutes(cluster.pk) is True and len(built) > 0
    assert tasks.build_cluster_minutes(cluster.pk) is True


def test_beat_knows_the_task_and_installing_again_changes_nothing() -> None:
    schedule.install()
    schedule.install()
    row = PeriodicTask.objects.get(name=schedule.FLEET_NAME)
    app.loader.import_default_modules()
    assert row.task in app.tasks and row.enabled
