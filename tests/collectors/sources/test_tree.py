"""Files are read whole, however they come, and an attribute of a device with one read."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest

from collectors.sources.tree import KEPT_OPEN_MAX, KeptFiles, Tree
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


class Machine(Tree):
    """A tree that is looked at once a period, as a machine is."""

    is_paced = True


def test_a_kept_file_is_opened_once_and_read_anew_at_each_look(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tree = Machine(write(tmp_path, {"sys/class/net/a/operstate": "up"}))
    files, opened = KeptFiles(), list[str]()

    def noted(name: str) -> int:
        opened.append(name)
        return Tree.open(tree, name)

    monkeypatch.setattr(tree, "open", noted)
    assert files.text(tree, "sys/class/net/a/operstate") == "up"
    (tmp_path / "sys/class/net/a/operstate").write_text("down")
    assert files.text(tree, "sys/class/net/a/operstate") == "down" and len(opened) == 1


def test_a_kept_file_whose_device_is_gone_fails_and_one_that_came_back_is_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    name = "sys/class/net/a/operstate"
    tree, files = Machine(write(tmp_path, {name: "up"})), KeptFiles()
    assert files.text(tree, name) == "up"
    (tmp_path / name).unlink()

    def gone(_fd: int, _size: int, _offset: int) -> bytes:
        raise OSError(19, "No such device")

    with monkeypatch.context() as patched:
        patched.setattr(os, "pread", gone)
        with pytest.raises(FileNotFoundError):
            files.text(tree, name)
    write(tmp_path, {name: "dormant"})
    assert files.text(tree, name) == "dormant"


def test_no_more_files_are_kept_open_than_a_source_may(tmp_path: Path) -> None:
    names = [f"sys/class/net/n{number}/operstate" for number in range(KEPT_OPEN_MAX + 8)]
    tree, files = Machine(write(tmp_path, dict.fromkeys(names, "up"))), KeptFiles()
    before = len(os.listdir("/proc/self/fd"))  # noqa: PTH208
    assert {files.text(tree, name) for name in names} == {"up"}
    assert len(os.listdir("/proc/self/fd")) == before + KEPT_OPEN_MAX  # noqa: PTH208
    files.close()
    assert len(os.listdir("/proc/self/fd")) == before  # noqa: PTH208


@pytest.mark.parametrize("kind", [Tree, Machine])
def test_a_folder_is_read_by_name_and_what_cannot_be_read_costs_itself(
    tmp_path: Path, kind: type[Tree]
) -> None:
    folder = "sys/class/infiniband/x/counters"
    files = {f"{folder}/{name}": f"{name}\n" for name in ("b", "a", "left_out")}
    write(tmp_path, files | {f"{folder}/folder/x": "", "read_errors.json": f'{{"{folder}/b": "EINVAL"}}'})
    tree = kind(tmp_path)
    told = tree.texts(folder, 8, lambda name: name != "left_out")
    errors = {name: one.errno for name, one in told.items() if isinstance(one, OSError)}
    assert list(told) == ["a", "b", "folder"] and told["a"] == "a\n"
    assert errors == {"b": errno.EINVAL, "folder": errno.EISDIR} and tree.refused == {f"{folder}/b"}
    assert tree.texts("sys/class/none", 8, lambda _: True) == {}
    assert list(tree.texts(folder, 1, lambda _: True)) == ["a"]
