"""The open minute survives a killed agent and leaves as exactly one block."""

from __future__ import annotations

import math
from pathlib import Path

from collectors.minute import MINUTE_NS, MetricSpec, MinuteStore, spread_s
from collectors.wire import blocks, records

START_NS = 30_000_000 * MINUTE_NS
SECOND_NS = 1_000_000_000
SPECS = {name: MetricSpec(name, "w", 0.5) for name in ("power_w", "late_w")}


def fill(store: MinuteStore, seconds: range, minute: int = 0) -> None:
    for second in seconds:
        store.add(START_NS + minute * MINUTE_NS + second * SECOND_NS, {"power_w": [second * 1.0]}, SPECS)


def take(store: MinuteStore, now_ns: int) -> list[records.Block]:
    out = []
    for block, path in store.take_due(now_ns):
        path.unlink()
        out.append(block)
    return out


def due_ns(node: str = "n1", minute: int = 0) -> int:
    return START_NS + (minute + 1) * MINUTE_NS + int(spread_s(node) * 1e9)


def test_a_minute_becomes_one_block_with_its_rollup(tmp_path: Path) -> None:
    store = MinuteStore(tmp_path / "m", "n1")
    fill(store, range(60))
    (block,) = take(store, due_ns())
    blocks.verify(block)
    assert block.minute_ns == START_NS
    (column,) = blocks.decode(block.metrics, block.data)
    assert [value * 0.5 for value in column] == [float(second) for second in range(60)]
    assert blocks.unpack_rollups(block.rollup) == [(0.0, 29.5, 59.0, 59.0)]
    assert take(store, due_ns() + MINUTE_NS) == []


def test_it_waits_for_the_nodes_own_moment(tmp_path: Path) -> None:
    store = MinuteStore(tmp_path / "m", "n1")
    fill(store, range(60))
    assert take(store, START_NS + 30 * SECOND_NS) == []
    assert take(store, due_ns() - 1) == []
    assert len(take(store, due_ns())) == 1


def test_nodes_are_spread_over_the_minute() -> None:
    moments = [spread_s(f"gtn-{number:04d}") for number in range(3_000)]
    for begin in range(0, 50, 10):
        assert 400 < sum(begin <= moment < begin + 10 for moment in moments) < 800


def test_missing_seconds_and_late_metrics_are_missing_and_not_zero(tmp_path: Path) -> None:
    store = MinuteStore(tmp_path / "m", "n1")
    fill(store, range(0, 60, 2))
    store.add(START_NS + 59 * SECOND_NS, {"late_w": [7.0, None]}, SPECS)
    (block,) = take(store, due_ns())
    late, power = blocks.decode(block.metrics, block.data)
    assert power[1] == blocks.MISSING
    assert [value for value in late if value != blocks.MISSING] == [14]
    seven, nothing, _ = blocks.unpack_rollups(block.rollup)
    assert seven == (7.0, 7.0, 7.0, 7.0) and all(map(math.isnan, nothing))


def test_a_killed_agent_goes_on_with_the_same_minute(tmp_path: Path) -> None:
    fill(MinuteStore(tmp_path / "m", "n1"), range(20))
    again = MinuteStore(tmp_path / "m", "n1")
    fill(again, range(30, 60))
    (block,) = take(again, due_ns())
    (column,) = blocks.decode(block.metrics, block.data)
    assert sum(value != blocks.MISSING for value in column) == 50


def test_a_minute_of_before_the_kill_leaves_later(tmp_path: Path) -> None:
    fill(MinuteStore(tmp_path / "m", "n1"), range(60))
    again = MinuteStore(tmp_path / "m", "n1")
    fill(again, range(3), minute=5)
    assert [block.minute_ns for block in take(again, due_ns(minute=4))] == [START_NS]


def test_a_block_that_is_already_in_the_spool_is_not_made_again(tmp_path: Path) -> None:
    """Killed between writing the block and deleting the minute's file."""
    fill(MinuteStore(tmp_path / "m", "n1"), range(60))
    again = MinuteStore(tmp_path / "m", "n1", already_made=[START_NS])
    assert take(again, due_ns()) == []


def test_a_torn_line_costs_one_second(tmp_path: Path) -> None:
    fill(MinuteStore(tmp_path / "m", "n1"), range(60))
    path = next((tmp_path / "m").glob("*.open"))
    path.write_bytes(path.read_bytes()[:-3])
    (block,) = take(MinuteStore(tmp_path / "m", "n1"), due_ns())
    (column,) = blocks.decode(block.metrics, block.data)
    assert sum(value != blocks.MISSING for value in column) == 59


def test_a_file_without_a_sample_is_let_go(tmp_path: Path) -> None:
    store = MinuteStore(tmp_path / "m", "n1")
    (tmp_path / "m" / f"{START_NS}.open").write_bytes(b"\x00" * 50)
    assert take(store, due_ns()) == []
    assert list((tmp_path / "m").iterdir()) == []


def test_a_clock_that_is_set_back_loses_no_minute(tmp_path: Path) -> None:
    store = MinuteStore(tmp_path / "m", "n1")
    fill(store, range(10), minute=9)
    fill(store, range(10), minute=0)
    assert {block.minute_ns for block in take(store, due_ns())} == {START_NS, START_NS + 9 * MINUTE_NS}
