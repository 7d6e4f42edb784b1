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
    def __init__(self) -> None:
        self.clock = FakeClock()
        self.good, self.bad = Scripted("good"), Scripted("bad")
        self.told: list[tuple[str, str, bool]] = []
        self.supervisor = Supervisor(
            [self.good, self.bad], Tree(), self.clock, lambda *said: self.told.append(said)
        )

    def second(self) -> list[str]:
        """One tick, and the time the threads need for what it began; names of the sources that gave data."""
        names = [source.name for source, _ in self.supervisor.tick()]
        self.settle()
        self.clock.advance(1.0)
        return names

    def settle(self) -> None:
        """Waits for the threads of the sources that do not hang."""
        end_s = time.monotonic() + 5
        for runner in self.supervisor._runners:
            source = runner.source
            assert isinstance(source, Scripted)
            while source.gate.is_set() and runner._started_s is not None and time.monotonic() < end_s:
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
