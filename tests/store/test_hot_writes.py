"""Hot state comes back as it was written, and what did not change is not written again."""

from __future__ import annotations

import time
from typing import Any

import numpy as np
import pytest
import redis

from clusterwatch.store import hot, hot_writes, tails
from clusterwatch.store import valkey as keys
from clusterwatch.store.hot import JobProgress

pytestmark = pytest.mark.stack


@pytest.fixture(autouse=True)
def _empty(valkey: redis.Redis) -> None:
    """Each test begins with an empty Valkey; rows read before are another server's."""
    hot._rows.cache_clear()


def progress(number: int, rows: JobProgress | None = None) -> JobProgress:
    """Two ranks of one group; ``rows`` lends its arrays that say which."""
    now = np.full(2, number, np.int64)
    same: dict[str, Any] = {
        "rank_id": np.array([1, 2]), "node_id": np.array([7, 7]), "row": np.array([0, 1]),
        "group_id": np.array([5, 5]),
    }  # fmt: skip
    if rows is not None:
        same = {name: getattr(rows, name) for name in hot.ROW_COLUMNS}
    return JobProgress(
        **same, seen_ns=now, step=now, phase=np.zeros(2, np.uint8), phase_since_ns=now, moved_ns=now,
        heard_ns=now, enqueued=now, completed=now, sequence=now,
    )  # fmt: skip


def write(writer: hot_writes.HotWriter, jobs: dict[int, JobProgress]) -> None:
    writer.write(time.time_ns(), hot.empty_nodes(), jobs, {})


def row_keys() -> list[bytes]:
    return list(keys.client().scan_iter(match="hot:rows:*"))


def test_numbers_are_new_each_second_while_their_rows_are_written_once():
    writer = hot_writes.HotWriter("gw")
    first = progress(1)
    write(writer, {3: first})
    write(writer, {3: progress(2, first)})  # the first write to a Valkey that knew nothing is not relied on
    (key,) = row_keys()
    keys.client().delete(key)
    write(writer, {3: progress(4, first)})
    assert not row_keys(), "they are not sent again"
    write(writer, {3: progress(5)})
    read = hot.read_job(3)
    assert read.enqueued.tolist() == [5, 5] and read.rank_id.tolist() == [1, 2]


def test_a_valkey_that_came_back_empty_has_everything_again_within_two_writes():
    writer = hot_writes.HotWriter("gw")
    first = progress(1)
    write(writer, {3: first})
    write(writer, {3: first})
    keys.client().flushall()
    hot._rows.cache_clear()
    write(writer, {3: progress(2, first)})
    assert not len(hot.read_job(3).rank_id), "numbers without their rows are not shown"
    write(writer, {3: progress(3, first)})
    assert hot.read_job(3).enqueued.tolist() == [3, 3]


def test_a_job_that_is_not_given_any_more_is_gone():
    writer = hot_writes.HotWriter("gw")
    write(writer, {3: progress(1)})
    write(writer, {})
    assert not len(hot.read_job(3).rank_id)


def test_a_rank_known_to_two_gateways_has_its_newest_row():
    now_ns = time.time_ns()
    hot_writes.write_gateway("a", now_ns, hot.empty_nodes(), {3: progress(1)}, {})
    hot_writes.write_gateway("b", now_ns, hot.empty_nodes(), {3: progress(2)}, {})
    assert hot.read_job(3).enqueued.tolist() == [2, 2]


def test_a_tail_comes_back_bit_for_bit():
    values = np.random.default_rng(1).normal(size=(3, 120, 8)).astype(np.float32)
    values[1, 60:] = np.nan
    tails.save(7, tails.Tail(1, 2, ("a", "b", "c"), values))
    back = tails.load(7)
    assert back is not None and (back.last_word_ns, back.end_ns, back.metrics) == (1, 2, ("a", "b", "c"))
    np.testing.assert_array_equal(back.values, values)
    assert tails.load(8) is None
