"""WEKA's client: frontends, containers, waits; its tool is asked rarely and only where the driver is."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from collectors.sources import weka
from collectors.sources.weka import WekaSource, containers, frontends, operations
from tests.collectors.sources.test_nvml_live import Live
from tests.collectors.sources.trees import look, write

INTERFACE = "Driver version 4.4\nContainer=client0 node 3: {0} pid 99\n"
STAT = """IO type:  UM Average  UM Longest  KM Average  KM Longest  IO count
--------------------------------------------------------------
total:    812 us   563448 us   9398 ns  10125660 ns  718319292 (63260 IOPS, 0 MB/sec)
read:       0 us        0 us      0 ns         0 ns          0
write:  18957 us   563448 us 495291 ns    920127 ns     983137 (983041)
jumbo write: 5 us 5 us 5 ns 5 ns 5
"""


def test_a_client_that_works(tmp_path: Path) -> None:
    said = json.dumps([{"name": "client0", "runStatus": "Running", "type": "client"}])
    files = {weka.INTERFACE: INTERFACE.format("Connected frontend"), weka.STATISTICS: STAT}
    write(tmp_path, {**files, "commands/weka_local_ps.json": said})
    found, events = look(WekaSource(), tmp_path)
    assert found["weka/client0", "frontend_connected_count"] == (1, "ok")
    assert found["weka/client0", "container_running_count"] == (1, "ok")
    assert found["host", "weka_write_wait_s"] == (0.018957, "ok")
    assert found["host", "weka_read_wait_s"] == (None, "no_ops") and events == []


def test_a_frontend_that_is_gone_is_told(tmp_path: Path) -> None:
    write(tmp_path, {weka.INTERFACE: INTERFACE.format("Disconnected")})
    found, (event,) = look(WekaSource(), tmp_path)
    assert found["weka/client0", "frontend_connected_count"] == (0, "ok")
    assert (event.kind, event.severity, event.standing) == ("weka_disconnected", "critical", True)


def test_a_container_that_is_stopped_is_told(tmp_path: Path) -> None:
    said = json.dumps([{"name": "drives0", "runStatus": "Stopped"}, {"name": 5}, "x"])
    write(tmp_path, {"commands/weka_local_ps.json": said})
    _, (event,) = look(WekaSource(), tmp_path)
    assert (event.kind, dict(event.attributes)) == ("weka_container_down", {"status": "Stopped"})


def test_a_node_without_weka_says_nothing_and_starts_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(weka, "output", lambda *_: pytest.fail("asked"))
    assert WekaSource().read(Live(tmp_path), 0.0).samples == []


def test_the_tool_is_asked_rarely(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[str] = []

    def output(_: object, name: str, *__: object) -> bytes:
        asked.append(name)
        return b"no json"

    write(tmp_path, {weka.INTERFACE: INTERFACE.format("Connected frontend")})
    monkeypatch.setattr(weka, "output", output)
    source = WekaSource()
    for at_s in range(0, 601, 30):
        source.read(Live(tmp_path), float(at_s))
    assert len(asked) == 3


@given(st.text(max_size=300), st.recursive(st.none() | st.text() | st.integers(), st.lists, max_leaves=10))
def test_garbage_gives_no_error(text: str, said: object) -> None:
    frontends(text)
    operations(text)
    assert containers([said]) == {}
