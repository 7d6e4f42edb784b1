"""What of a node's looks travels, and when."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field

import pytest

from collectors.minute import MetricSpec
from collectors.readings import CONFIRM_EVERY_S, EVERY_S, NODE_ROWS_MAX, Newest
from collectors.sources.base import Reading, Sample
from collectors.sources.tree import Tree
from collectors.wire import readings
from collectors.wire.records import Readings
from tests.collectors.fakes import FakeClock

Row = tuple[str, str, float | None, str, str]


@dataclass
class Fixed:
    """A source that is only a name here: its looks are given by the test."""

    name: str
    period_s: float = 1.0
    deadline_s: float = 1.0
    metrics: Sequence[MetricSpec] = field(default_factory=tuple)

    def read(self, tree: Tree, at_s: float) -> Reading:
        raise NotImplementedError


def rows(record: Readings | readings.Table | None) -> list[Row]:
    """(entity, metric, value, quality, source) of each row."""
    assert record is not None
    table = readings.unpack(record.data) if isinstance(record, Readings) else record
    return [
        (
            table.entities[table.entity[row]],
            table.metrics[table.metric[row]],
            value,
            table.qualities[table.quality[row]],
            table.sources[table.source[row]].name,
        )
        for row, value in enumerate(table.value)
    ]


OK = {"a": "ok", "b": "ok"}


class Bench:
    def __init__(self) -> None:
        self.clock = FakeClock()
        self.a, self.b = Fixed("a"), Fixed("b", period_s=10.0)
        self.newest = Newest("n1", self.clock, [self.a, self.b])

    def look(self, *samples: Sample, source: Fixed | None = None) -> None:
        self.newest.keep(source or self.a, Reading(samples))

    def sent_at(self, seconds: int, states: dict[str, str] = OK) -> list[int]:
        """The seconds of the next ``seconds`` at which a record was due."""
        found = []
        for second in range(seconds):
            if self.newest.due(states) is not None:
                found.append(second)
            self.clock.advance(1)
        return found


@pytest.fixture
def bench() -> Bench:
    return Bench()


def test_of_two_sources_the_one_that_knows_the_value_is_told(bench: Bench) -> None:
    bench.look(Sample("gpu/x", "power_w", None, "not_available"), Sample("gpu/x", "temperature_c", 61.0))
    bench.look(Sample("gpu/x", "power_w", 312.5), Sample("gpu/x", "temperature_c", 60.0), source=bench.b)
    told = rows(bench.newest.due(OK))
    assert told == [("gpu/x", "power_w", 312.5, "ok", "b"), ("gpu/x", "temperature_c", 61, "ok", "a")]


def test_a_source_that_hangs_does_not_beat_one_that_works(bench: Bench) -> None:
    bench.look(Sample("gpu/x", "power_w", 700.0))
    bench.look(Sample("gpu/x", "power_w", 90.0), source=bench.b)
    told = rows(bench.newest.table({"a": "hangs since 1 s or more", "b": "ok"}))
    assert told == [("gpu/x", "power_w", 90, "ok", "b")]


def test_what_a_failed_source_said_last_stays_with_its_age_and_state(bench: Bench) -> None:
    bench.look(Sample("host", "host_power_w", 700.0))
    bench.clock.advance(600)
    table = bench.newest.table({"a": "raises", "b": "starting"})
    assert rows(table) == [("host", "host_power_w", 700, "ok", "a")]
    assert table.sources == [
        readings.SourceWord("a", "raises", 1.0, 600.0),
        readings.SourceWord("b", "starting", 10.0, None),
    ]


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf, 1e300, 10**400])
def test_what_is_no_number_is_null_with_a_reason_never_zero(bench: Bench, value: float) -> None:
    bench.look(Sample("host", "m_count", value), Sample("host", "n_count", None))
    told = rows(bench.newest.due(OK))
    assert told == [
        ("host", "m_count", None, "out_of_range", "a"),
        ("host", "n_count", None, "unknown", "a"),
    ]


def test_names_that_cannot_travel_cost_only_themselves_and_are_counted(bench: Bench) -> None:
    bench.look(
        Sample("nic/\x1b[0m", "up_count", 1.0),
        Sample("host", "x" * 129, 1.0),
        Sample("host", "load_count", 0.5),
        Sample("host", "mig_count", 2.0, labels={"a\n": "b"}),
    )
    table = bench.newest.table(OK)
    assert rows(table) == [("host", "load_count", 0.5, "ok", "a")]
    assert table.left_out == 3


def test_labels_tell_samples_of_one_metric_apart(bench: Bench) -> None:
    bench.look(Sample("gpu/x", "util_ratio", 0.5), Sample("gpu/x", "util_ratio", 0.75, labels={"mig": "1"}))
    record = bench.newest.due(OK)
    assert record is not None
    table = readings.unpack(record.data)
    assert [table.labels[place] for place in table.label] == [{}, {"mig": "1"}]


def test_beyond_the_limit_declared_metrics_go_before_counters_and_their_last_changes(bench: Bench) -> None:
    bench.b.metrics = (MetricSpec("power_w", "w", 1.0),)
    newest = Newest("n1", bench.clock, [bench.a, bench.b])
    counters = [Sample("nic/e", f"c{n}_{end}", n) for n in range(5_000) for end in ("delta_count", "total")]
    newest.keep(bench.a, Reading(counters))
    newest.keep(bench.b, Reading([Sample("gpu/x", "power_w", 1.0)]))
    record = newest.due(OK)
    assert record is not None
    table = readings.unpack(record.data)
    assert len(table.value) == NODE_ROWS_MAX
    assert table.left_out == 10_001 - NODE_ROWS_MAX
    assert rows(table)[0][1] == "power_w"
    assert sum(row[1].endswith("_total") for row in rows(table)) == 5_000


def test_a_value_that_comes_or_goes_is_sent_within_15_s_and_a_number_with_the_minute(bench: Bench) -> None:
    bench.look(Sample("host", "load_count", 1.0))
    assert bench.sent_at(1) == [0], "the first look goes at once"
    bench.clock.advance(-(bench.clock.now_ns() // 10**9 - bench.newest._phase_s) % EVERY_S)
    bench.look(Sample("host", "load_count", 2.0))
    alone = bench.sent_at(2 * CONFIRM_EVERY_S)
    assert len(alone) == 2
    assert alone[1] - alone[0] == CONFIRM_EVERY_S
    bench.look(Sample("host", "load_count", None, "unreadable"))
    (after,) = bench.sent_at(EVERY_S)
    assert after < EVERY_S


@pytest.mark.parametrize(
    "changed",
    [
        [Sample("nic/a", "rx_total", 2.0), Sample("nic/a", "part_count", 1.0, labels={"serial": "S2"})],
        [Sample("nic/a", "rx_total", None, "eperm"), Sample("nic/a", "part_count", 1.0)],
        [Sample("nic/a", "rx_total", 2.0, "stale"), Sample("nic/a", "part_count", 1.0)],
        [Sample("nic/b", "rx_total", 2.0), Sample("nic/a", "part_count", 1.0)],
        [Sample("nic/a", "rx_total", 2.0)],
        [],
    ],
    ids=["label", "unknown", "quality", "entity", "gone", "all gone"],
)
def test_each_change_that_is_no_number_is_sent_within_15_s(bench: Bench, changed: list[Sample]) -> None:
    bench.look(Sample("nic/a", "rx_total", 1.0), Sample("nic/a", "part_count", 1.0))
    bench.look(Sample("nic/z", "rx_total", 1.0), source=bench.b)
    bench.sent_at(EVERY_S)
    bench.look(Sample("nic/a", "rx_total", 3.0), Sample("nic/a", "part_count", 1.0))
    assert bench.sent_at(2 * EVERY_S) == []
    bench.look(*changed)
    assert len(bench.sent_at(EVERY_S)) == 1


def test_what_changes_each_second_is_sent_each_15_s(bench: Bench) -> None:
    sent = 0
    for second in range(150):
        bench.look(Sample("host", f"m{second}_count", 1.0))
        sent += len(bench.sent_at(1))
    assert 10 <= sent <= 11


def test_a_clock_that_is_set_back_does_not_silence_the_node(bench: Bench) -> None:
    bench.look(Sample("host", "load_count", 1.0))
    assert bench.sent_at(1) == [0]
    bench.clock.t_ns -= 3_600 * 10**9
    assert len(bench.sent_at(2 * CONFIRM_EVERY_S)) >= 2


def test_the_first_record_waits_for_sources_that_start_but_not_for_one_that_hangs(bench: Bench) -> None:
    bench.look(Sample("host", "load_count", 1.0))
    assert bench.sent_at(30, {"a": "ok", "b": "starting"})[0] == 10


def test_a_node_that_is_slowed_down_says_how_often_its_sources_look(bench: Bench) -> None:
    bench.newest.slowdown = 4.0
    assert [source.period_s for source in bench.newest.table(OK).sources] == [4.0, 40.0]


def test_nodes_send_at_different_places_of_the_15_s() -> None:
    clock = FakeClock()
    phases = {Newest(f"gtn-{n:04}", clock, [])._phase_s for n in range(200)}
    assert phases == set(range(EVERY_S))
