"""A minute block gives back every value exactly, and nothing that is damaged."""

from __future__ import annotations

import json
import math
import re
import struct
from array import array

import msgspec
import pytest
import zstandard
from hypothesis import given
from hypothesis import strategies as st

from collectors.wire import blocks, limits
from collectors.wire.records import BlockMetric
from tests.collectors.wire import samples

INT64 = st.integers(-(2**63), 2**63 - 1)


@st.composite
def minutes(draw: st.DrawFn) -> tuple[list[BlockMetric], list[array[int]]]:
    metrics = []
    columns = []
    for number in range(draw(st.integers(0, 4))):
        series, length = draw(st.integers(1, 3)), draw(st.integers(1, 12))
        metrics.append(BlockMetric(f"m{number}", "x", 0.5, series, length))
        values = draw(st.lists(INT64, min_size=series * length, max_size=series * length))
        columns.append(array("q", values))
    return metrics, columns


def metric(**changes: object) -> BlockMetric:
    return msgspec.structs.replace(samples.METRICS[0], **changes)


@given(minutes())
def test_every_int64_comes_back_exactly(minute: tuple[list[BlockMetric], list[array[int]]]) -> None:
    metrics, columns = minute
    assert blocks.decode(metrics, blocks.encode(metrics, columns)) == columns


def test_a_block_of_last_year_is_still_read() -> None:
    golden = bytes.fromhex(json.loads(samples.GOLDEN.read_text())["block_data"])
    assert blocks.decode(samples.METRICS, golden) == samples.COLUMNS


@given(st.integers(0, 10_000), st.integers(1, 255))
def test_a_damaged_byte_is_noticed(place: int, flip: int) -> None:
    data = bytearray(blocks.encode(samples.METRICS, samples.COLUMNS))
    data[place % len(data)] ^= flip
    try:
        assert blocks.decode(samples.METRICS, bytes(data)) == samples.COLUMNS
    except blocks.BlockError:
        return


def test_slow_signals_compress_well() -> None:
    header = [metric(series=8)]
    column = array("q", [6_500 + (place % 3) for place in range(480)])
    assert len(blocks.encode(header, [column])) < 480


@pytest.mark.parametrize(
    "header",
    [
        metric(series=0), metric(samples=0), metric(samples=10**9), metric(series=10**9),
        metric(resolution=0.0), metric(resolution=math.nan), metric(samples=59),
        metric(resolution=1e308), metric(resolution=5e-324), metric(resolution=-1.0),
    ],
)  # fmt: skip
def test_a_header_that_does_not_fit_is_refused(header: BlockMetric) -> None:
    data = blocks.encode([samples.METRICS[0]], [samples.COLUMNS[0]])
    with pytest.raises(blocks.BlockError):
        blocks.decode([header], data)


@pytest.mark.parametrize("resolution", [1e308, 5e-324])
def test_an_absurd_resolution_is_refused_with_words(resolution: float) -> None:
    words = f"a resolution of {resolution:g}, allowed is 1e-12 to 1e+12"
    with pytest.raises(blocks.BlockError, match=re.escape(words)):
        blocks.expected_bytes([metric(resolution=resolution)])


@pytest.mark.parametrize("resolution", [limits.RESOLUTION_MIN, limits.RESOLUTION_MAX])
def test_no_multiple_of_an_allowed_resolution_leaves_float32(resolution: float) -> None:
    blocks.expected_bytes([metric(resolution=resolution)])
    for multiple in (1, 2**63 - 1):
        (kept,) = struct.unpack("<f", struct.pack("<f", multiple * resolution))
        assert 0 < kept < math.inf


def test_a_bomb_is_not_unpacked() -> None:
    bomb = zstandard.ZstdCompressor().compress(bytes(64 * 1024 * 1024))
    with pytest.raises(blocks.BlockError):
        blocks.decode([samples.METRICS[0]], bomb)
    # A frame that does not say its size must not be unpacked to find out.
    quiet = zstandard.ZstdCompressor(write_content_size=False).compress(bytes(64 * 1024 * 1024))
    with pytest.raises(blocks.BlockError):
        blocks.decode([samples.METRICS[0]], quiet)


@given(st.one_of(st.none(), st.floats()), st.sampled_from([0.0001, 0.5, 1.0, 4096.0]))
def test_a_value_is_kept_at_its_resolution_or_is_missing(value: float | None, resolution: float) -> None:
    multiple = blocks.quantise(value, resolution)
    if value is None or not math.isfinite(value) or abs(value / resolution) > 2**63:
        assert multiple == blocks.MISSING
    elif multiple != blocks.MISSING:
        assert abs(multiple * resolution - value) <= resolution * 0.51 + abs(value) * 1e-9


def test_a_rollup_counts_only_what_is_there() -> None:
    assert blocks.rollup([blocks.MISSING, 2, 8, 5, blocks.MISSING], 0.5) == (1.0, 2.5, 4.0, 2.5)
    assert all(map(math.isnan, blocks.rollup([blocks.MISSING], 0.5)))


def test_a_sound_block_is_accepted() -> None:
    blocks.verify(samples.block(blocks.encode(samples.METRICS, samples.COLUMNS)))


@pytest.mark.parametrize(
    "changes",
    [
        {"codec": "cw9"},
        {"minute_ns": samples.MINUTE_NS + 1},
        {"data": b""},
        {"metrics": samples.METRICS[:1]},
        {"metrics": [samples.METRICS[0], samples.METRICS[0]]},
        {"rollup": b""},
        {"rollup": samples.ROLLUP[:-4]},
        {"rollup": blocks.pack_rollups([(5.0, 1.0, 9.0, 5.0)] * 3)},
        {"rollup": blocks.pack_rollups([(1.0, 2.0, 9.0, 9.5)] * 3)},
        {"rollup": array("f", [1.0, math.nan, 9.0, 5.0] * 3).tobytes()},
        {"rollup": array("f", [1.0, 2.0, math.inf, 5.0] * 3).tobytes()},
        {"data": zstandard.ZstdCompressor(write_checksum=False).compress(bytes(180 * 8))},
    ],
)
def test_a_block_that_contradicts_itself_is_refused(changes: dict[str, object]) -> None:
    block = samples.block(blocks.encode(samples.METRICS, samples.COLUMNS))
    with pytest.raises(blocks.BlockError):
        blocks.verify(msgspec.structs.replace(block, **changes))
