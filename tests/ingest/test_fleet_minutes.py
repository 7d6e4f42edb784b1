"""Minutes of a fleet are built when they are due, once, and again for what came late."""

from __future__ import annotations

import math
import time
from array import array

import pytest
import redis
from django.db import connection
from django_celery_beat.models import PeriodicTask

from clusterwatch.fleet.models import Cluster, Node, Slot
from clusterwatch.ingest import commit, fleet_minutes, schedule, tasks
from clusterwatch.ingest.apply import Origin
from clusterwatch.ingest.checks import Checked
from clusterwatch.ingest.fleet_minutes import MINUTE_NS, Built, build_due
from clusterwatch.project.celery_app import app
from clusterwatch.store import fleet_planes, hot, late_minutes, series
from clusterwatch.store.late_minutes import LateMinute
from collectors.wire import blocks, records

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


def test_a_block_that_ingest_stores_late_is_in_the_minute_after_the_next_run() -> None:
    cluster = Cluster.objects.create(name="live", slot_count=2, slots_version=2)
    nodes = [Node.objects.create(cluster=cluster, name=name, machine_id=name) for name in ("early", "late")]
    for number, node in enumerate(nodes):
        Slot.objects.create(cluster=cluster, number=number, node=node, gpu_index=0)
    now_ns = time.time_ns()
    minute_ns = (now_ns // MINUTE_NS - 3) * MINUTE_NS
    send(nodes[0], minute_ns, 100)
    build_due(cluster.pk, now_ns)
    assert stored_power(cluster, minute_ns) == (1, [50.0, None])
    send(nodes[1], minute_ns, 120)
    assert build_due(cluster.pk, now_ns) == Built(again=1)
    assert stored_power(cluster, minute_ns) == (2, [50.0, 60.0])
    assert build_due(cluster.pk, now_ns) == Built()


def send(node: Node, minute_ns: int, multiple: int) -> None:
    """One block as the gateway commits it."""
    metrics = [records.BlockMetric("gpu_power_w", "w", 0.5, 1, 60)]
    data = blocks.encode(metrics, [array("q", [multiple] * 60)])
    rollup = blocks.pack_rollups([blocks.rollup([multiple], 0.5)])
    block = records.Block(minute_ns, blocks.CODEC, metrics, data, rollup)
    origin = Origin(node.cluster.name, node.name, "epoch", node.cluster_id, node.pk)
    outcome = commit.commit(
        [commit.LaneBatch(origin, "bulk", [Checked(1, len(data), block)])], series.PartitionCache()
    )
    assert outcome.stored_count == 1


def stored_power(cluster: Cluster, minute_ns: int) -> tuple[int, list[float | None]]:
    """(nodes, mean per slot) of the minute."""
    with connection.cursor() as cursor:
        cursor.execute(
            "SELECT node_count, data FROM fleet_minute WHERE cluster_id = %s AND t_ns = %s",
            [cluster.pk, minute_ns],
        )
        count, data = cursor.fetchone()
    mean = fleet_planes.decode_plane(bytes(data), 1).tolist()
    return count, [None if math.isnan(number) else number for number in mean]


def test_one_task_builds_a_cluster_at_a_time(valkey: redis.Redis, cluster: Cluster, built: list[int]) -> None:
    # The task goes by the clock, which is far from T0: else it makes up for every minute since.
    late_minutes.move_horizon(cluster.pk, time.time_ns() // MINUTE_NS * MINUTE_NS - 5 * MINUTE_NS)
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
