"""doctor says what is wrong and what to do, and never OK for what it cannot see."""

from __future__ import annotations

import os
import shutil
import socket
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest

from clusterwatch.ops.doctor import CHECKS, Finding, Level, Subject, examine, exit_code
from clusterwatch.ops.processes import Address


@pytest.fixture
def taken() -> Iterator[Address]:
    """An address another program listens on."""
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen()
        yield Address("127.0.0.1", listener.getsockname()[1])


@pytest.fixture
def free() -> Address:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return Address("127.0.0.1", probe.getsockname()[1])


def subject(state_dir: Path, web: Address, gateway: Address | None = None, **environ: str) -> Subject:
    return Subject(state_dir, web, gateway or web, environ)


def finding(name: str, looked_at: Subject) -> Finding:
    (found,) = [row for row in examine(looked_at) if row.check == name]
    return found


def test_every_check_answers_on_a_machine_that_never_started(tmp_path: Path, free: Address) -> None:
    findings = examine(subject(tmp_path / "new" / "state", free))
    assert len(findings) == len(CHECKS)
    assert {row.level for row in findings} <= {Level.OK, Level.WARN}
    assert not (tmp_path / "new").exists(), "doctor changes nothing"


def test_a_taken_port_is_named_with_the_variable_to_set(
    tmp_path: Path, taken: Address, free: Address
) -> None:
    found = finding("ports", subject(tmp_path, free, gateway=taken))
    assert found.level is Level.CRIT
    assert str(taken) in found.text
    assert "CLUSTERWATCH_GATEWAY_BIND" in found.text
    assert "CLUSTERWATCH_BIND" not in found.text


def test_wrong_binaries_are_named(tmp_path: Path, free: Address) -> None:
    found = finding("postgres", subject(tmp_path, free, CLUSTERWATCH_PG_BIN=str(tmp_path)))
    assert found.level is Level.CRIT
    assert "CLUSTERWATCH_PG_BIN" in found.text


def test_a_server_of_ones_own_needs_no_binaries(tmp_path: Path, free: Address) -> None:
    found = finding("valkey", subject(tmp_path, free, CLUSTERWATCH_VALKEY_URL="redis://elsewhere"))
    assert found.level is Level.OK


def test_a_little_disk_warns_and_almost_none_is_critical(
    tmp_path: Path, free: Address, monkeypatch: pytest.MonkeyPatch
) -> None:
    for free_bytes, level in ((2**40, Level.OK), (2**30, Level.WARN), (2**20, Level.CRIT)):
        usage = SimpleNamespace(free=free_bytes)
        monkeypatch.setattr(shutil, "disk_usage", lambda place, usage=usage: usage)
        assert finding("disk", subject(tmp_path, free)).level is level


def test_a_check_that_cannot_look_says_unknown(
    tmp_path: Path, free: Address, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(self: Path, **options: str) -> str:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(Path, "read_text", refuse)
    assert finding("memory", subject(tmp_path, free)).level is Level.UNKNOWN


@pytest.mark.root
def test_a_state_folder_of_another_user_is_critical(tmp_path: Path, free: Address) -> None:
    folder = tmp_path / "theirs"
    folder.mkdir()
    os.chown(folder, 65534, 65534)
    assert finding("state", subject(folder, free)).level is Level.CRIT


@pytest.mark.parametrize(
    ("levels", "code"),
    [
        ([Level.OK], 0),
        ([Level.OK, Level.WARN, Level.UNKNOWN], 1),
        ([Level.WARN, Level.CRIT, Level.UNKNOWN], 2),
        ([Level.OK, Level.UNKNOWN], 3),
    ],
)
def test_the_worst_known_level_is_the_exit_code(levels: list[Level], code: int) -> None:
    assert exit_code([Finding("x", level, "") for level in levels]) == code
