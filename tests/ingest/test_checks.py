"""Which records are stored, expired or rejected, without any server."""

from __future__ import annotations

import math
from array import array
from typing import Any

import msgspec
import pytest
import zstandard

from clusterwatch.ingest.checks import check
from collectors.formats import columns
from collectors.wire import blocks, codec, limits, readings, records
from tests.collectors.wire import samples

NOW_NS = 1_800_000_000 * 10**9
MINUTE_NS = NOW_NS - NOW_NS % (60 * 10**9)
DAY_NS = 86_400 * 10**9
RETENTION = dict.fromkeys(records.LANE_OF, 14 * DAY_NS)
RANK = records.RankId("job", 3)


def reason(record: Any, lane: records.Lane | None = None) -> str:
    """Why a record is rejected; empty when it is stored."""
    wanted = lane or records.LANE_OF[record.__struct_config__.tag]
    checked = check(wanted, 1, codec.encode(record), NOW_NS, RETENTION)
    assert (checked.record is None) == bool(checked.reason or checked.expired)
    return checked.reason


def block(**changes: Any) -> records.Block:
    metrics = [records.BlockMetric("power_w", "W", 1.0, series=2, samples=60)]
    values = array("q", [100] * 60 + [200] * 60)
    made: dict[str, Any] = {
        "minute_ns": MINUTE_NS,
        "codec": blocks.CODEC,
        "metrics": metrics,
        "data": blocks.encode(metrics, [values]),
        "rollup": blocks.pack_rollups([(100.0,) * 4, (200.0,) * 4]),
    }
    return records.Block(**(made | changes))


def inventory(**changes: Any) -> records.RankInventory:
    made: dict[str, Any] = {
        "t_ns": NOW_NS, "ref": 1, "id": RANK, "pid": 77, "host": "n1", "world_size": 8,
    }  # fmt: skip
    return records.RankInventory(**(made | changes))


def edges(**changes: Any) -> records.Edges:
    made: dict[str, Any] = {
        "t_ns": NOW_NS, "id": RANK, "ops": ["all_reduce"], "step": [1], "group": [0], "op": [0],
        "size_bytes": [1_024], "count": [4], "sum_s": [0.5], "min_s": [0.1], "p10_s": [0.1], "p50_s": [0.12],
    }  # fmt: skip
    return records.Edges(**(made | changes))


def steps(**changes: Any) -> records.Steps:
    made: dict[str, Any] = {
        "t_ns": NOW_NS, "id": RANK, "step": [1], "end_ns": [NOW_NS], "duration_s": [0.5],
        "data_wait_s": [None], "checkpoint_s": [None], "gc_s": [None], "cpu_s": [0.1],
    }  # fmt: skip
    return records.Steps(**(made | changes))


def event(**changes: Any) -> records.Event:
    made: dict[str, Any] = {
        "t_ns": NOW_NS, "source": "s", "kind": "k", "severity": "info", "text": "t",
    }  # fmt: skip
    return records.Event(**(made | changes))


@pytest.mark.parametrize(
    "record",
    [
        block(),
        inventory(),
        steps(),
        steps(wait_s=[None], late_launch=[1.0]),
        edges(),
        event(),
        event(text="line\n\ttwo"),
    ],
)
def test_a_sound_record_is_stored(record: Any) -> None:
    assert reason(record) == ""


@pytest.mark.parametrize(
    ("record", "word"),
    [
        (block(minute_ns=MINUTE_NS + 1), "minute"),
        (block(codec="zip"), "codec"),
        (block(metrics=[records.BlockMetric("a\nb", "W", 1.0, 2, 60)]), "control characters"),
        (block(metrics=[records.BlockMetric("a", "\x07", 1.0, 2, 60)]), "control characters"),
        (block(data=b"rubbish"), "damaged"),
        (block(data=zstandard.ZstdCompressor(write_checksum=False).compress(bytes(960))), "no checksum"),
        (block(data=zstandard.ZstdCompressor(write_checksum=True).compress(bytes(959))), "length"),
        (block(rollup=b""), "rollup"),
        (block(rollup=blocks.pack_rollups([(1.0, 2.0, 3.0, 2.0)])), "rollup"),
        (block(rollup=blocks.pack_rollups([(5.0, 2.0, 3.0, 2.0)] * 2)), "impossible"),
        (block(rollup=blocks.pack_rollups([(1.0, 2.0, 3.0, 4.0)] * 2)), "impossible"),
        (block(rollup=array("f", [1.0, math.nan, 2.0, 2.0, 3.0, 3.0, 2.0, 2.0]).tobytes()), "impossible"),
        (block(rollup=array("f", [1.0, 1.0, 2.0, 2.0, math.inf, 3.0, 2.0, 2.0]).tobytes()), "impossible"),
        (inventory(pid=2**40), "pid"),
        (inventory(pid=-5), "impossible pid"),
        (inventory(gpu_index=5_000), "gpu_index"),
        (inventory(host="a\x07b"), "control characters"),
        (inventory(groups=[records.GroupInfo(0, "a"), records.GroupInfo(0, "b")]), "repeat"),
        (inventory(groups=[records.GroupInfo(limits.GROUPS_PER_RANK_MAX, "a")]), "range"),
        (inventory(groups=[records.GroupInfo(0, "a", ranks=[-1])]), "impossible member"),
        (inventory(groups=[records.GroupInfo(0, "a", span=(0, 1, 9))]), "impossible member"),
        (inventory(groups=[records.GroupInfo(0, "a", span=(0, 0, 2))]), "impossible member"),
        (inventory(groups=[records.GroupInfo(0, "a", span=(-1, 1, 2))]), "impossible member"),
        (
            inventory(
                world_size=2**20, groups=[records.GroupInfo(n, "a", span=(0, 1, 2**19)) for n in range(2)]
            ),
            "members in all",
        ),
        (inventory(labels={"a\nb": "c"}), "control characters"),
        (edges(group=[1, 2]), "unequal"),
        (edges(p50_s=[]), "unequal"),
        (edges(op=[1]), "not told"),
        (edges(op=[-1]), "not told"),
        (edges(ops=["send", "send"]), "one twice"),
        (edges(ops=[str(n) for n in range(65)]), "more than 64"),
        (edges(group=[-1]), "impossible group"),
        (edges(size_bytes=[2**50]), "impossible size"),
        (edges(count=[0]), "no calls"),
        (edges(min_s=[-0.001]), "less than nothing"),
        (edges(sum_s=[90_000.0]), "more than a day"),
        (edges(sum_s=[float("inf")]), "finite"),
        (edges(step=[2**63]), "range"),
        (steps(duration_s=[0.5, 0.5]), "unequal"),
        (steps(duration_s=[-1.0]), "negative"),
        (steps(duration_s=[float("nan")]), "finite"),
        (steps(step=[2**63]), "range"),
        (steps(wait_s=[0.1, 0.1]), "unequal"),
        (steps(late_launch=[0.1, 0.1]), "unequal"),
        (steps(wait_s=[-0.001]), "more than a day"),
        (steps(wait_s=[86_401.0]), "more than a day"),
        (steps(wait_s=[float("inf")]), "finite"),
        (steps(late_launch=[1.01]), "no share"),
        (steps(late_launch=[float("nan")]), "finite"),
        (event(kind="two\nlines"), "control characters"),
        (event(kind="a\u202eb"), "control characters"),
        (event(t_ns=0), "no time"),
        (event(t_ns=2**63), "no time"),
        (event(t_ns=NOW_NS + (limits.CLOCK_AHEAD_MAX_S + 2) * 10**9), "future"),
        (records.Dropped(NOW_NS, "bulk", {"block": -1}, "r"), "negative"),
        (
            records.Stacks(
                NOW_NS, RANK, 1, None, "hook",
                [records.ThreadStack("main", ["f (a.py:1)"] * (limits.FRAMES_PER_STACK_MAX + 1))],
            ),
            "frames",
        ),
    ],
)  # fmt: skip
def test_a_bad_record_is_rejected_with_a_word_that_helps(record: Any, word: str) -> None:
    assert word in reason(record)


@pytest.mark.parametrize("resolution", [1e308, 5e-324])
def test_a_block_of_an_absurd_resolution_is_rejected_with_the_range_that_is_allowed(
    resolution: float,
) -> None:
    metrics = [records.BlockMetric("power_w", "W", resolution, series=2, samples=60)]
    assert "allowed is 1e-12 to 1e+12" in reason(block(metrics=metrics))


def test_a_trace_must_unpack_and_be_of_the_rank_that_sent_it() -> None:
    made = columns.TraceColumns(3, "2.10", "nccl", (), (), (), columns.Entries())
    sound = records.Trace(NOW_NS, RANK, 1, None, "ring", "nccl", columns.pack(made))
    assert reason(sound) == ""
    foreign = columns.pack(columns.TraceColumns(4, "2.10", "nccl", (), (), (), columns.Entries()))
    assert "rank 4" in reason(records.Trace(NOW_NS, RANK, 1, None, "ring", "nccl", foreign))
    assert "not a packed trace" in reason(records.Trace(NOW_NS, RANK, 1, None, "ring", "nccl", b"x"))
    assert "recorder" in reason(records.Trace(NOW_NS, RANK, 1, None, "ring", "what", columns.pack(made)))


def test_a_bomb_is_rejected_without_being_unpacked() -> None:
    bomb = zstandard.ZstdCompressor(write_checksum=True).compress(
        bytes(limits.PART_MAX_DECOMPRESSED_BYTES + 1)
    )
    assert len(bomb) < 10_000
    assert "limit" in reason(records.Trace(NOW_NS, RANK, 1, None, "ring", "nccl", bomb))
    assert "length" in reason(block(data=bomb))


def test_a_record_in_the_wrong_lane_is_rejected() -> None:
    assert "does not belong" in reason(event(), "bulk")


def test_an_old_record_is_expired_by_the_retention_of_its_kind() -> None:
    old = codec.encode(event(t_ns=NOW_NS - 15 * DAY_NS))
    checked = check("urgent", 1, old, NOW_NS, RETENTION)
    assert checked.expired and checked.record is None and not checked.reason
    assert check("urgent", 1, old, NOW_NS, RETENTION | {"event": 16 * DAY_NS}).record is not None


def test_free_text_is_made_printable_and_the_rest_stays_as_it_came() -> None:
    sent = event(text="a\x00b\x1bc\nd", fields={"why": "\x07!"})
    checked = check("urgent", 1, codec.encode(sent), NOW_NS, RETENTION)
    assert isinstance(checked.record, records.Event)
    assert checked.record.text == "a\ufffdb\ufffdc\nd"
    assert checked.record.fields == {"why": "\ufffd!"}
    assert checked.record.kind == sent.kind


def test_a_check_that_fails_itself_refuses_its_record_only(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(record: records.Spooled) -> records.Spooled:
        raise ZeroDivisionError

    monkeypatch.setattr("clusterwatch.ingest.checks._check_content", broken)
    event = records.Event(t_ns=NOW_NS, source="test", kind="odd", severity="info", text="one")
    assert "ZeroDivisionError" in reason(event)


def table_of(**changes: Any) -> records.Readings:
    data = readings.pack(msgspec.structs.replace(samples.TABLE, **changes))
    return records.Readings(t_ns=NOW_NS, codec=readings.CODEC, data=data)


def test_readings_are_stored_as_they_came() -> None:
    assert reason(table_of()) == ""
    assert "lane" in reason(table_of(), "urgent")


@pytest.mark.parametrize(
    ("record", "words"),
    [
        (msgspec.structs.replace(table_of(), codec="cwr9"), "unknown codec"),
        (msgspec.structs.replace(table_of(), data=b"\x28\xb5\x2f\xfd"), "readings"),
        (msgspec.structs.replace(table_of(), t_ns=NOW_NS + 3_600 * 10**9), "in the future"),
        (table_of(entities=["gpu/\x1b[2J", "nic/eth2", "host"]), "impossible name"),
        (table_of(value=[1.0, math.inf, 1, 0]), "a number that is none"),
        (table_of(entity=[0, 0, 1, 7]), "beyond"),
        (table_of(value=[None, None, 1, 0]), "no reason"),
    ],
)
def test_readings_that_contradict_themselves_are_rejected_with_words(
    record: records.Readings, words: str
) -> None:
    assert words in reason(record)
