"""A source that hangs or raises costs its own data only, and that is told once."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from typing import Any

import pytest

from collectors.minute import MetricSpec
from collectors.sources.base import Reading, Sample
from collectors.sources.tree import Tree
from collectors.supervise import Supervisor
from tests.collectors.fakes import FakeClock


class Scripted:
    """Does what the test says next."""

    period_s = 1.0
    deadline_s = 2.0
    metrics: tuple[MetricSpec, ...] = ()

    def __init__(self, name: str) -> None:
        self.name = name
        self.error: Exception | None = None
        self.gate = threading.Event()
        self.gate.set()
        self.looks = 0

    def read(self, tree: Tree, at_s: float) -> Reading:
        self.looks += 1
        self.gate.wait(20)
        if self.error is not None:
            raise self.error
        return Reading([Sample("host", "x_count", self.looks)])


class Bench:
    def __init__(self, bad_first: bool = False) -> None:
        self.clock = FakeClock()
        self.good, self.bad = Scripted("good"), Scripted("bad")
        self.told: list[tuple[str, str, bool]] = []
        order = [self.bad, self.good] if bad_first else [self.good, self.bad]
        self.supervisor = Supervisor(order, Tree(), self.clock, lambda *said: self.told.append(said))

    def second(self) -> list[str]:
        """One tick, and the time the threads need for what it began; names of the sources that gave data."""
        names = [source.name for source, _ in self.supervisor.tick()]
        self.supervisor.begin()
        self.settle()
        self.clock.advance(1.0)
        return names

    def settle(self) -> None:
        """Waits for the threads, but for one that hangs in the bad source."""
        end_s = time.monotonic() + 5
        while time.monotonic() < end_s:
            busy = [worker for worker in self.supervisor._workers if not worker.is_free]
            hanging = sum(
                runner._started_s is not None and not runner.source.gate.is_set()  # type: ignore[attr-defined]
                for runner in self.supervisor._runners
            )
            if len(busy) <= hanging:
                return
            time.sleep(0.001)

    def seconds(self, count: int) -> list[list[str]]:
        return [self.second() for _ in range(count)]


@pytest.fixture
def bench() -> Iterator[Bench]:
    made = Bench()
    yield made
    made.bad.gate.set()
    made.supervisor.stop()


def test_sources_give_data_each_second(bench: Bench) -> None:
    assert bench.seconds(4) == [[], *[["good", "bad"]] * 3]
    assert bench.supervisor.status() == {"good": "ok", "bad": "ok"}
    assert bench.told == []


def test_a_source_that_raises_is_told_once_and_tried_more_rarely(bench: Bench) -> None:
    bench.bad.error = OSError(5, "broken driver")
    given = bench.seconds(20)
    assert all(names == ["good"] for names in given[1:])
    assert [(name, failed) for name, _, failed in bench.told] == [("bad", True)]
    assert "broken driver" in bench.told[0][1]
    assert bench.bad.looks < 8
    assert bench.supervisor.status()["bad"] == "raises"
    bench.bad.error = None
    bench.seconds(40)
    assert bench.told[-1] == ("bad", "gives data again", False)
    assert len(bench.told) == 2


def test_a_source_that_hangs_is_told_once_and_the_other_goes_on(bench: Bench) -> None:
    bench.seconds(2)
    bench.bad.gate.clear()
    bench.second()
    given = bench.seconds(10)
    assert all(names == ["good"] for names in given[1:])
    assert [(name, failed) for name, _, failed in bench.told] == [("bad", True)]
    assert bench.supervisor.status()["bad"].startswith("hangs")
    looks = bench.bad.looks
    bench.bad.gate.set()
    bench.settle()
    bench.seconds(3)
    assert bench.bad.looks > looks
    assert bench.told[-1] == ("bad", "gives data again", False)


def test_what_waits_behind_a_source_that_hangs_goes_on_at_the_next_second() -> None:
    bench = Bench(bad_first=True)
    bench.bad.gate.clear()
    assert bench.seconds(5) == [[], [], ["good"], ["good"], ["good"]]
    assert bench.supervisor.status() == {"bad": "hangs since 2 s or more", "good": "ok"}
    bench.bad.gate.set()
    bench.settle()
    assert bench.seconds(2)[0] == ["bad", "good"]
    bench.supervisor.stop()


def test_looks_of_one_second_share_a_thread_and_none_is_left_behind(bench: Bench) -> None:
    bench.seconds(5)
    assert len(bench.supervisor._workers) == 1
    for _ in range(3):
        bench.bad.gate.clear()
        bench.seconds(2)
        bench.bad.gate.set()
        bench.settle()
        bench.second()
    assert len(bench.supervisor._workers) == 2


def test_a_hanging_source_does_not_keep_the_agent_from_stopping(bench: Bench) -> None:
    bench.bad.gate.clear()
    bench.second()
    started_s = time.monotonic()
    bench.supervisor.stop()
    assert time.monotonic() - started_s < 2


def test_the_guard_can_slow_all_sources(bench: Bench) -> None:
    bench.supervisor.slow_down(4.0)
    given: list[Any] = bench.seconds(12)
    assert 2 <= sum("good" in names for names in given) <= 4
