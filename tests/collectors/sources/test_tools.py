"""Tools of the live machine: they fail as files do, and one that hangs is not begun again."""

from __future__ import annotations

import errno
import subprocess
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from collectors.sources import tools
from collectors.sources.tree import Tree
from tests.collectors.sources.trees import write

LIVE = Tree()


@pytest.fixture
def programs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    return tmp_path


def program(folder: Path, text: str, name: str = "tool") -> str:
    path = folder / name
    path.write_text(f"#!/bin/sh\n{text}\n")
    path.chmod(0o755)
    return str(path)


def ask(*argv: str, max_bytes: int = 1_000, timeout_s: float = 10.0) -> bytes:
    return tools.output(LIVE, "none.txt", argv, timeout_s, max_bytes)


def test_a_recording_is_read_and_nothing_is_run(tmp_path: Path) -> None:
    tree = Tree(write(tmp_path, {"commands/said.txt": "recorded"}))
    assert tools.output(tree, "said.txt", ["/bin/false"], 1.0) == b"recorded"
    with pytest.raises(FileNotFoundError):
        tools.output(tree, "other.txt", ["/bin/echo"], 1.0)


def test_the_start_of_what_a_tool_says(programs: Path) -> None:
    program(programs, 'echo "$1 $LC_ALL"')
    assert ask("tool", "a b; c") == b"a b; c C\n"
    assert ask("tool", "x", max_bytes=1) == b"x"


def test_a_tool_gets_none_of_the_agents_settings(programs: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CLUSTERWATCH_TOKEN", "do-not-print-this")
    program(programs, "env")
    assert b"do-not-print-this" not in ask("tool", max_bytes=100_000)


def test_a_failure_has_the_tools_own_words(programs: Path) -> None:
    program(programs, "echo no controller >&2; exit 3")
    with pytest.raises(OSError, match="no controller") as caught:
        ask("tool")
    assert caught.value.errno == errno.EIO


def test_a_tool_that_is_not_installed_is_a_missing_file(programs: Path) -> None:
    with pytest.raises(FileNotFoundError):
        ask("tool")


def test_a_tool_that_does_not_answer_is_ended(programs: Path) -> None:
    program(programs, "echo $$ > pid; exec sleep 60".replace("pid", str(programs / "pid")))
    with pytest.raises(TimeoutError):
        ask("tool", timeout_s=1.0)
    assert not Path(f"/proc/{(programs / 'pid').read_text().strip()}").exists()


def test_a_tool_that_cannot_be_ended_is_not_begun_again_until_it_is_gone(
    programs: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = program(programs, "echo said")
    stuck = subprocess.Popen(["/bin/sleep", "60"])
    monkeypatch.setitem(tools._hanging, path, stuck)
    try:
        with pytest.raises(TimeoutError, match="still hangs"):
            ask("tool", timeout_s=60.0)
    finally:
        stuck.kill()
        stuck.wait()
    assert ask("tool") == b"said\n"


def test_of_one_tool_there_is_one_process_at_a_time(programs: Path) -> None:
    program(programs, f"mkdir {programs}/alone || exit 9; sleep 0.2; rmdir {programs}/alone; echo said")
    with ThreadPoolExecutor(3) as threads:
        assert [*threads.map(lambda _: ask("tool"), range(3))] == [b"said\n"] * 3


def test_a_question_does_not_wait_for_another_longer_than_its_own_time(programs: Path) -> None:
    program(programs, "exec sleep 30")
    with ThreadPoolExecutor(1) as threads:
        first = threads.submit(ask, "tool", timeout_s=1.0)
        while not tools._running:
            time.sleep(0.01)
        with pytest.raises(TimeoutError, match="another question"):
            ask("tool", timeout_s=0.1)
        with pytest.raises(TimeoutError):
            first.result()


def test_a_process_that_does_not_end_is_left_behind_and_counted(
    programs: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = program(programs, "exec sleep 60")
    with monkeypatch.context() as hands:
        hands.setattr(tools, "_END_S", 0.2)
        hands.setattr(subprocess.Popen, "kill", lambda _: None)  # as in state D
        with pytest.raises(TimeoutError):
            ask("tool", timeout_s=0.2)
    assert list(tools.left_behind()) == [path]
    stuck = tools._hanging[path]
    stuck.kill()
    stuck.wait()
    assert tools.left_behind() == {}
