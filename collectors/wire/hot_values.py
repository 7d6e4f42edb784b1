"""Newest values of a node <-> the packed columns of a hot frame. Standard library and msgspec only.

A *layout* names the metrics and how many series each has; its bytes are the same as long as the same things
are measured, so a reader decodes it once and knows it again by its bytes. Values are one float32 after the
other in that order, little-endian, NaN where there is none.

Raises ``WireError`` with code ``bad_message``; nothing else escapes.
"""

from __future__ import annotations

import math
import struct
import sys
from array import array
from collections.abc import Mapping, Sequence
from functools import lru_cache

import msgspec

from collectors.wire import limits
from collectors.wire.codec import WireError
from collectors.wire.records import HotMetrics

Layout = tuple[tuple[str, int], ...]
"""(name of the metric, series), in the order of the values"""

VALUE_BYTES = 4
_FLOAT32_MAX = (2 - 2**-23) * 2.0**127

_layout_decoder = msgspec.msgpack.Decoder(Layout)


@lru_cache(maxsize=256)
def layout_bytes(layout: Layout) -> bytes:
    """A layout as it travels."""
    return msgspec.msgpack.encode(layout)


def read_layout(data: bytes) -> Layout:
    """A layout from a node, checked: bounded, names printable and given once, series positive."""
    try:
        layout: Layout = _layout_decoder.decode(data)
    except (msgspec.MsgspecError, RecursionError, UnicodeDecodeError) as error:
        raise WireError("bad_message", f"no layout of values: {error}") from error
    if len(layout) > limits.METRICS_PER_FRAME_MAX:
        raise WireError("bad_message", f"{len(layout)} metrics")
    if len({name for name, _ in layout}) != len(layout):
        raise WireError("bad_message", "a metric is named twice")
    for name, series in layout:
        if not name.isprintable() or not 0 < len(name) <= limits.NAME_MAX_CHARS:
            raise WireError("bad_message", "a metric with an impossible name")
        if not 0 < series <= limits.SERIES_PER_METRIC_MAX:
            raise WireError("bad_message", f"metric {name} with {series} series")
    return layout


def pack(metrics: Mapping[str, Sequence[float | None]]) -> HotMetrics | None:
    """Values by metric as they travel; None when there are none. A number beyond float32 becomes infinite."""
    layout = tuple((name, len(values)) for name, values in metrics.items() if len(values))
    if not layout:
        return None
    flat = [_number(value) for values in metrics.values() for value in values]
    return HotMetrics(layout_bytes(layout), struct.pack(f"<{len(flat)}f", *flat))


def _number(value: float | None) -> float:
    if value is None:
        return math.nan
    return value if abs(value) <= _FLOAT32_MAX or math.isnan(value) else math.copysign(math.inf, value)


def unpack(metrics: HotMetrics | None) -> dict[str, list[float | None]]:
    """What ``pack`` was given, at float32's precision."""
    if metrics is None:
        return {}
    layout = read_layout(metrics.layout)
    if len(metrics.values) != VALUE_BYTES * sum(series for _, series in layout):
        raise WireError("bad_message", "values do not fit their layout")
    flat = array("f", metrics.values)
    if sys.byteorder == "big":
        flat.byteswap()
    found: dict[str, list[float | None]] = {}
    start = 0
    for name, series in layout:
        found[name] = [None if math.isnan(value) else value for value in flat[start : start + series]]
        start += series
    return found
