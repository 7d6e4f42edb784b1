from __future__ import annotations

import time

import pytest
from psycopg.types.json import Jsonb

from clusterwatch.store import captures
from clusterwatch.store.series import PartitionCache, Rows

pytestmark = pytest.mark.django_db
NOW = time.time_ns()
_sequence = iter(range(1, 1000))


def write(table: str, rank: int, capture: int, *rest: object, later_s: int = 0, attempt: int = 0) -> None:
    t_ns = NOW + later_s * 1_000_000_000
    PartitionCache().prepare([(table, t_ns)])
    rows = Rows()
    rows.add(table, (1, 1, t_ns, "e", next(_sequence), 1, attempt, "", rank, 100 + rank, capture, *rest))
    rows.write()


def ring(rank: int, capture: int, text: bytes, want: str = "ring", **when: int) -> None:
    write("trace", rank, capture, want, "generic", text, **when)


def stack(rank: int, capture: int, source: str, threads: object, **when: int) -> None:
    write("stacks", rank, capture, source, "", "S", "", Jsonb(threads), **when)


def test_a_whole_ring_is_preferred_to_a_newer_window() -> None:
    ring(0, 5, b"ring")
    ring(0, 6, b"window", want="window", later_s=2)
    assert [row.columns for row in captures.traces([5, 6], 0)] == [b"ring"]


def test_of_two_rings_the_newest_counts() -> None:
    ring(0, 5, b"old")
    ring(0, 6, b"new", later_s=2)
    assert [(row.capture_id, row.columns) for row in captures.traces([5, 6], 0)] == [(6, b"new")]


def test_only_the_captures_and_the_attempt_asked_for_are_read() -> None:
    ring(0, 5, b"mine")
    ring(1, 7, b"of another capture")
    ring(2, 5, b"of another attempt", attempt=1)
    assert [row.rank for row in captures.traces([5], 0)] == [0]
    assert captures.traces([], 0) == []


def test_both_looks_at_one_process_are_kept() -> None:
    threads = [{"name": "MainThread", "main": True, "frames": ["main (a.py:1)"]}]
    stack(0, 5, "hook", threads)
    stack(0, 5, "py-spy", [])
    found = captures.stacks([5], 0)
    assert [(row.source, row.threads) for row in found] == [("hook", threads), ("py-spy", [])]


@pytest.mark.parametrize("threads", ["text", {"a": 1}, [1, "x"]])
def test_threads_of_another_shape_are_none(threads: object) -> None:
    stack(0, 5, "hook", threads)
    assert captures.stacks([5], 0)[0].threads == []


def test_answers_are_counted() -> None:
    assert captures.counts([5]) == (0, 0)
    ring(0, 5, b"x")
    ring(1, 5, b"x")
    stack(0, 5, "hook", [])
    assert captures.counts([5]) == (2, 1)
