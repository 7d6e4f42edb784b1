"""The state folder: rights, secrets, and faults said in one line."""

from __future__ import annotations

import errno
import json
import os
import stat
from pathlib import Path

import pytest

from clusterwatch.ops.errors import OpsError
from clusterwatch.ops.state import StateFolder, explained, socket_folder, write_file


def mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


def test_folder_can_be_passed_but_not_listed_and_children_are_private(tmp_path: Path) -> None:
    state = StateFolder.open(tmp_path / "state")
    assert mode(state.root) == 0o711
    assert mode(state.folder("logs")) == 0o700


def test_parents_keep_their_rights(tmp_path: Path) -> None:
    parent = tmp_path / "parent"
    parent.mkdir(mode=0o700)
    StateFolder.open(parent / "state")
    assert mode(parent) == 0o700


def test_a_secret_is_made_once_and_is_private(tmp_path: Path) -> None:
    state = StateFolder.open(tmp_path / "state")
    first = state.secret("secret_key")
    assert len(first) >= 32
    assert state.secret("secret_key") == first
    assert mode(state.secret_path("secret_key")) == 0o600
    assert mode(state.secret_path("secret_key").parent) == 0o700


def test_a_file_is_replaced_at_once_with_its_rights(tmp_path: Path) -> None:
    path = tmp_path / "endpoints.json"
    write_file(path, "old", 0o644)
    write_file(path, "new", 0o600)
    assert path.read_text() == "new"
    assert mode(path) == 0o600
    assert list(tmp_path.iterdir()) == [path]


def test_damaged_json_reads_as_missing(tmp_path: Path) -> None:
    state = StateFolder.open(tmp_path / "state")
    (state.root / "status.json").write_text("{")
    assert state.read_json("status.json") is None
    state.write_json("status.json", {"phase": "ready"})
    assert json.loads((state.root / "status.json").read_text()) == {"phase": "ready"}


@pytest.mark.root
def test_a_folder_of_another_user_is_named(tmp_path: Path) -> None:
    folder = tmp_path / "theirs"
    folder.mkdir()
    os.chown(folder, 65534, 65534)
    with pytest.raises(OpsError, match=r"belongs to user id 65534, you are 0: .*CLUSTERWATCH_STATE_DIR"):
        StateFolder.open(folder)


def test_a_file_in_the_way_is_named(tmp_path: Path) -> None:
    (tmp_path / "state").write_text("")
    with pytest.raises(OpsError, match="is in the way, it is not a folder"):
        StateFolder.open(tmp_path / "state")


def test_a_path_that_is_too_long_is_named(tmp_path: Path) -> None:
    with pytest.raises(OpsError, match="path that is too long"):
        StateFolder.open(tmp_path / ("x" * 300))


@pytest.mark.parametrize(
    ("number", "words"),
    [
        (errno.EROFS, "read-only disk"),
        (errno.ENOSPC, "full disk"),
        (errno.EDQUOT, "quota"),
        (errno.EACCES, "by this user"),
    ],
)
def test_disk_faults_are_one_line_that_says_what_to_set(number: int, words: str) -> None:
    with pytest.raises(OpsError, match=words) as caught, explained("the state folder /x"):
        raise OSError(number, os.strerror(number))
    assert "\n" not in str(caught.value)
    assert str(caught.value).startswith("The state folder /x ")


def test_a_full_disk_is_seen_at_once() -> None:
    with (
        open("/dev/full", "wb", buffering=0) as full,
        pytest.raises(OpsError, match="full disk"),
        explained("the state folder /dev/full"),
    ):
        full.write(b"x")


def test_sockets_of_a_deep_folder_move_to_a_short_one(tmp_path: Path) -> None:
    deep = tmp_path / ("deep" * 25)
    deep.mkdir()
    short = socket_folder(deep, "valkey.sock")
    try:
        assert len(os.fsencode(short / "valkey.sock")) <= 90
        assert mode(short) == 0o700
        assert socket_folder(deep, "valkey.sock") == short, "both ends must find the same folder"
        assert socket_folder(tmp_path, "v") == tmp_path
    finally:
        short.rmdir()


def test_a_planted_socket_folder_is_refused(tmp_path: Path) -> None:
    deep = tmp_path / ("deep" * 25)
    deep.mkdir()
    short = socket_folder(deep, "valkey.sock")
    short.rmdir()
    short.symlink_to(tmp_path)
    try:
        with pytest.raises(OpsError, match="is not ours"):
            socket_folder(deep, "valkey.sock")
    finally:
        short.unlink()
