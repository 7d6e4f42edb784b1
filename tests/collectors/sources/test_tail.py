"""Lines of files that grow: each once, whatever is appended, rotated, cut off or begun again."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass, field

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from collectors.sources.tail import CONTEXT_BYTES, LINE_MAX_BYTES, File, FileId, Mark, Tail

BIG = 1 << 30
line = st.binary(min_size=32, max_size=60).map(lambda raw: raw.replace(b"\n", b"?").replace(b"\0", b"?"))
lines = st.lists(line, min_size=1, max_size=12)


@dataclass
class Memory:
    """A file in memory."""

    id: FileId
    data: bytes = b""

    @property
    def size(self) -> int:
        return len(self.data)

    def read(self, offset: int, max_bytes: int) -> bytes:
        return self.data[offset : offset + max_bytes]


@dataclass
class Folder:
    """A name and the files that had it before, as logrotate leaves them."""

    file: Memory | None = field(default_factory=lambda: Memory(FileId(1, 1)))
    old: list[Memory] = field(default_factory=list)
    inodes: itertools.count[int] = field(default_factory=lambda: itertools.count(2))

    def current(self) -> File | None:
        return self.file

    def earlier(self) -> Sequence[File]:
        return self.old

    def append(self, data: bytes) -> None:
        assert self.file is not None
        self.file.data += data

    def rename(self) -> None:
        assert self.file is not None
        self.old.insert(0, self.file)
        self.file = Memory(FileId(1, next(self.inodes)))

    def copytruncate(self) -> None:
        assert self.file is not None
        self.old.insert(0, Memory(FileId(1, next(self.inodes)), self.file.data))
        self.file.data = b""


def begun(folder: Folder) -> Tail:
    tail = Tail()
    tail.look(folder, BIG)
    return tail


@settings(max_examples=30)
@given(st.binary(max_size=300), st.lists(st.integers(0, 300), max_size=8), st.booleans())
def test_any_split_into_appends_gives_the_same_lines(data: bytes, cuts: list[int], restarts: bool) -> None:
    folder = Folder()
    tail = begun(folder)
    found: list[bytes] = []
    bounds = sorted({0, len(data), *(cut for cut in cuts if cut < len(data))})
    for start, end in itertools.pairwise(bounds):
        folder.append(data[start:end])
        found += tail.look(folder, BIG).lines
        tail = Tail(tail.mark) if restarts else tail
    found += tail.look(folder, BIG, is_last=True).lines
    whole = [text.lstrip(b"\0") for text in data.split(b"\n")]
    assert found == (whole if whole[-1] else whole[:-1])


@settings(max_examples=30)
@given(
    st.lists(st.integers(LINE_MAX_BYTES - 2, 3 * LINE_MAX_BYTES), min_size=1, max_size=3),
    st.integers(300, 5_000),
)
def test_a_long_line_is_cut_wherever_the_appends_end(sizes: list[int], step: int) -> None:
    data = b"".join(b"x" * size + b"\n" for size in sizes)
    folder = Folder()
    tail = begun(folder)
    found: list[bytes] = []
    for start in range(0, len(data), step):
        folder.append(data[start : start + step])
        found += tail.look(folder, BIG).lines
    assert [len(one) for one in found] == [min(size, LINE_MAX_BYTES) for size in sizes]


@settings(max_examples=30)
@given(lines, lines, st.integers(0, 700), st.sampled_from(["rename", "copytruncate"]), st.booleans())
def test_a_rotation_at_any_point_loses_nothing_and_tells_nothing_twice(
    before: list[bytes], after: list[bytes], seen_bytes: int, how: str, restarts: bool
) -> None:
    data = b"".join(one + b"\n" for one in before)
    folder = Folder()
    tail = begun(folder)
    folder.append(data[: max(seen_bytes, len(before[0]) + 1)])
    found = list(tail.look(folder, BIG).lines)
    folder.append(data[max(seen_bytes, len(before[0]) + 1) :])
    getattr(folder, how)()
    folder.append(b"new" + b"\n".join(after) + b"\n")
    tail = Tail(tail.mark) if restarts else tail
    found += tail.look(folder, BIG).lines
    folder.append(b"end\n")  # one that has grown to just the old size shows when it grows on
    found += tail.look(folder, BIG).lines
    assert found == before + [b"new" + after[0], *after[1:], b"end"]


def test_the_name_may_be_missing_for_a_while() -> None:
    folder = Folder()
    tail = begun(folder)
    folder.append(b"first line\n")
    assert tail.look(folder, BIG).lines == (b"first line",)
    folder.append(b"second\n")
    folder.rename()
    folder.file = None
    assert tail.look(folder, BIG).lines == (b"second",)
    assert tail.look(folder, BIG).lines == ()
    folder.file = Memory(FileId(1, 99), b"third\n")
    assert tail.look(folder, BIG).lines == (b"third",)


def test_the_first_look_begins_near_the_end_at_a_whole_line() -> None:
    folder = Folder(Memory(FileId(1, 1), b"".join(b"line %06d\n" % n for n in range(20_000))))
    piece = Tail().look(folder, BIG)
    assert piece.is_first and piece.lines[-1] == b"line 019999"
    assert all(len(one) == len(b"line 000000") for one in piece.lines)
    assert CONTEXT_BYTES - 24 <= sum(len(one) + 1 for one in piece.lines) <= CONTEXT_BYTES


def test_of_a_flood_the_start_and_the_end_are_read_and_the_rest_is_counted() -> None:
    folder = Folder()
    tail = begun(folder)
    folder.append(b"".join(b"line %06d\n" % n for n in range(100_000)))
    piece = tail.look(folder, 60_000)
    assert piece.lines[0] == b"line 000000" and piece.lines[-1] == b"line 099999"
    read = sum(len(one) + 1 for one in piece.lines)
    assert 59_900 <= read <= 60_000
    assert 1_200_000 - piece.skipped_bytes - read < 24
    assert tail.look(folder, 60_000).lines == ()


def test_what_is_read_at_one_look_is_bounded_after_a_rotation_too() -> None:
    folder = Folder()
    folder.append(b"a first line that tells the file apart from others\n")
    tail = begun(folder)
    folder.append(b"old\n" * 100_000)
    folder.copytruncate()
    folder.append(b"new\n" * 100_000)
    piece = tail.look(folder, 10_000)
    assert sum(len(one) + 1 for one in piece.lines) <= 10_000
    assert piece.skipped_bytes >= 780_000


def test_a_hole_at_the_start_hides_no_line() -> None:
    folder = Folder()
    folder.append(b"a first line that tells the file apart from others\n")
    tail = begun(folder)
    assert folder.file is not None
    folder.file.data = b"\0" * 51 + b"after the cut\n"
    assert tail.look(folder, BIG).lines == (b"after the cut",)


def test_a_file_that_cannot_be_read_is_read_later() -> None:
    class Broken(Memory):
        fails = False

        def read(self, offset: int, max_bytes: int) -> bytes:
            if self.fails:
                raise OSError(5, "EIO")
            return super().read(offset, max_bytes)

    file = Broken(FileId(1, 1), b"one\n")
    folder = Folder(file)
    tail = begun(folder)
    file.data += b"two\n"
    file.fails = True
    with pytest.raises(OSError, match="EIO"):
        tail.look(folder, BIG)
    file.fails = False
    assert tail.look(folder, BIG).lines == (b"two",)


def test_a_mark_of_another_file_is_of_no_use_and_no_harm() -> None:
    folder = Folder(Memory(FileId(1, 7), b"one\n"))
    assert Tail(Mark(FileId(3, 3), 1_000, False, 256, 12)).look(folder, BIG).lines == (b"one",)
