"""Ranks are found again after the agent's death; a pid that was given anew is not mistaken for one."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import msgspec
import pytest

from collectors import processes
from collectors.rank_memory import RankMemory
from collectors.wire.records import RankId, RankInventory


def rank(pid: int, number: int = 0) -> RankInventory:
    return RankInventory(t_ns=1, ref=7 + number, id=RankId("j", number), pid=pid, host="n1", world_size=2)


def test_living_and_dead_are_told_apart(tmp_path: Path) -> None:
    child = subprocess.Popen(["sleep", "60"])
    memory = RankMemory(tmp_path / "ranks", "boot-1")
    memory.save([rank(os.getpid(), 0), rank(child.pid, 1)])
    child.kill()
    child.wait()
    living, gone = RankMemory(tmp_path / "ranks", "boot-1").load()
    assert [found.id.rank for found in living] == [0]
    assert [found.id.rank for found in gone] == [1]
    assert living[0].ref == 7


def test_after_a_reboot_all_are_gone(tmp_path: Path) -> None:
    RankMemory(tmp_path / "ranks", "boot-1").save([rank(os.getpid())])
    living, gone = RankMemory(tmp_path / "ranks", "boot-2").load()
    assert (living, len(gone)) == ([], 1)


def test_a_pid_that_was_given_to_another_process_is_not_the_rank(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    RankMemory(tmp_path / "ranks", "boot-1").save([rank(os.getpid())])
    monkeypatch.setattr(processes, "start_ticks", lambda pid: 1)
    assert len(RankMemory(tmp_path / "ranks", "boot-1").load()[1]) == 1


@pytest.mark.parametrize("data", [b"", b"\xff\xff", msgspec.msgpack.encode({"boot_id": 5})])
def test_a_damaged_file_remembers_nothing(tmp_path: Path, data: bytes) -> None:
    (tmp_path / "ranks").write_bytes(data)
    assert RankMemory(tmp_path / "ranks", "b").load() == ([], [])


def test_a_file_that_is_not_there_remembers_nothing(tmp_path: Path) -> None:
    assert RankMemory(tmp_path / "ranks", "b").load() == ([], [])
