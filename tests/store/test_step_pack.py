"""Steps of a node in one column: what comes back, how many bytes it takes, what damaged bytes do."""

from __future__ import annotations

import math
import struct

import numpy as np
import pytest
import zstandard
from hypothesis import given
from hypothesis import strategies as st

from clusterwatch.store import step_pack
from collectors.wire.records import RankId, Steps

INT8 = st.integers(-(2**63), 2**63 - 1)
SECONDS = st.none() | st.floats(0, 1e6, width=32)


@st.composite
def records(draw: st.DrawFn) -> Steps:
    count = draw(st.integers(0, 6))

    def column(kind: st.SearchStrategy[object]) -> list[object]:
        return draw(st.lists(kind, min_size=count, max_size=count))

    ends = [end // 1000 * 1000 for end in column(st.integers(0, 2**62))]  # type: ignore[operator]
    floats = [column(SECONDS) for _ in range(4)]
    floats += [column(SECONDS) if draw(st.booleans()) else [] for _ in range(2)]
    who = RankId("job", draw(st.integers(0, 2**31 - 1)))
    return Steps(1, who, column(INT8), ends, column(st.floats(0, 1e6, width=32)), *floats)  # type: ignore[arg-type]


@given(st.lists(records(), min_size=1, max_size=5))
def test_what_is_packed_comes_back(told: list[Steps]) -> None:
    found = step_pack.unpack(step_pack.pack(told))
    assert found.rank.tolist() == [record.id.rank for record in told for _ in record.step]
    for name in NAMES:
        assert values_of(found, name) == told_values(told, name)


NAMES = (
    "step", "end_ns", "duration_s", "data_wait_s", "checkpoint_s", "gc_s", "cpu_s", "wait_s", "late_launch"
)  # fmt: skip


def values_of(found: step_pack.StepColumns, name: str) -> list[float | None]:
    return [None if math.isnan(value) else value for value in getattr(found, name).tolist()]


def told_values(told: list[Steps], name: str) -> list[float | None]:
    return [v for record in told for v in getattr(record, name) or [None] * len(record.step)]


@given(st.lists(st.lists(records(), min_size=1, max_size=3), max_size=6))
def test_many_frames_are_read_at_once_as_each_by_itself(told: list[list[Steps]]) -> None:
    frames = [step_pack.pack(one) for one in told]
    found, frame = step_pack.unpack_many(frames)
    for number, data in enumerate(frames):
        alone, mine = step_pack.unpack(data), frame == number
        for name in ("rank", *NAMES):
            assert np.array_equal(
                getattr(found, name)[mine], getattr(alone, name), equal_nan=name in NAMES[2:]
            )


def as_version_1(packed: bytes) -> bytes:
    """The same frame as it was written before waits were told."""
    raw = bytearray(zstandard.ZstdDecompressor().decompress(packed))
    _, _, count = struct.unpack_from("<BII", raw)
    raw[0] = 1
    return zstandard.ZstdCompressor().compress(bytes(raw[: len(raw) - 8 * count]))


@given(st.lists(records(), min_size=1, max_size=3))
def test_frames_of_the_first_version_stay_readable_and_their_waits_are_unknown(told: list[Steps]) -> None:
    new = step_pack.pack(told)
    found, frame = step_pack.unpack_many([as_version_1(new), new])
    old = frame == 0
    for name in NAMES[:-2]:
        assert values_of(step_pack.unpack(as_version_1(new)), name) == told_values(told, name)
    assert np.isnan(found.wait_s[old]).all() and np.isnan(found.late_launch[old]).all()
    assert found.step[old].tolist() == found.step[~old].tolist()


def typical(ranks: int = 8, steps: int = 12) -> list[Steps]:
    random = np.random.default_rng(1)
    told = []
    for rank in range(ranks):
        took = (5 + 0.05 * random.standard_normal(steps)).round(6)
        ends = (1_790_000_000_000_000_000 + np.cumsum(took * 1e9)).astype(np.int64)
        waits, cpu = (random.random(steps) * 0.01).round(6), (took * 0.3).round(6)
        zeros = [0.0] * steps
        columns = (took.tolist(), waits.tolist(), zeros, zeros, cpu.tolist())
        told.append(Steps(int(ends[-1]), RankId("job", rank), list(range(steps)), ends.tolist(), *columns))  # type: ignore[arg-type]
    return told


def test_a_step_takes_less_than_twenty_bytes() -> None:
    assert len(step_pack.pack(typical())) < 20 * 8 * 12


def test_seconds_no_clock_can_tell_are_infinite_and_nothing_else_is_lost() -> None:
    record = Steps(1, RankId("job", 3), [1, 2], [1000, 2000], [1e300, 2.0], *[[None, None]] * 4)  # type: ignore[arg-type]
    found = step_pack.unpack(step_pack.pack([record]))
    assert math.isinf(found.duration_s[0]) and found.duration_s[1] == 2.0


@pytest.mark.parametrize("cut", [0, 1, 10, -1])
def test_damaged_bytes_are_named(cut: int) -> None:
    with pytest.raises(step_pack.StepsDamaged):
        step_pack.unpack(step_pack.pack(typical())[:cut])


def test_another_version_is_refused() -> None:
    raw = bytearray(zstandard.ZstdDecompressor().decompress(step_pack.pack(typical())))
    raw[0] = 9
    with pytest.raises(step_pack.StepsDamaged, match="version 9"):
        step_pack.unpack(zstandard.ZstdCompressor().compress(bytes(raw)))


def test_no_row_holds_more_than_can_be_handled_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(step_pack, "STEPS_MAX", 25)
    told = list(enumerate(typical()))
    parts = list(step_pack.portions(told))
    assert [len(part) for part in parts] == [2, 2, 2, 2] and [one for part in parts for one in part] == told


def test_a_frame_that_tells_of_too_much_is_not_unpacked(monkeypatch: pytest.MonkeyPatch) -> None:
    packed = step_pack.pack(typical())
    monkeypatch.setattr(step_pack, "RAW_MAX_BYTES", 100)
    with pytest.raises(step_pack.StepsDamaged, match="more bytes"):
        step_pack.unpack(packed)
