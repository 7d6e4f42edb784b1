"""The table of a node's newest values: what is packed comes back, what contradicts itself is refused."""

from __future__ import annotations

import json
import math
from typing import Any

import msgspec
import pytest
import zstandard
from hypothesis import given
from hypothesis import strategies as st

from collectors.wire import limits, readings
from collectors.wire.codec import WireError
from tests.collectors.wire import samples


def packed(fields: Any) -> bytes:
    return zstandard.ZstdCompressor(write_checksum=True).compress(msgspec.msgpack.encode(fields))


def changed(**changes: Any) -> bytes:
    """The sample's table with other columns, as a node could send it."""
    return packed(msgspec.to_builtins(samples.TABLE) | changes)


def test_what_is_packed_comes_back_exactly() -> None:
    assert readings.unpack(readings.pack(samples.TABLE)) == samples.TABLE


def test_bytes_of_old_are_read_for_ever() -> None:
    golden = json.loads(samples.GOLDEN.read_text())
    assert readings.unpack(bytes.fromhex(golden["readings_data"])) == samples.TABLE


def test_a_field_of_a_newer_version_is_ignored() -> None:
    assert readings.unpack(changed(from_the_future=[1])) == samples.TABLE


@pytest.mark.parametrize(
    "changes",
    [
        pytest.param({"value": [1.0, None]}, id="fewer values than places"),
        pytest.param({"entity": [0, 0, 1, 3]}, id="an entity that is not there"),
        pytest.param({"metric": [0, 0, 1, -1]}, id="a negative place"),
        pytest.param({"source": [1, 1, 0]}, id="a short column"),
        pytest.param({"quality": [0, 1, 2, 2**64 - 1]}, id="a place beyond any table"),
        pytest.param({"label": [0, 0, 0, 0]}, id="one value twice"),
        pytest.param({"label": [0, 2, 0, 0]}, id="labels that are not there"),
        pytest.param({"labels": [{"a": "b"}, {}]}, id="first labels not empty"),
        pytest.param({"labels": [{}, {"a\nb": "c"}]}, id="a line break in a label"),
        pytest.param({"labels": []}, id="no labels at all"),
        pytest.param({"entities": ["gpu/a", "nic/\x1b[31m", "host"]}, id="a control character"),
        pytest.param({"entities": ["gpu/a", "gpu/\u202eb", "host"]}, id="text that runs backwards"),
        pytest.param({"entities": ["", "nic/eth2", "host"]}, id="an empty name"),
        pytest.param({"entities": ["host", "nic/eth2", "host"]}, id="a name twice"),
        pytest.param({"metrics": ["x" * 129, "b", "c"]}, id="a long name"),
        pytest.param({"value": [math.nan, None, 1, 0]}, id="NaN"),
        pytest.param({"value": [math.inf, None, 1, 0]}, id="infinity"),
        pytest.param({"value": ["1", None, 1, 0]}, id="text for a value"),
        pytest.param({"value": [None, None, 1, 0]}, id="unknown without a reason"),
        pytest.param({"left_out": -1}, id="negative count"),
        pytest.param({"sources": [["a", "ok", 1.0]] * 3}, id="sources as arrays"),
        pytest.param(
            {"sources": [{"name": n, "state": "ok", "period_s": 1.0, "age_s": -5.0} for n in "abc"]},
            id="a look of the future",
        ),
        pytest.param({"sources": [{"name": str(n), "state": "ok", "period_s": 1.0} for n in range(65)]},
                     id="too many sources"),
    ],
)  # fmt: skip
def test_a_table_that_contradicts_itself_is_refused_with_words(changes: dict[str, Any]) -> None:
    with pytest.raises(WireError) as refused:
        readings.unpack(changed(**changes))
    assert refused.value.code == "bad_message"


def test_more_rows_than_the_limit_are_refused() -> None:
    rows = limits.READINGS_ROWS_MAX + 1
    zeros = [0] * rows
    wide = {
        "entities": [f"e{n}" for n in range(rows // 1_000 + 1)],
        "metrics": [f"m{n}" for n in range(1_000)],
    }
    columns = {"entity": [n // 1_000 for n in range(rows)], "metric": [n % 1_000 for n in range(rows)]}
    table = wide | columns | {"source": zeros, "quality": zeros, "value": zeros, "label": [], "labels": []}
    with pytest.raises(WireError):
        readings.unpack(changed(**table))
    fits = {name: column[:-1] if len(column) == rows else column for name, column in table.items()}
    assert len(readings.unpack(changed(**fits)).value) == limits.READINGS_ROWS_MAX


def test_a_bomb_is_not_unpacked() -> None:
    bomb = bytes(limits.READINGS_MAX_DECOMPRESSED_BYTES + 1)
    with pytest.raises(WireError):
        readings.unpack(zstandard.ZstdCompressor(write_checksum=True).compress(bomb))


def test_a_frame_without_a_checksum_or_a_size_is_refused() -> None:
    raw = msgspec.msgpack.encode(samples.TABLE)
    unsized = zstandard.ZstdCompressor(write_checksum=True, write_content_size=False).compress(raw)
    for data in (zstandard.ZstdCompressor().compress(raw), unsized, b""):
        with pytest.raises(WireError):
            readings.unpack(data)


@given(st.binary(max_size=300), st.integers(0, 10_000))
def test_garbage_is_refused_or_whole(noise: bytes, at: int) -> None:
    sound = bytearray(readings.pack(samples.TABLE))
    sound[at % len(sound) : at % len(sound) + len(noise)] = noise
    for data in (noise, bytes(sound), packed(noise)):
        try:
            readings.unpack(data)
        except WireError as refused:
            assert str(refused)


LEAVES = st.none() | st.integers() | st.text() | st.floats()
MESSAGES = st.recursive(LEAVES, lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner))


@given(MESSAGES)
def test_any_message_in_a_sound_frame_is_refused_or_whole(message: Any) -> None:
    try:
        data = packed(message)
    except OverflowError:
        return
    with pytest.raises(WireError):
        readings.unpack(data)
