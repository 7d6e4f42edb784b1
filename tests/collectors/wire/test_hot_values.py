"""Values of a hot frame: what is packed comes back, and what does not fit is refused."""

from __future__ import annotations

import math

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from collectors.wire import hot_values, limits
from collectors.wire.codec import WireError
from collectors.wire.records import HotMetrics

VALUES = st.lists(
    st.none() | st.floats(width=32, allow_nan=False, allow_infinity=False), min_size=1, max_size=9
)


@given(st.dictionaries(st.text("abc_", min_size=1, max_size=9), VALUES, max_size=9))
def test_values_come_back_at_the_precision_of_float32(metrics: dict[str, list[float | None]]) -> None:
    assert hot_values.unpack(hot_values.pack(metrics)) == metrics


def test_a_number_beyond_float32_becomes_infinite() -> None:
    assert hot_values.unpack(hot_values.pack({"a": [1e300, -1e300]})) == {"a": [math.inf, -math.inf]}


def test_the_same_things_measured_have_the_same_layout() -> None:
    first, second = hot_values.pack({"a": [1.0], "b": [2.0]}), hot_values.pack({"a": [None], "b": [7.0]})
    assert first is not None and second is not None
    assert first.layout == second.layout


@pytest.mark.parametrize(
    ("layout", "words"),
    [
        ([("a", 0)], "0 series"),
        ([("a", limits.SERIES_PER_METRIC_MAX + 1)], "series"),
        ([("a", 1), ("a", 1)], "named twice"),
        ([("a\x07", 1)], "impossible name"),
        ([("a" * 300, 1)], "impossible name"),
        ([(f"m{n}", 1) for n in range(limits.METRICS_PER_FRAME_MAX + 1)], "metrics"),
        (["a"], "no layout"),
        (7, "no layout"),
    ],
)
def test_a_hostile_layout_is_refused_with_words(layout: object, words: str) -> None:
    with pytest.raises(WireError, match=words):
        hot_values.read_layout(msgspec.msgpack.encode(layout))


@given(st.binary(max_size=64))
def test_any_bytes_are_a_layout_or_a_wire_error(data: bytes) -> None:
    try:
        layout = hot_values.read_layout(data)
    except WireError:
        return
    assert hot_values.read_layout(hot_values.layout_bytes(layout)) == layout


def test_values_of_another_length_are_refused() -> None:
    with pytest.raises(WireError, match="do not fit"):
        hot_values.unpack(HotMetrics(hot_values.layout_bytes((("a", 2),)), bytes(12)))
