"""Blocks, hot columns and messages that no sound node makes: refused by the errors their callers expect.

Headers, columns and rollups are built by hypothesis, each nearly right; messages are mutated as a whole.
"""

from __future__ import annotations

import math
import random
import tracemalloc
from array import array

import msgspec
import pytest
import zstandard
from hypothesis import given, settings
from hypothesis import strategies as st

from collectors.wire import blocks, codec, hot_values, limits, records
from collectors.wire.records import Block, BlockMetric, HotMetrics
from tests.collectors.wire import samples
from tests.faults.mutation import mutant

HEADERS = st.builds(
    BlockMetric,
    name=st.sampled_from(["a", "b", "c", ""]),
    unit=st.just("x"),
    resolution=st.floats() | st.sampled_from([0.5, 1.0]),
    series=st.integers(-1, 4) | st.sampled_from([blocks.SERIES_MAX, blocks.SERIES_MAX + 1, 2**31, 2**62]),
    samples=st.integers(-1, 4) | st.sampled_from([60, blocks.SAMPLES_MAX, blocks.SAMPLES_MAX + 1, 2**62]),
)
MEMORY_BYTES = 2 * limits.PART_MAX_DECOMPRESSED_BYTES
"""What reading one message may need at most: the part, and one copy of it."""


@st.composite
def nearly_sound_blocks(draw: st.DrawFn) -> Block:
    """Header, data and rollup that often fit together, and then again do not."""
    metrics = draw(st.lists(HEADERS, max_size=3))
    values = sum(max(0, metric.series) * max(0, metric.samples) for metric in metrics)
    size = values * 8 if values < 1_000 and draw(st.booleans()) else draw(st.integers(0, 200))
    raw = draw(st.binary(min_size=size, max_size=size))
    data = zstandard.ZstdCompressor(
        write_checksum=draw(st.booleans()), write_content_size=draw(st.booleans())
    ).compress(raw)
    series = min(64, sum(max(0, metric.series) for metric in metrics))
    floats = draw(st.lists(st.floats(width=32), min_size=0, max_size=4)) or [math.nan]
    rollup = array("f", (floats * 4 * max(1, series))[: 4 * series]).tobytes()
    minute_ns = draw(st.sampled_from([samples.MINUTE_NS, samples.MINUTE_NS + 1, 0, -60_000_000_000]))
    return Block(minute_ns, draw(st.sampled_from([blocks.CODEC, "cw2"])), metrics, data, rollup)


@given(nearly_sound_blocks())
def test_a_block_is_refused_with_words_or_can_be_read(block: Block) -> None:
    try:
        blocks.verify(block)
    except blocks.BlockError as refusal:
        assert str(refusal)
        return
    columns = blocks.decode(block.metrics, block.data)
    assert [len(column) for column in columns] == [m.series * m.samples for m in block.metrics]
    assert blocks.decode(block.metrics, blocks.encode(block.metrics, columns)) == columns


@given(st.lists(st.tuples(st.text(max_size=3), st.integers(-1, 5)), max_size=4), st.binary(max_size=64))
def test_hot_columns_are_refused_with_words_or_can_be_read(
    layout: list[tuple[str, int]], values: bytes
) -> None:
    try:
        found = hot_values.unpack(HotMetrics(msgspec.msgpack.encode(layout), values))
    except codec.WireError as refusal:
        assert str(refusal)
        return
    assert {name: len(numbers) for name, numbers in found.items()} == dict(layout)


@given(st.sampled_from(sorted(samples.messages())), st.integers(0, 2**32))
@settings(max_examples=500, deadline=None)
def test_a_mutant_of_any_message_is_read_or_refused_with_words(name: str, seed: int) -> None:
    data = mutant(random.Random(seed), [msgspec.msgpack.encode(samples.messages()[name])])
    for decode in (codec.decode_from_node, codec.decode_from_gateway, codec.decode_record):
        try:
            message = decode(data)
        except codec.WireError as refusal:
            assert str(refusal) and refusal.code in ("bad_message", "too_large")
            continue
        assert isinstance(message, records.Record)


@pytest.mark.parametrize("says_its_size", [True, False])
def test_a_bomb_costs_no_more_memory_than_a_sound_part(says_its_size: bool) -> None:
    header = [BlockMetric("a", "x", 1.0, 64, blocks.SAMPLES_MAX)]
    bomb = zstandard.ZstdCompressor(write_checksum=True, write_content_size=says_its_size).compress(
        bytes(8 * limits.PART_MAX_DECOMPRESSED_BYTES)
    )
    tracemalloc.start()
    try:
        with pytest.raises(blocks.BlockError):
            blocks.decompress(bomb, blocks.expected_bytes(header))
        _, peak_bytes = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak_bytes < MEMORY_BYTES
