"""Where the agent listens."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from collectors.hook import endpoints


def write(folder: Path, content: object) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "endpoints.json").write_text(json.dumps(content))
    return folder


def test_what_was_said_wins(tmp_path: Path) -> None:
    state = write(tmp_path, {"hook_socket": "/run/other.sock"})
    environ = {"CLUSTERWATCH_HOOK_SOCKET": "/run/mine.sock", "CLUSTERWATCH_STATE_DIR": str(state)}
    assert endpoints.hook_socket(environ) == "/run/mine.sock"


def test_reads_the_state_folder(tmp_path: Path) -> None:
    state = write(tmp_path, {"hook_socket": "/run/agent.sock"})
    assert endpoints.hook_socket({"CLUSTERWATCH_STATE_DIR": str(state)}) == "/run/agent.sock"


def test_a_chosen_state_folder_is_the_only_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(endpoints, "INSTALLED_STATE", write(tmp_path / "lib", {"hook_socket": "/run/a.sock"}))
    assert endpoints.hook_socket({"CLUSTERWATCH_STATE_DIR": str(tmp_path / "empty")}) is None


def test_installed_folder_comes_after_the_checkouts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(endpoints, "INSTALLED_STATE", write(tmp_path / "lib", {"hook_socket": "/run/a.sock"}))
    monkeypatch.setattr(endpoints, "checkout", lambda: tmp_path / "checkout")
    assert endpoints.hook_socket({}) == "/run/a.sock"
    write(tmp_path / "checkout" / ".clusterwatch", {"hook_socket": "/run/b.sock"})
    assert endpoints.hook_socket({}) == "/run/b.sock"


@pytest.mark.parametrize("content", [[], {"hook_socket": 7}, {"hook_socket": ""}, {"hook_socket": "no-path"}])
def test_nonsense_is_no_socket(tmp_path: Path, content: object) -> None:
    state = write(tmp_path, content)
    assert endpoints.hook_socket({"CLUSTERWATCH_STATE_DIR": str(state)}) is None


def test_this_checkout_is_found() -> None:
    root = endpoints.checkout()
    assert root is not None and (root / "collectors" / "hook").is_dir()
