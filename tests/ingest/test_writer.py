"""The thread that commits, against a database that is full, away or slow."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from typing import Any

import psycopg
import pytest
from django.db import OperationalError

from clusterwatch.ingest import commit, writer
from clusterwatch.ingest.apply import Origin
from clusterwatch.ingest.writer import Committed, PendingPut, Writer
from collectors.wire import codec, records
from tests.ingest.client import event, items

ORIGIN = Origin("alpha", "n1", "e", 1, 1)


class Database:
    """What ``commit.commit`` meets: raises the next of its errors, then stores."""

    def __init__(self) -> None:
        self.errors: list[Exception] = []
        self.asked = threading.Event()
        self.answers = threading.Event()
        self.answers.set()

    def commit(self, batches: Sequence[commit.LaneBatch], partitions: Any) -> commit.Outcome:
        self.asked.set()
        assert self.answers.wait(60)
        if self.errors:
            raise self.errors.pop(0)
        return commit.Outcome([commit.LaneResult(batch.records[-1].sequence) for batch in batches])


class Bench:
    """A writer and what it said."""

    def __init__(self) -> None:
        self.slowed: list[float] = []
        self.states: list[str] = []
        self.committed = threading.Event()
        self.writer = Writer(self._on_committed, self._on_trouble, {})

    def _on_committed(self, committed: Committed) -> None:
        self.committed.set()

    def _on_trouble(self, waiting: Sequence[PendingPut], pause_s: float) -> None:
        self.slowed.append(pause_s)
        self.states.append(self.writer.storing().state)

    def put(self) -> None:
        message = items(1, [event(1)])
        self.writer.submit(PendingPut(self, ORIGIN, "urgent", message, len(message[0].payload)))


@pytest.fixture
def database(monkeypatch: pytest.MonkeyPatch) -> Database:
    found = Database()
    monkeypatch.setattr(commit, "commit", found.commit)
    monkeypatch.setattr(writer, "RETRY_FIRST_S", 0.01)
    return found


@pytest.fixture
def bench() -> Iterator[Bench]:
    running = Bench()
    running.writer.start()
    yield running
    running.writer.stop(10)


def full() -> OperationalError:
    error = OperationalError("could not extend file: No space left on device")
    error.__cause__ = psycopg.errors.DiskFull()
    return error


def test_a_full_disk_is_said_and_storing_goes_on_by_itself(database: Database, bench: Bench) -> None:
    database.errors = [full(), full()]
    bench.put()
    assert bench.committed.wait(20)
    assert bench.states == ["disk_full", "disk_full"]
    assert bench.slowed == [writer.SLOW_PAUSE_S] * 2, "agents hold their records meanwhile"
    bench.writer.stop(10)
    assert (bench.writer.storing().state, bench.writer.storing().waiting_records) == ("ok", 0)


def test_a_database_that_does_not_answer_is_another_matter(database: Database, bench: Bench) -> None:
    database.errors = [OperationalError("connection refused")]
    bench.put()
    assert bench.committed.wait(20)
    assert bench.states == ["database_away"]


def test_a_slow_database_makes_agents_hold_back(
    database: Database, bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(writer, "SLOW_AFTER_S", 0.0)
    bench.put()
    assert bench.committed.wait(20)
    assert bench.states == ["slow"] and bench.slowed == [writer.SLOW_PAUSE_S]


def test_a_queue_that_grows_is_slow_too(
    database: Database, bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(writer, "SLOW_ABOVE_BYTES", 0)
    bench.put()
    assert bench.committed.wait(20)
    assert bench.states == ["slow"]


def test_a_commit_that_hangs_is_said_while_it_hangs(
    database: Database, bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(writer, "SLOW_AFTER_S", 0.0)
    bench.writer.mind_hanging_commit()
    assert bench.slowed == [], "nothing hangs yet"
    database.answers.clear()
    bench.put()
    assert database.asked.wait(20)
    bench.writer.mind_hanging_commit()
    bench.writer.mind_hanging_commit()
    assert bench.slowed == [writer.SLOW_PAUSE_S], "once, not with each call"
    assert "already" in bench.writer.storing().reason
    database.answers.set()
    assert bench.committed.wait(20)


def test_what_waits_is_counted() -> None:
    idle = Bench()
    idle.put()
    assert idle.writer.storing().waiting_records == 1
    assert idle.writer.storing().waiting_bytes == len(codec.encode(records.Event(**_fields())))


def _fields() -> dict[str, Any]:
    one = event(1)
    return {name: getattr(one, name) for name in records.Event.__struct_fields__}
