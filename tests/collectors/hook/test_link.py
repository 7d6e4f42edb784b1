"""The hook's end of the socket: drops, never waits, comes back."""

from __future__ import annotations

import os
import socket
import time
from pathlib import Path
from typing import Any

import pytest

from collectors.hook import link as link_module
from collectors.hook.link import Link
from tests.collectors.hook.fake_agent import FakeAgent


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(link_module, "RETRY_S", (0.01,))


def opening() -> list[dict[str, Any]]:
    return [{"k": "hello"}, {"k": "groups"}]


def test_without_an_agent_nothing_is_kept(tmp_path: Path) -> None:
    link = Link(str(tmp_path / "nobody.sock"), opening)
    link.ensure()
    assert not link.connected
    assert not link.send({"k": "progress"})
    assert link.dropped_count == 1 and not link.wants_write()


def test_every_connection_opens_with_hello(tmp_path: Path, impatient: None) -> None:
    with FakeAgent(tmp_path / "a.sock") as agent:
        link = Link(str(agent.path), opening)
        link.ensure()
        link.pump()
        agent.wait(lambda: [frame.kind for frame in agent.frames] == ["hello", "groups"])
        agent.stop()
        agent.wait(lambda: link.receive() == [] and not link.connected)
        agent.start()

        def connected_again() -> bool:
            link.ensure()
            return link.connected

        agent.wait(connected_again)
        link.pump()
        agent.wait(lambda: len(agent.of("hello")) == 2)


def test_a_slow_agent_costs_frames_and_no_time(tmp_path: Path) -> None:
    listener = socket.socket(socket.AF_UNIX)
    listener.bind(str(tmp_path / "slow.sock"))
    listener.listen(1)
    link = Link(str(tmp_path / "slow.sock"), list)
    link.ensure()
    began = time.monotonic()
    for _ in range(2_000):
        link.send({"k": "progress", "text": "x" * 1_000})
        link.pump()
    assert time.monotonic() - began < 5
    assert link.dropped_count > 0 and link.connected
    listener.close()


def test_an_answer_passes_a_full_queue(tmp_path: Path) -> None:
    listener = socket.socket(socket.AF_UNIX)
    listener.bind(str(tmp_path / "slow.sock"))
    listener.listen(1)
    link = Link(str(tmp_path / "slow.sock"), list)
    link.ensure()
    while link.send({"k": "progress", "text": "x" * 10_000}):
        link.pump()
    assert link.send({"k": "dump"}, b"d" * 2_000_000, asked=True)
    listener.close()


def test_what_is_no_frame_ends_the_connection(tmp_path: Path) -> None:
    listener = socket.socket(socket.AF_UNIX)
    listener.bind(str(tmp_path / "bad.sock"))
    listener.listen(1)
    link = Link(str(tmp_path / "bad.sock"), list)
    link.ensure()
    peer, _address = listener.accept()
    peer.sendall(b"\xff" * 64)
    assert link.receive() == []
    assert not link.connected
    peer.close()
    listener.close()


def test_a_header_that_is_no_json_is_dropped(tmp_path: Path) -> None:
    with FakeAgent(tmp_path / "a.sock") as agent:
        link = Link(str(agent.path), list)
        link.ensure()
        assert not link.send({"k": {1, 2}})
        assert link.connected


def test_flush_is_bounded(tmp_path: Path) -> None:
    listener = socket.socket(socket.AF_UNIX)
    listener.bind(str(tmp_path / "slow.sock"))
    listener.listen(1)
    link = Link(str(tmp_path / "slow.sock"), list)
    link.ensure()
    link.send({"k": "dump"}, b"d" * 4_000_000, asked=True)
    began = time.monotonic()
    link.flush(0.2)
    assert 0.15 < time.monotonic() - began < 1.0
    listener.close()


def test_a_forked_child_leaves_the_parents_connection_open(tmp_path: Path) -> None:
    with FakeAgent(tmp_path / "a.sock") as agent:
        link = Link(str(agent.path), list)
        link.ensure()
        child = os.fork()
        if child == 0:
            link.forget()
            os._exit(0)
        os.waitpid(child, 0)
        assert link.send({"k": "progress"})
        link.pump()
        assert agent.wait_for("progress").pid == os.getpid()
