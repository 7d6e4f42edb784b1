"""Newest values by slot, and their last two minutes."""

from __future__ import annotations

import numpy as np
import pytest

from clusterwatch.ingest import slot_values
from clusterwatch.ingest.slot_values import Layout, SlotValues, Values
from collectors.wire import hot_values

S = 1_000_000_000
START_NS = 1_796_000_000 * S


def frame(slots: list[int], second: int, **metrics: list[float | None]) -> Values:
    """What a node says in a second; its layout is known by its bytes, as the board does it."""
    packed = hot_values.pack(metrics)
    assert packed is not None
    layout = LAYOUTS.setdefault(packed.layout, Layout(packed.layout))
    return Values(layout, np.array(slots, "<i8").tobytes(), packed.values, START_NS + second * S)


LAYOUTS: dict[bytes, Layout] = {}


def take(values: SlotValues, second: int, *frames: Values) -> None:
    values.take(frames, START_NS + second * S)


def test_values_of_a_node_go_to_its_slots_and_those_it_has_one_of_to_its_first() -> None:
    values = SlotValues()
    take(values, 0, frame([4, 5], 0, power=[1.0, 2.0], load=[0.5]), frame([0, 2], 0, power=[3.0, None]))
    found = values.renewed()
    assert found["power"].values[[4, 5, 0]].tolist() == [1.0, 2.0, 3.0]
    assert np.isnan(found["power"].values[[1, 2, 3]]).all()
    assert found["load"].values[4] == 0.5 and np.isnan(found["load"].values[5])
    assert found["power"].seen_ns.tolist() == [START_NS, 0, START_NS, 0, START_NS, START_NS]


def test_a_metric_of_another_width_than_the_node_is_not_taken() -> None:
    values = SlotValues()
    take(values, 0, frame([0, 1], 0, odd=[1.0, 2.0, 3.0], power=[1.0, 2.0]))
    assert values.renewed().keys() == {"power"}


def test_the_newest_of_two_frames_in_a_second_counts() -> None:
    values = SlotValues()
    take(values, 1, frame([0], 0, power=[1.0]), frame([0], 1, power=[2.0]))
    assert values.renewed()["power"].values.tolist() == [2.0]


def test_a_metric_is_renewed_only_when_it_came_and_keeps_its_time() -> None:
    values = SlotValues()
    take(values, 0, frame([0], 0, power=[1.0], ecc=[7.0]))
    values.renewed()
    take(values, 1, frame([0], 1, power=[2.0]))
    assert values.renewed().keys() == {"power"}
    take(values, 2, frame([1], 2, ecc=[9.0]))
    ecc = values.renewed()["ecc"]
    assert (ecc.values.tolist(), ecc.seen_ns.tolist()) == ([7.0, 9.0], [START_NS, START_NS + 2 * S])


def test_an_inventor_of_names_takes_no_place_from_others(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(slot_values, "METRICS_MAX", 2)
    values = SlotValues()
    take(values, 0, frame([0], 0, power=[1.0], clock=[1.0]), frame([1], 0, invented=[1.0]))
    assert values.renewed().keys() == {"power", "clock"}
    take(values, 700, frame([0], 700, power=[2.0]))
    take(values, 701, frame([1], 701, invented=[5.0]))
    assert values.renewed().keys() == {"power", "invented"}, "the metric nobody renews gave its place"


def test_the_tail_holds_the_last_two_minutes_of_a_node() -> None:
    values = SlotValues()
    for second in range(200):
        frames = [frame([0, 1], second, power=[float(second), None])] if second < 190 else []
        take(values, second, frame([2], second, power=[0.0]), *frames)
    tail = values.tail([0, 1])
    assert tail.metrics == ("power",)
    assert tail.values.shape == (1, slot_values.RING_S, 2)
    kept = tail.values[0, :, 0]
    assert kept[: slot_values.RING_S - 10].tolist() == [float(second) for second in range(80, 190)]
    assert np.isnan(kept[-9:]).all() and np.isnan(tail.values[0, :, 1]).all()


def test_seconds_without_a_write_are_gaps_not_repeats() -> None:
    values = SlotValues()
    for second in (0, 1, 5):
        take(values, second, frame([0], second, power=[float(second)]))
    tail = values.tail([0]).values[0, -6:, 0]
    assert tail[[0, 1, 5]].tolist() == [0.0, 1.0, 5.0] and np.isnan(tail[2:5]).all()


def test_a_clock_set_back_empties_the_ring() -> None:
    values = SlotValues()
    take(values, 100, frame([0], 100, power=[1.0]))
    take(values, 10, frame([0], 10, power=[2.0]))
    tail = values.tail([0]).values[0, :, 0]
    assert tail[-1] == 2.0 and np.isnan(tail[:-1]).all()


def test_the_ring_keeps_within_its_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(slot_values, "RING_MAX_BYTES", 4 * slot_values.RING_S * 64)
    values = SlotValues()
    take(values, 0, frame([0], 0, power=[1.0], clock=[2.0]))
    assert values.tail([0]).metrics == ("power",), "64 slots of one metric fill it"
    assert values.renewed().keys() == {"power", "clock"}
