"""Files on disks: only regular ones are opened, rotation is followed, marks are kept."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from collectors.sources.tail import FileId, Mark, Tail
from collectors.sources.tail_files import Marks, NamedFile, disk_file, kind_of_path, siblings
from collectors.sources.tree import Tree
from tests.collectors.sources.test_nvml_live import Live
from tests.collectors.sources.trees import write

FIRST = b"a first line that tells this file apart from the others\n"


def test_only_regular_files(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "folder").mkdir()
    tree = Live(tmp_path)
    assert disk_file(tree, "pipe") is None
    assert disk_file(tree, "folder") is None
    assert disk_file(tree, "nothing") is None


def test_a_link_out_of_a_recorded_tree_is_not_followed(tmp_path: Path) -> None:
    (tmp_path / "log").symlink_to("/etc/passwd")
    assert disk_file(Tree(tmp_path), "log") is None


@pytest.mark.parametrize("packs", [False, True])
def test_a_service_that_opens_its_log_anew_after_a_rotation(tmp_path: Path, packs: bool) -> None:
    log = write(tmp_path, {"log/a.log": FIRST, "log/b.log": "other\n"}) / "log/a.log"
    tail, reader = Tail(), NamedFile(Live(tmp_path), "log/a.log")
    tail.look(reader, 10_000)
    with log.open("ab") as file:
        file.write(b"last of the old\n")
    log.rename(log.with_name("a.log.1"))
    if packs:
        log.with_name("a.log.1").rename(log.with_name("a.log.1.gz"))
    log.write_bytes(b"first of the new\n")
    assert tail.look(reader, 10_000).lines == (b"last of the old",) * (not packs) + (b"first of the new",)


def test_a_log_that_is_copied_and_cut_off(tmp_path: Path) -> None:
    log = write(tmp_path, {"a.log": FIRST}) / "a.log"
    tail, reader = Tail(), NamedFile(Live(tmp_path), "a.log")
    tail.look(reader, 10_000)
    log.with_name("a.log-20261203").write_bytes(FIRST + b"last of the old\n")
    log.write_bytes(b"new\n")
    assert tail.look(reader, 10_000).lines == (b"last of the old", b"new")
    assert [file.name for file in siblings(Live(tmp_path), "a.log")] == ["a.log-20261203"]


def test_a_file_that_another_has_replaced_meanwhile_is_not_read(tmp_path: Path) -> None:
    file = disk_file(Live(write(tmp_path, {"a": "x"})), "a")
    assert file is not None
    (tmp_path / "b").write_text("y")
    (tmp_path / "b").replace(tmp_path / "a")
    with pytest.raises(FileNotFoundError):
        file.read(0, 10)


def test_marks_are_kept_and_bounded(tmp_path: Path) -> None:
    path = tmp_path / "marks.json"
    marks = Marks(path)
    mark = Mark(FileId(1, 2), 3, True, 4, 5)
    marks.save({"a": mark, "none": None})
    marks.save({f"{number}": mark for number in range(600)})
    again = Marks(path)
    assert again.get("599") == mark and again.get("a") is None and again.get("none") is None
    again.save({"b": mark})
    assert Marks(path).get("599") == mark and Marks(path).get("b") == mark


@settings(max_examples=30)
@given(
    st.one_of(st.binary(max_size=200), st.sampled_from([b"[]", b'{"a": 1}', b'{"a": [1,2,3,4,5,"x"]}', b"7"]))
)
def test_damaged_marks_are_none(data: bytes) -> None:
    path = Path(os.environ.get("TMPDIR", "/tmp")) / f"cw-marks-{os.getpid()}.json"
    path.write_bytes(data)
    try:
        assert Marks(path).get("a") is None
    finally:
        path.unlink()


def test_the_longest_mount_point_counts() -> None:
    text = (
        "1 0 8:1 / / rw - ext4 /dev/sda rw\n2 1 0:5 / /var/log rw shared:1 - nfs4 server:/x rw\n"
        "damaged\n3 1 8:2 / /var rw - xfs /dev/sdb rw\n"
    )
    paths = ("/var/log/a", "/var/logs/a", "/var/a", "/a", "/var/log")
    assert [kind_of_path(text, path) for path in paths] == ["nfs4", "xfs", "xfs", "ext4", "nfs4"]
    assert kind_of_path("", "/a") == ""
