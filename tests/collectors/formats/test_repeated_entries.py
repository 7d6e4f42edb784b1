"""Entries that repeat an earlier one: the compiled reader copies them, and says what the plain one says.

Pickles are put together opcode by opcode, so that an entry has the bytes of an earlier one and yet means
something else: numbers of another width, memo numbers that name something new, numbers taken out again.
"""

from __future__ import annotations

import os
import struct
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from collectors.formats import flight_recorder
from collectors.formats.flight_recorder import decode
from collectors.formats.trace import TraceError


@pytest.fixture(autouse=True)
def compiled() -> None:
    if flight_recorder.compiled_reader is None:
        assert os.environ.get("CI") != "true", "CI has a compiler, so the compiled reader must be there"
        pytest.skip("the compiled reader is not built: make dev with gcc and Python's headers")


def text(value: str) -> bytes:
    return b"X" + struct.pack("<I", len(value)) + value.encode()


def number(value: int) -> bytes:
    """The shortest opcode that holds it."""
    if 0 <= value < 256:
        return b"K" + bytes([value])
    if 0 <= value < 65_536:
        return b"M" + struct.pack("<H", value)
    if -(2**31) <= value < 2**31:
        return b"J" + struct.pack("<i", value)
    return b"\x8a\x08" + struct.pack("<q", value)


def put(index: int) -> bytes:
    return b"r" + struct.pack("<I", index)


def get(index: int) -> bytes:
    return b"j" + struct.pack("<I", index)


def entry(record_id: int, *pairs: bytes) -> bytes:
    return b"}(" + text("record_id") + number(record_id) + b"".join(pairs) + b"u"


def dump(*entries: bytes) -> bytes:
    return (
        b"\x80\x02}(" + text("version") + text("2.10") + text("entries") + b"](" + b"".join(entries) + b"eu."
    )


def answer(data: bytes, compiled: bool) -> str:
    try:
        return repr(decode(data, 0, compiled=compiled))
    except TraceError as error:
        return str(error)


def read(data: bytes) -> Any:
    assert flight_recorder.compiled_reader is not None
    return flight_recorder.compiled_reader.read(data, 1000)


def record_ids(data: bytes) -> list[int]:
    return list(decode(data, 0).entries.record_id)


def test_numbers_of_any_width_and_sign_fit() -> None:
    values = [0, 255, 256, 65_535, 65_536, -1, -(2**31), 2**31, 2**63 - 1, -(2**63), 7]
    data = dump(*(entry(at, text("time_created_ns"), number(value)) for at, value in enumerate(values)))
    assert list(decode(data, 0).entries.created_ns) == [value if value > 0 else -1 for value in values]
    assert answer(data, True) == answer(data, False)


def test_a_long_of_no_bytes_is_0() -> None:
    data = dump(
        *(entry(at, text("op_id"), code) for at, code in enumerate((b"K\x05", b"\x8a\x00", b"K\x06")))
    )
    assert list(decode(data, 0).entries.op_id) == [5, 0, 6]


def test_an_unknown_record_id_is_the_place_in_the_ring() -> None:
    assert record_ids(dump(entry(9), entry(8), entry(-5), entry(7))) == [9, 8, 2, 7]


def test_frames_that_assign_memo_numbers_anew_are_one_stack() -> None:
    def frames(first: int) -> bytes:
        made = (
            b"}(" + text("name") + text(f"f{n}") + text("line") + number(n) + b"u" + put(first + n)
            for n in range(3)
        )
        return text("frames") + b"](" + b"".join(made) + b"e"

    data = dump(*(entry(at, frames(10 * at)) for at in range(6)))
    trace = decode(data, 0)
    assert len(trace.stacks) == 1 and list(trace.entries.stack) == [0] * 6
    assert answer(data, True) == answer(data, False)


def test_a_memo_number_that_an_entry_copied_can_be_named_later() -> None:
    made = [entry(at, text("profiling_name"), text("nccl:a"), put(at)) for at in range(4)]
    data = dump(*made, entry(4, text("profiling_name"), get(3)))
    assert read(data) is not None
    assert list(decode(data, 0).entries.signature) == [0] * 5


def test_a_memo_number_that_names_something_new_is_not_taken_for_the_old() -> None:
    named = text("profiling_name") + get(0)
    first = b"".join((text("thread_name"), text("nccl:a"), put(0)))
    second = b"".join((text("thread_name"), text("nccl:b"), put(0)))
    data = dump(
        entry(0, first), entry(1, named), entry(2, named), entry(3, second), entry(4, named), entry(5)
    )
    trace = decode(data, 0)
    ops = [trace.signatures[index].op for index in trace.entries.signature]
    assert ops == ["", "a", "a", "", "b", ""]
    assert answer(data, True) == answer(data, False)


def test_a_number_that_is_taken_into_a_tuple_is_no_column() -> None:
    def odd(inner: int) -> bytes:
        return b"".join((text("x"), text("y"), text("op_id"), number(inner), b"\x87"))

    data = dump(*(entry(at, text("op_id"), number(50 + at), odd(at)) for at in range(4)))
    assert list(decode(data, 0).entries.op_id) == [50, 51, 52, 53]
    assert answer(data, True) == answer(data, False)


def test_of_a_key_that_stands_twice_the_last_counts() -> None:
    data = dump(*(entry(at, text("op_id"), number(at), text("op_id"), b"N") for at in range(4)), entry(4))
    assert list(decode(data, 0).entries.op_id) == [-1] * 5
    assert answer(data, True) == answer(data, False)


def test_memo_numbers_that_leave_a_gap_are_assigned_as_they_stand() -> None:
    def two(at: int, first: int, second: int) -> bytes:
        named = text("thread_name") + text("a") + put(first), text("state") + text("started") + put(second)
        return entry(at, *named)

    for index, word in ((7, "started"), (3, None)):
        data = dump(two(0, 0, 1), two(1, 2, 7), entry(2, text("state"), get(index)), entry(3))
        assert (read(data) is not None) == (word is not None)
        assert answer(data, True) == answer(data, False)


@pytest.mark.parametrize("cut", range(1, 40))
def test_a_cut_off_repeat_is_refused_by_both(cut: int) -> None:
    data = dump(*(entry(at, text("op_id"), number(at)) for at in range(5)))[:-cut]
    assert answer(data, True) == answer(data, False)
    assert read(data) is None


KEYS = (
    "op_id",
    "time_created_ns",
    "duration_ms",
    "profiling_name",
    "frames",
    "state",
    "thread_name",
    "seq_id",
)
values = st.one_of(
    st.integers(-(2**63), 2**63 - 1).map(number),
    st.sampled_from(
        [b"N", b"\x88", b"\x89", b"]", b"}", b")", b"K\x01\x85", b"K\x01K\x02\x86", b"](K\x01K\x02e"]
    ),
    st.sampled_from(["completed", "nccl:all_reduce", "a"]).map(text),
    st.floats(allow_nan=False).map(lambda value: b"G" + struct.pack(">d", value)),
    st.integers(0, 12).map(get),
    st.just(b"](}(" + text("name") + text("f") + b"ue"),
)


@st.composite
def streams(draw: st.DrawFn) -> bytes:
    """Entries of a few shapes, over and over, each with its own numbers; now and then one goes astray."""
    shapes: list[Callable[[int, int], bytes]] = []
    for _ in range(draw(st.integers(1, 3))):
        pairs = draw(st.lists(st.tuples(st.sampled_from(KEYS), values, st.booleans()), max_size=4))

        def shape(at: int, free: int, pairs: list[tuple[str, bytes, bool]] = pairs) -> bytes:
            named = (
                (key, value, put(free + n) if kept else b"") for n, (key, value, kept) in enumerate(pairs)
            )
            return entry(at, text("op_id"), number(at * at), *(text(k) + v + p for k, v, p in named))

        shapes.append(shape)
    order = draw(st.lists(st.integers(0, len(shapes) - 1), min_size=2, max_size=12))
    step = draw(st.sampled_from([0, 1, 4, 4, 4]))
    whole = bytearray(dump(*(shapes[which](at, step * at) for at, which in enumerate(order))))
    for _ in range(draw(st.integers(0, 1))):
        whole[draw(st.integers(20, len(whole) - 1))] = draw(st.sampled_from(b"})](eu\x85\x86\x87\x94Kqr.as"))
    return bytes(whole)


@given(streams())
def test_any_stream_gets_one_answer(data: bytes) -> None:
    assert answer(data, True) == answer(data, False)
