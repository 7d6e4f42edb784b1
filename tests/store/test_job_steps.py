"""A minute of a job's steps: percentiles over all ranks, the slowest by name, built again for late ones."""

from __future__ import annotations

import time

import pytest
from django.db import connection

from clusterwatch.fleet.services import ensure_cluster
from clusterwatch.ingest import fleet_minutes
from clusterwatch.store import job_steps, rank_history, series
from collectors.wire.records import RankId, Steps

pytestmark = pytest.mark.stack

MINUTE_NS = 60 * 10**9
CLUSTER, JOB = 7, 70
NOW_NS = time.time_ns()
AT_NS = NOW_NS // MINUTE_NS * MINUTE_NS - 5 * MINUTE_NS


@pytest.fixture(autouse=True)
def _empty(transactional_db: None) -> None:
    with connection.cursor() as cursor:
        cursor.execute("TRUNCATE steps, job_steps, late_minute, fleet_horizon")


def tell(ranks: range, *, node: int, world: str = "", cluster_id: int = CLUSTER) -> None:
    """Each rank of a node tells ten steps of 2 s; rank 3 of 2.5 s."""
    rows, times = series.Rows(), []
    for number, rank in enumerate(ranks):
        duration = [2.0 + 0.5 * (rank == 3)] * 10
        ends = [AT_NS + step * 10**9 for step in range(10)]
        none: list[float | None] = [None] * 10
        record = Steps(
            ends[-1], RankId("job", rank, world=world), list(range(100, 110)), ends, duration, *[none] * 4
        )
        rows.add_told("steps", (cluster_id, node, "e"), number, JOB, record)
        times.append(("steps", ends[-1]))
    series.PartitionCache().prepare(times)
    rows.write()


def stored() -> int:
    with connection.cursor() as cursor:
        cursor.execute("SELECT count(*) FROM steps")
        return int(cursor.fetchone()[0])


def test_ranks_of_a_node_share_a_row() -> None:
    tell(range(8), node=1)
    tell(range(8, 16), node=2)
    assert stored() == 2
    bands = rank_history.step_bands(JOB, 0, AT_NS, AT_NS + MINUTE_NS)
    assert sum(band.steps for band in bands) == 160 and bands[-1].newest_step == 109
    slow = rank_history.slow_ranks(JOB, 0, AT_NS, AT_NS + MINUTE_NS)
    assert slow[0].rank == 3 and slow[0].p90_s == 2.5 and slow[0].typical_s == 2.0


def test_a_minute_keeps_percentiles_and_the_slowest_ranks() -> None:
    tell(range(8), node=1)
    tell(range(8, 16), node=2)
    assert job_steps.build(CLUSTER, AT_NS) == 1
    (minute,) = job_steps.minutes(JOB, 0, AT_NS, AT_NS + MINUTE_NS)
    assert (minute.steps, minute.newest_step) == (160, 109)
    assert minute.durations_s[0] == minute.durations_s[2] == 2.0 and minute.durations_s[4] == 2.5
    assert minute.slow[0] == ("", 3, 2.5) and minute.slow[1][2] == 2.0
    assert job_steps.newest_ns(JOB, 0) == AT_NS


def test_steps_that_come_late_build_their_minute_again() -> None:
    cluster_id = ensure_cluster("steps", simulated=True).pk
    tell(range(8), node=1, cluster_id=cluster_id)
    fleet_minutes.build_due(cluster_id, NOW_NS)
    tell(range(8, 16), node=2, cluster_id=cluster_id)
    fleet_minutes.build_due(cluster_id, NOW_NS)
    (minute,) = job_steps.minutes(JOB, 0, AT_NS, AT_NS + MINUTE_NS)
    assert minute.steps == 160


def test_ranks_of_two_worlds_with_one_number_are_two() -> None:
    tell(range(3, 4), node=1)
    tell(range(3, 4), node=2, world="critic")
    assert stored() == 2 and job_steps.build(CLUSTER, AT_NS) == 1
    (minute,) = job_steps.minutes(JOB, 0, AT_NS, AT_NS + MINUTE_NS)
    assert minute.slow == (("", 3, 2.5), ("critic", 3, 2.5))


def test_records_of_two_minutes_are_two_rows() -> None:
    rows = series.Rows()
    for number, at_ns in enumerate((AT_NS, AT_NS + MINUTE_NS)):
        record = Steps(at_ns, RankId("job", 1), [number], [at_ns], [2.0], [None], [None], [None], [None])
        rows.add_told("steps", (CLUSTER, 1, "e"), number, JOB, record)
    series.PartitionCache().prepare([("steps", AT_NS)])
    rows.write()
    assert stored() == 2


def test_bands_outlive_the_steps_of_single_ranks() -> None:
    tell(range(8), node=1)
    job_steps.build(CLUSTER, AT_NS)
    with connection.cursor() as cursor:
        cursor.execute("TRUNCATE steps")
    assert rank_history.newest_step_ns(JOB, 0) == AT_NS + MINUTE_NS
    (band,) = rank_history.kept_bands(JOB, 0, AT_NS, AT_NS + MINUTE_NS)
    assert (band.start_ns, band.steps, band.p50_s, band.newest_step) == (AT_NS, 80, 2.0, 109)


def test_a_minute_without_steps_makes_no_row() -> None:
    assert job_steps.build(CLUSTER, AT_NS) == 0
