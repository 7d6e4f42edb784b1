"""The agent gives up its own work before it costs the job anything."""

from __future__ import annotations

import pytest

from collectors import guard
from collectors.guard import Guard, Verdict
from tests.collectors.fakes import FakeClock


class Bench:
    """A guard whose process uses what the test says."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.clock = FakeClock()
        self.cpu_s = 5.0
        self.pss_bytes = 30 * 2**20
        monkeypatch.setattr(guard, "cpu_seconds", lambda: self.cpu_s)
        monkeypatch.setattr(guard, "own_pss_bytes", lambda: self.pss_bytes)
        self.guard = Guard(self.clock)
        self.run(guard.WARM_UP_S, 0.0)

    def run(self, seconds: float, cpu_ratio: float) -> list[Verdict]:
        verdicts = []
        for _ in range(int(seconds)):
            self.clock.advance(1.0)
            self.cpu_s += cpu_ratio
            verdict = self.guard.tick()
            verdicts += [verdict] if verdict else []
        return verdicts


@pytest.fixture
def bench(monkeypatch: pytest.MonkeyPatch) -> Bench:
    return Bench(monkeypatch)


def test_inside_the_budget_nothing_changes(bench: Bench) -> None:
    verdicts = bench.run(200, 0.002)
    assert [(verdict.slowdown, verdict.sentence) for verdict in verdicts] == [(1.0, "")] * 3
    assert bench.guard.cpu_ratio == pytest.approx(0.002)
    assert bench.guard.pss_bytes == 30 * 2**20


def test_over_the_budget_sources_are_slowed_and_it_is_said(bench: Bench) -> None:
    verdicts = bench.run(130, 0.02)
    assert [verdict.slowdown for verdict in verdicts] == [2.0, 4.0]
    assert "2.00% of a core" in verdicts[0].sentence
    assert "1/2 of their rate" in verdicts[0].sentence


def test_slowing_has_an_end(bench: Bench) -> None:
    assert [verdict.slowdown for verdict in bench.run(600, 0.02)][-1] == guard.SLOWDOWN_MAX


def test_too_much_memory_counts_as_well(bench: Bench) -> None:
    bench.pss_bytes = 90 * 2**20
    assert bench.run(61, 0.001)[0].slowdown == 2.0


def test_a_calm_agent_becomes_fast_again(bench: Bench) -> None:
    bench.run(61, 0.02)
    assert [verdict.slowdown for verdict in bench.run(121, 0.001)] == [1.0, 1.0]


def test_between_calm_and_full_it_stays_as_it_is(bench: Bench) -> None:
    bench.run(61, 0.02)
    assert [verdict.slowdown for verdict in bench.run(60, 0.004)] == [2.0]


def test_this_process_has_a_size() -> None:
    size = guard.own_pss_bytes()
    assert size is not None
    assert size > 2**20
    assert guard.pss_bytes(2**22 + 1) is None
    assert guard.cpu_seconds() > 0
