"""Raw records of the kernel's log: escapes, parts of one message, numbers that miss, times of the journal."""

from __future__ import annotations

import errno
import json
import os

import pytest
from hypothesis import given
from hypothesis import strategies as st

from collectors.sources import kmsg
from collectors.sources.kmsg import KmsgReader, Lost, Record, fresh, parse, parse_journal


def numbered(*sequences: int) -> list[Record]:
    return [Record(sequence, sequence * 10, "x") for sequence in sequences]


def test_the_dictionary_of_a_record_is_no_part_of_its_text() -> None:
    data = b"3,517,7211804000,-,caller=T7;down\n SUBSYSTEM=pci\n DEVICE=+pci:0000:8d:00.0\n6,518,9,c;up\n"
    assert parse(data) == [Record(517, 7_211_804_000, "down"), Record(518, 9, "up")]


def test_escaped_bytes_are_read_as_the_text_they_were() -> None:
    (record,) = parse(rb"3,1,1,-;caf\xc3\xa9 \x5cx41 \xff\x1b[1m" + b"\n")
    assert record.text == "café \\x41 \ufffd?[1m"


def test_a_message_of_several_lines_is_one_record() -> None:
    """The driver prints a lost GPU with line breaks inside, which the log escapes."""
    escaped = rb"3,1,1,-;NVRM: The NVIDIA GPU 0000:b3:00.0\x0aNVRM: fallen off the bus"
    as_lines = b"3,1,1,-;NVRM: The NVIDIA GPU 0000:b3:00.0\nNVRM: fallen off the bus\nanything else"
    assert parse(escaped) == parse(as_lines)
    assert parse(escaped)[0].text == "NVRM: The NVIDIA GPU 0000:b3:00.0 NVRM: fallen off the bus"


@pytest.mark.parametrize(
    ("prio", "from_kernel"), [(0, True), (7, True), (8, False), (12, False), (30, False), (2_047, False)]
)
def test_only_facility_0_is_the_kernel(prio: int, from_kernel: bool) -> None:
    (record,) = parse(b"%d,1,1,-;x\n" % prio)
    assert record.from_kernel is from_kernel


@pytest.mark.parametrize("line", [b"3,1;x", b"x,1,1,-;x", b"3,1,1,-", b"", b"3,-1,1,-;x", b"\x00" * 9])
def test_a_damaged_line_costs_itself_only(line: bytes) -> None:
    assert [record.sequence for record in parse(b"3,1,1,-;a\n" + line + b"\n3,2,2,-;b\n")] == [1, 2]


def test_of_too_many_records_the_newest_stay(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kmsg, "RECORDS_MAX", 2)
    assert [record.sequence for record in parse(b"6,1,1,-;a\n6,2,2,-;b\n6,3,3,-;c\n")] == [2, 3]


def test_what_came_before_the_first_look_is_no_loss() -> None:
    assert list(fresh(numbered(500, 501), None)) == numbered(500, 501)


def test_a_gap_is_counted_once() -> None:
    first = numbered(1, 2, 6)
    assert list(fresh(first, None)) == [*numbered(1, 2), Lost(3, 60), *numbered(6)]
    assert list(fresh([*first, *numbered(7)], first[-1])) == numbered(7)
    assert list(fresh(numbered(9), first[-1])) == [Lost(2, 90), *numbered(9)]


def test_journal_records_of_one_moment_are_all_told() -> None:
    same = [Record(None, 5, "a"), Record(None, 5, "b")]
    assert list(fresh(same, None)) == same
    assert list(fresh([*same, Record(None, 6, "c")], same[-1])) == [Record(None, 6, "c")]


def test_the_log_and_the_journal_go_on_from_each_other() -> None:
    assert list(fresh([Record(None, 5, "a"), Record(None, 11, "b")], Record(7, 10, "x"))) == [
        Record(None, 11, "b")
    ]
    assert list(fresh(numbered(1, 2), Record(None, 15, "x"))) == numbered(2)


def test_a_message_of_the_journal_has_the_kernels_time_else_the_journals() -> None:
    rows = [
        {"MESSAGE": "a", "_SOURCE_MONOTONIC_TIMESTAMP": "5", "__MONOTONIC_TIMESTAMP": "9"},
        {"MESSAGE": "b", "__MONOTONIC_TIMESTAMP": "9"},
        {"MESSAGE": "no time"},
        {"MESSAGE": None, "__MONOTONIC_TIMESTAMP": "x"},
        {"MESSAGE": list(b"NVRM: \xff"), "__MONOTONIC_TIMESTAMP": "12"},
    ]
    found = parse_journal("\n".join(map(json.dumps, rows)).encode())
    assert [(record.usec, record.text) for record in found] == [(5, "a"), (9, "b"), (12, "NVRM: \ufffd")]


def test_an_idle_look_at_the_live_log_is_one_read(monkeypatch: pytest.MonkeyPatch) -> None:
    reads = []

    def read(_: int, size: int) -> bytes:
        reads.append(size)
        raise BlockingIOError(errno.EAGAIN, os.strerror(errno.EAGAIN))

    reader = KmsgReader("/dev/null")
    monkeypatch.setattr(os, "read", read)
    assert reader.read() == [] and len(reads) == 1
    monkeypatch.undo()
    reader.close()


def test_a_live_log_that_fails_is_opened_again(monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(_: int, __: int) -> bytes:
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    reader = KmsgReader("/dev/null")
    monkeypatch.setattr(os, "read", fails)
    with pytest.raises(OSError, match=os.strerror(errno.EIO)):
        reader.read()
    monkeypatch.undo()
    assert reader.read() == []  # the end of /dev/null, by a new descriptor
    reader.close()


@given(st.lists(st.integers(0, 200), unique=True), st.integers(0, 199))
def test_two_looks_tell_what_one_would(sequences: list[int], cut: int) -> None:
    """Wherever the first look ended: nothing twice, nothing left out, the same losses."""
    records = numbered(*sorted(sequences))
    first = [record for record in records if (record.sequence or 0) <= cut]
    told = list(fresh(first, None))
    assert told + list(fresh(records, first[-1] if first else None)) == list(fresh(records, None))
