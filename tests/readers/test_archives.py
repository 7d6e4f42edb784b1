"""Hostile and odd input: names, links, pipes, bombs, headers, damage. Nothing hangs, nothing is written."""

from __future__ import annotations

import gzip
import io
import os
import socket
import tarfile
import zipfile
from collections.abc import Iterator
from pathlib import Path

import pytest
import zstandard

from clusterwatch.readers import archives, folder
from clusterwatch.readers.archives import Blob, Stream, UnreadableError
from tests.data.recorder import Job


@pytest.fixture(scope="module")
def job() -> Job:
    made = Job(4)
    for _ in range(3):
        made.all()
    return made


def every(path: Path) -> Iterator[Blob | tuple[str, str]]:
    for item in archives.files(path):
        if isinstance(item, Stream):
            yield from item.blobs()
        else:
            yield item


def contents(path: Path, most: int = 1 << 20) -> dict[str, bytes | str]:
    """Bytes or reason by name."""
    found: dict[str, bytes | str] = {}
    for item in every(path):
        if isinstance(item, Blob):
            try:
                found[item.name] = item.read(most)
            except UnreadableError as error:
                found[item.name] = str(error)
        else:
            found[item[0]] = item[1]
    return found


def tar(path: Path, members: list[tuple[tarfile.TarInfo, bytes]], mode: str = "w") -> Path:
    with tarfile.open(path, mode) as archive:  # type: ignore[call-overload]
        for member, data in members:
            member.size = len(data)
            archive.addfile(member, io.BytesIO(data))
    return path


def kind(name: str, what: bytes) -> tarfile.TarInfo:
    member = tarfile.TarInfo(name)
    member.type = what
    member.linkname = "/etc/passwd"
    return member


@pytest.mark.parametrize("suffix", [".tar", ".tar.gz", ".tgz"])
def test_an_archive_gives_regular_files_only(tmp_path: Path, suffix: str) -> None:
    members = [(tarfile.TarInfo("n0/rank_0"), b"zero"), (tarfile.TarInfo("../../rank_1"), b"one")]
    members += [(kind("link_2", tarfile.SYMTYPE), b""), (kind("hard_3", tarfile.LNKTYPE), b"")]
    members += [(kind("pipe_4", tarfile.FIFOTYPE), b""), (tarfile.TarInfo("inner_5.tar"), b"x")]
    members += [(kind("folder", tarfile.DIRTYPE), b"")]
    inside = tmp_path / "x" / "y"
    inside.mkdir(parents=True)
    path = tar(inside / f"a{suffix}", members, "w" if suffix == ".tar" else "w:gz")
    found = {name.partition(":")[2]: what for name, what in contents(path).items()}
    assert (found.pop("n0/rank_0"), found.pop("../../rank_1")) == (b"zero", b"one")
    assert {name: str(what).split()[-2:] for name, what in found.items()} == {
        "link_2": ["not", "followed"],
        "hard_3": ["not", "followed"],
        "pipe_4": ["not", "opened"],
        "inner_5.tar": ["not", "opened"],
    }
    assert [p for p in tmp_path.rglob("*") if p.is_file()] == [path]


def test_a_zip_gives_regular_files_only(tmp_path: Path) -> None:
    path = tmp_path / "a.zip"
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("n0/rank_0", b"zero" * 1_000)
        archive.writestr("../../rank_1", b"one")
        archive.writestr("inner.zip", b"x")
        link = zipfile.ZipInfo("link_2")
        link.external_attr = 0o120777 << 16
        archive.writestr(link, "/etc/passwd")
    found = {name.partition(":")[2]: what for name, what in contents(path).items()}
    assert (found["n0/rank_0"], found["../../rank_1"]) == (b"zero" * 1_000, b"one")
    assert "not opened" in str(found["link_2"]) and "not opened" in str(found["inner.zip"])


def test_a_zip_bomb_is_refused_before_it_is_unpacked(tmp_path: Path) -> None:
    path = tmp_path / "a.zip"
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("rank_0", b"\0" * 20_000_000)
    assert contents(path, 1_000) == {"a.zip:rank_0": "holds more than 1000 bytes"}


@pytest.mark.parametrize("damage", [b"", b"PK", b"PK\x05\x06" + b"\xff" * 18])
def test_a_damaged_zip_is_named(tmp_path: Path, damage: bytes) -> None:
    path = tmp_path / "rank_1.zip"
    path.write_bytes(damage)
    (reason,) = contents(path).values()
    assert str(reason).startswith("the archive is damaged")


def test_a_header_that_asks_for_much_memory_is_refused(tmp_path: Path) -> None:
    header = tarfile.TarInfo("././@LongLink")
    header.type, header.size = tarfile.GNUTYPE_LONGNAME, 8 * 1024**3 - 512
    for name, data in (
        ("a.tar", header.tobuf()),
        ("a.tgz", gzip.compress(header.tobuf() + b"\0" * 10_000_000)),
    ):
        path = tmp_path / name
        path.write_bytes(data)
        assert contents(path) == {name: "the archive is damaged: a header of 8589934080 bytes"}


@pytest.mark.parametrize("pack", [gzip.compress, zstandard.compress])
def test_packed_bytes_are_known_by_their_first_bytes(tmp_path: Path, pack: object) -> None:
    assert callable(pack)
    (tmp_path / "rank_0").write_bytes(pack(b"plain"))
    (tmp_path / "rank_1.gz").write_bytes(b"plain")
    assert contents(tmp_path) == {"rank_0": b"plain", "rank_1": b"plain"}


def test_packings_that_are_not_read_are_said(tmp_path: Path) -> None:
    (tmp_path / "dumps.tar.xz").write_bytes(b"x")
    (reason,) = contents(tmp_path).values()
    assert "not read" in str(reason)


def test_names_are_made_safe_to_print(tmp_path: Path, job: Job) -> None:
    top = os.fsencode(tmp_path)
    for number, name in enumerate(
        (b"evil\n\x1b[31m_rank_0", b"\xff\xfe_rank_1", "\u202ermal_rank_2".encode())
    ):
        Path(os.fsdecode(top + b"/" + name)).write_bytes(job.pickled(number))
    found = folder.read(tmp_path)
    assert [window.rank for window in found.windows] == [0, 1, 2]
    assert all(window.source.isprintable() and window.source.encode() for window in found.windows)


def test_a_loop_of_links_ends(tmp_path: Path, job: Job) -> None:
    (tmp_path / "a").mkdir()
    (tmp_path / "a" / "again").symlink_to(tmp_path)
    (tmp_path / "self").symlink_to(tmp_path / "self")
    (tmp_path / "a" / "rank_0").write_bytes(job.pickled(0))
    found = folder.read(tmp_path)
    assert len(found.windows) == 1
    assert {p.source: p.reason for p in found.problems} == dict.fromkeys(
        ("a/again", "self"), "a symbolic link is not followed"
    )


def test_a_path_that_is_a_link_to_a_folder_is_read(tmp_path: Path, job: Job) -> None:
    (tmp_path / "real").mkdir()
    (tmp_path / "real" / "rank_0").write_bytes(job.pickled(0))
    (tmp_path / "latest").symlink_to("real")
    assert len(folder.read(tmp_path / "latest").windows) == 1


def test_a_pipe_or_socket_given_as_the_path_is_refused(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    listener = socket.socket(socket.AF_UNIX)
    listener.bind(str(tmp_path / "socket"))
    for name in ("pipe", "socket"):
        with pytest.raises(OSError, match="pipe, socket or device"):
            folder.read(tmp_path / name)
    listener.close()


def test_a_file_swapped_for_a_pipe_after_the_listing_is_not_waited_for(tmp_path: Path) -> None:
    path = tmp_path / "rank_0"
    path.write_bytes(b"x")
    (blob,) = every(tmp_path)
    path.unlink()
    os.mkfifo(path)
    assert isinstance(blob, Blob)
    with pytest.raises(UnreadableError, match="no regular file"):
        blob.read(100)


def test_a_file_that_went_away_is_named(tmp_path: Path) -> None:
    path = tmp_path / "rank_0"
    path.write_bytes(b"x")
    (blob,) = every(tmp_path)
    path.unlink()
    assert isinstance(blob, Blob)
    with pytest.raises(UnreadableError, match="cannot be opened"):
        blob.read(100)


def test_a_folder_that_may_not_be_read_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "closed").mkdir()
    scandir = os.scandir

    def refusing(path: str) -> object:
        if path.endswith("closed"):
            raise PermissionError(13, "Permission denied")
        return scandir(path)

    monkeypatch.setattr(os, "scandir", refusing)
    assert contents(tmp_path) == {"closed": "the folder cannot be read: Permission denied"}
    with pytest.raises(PermissionError):
        list(archives.files(tmp_path / "closed"))


def test_folders_deeper_than_the_limit_are_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(archives, "DEPTH_MAX", 3)
    (tmp_path / "a/b/c/d/e").mkdir(parents=True)
    assert contents(tmp_path) == {"a/b/c/d": "deeper than 3 folders"}


def test_more_files_than_the_limit_are_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(archives, "FILES_MAX", 2)
    for rank in range(4):
        (tmp_path / f"rank_{rank}").write_bytes(b"x")
    found = contents(tmp_path)
    assert found.pop(tmp_path.name) == "more than 2 files: the rest is not read"
    assert len(found) == 2
