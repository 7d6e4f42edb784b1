"""A segment file gives back every whole record, whatever happened to the others."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from collectors import segment

PAYLOADS = st.lists(st.binary(max_size=60), min_size=1, max_size=12)


def _file(payloads: list[bytes]) -> tuple[bytes, list[int]]:
    data = b""
    ends = []
    for sequence, payload in enumerate(payloads, 1):
        data += segment.frame(sequence, payload)
        ends.append(len(data))
    return data, ends


def _payloads(data: bytes) -> dict[int, bytes]:
    found = segment.scan(data)
    out = {}
    for sequence, offset in zip(found.sequences, found.offsets, strict=True):
        record = segment.parse(data, offset)
        assert record is not None
        assert record[0] == sequence
        out[sequence] = data[record[1] : record[2]]
    return out


@given(PAYLOADS, st.data())
def test_a_file_cut_at_any_byte_keeps_all_whole_records(payloads: list[bytes], data: st.DataObject) -> None:
    raw, ends = _file(payloads)
    cut = data.draw(st.integers(0, len(raw)))
    whole = sum(end <= cut for end in ends)
    found = segment.scan(raw[:cut])
    assert list(found.sequences) == list(range(1, whole + 1))
    assert found.torn == (cut not in [0, *ends])
    assert found.bad_stretches == 0
    lost = len(payloads) - whole
    assert not found.torn or found.unreadable_sequences_max >= min(lost, 1)


@given(PAYLOADS, st.data())
def test_a_damaged_byte_costs_one_record_only(payloads: list[bytes], data: st.DataObject) -> None:
    raw, ends = _file(payloads)
    place = data.draw(st.integers(0, len(raw) - 1))
    damaged = bytearray(raw)
    damaged[place] ^= data.draw(st.integers(1, 255))
    victim = next(number for number, end in enumerate(ends, 1) if place < end)
    expected = {number: payload for number, payload in enumerate(payloads, 1) if number != victim}
    assert _payloads(bytes(damaged)) == expected


@given(st.binary(max_size=400))
def test_garbage_gives_no_record_and_no_error(data: bytes) -> None:
    assert len(segment.scan(data).sequences) == 0


@given(PAYLOADS, st.binary(min_size=1, max_size=100))
def test_garbage_between_records_is_skipped_and_counted(payloads: list[bytes], garbage: bytes) -> None:
    first, _ = _file(payloads)
    second = b"".join(segment.frame(100 + number, payload) for number, payload in enumerate(payloads))
    found = segment.scan(first + garbage + second)
    assert len(found.sequences) == 2 * len(payloads)
    assert found.bad_stretches == 1
    assert not found.torn
