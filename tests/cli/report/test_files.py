"""Files of a report: whole or not at all."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from clusterwatch.cli.report.files import TargetError, whole_file


def test_a_file_appears_whole_and_replaces_the_old_one(tmp_path: Path) -> None:
    target = tmp_path / "page.html"
    target.write_text("old")
    with whole_file(target) as file:
        file.write(b"new")
        assert target.read_text() == "old"
    assert target.read_text() == "new" and [p.name for p in tmp_path.iterdir()] == ["page.html"]


def test_a_failure_in_between_leaves_the_old_file_and_nothing_else(tmp_path: Path) -> None:
    target = tmp_path / "page.html"
    target.write_text("old")
    with pytest.raises(ZeroDivisionError), whole_file(target) as file:
        file.write(b"half")
        raise ZeroDivisionError
    assert target.read_text() == "old" and [p.name for p in tmp_path.iterdir()] == ["page.html"]


def test_a_full_disk_is_said_in_words(tmp_path: Path) -> None:
    with pytest.raises(TargetError, match="No space left"), whole_file(tmp_path / "page.html"):
        raise OSError(28, "No space left on device")
    assert list(tmp_path.iterdir()) == []


def test_a_device_is_never_replaced(tmp_path: Path) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    with pytest.raises(TargetError, match="folder, pipe or device"), whole_file(pipe):
        raise AssertionError
    assert pipe.is_fifo()


def test_a_link_is_written_through(tmp_path: Path) -> None:
    (tmp_path / "real").write_text("old")
    (tmp_path / "link").symlink_to(tmp_path / "real")
    with whole_file(tmp_path / "link") as file:
        file.write(b"new")
    assert (tmp_path / "link").is_symlink() and (tmp_path / "real").read_text() == "new"


def test_rights_are_those_of_any_new_file(tmp_path: Path) -> None:
    old = os.umask(0o027)
    try:
        with whole_file(tmp_path / "page.html"):
            pass
    finally:
        os.umask(old)
    assert (tmp_path / "page.html").stat().st_mode & 0o777 == 0o640
