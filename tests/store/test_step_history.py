"""Steps of a job since a moment: own work is what no part explains, unknown where a part is unknown."""

from __future__ import annotations

import time
from typing import Any

import numpy as np
import pytest
from django.db import connection

from clusterwatch.store import series, step_history
from collectors.wire.records import RankId, Steps

pytestmark = pytest.mark.stack

S_NS = 10**9
CLUSTER, JOB = 7, 71
AT_NS = time.time_ns() // S_NS * S_NS - 300 * S_NS


@pytest.fixture(autouse=True)
def _empty(transactional_db: None) -> None:
    with connection.cursor() as cursor:
        cursor.execute("TRUNCATE steps, late_minute")


def tell(
    rank: int, *, node: int = 1, attempt: int = 0, world: str = "", first: int = 100, **more: Any
) -> None:
    """Five steps of 2 s from AT_NS on: 0.5 s of waiting, 0.25 for data, in the last one a checkpoint."""
    numbers = list(range(first, first + 5))
    ends = [AT_NS + 2 * S_NS * (number - 100) for number in numbers]
    columns: dict[str, Any] = {
        "duration_s": [2.0] * 5, "data_wait_s": [0.25] * 5, "checkpoint_s": [0.0] * 4 + [1.0],
        "gc_s": [0.01] * 5, "cpu_s": [None] * 5, "wait_s": [0.5] * 5, "late_launch": [None] * 5,
    }  # fmt: skip
    who = RankId("job", rank, attempt, world)
    record = Steps(t_ns=ends[-1], id=who, step=numbers, end_ns=ends, **(columns | more))
    rows = series.Rows()
    rows.add_told("steps", (CLUSTER, node, "e"), rank * 1000 + attempt * 500 + first, JOB, record)
    series.PartitionCache().prepare([("steps", ends[-1])])
    rows.write()


def test_own_work_is_the_step_without_waiting_data_and_checkpoint() -> None:
    tell(3)
    found = step_history.since(JOB, 0, AT_NS)
    order = np.argsort(found.step)
    assert found.step[order].tolist() == [100, 101, 102, 103, 104]
    assert found.work_s[order].tolist() == [1.25, 1.25, 1.25, 1.25, 0.25]
    assert set(found.rank.tolist()) == {3} and found.worlds == ("",) and found.is_whole


@pytest.mark.parametrize("part", ["wait_s", "data_wait_s", "checkpoint_s"])
def test_own_work_is_unknown_where_a_part_is(part: str) -> None:
    unknown: dict[str, Any] = {part: [None] * 5}
    tell(3, **unknown)
    found = step_history.since(JOB, 0, AT_NS)
    assert len(found.work_s) == 5 and np.isnan(found.work_s).all() and (found.duration_s == 2.0).all()


def test_an_older_agent_tells_no_waits_and_its_steps_are_there_all_the_same() -> None:
    tell(3, wait_s=[], late_launch=[])
    tell(4, node=2)
    found = step_history.since(JOB, 0, AT_NS)
    known = ~np.isnan(found.work_s)
    assert set(found.rank[known].tolist()) == {4} and set(found.rank[~known].tolist()) == {3}


def test_parts_that_overlap_tell_nothing_of_own_work_and_a_rounding_is_none() -> None:
    tell(3, wait_s=[1.9, 1.751, 0.5, 0.5, 0.5])
    found = step_history.since(JOB, 0, AT_NS)
    work_s = found.work_s[np.argsort(found.step)]
    assert np.isnan(work_s[0]) and work_s[1] == 0.0 and work_s[2] == 1.25


def test_only_steps_of_the_attempt_that_ended_since_then_are_told() -> None:
    tell(3)
    tell(3, attempt=1)
    found = step_history.since(JOB, 0, AT_NS + 5 * S_NS)
    assert sorted(found.step.tolist()) == [103, 104]
    assert not len(step_history.since(JOB, 0, AT_NS + 3600 * S_NS).step)


def test_the_newest_steps_of_one_node_are_those_of_its_ranks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(step_history, "NODE_FRAMES", 2)
    for first in (100, 105, 110):
        tell(3, first=first)
    tell(4, node=2)
    found = step_history.newest_of_node(JOB, 0, 1, AT_NS)
    assert set(found.rank.tolist()) == {3} and sorted(found.step.tolist()) == list(range(105, 115))
    assert not found.is_whole and not len(step_history.newest_of_node(JOB, 1, 1, AT_NS).step)


def test_worlds_are_kept_apart() -> None:
    tell(3, world="actor")
    tell(3, world="critic", node=2)
    found = step_history.since(JOB, 0, AT_NS)
    assert found.worlds == ("actor", "critic") and np.bincount(found.world).tolist() == [5, 5]


def test_more_than_is_read_at_once_is_said_and_the_oldest_come_first(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(step_history, "FRAMES_MAX", 2)
    for number in range(3):
        tell(3, first=100 + 5 * number, node=number)
    found = step_history.since(JOB, 0, AT_NS)
    assert not found.is_whole and sorted(found.step.tolist()) == list(range(100, 110))
