"""Hostile pickles are refused before anything is built; plain data comes through unchanged."""

from __future__ import annotations

import os
import pickle
import struct
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from collectors.formats import plain_pickle
from collectors.formats.trace import TraceError

PLAIN = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**63), 2**63 - 1)
    | st.floats(allow_nan=False)
    | st.text(max_size=40),
    lambda inner: (
        st.lists(inner, max_size=5)
        | st.dictionaries(st.text(max_size=8), inner, max_size=5)
        | st.tuples(inner, inner)
    ),
    max_leaves=30,
)


class Exploit:
    def __reduce__(self) -> Any:
        return (os.system, ("true",))


class Built:
    def __init__(self) -> None:
        self.secret = 1


def listed(value: Any) -> Any:
    """The value with lists for its tuples."""
    if isinstance(value, dict):
        return {key: listed(item) for key, item in value.items()}
    return [listed(item) for item in value] if isinstance(value, (list, tuple)) and value != () else value


@given(PLAIN, st.sampled_from([2, 3, 4, 5]))
def test_gives_back_plain_data_of_every_binary_protocol(data: Any, protocol: int) -> None:
    assert plain_pickle.loads(pickle.dumps(data, protocol=protocol)) == listed(data)


PUSH = b"X\x01\x00\x00\x00a"
BOMBS = {
    "a_million_deep": b"\x80\x02}N" + b"\x85" * 1_000_000 + b"Ns.",
    "a_million_deep_by_mark": b"\x80\x02}" + b"(" * 1_000_000 + b"t" * 1_000_000 + b"Ns.",
    "each_holds_the_last_twice": b"\x80\x02}" + PUSH + b"q\x00" + b"h\x00h\x00\x86q\x00" * 60 + b"Ns.",
    "a_pair_fetched_back": b"\x80\x02}" + PUSH + b"q\x00" + b"h\x00h\x00\x86h\x000q\x00" * 60 + b"Ns.",
    "pairs_in_threes": b"\x80\x02}" + PUSH + b"q\x00" + b"h\x00h\x00\x86h\x00\x86q\x00" * 60 + b"Ns.",
}


@pytest.mark.parametrize("name", BOMBS)
def test_tuples_within_tuples_are_no_key(name: str) -> None:
    """Hashing them would end the process, or never end."""
    with pytest.raises(TraceError):
        plain_pickle.loads(BOMBS[name])


def test_the_recorders_own_pair_is_read_in_place_and_others_become_lists() -> None:
    key, name = b"X\x01\x00\x00\x00kq\x00", b"X\x01\x00\x00\x00nq\x01"
    data = b"\x80\x02](}(" + key + name + b"u}(h\x00h\x01h\x01\x86u}(h\x00h\x01h\x01\x86q\x02ue."
    assert plain_pickle.loads(data) == [{"k": "n"}, {"k": ("n", "n")}, {"k": ["n", "n"]}]


@pytest.mark.parametrize("protocol", [2, 3, 4, 5])
@pytest.mark.parametrize("thing", [Exploit(), Built(), os.system, {"entries": [Exploit()]}, {1, 2}, b"bytes"])
def test_refuses_everything_that_names_code(thing: Any, protocol: int) -> None:
    with pytest.raises(TraceError):
        plain_pickle.loads(pickle.dumps(thing, protocol=protocol))


@pytest.mark.parametrize(
    ("name", "data"),
    [
        ("memo_of_34_GiB", b"\x80\x02]r" + struct.pack("<I", 0x7FFFFFFF) + b"."),
        ("memo_of_64_GiB", b"\x80\x02]r" + struct.pack("<I", 0xFFFFFFFF) + b"."),
        ("huge_integer", b"\x80\x02\x8b" + struct.pack("<i", 1 << 20) + b"\x01" * (1 << 20) + b"."),
        ("long_string_claim", b"\x80\x02X" + struct.pack("<I", 0xFFFFFFF0) + b"abc."),
        ("eight_byte_string", b"\x80\x04\x8d" + struct.pack("<Q", 1 << 40) + b"."),
        ("persistent_id", b"\x80\x02Pcos\n."),
        ("text_protocol", b"cos\nsystem\n(S'true'\ntR."),
        ("extension", b"\x80\x02\x82\x01."),
        ("no_stop", pickle.dumps({"a": 1}, protocol=2)[:-1]),
        ("pop_of_nothing", b"\x80\x02ae."),
        ("unknown_memo", b"\x80\x02h\x05."),
        ("empty", b""),
        ("protocol_99", b"\x80\x63}."),
    ],
)
def test_refuses_hostile_and_broken_streams(name: str, data: bytes) -> None:
    with pytest.raises(TraceError):
        plain_pickle.loads(data)


def test_a_deep_nest_neither_crashes_nor_recurses() -> None:
    deep = b"\x80\x02" + b"]" * 200_000 + b"a" * 199_999 + b"."
    assert isinstance(plain_pickle.loads(deep), list)


@given(st.binary(max_size=300))
def test_any_bytes_give_data_or_a_trace_error(data: bytes) -> None:
    try:
        plain_pickle.loads(b"\x80\x02" + data)
    except TraceError as error:
        assert str(error)
