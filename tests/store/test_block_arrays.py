"""Many blocks at once give what the reference codec gives; damage stays in its block."""

from __future__ import annotations

from array import array

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from clusterwatch.store import block_arrays
from collectors.wire import blocks
from collectors.wire.blocks import BlockError
from collectors.wire.records import BlockMetric

SHAPES = st.lists(st.tuples(st.integers(1, 4), st.integers(1, 6)), min_size=1, max_size=4)
NUMBERS = st.one_of(st.just(blocks.MISSING), st.integers(-(2**63), 2**63 - 1), st.integers(-50, 50))


def headers(shapes: list[tuple[int, int]], resolution: float = 1.0) -> list[BlockMetric]:
    return [BlockMetric(f"m{i}", "w", resolution, *shape) for i, shape in enumerate(shapes)]


def decoded(metrics: list[BlockMetric], data: list[bytes], series: object = slice(None)) -> dict[str, object]:
    layout = block_arrays.Layout.of(metrics)
    stack, sound = block_arrays.decompress(layout, data)
    return dict(block_arrays.values(layout, stack, sound, layout.named(None), series))


@given(SHAPES, st.data())
def test_decodes_what_the_reference_codec_encoded(shapes: list[tuple[int, int]], data: st.DataObject) -> None:
    metrics = headers(shapes)
    columns = [
        [array("q", data.draw(st.lists(NUMBERS, min_size=s * t, max_size=s * t))) for s, t in shapes]
        for _ in range(2)
    ]
    found = decoded(metrics, [blocks.encode(metrics, one) for one in columns])
    for place, metric in enumerate(metrics):
        wanted = np.array([one[place] for one in columns], np.int64).reshape(2, metric.series, metric.samples)
        numbers = np.where(wanted == blocks.MISSING, np.nan, wanted.astype(np.float64))
        np.testing.assert_array_equal(found[metric.name], numbers)


@given(st.integers(1, 3), st.integers(1, 4), st.integers(1, 5), st.data())
def test_encodes_what_the_reference_codec_decodes(m: int, s: int, t: int, data: st.DataObject) -> None:
    numbers = data.draw(st.lists(NUMBERS, min_size=2 * m * s * t, max_size=2 * m * s * t))
    multiples = np.array(numbers, np.int64).reshape(2, m, s, t)
    frames = block_arrays.compress(block_arrays.shuffled_bytes(multiples))
    metrics = headers([(s, t)] * m)
    for block, frame in zip(multiples, frames, strict=True):
        assert [list(column) for column in blocks.decode(metrics, frame)] == block.reshape(m, -1).tolist()


def test_one_series_of_some_metrics_is_read_and_a_hosts_number_stands_for_each_gpu() -> None:
    metrics = headers([(3, 2), (1, 2), (3, 2)], resolution=0.5)
    columns = [array("q", range(6)), array("q", [8, 9]), array("q", range(10, 16))]
    layout = block_arrays.Layout.of(metrics)
    stack, sound = block_arrays.decompress(layout, [blocks.encode(metrics, columns)])
    found = block_arrays.values(layout, stack, sound, layout.named(["m0", "m1"]), 2)
    assert sorted(found) == ["m0", "m1"]
    assert found["m0"].tolist() == [[[2.0, 2.5]]]
    assert found["m1"].tolist() == [[[4.0, 4.5]]]


def test_a_damaged_block_costs_only_its_own_numbers() -> None:
    metrics = headers([(1, 3)])
    sound = blocks.encode(metrics, [array("q", [1, 2, 3])])
    shorter = blocks.encode(headers([(1, 2)]), [array("q", [1, 2])])
    broken = sound[:-2] + bytes(2)
    found = decoded(metrics, [sound, broken, shorter, b"", b"nonsense", sound])["m0"]
    assert isinstance(found, np.ndarray)
    assert found[[0, 5]].tolist() == [[[1, 2, 3]]] * 2
    assert np.isnan(found[1:5]).all()


@pytest.mark.parametrize("shape", [(0, 60), (1, 0), (65_536, 3_600)])
def test_a_header_no_block_can_have_is_refused(shape: tuple[int, int]) -> None:
    with pytest.raises(BlockError):
        block_arrays.Layout.of(headers([shape]))


def test_two_blocks_of_a_minute_fill_each_other() -> None:
    nan = np.nan
    values = {"m": np.array([[[1.0, nan]], [[7.0, 2.0]], [[5.0, 6.0]]])}
    minutes, joined = block_arrays.join_minutes([60, 60, 120], values)
    assert minutes == [60, 120]
    assert joined["m"].tolist() == [[[1.0, 2.0]], [[5.0, 6.0]]]
    assert np.isnan(values["m"][0, 0, 1])
