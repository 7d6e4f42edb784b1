"""Files are read whole, however they come, and an attribute of a device with one read."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from collectors.sources.tree import Tree
from tests.collectors.sources.trees import write


@pytest.fixture
def reads(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The bytes that each read gave; at most seven at a time, as if a file came in pieces."""
    real, given = os.read, list[int]()

    def read(fd: int, size: int) -> bytes:
        data = real(fd, min(size, 7))
        given.append(len(data))
        return data

    monkeypatch.setattr(os, "read", read)
    return given


@pytest.mark.parametrize("name", ["proc/stat", "sys/fs/cgroup/x/cgroup.procs", "sys/kernel/debug/x"])
def test_a_file_that_comes_in_pieces_is_read_to_its_end(tmp_path: Path, reads: list[int], name: str) -> None:
    write(tmp_path, {name: "0123456789"})
    assert Tree(tmp_path).read_bytes(name) == b"0123456789" and reads == [7, 3, 0]


@pytest.mark.parametrize("name", ["sys/class/net/eth0/speed", "sys/bus/pci/devices/x/class"])
def test_an_attribute_that_gave_less_than_a_page_is_whole(
    tmp_path: Path, reads: list[int], name: str
) -> None:
    write(tmp_path, {name: "400000\n"})
    assert Tree(tmp_path).read_text(name) == "400000\n" and reads == [7]


def test_an_attribute_of_more_than_a_page_is_read_on(tmp_path: Path) -> None:
    write(tmp_path, {"sys/class/x/y": "a" * 70_000})
    assert len(Tree(tmp_path).read_bytes("sys/class/x/y")) == 70_000
    assert len(Tree(tmp_path).read_bytes("sys/class/x/y", 5_000)) == 5_000
