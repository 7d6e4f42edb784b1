"""The fabric manager's log: faults of switches and links, and how its start ended; nothing made up."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from collectors.sources.base import SourceEvent
from collectors.sources.fabric_manager import LOG, READY, FabricManagerSource, parse
from tests.collectors.sources.test_nvml_live import Live
from tests.collectors.sources.trees import look, write

MOUNTS = {"proc/self/mountinfo": "1 0 8:1 / / rw - ext4 /dev/sda rw\n"}
FATAL = (
    "[Jul 23 2024 07:53:55] [ERROR] [tid 841] detected NVSwitch fatal error 20034 on fid 0 on NVSwitch pci"
    " bus id 00000000:86:00.0 physical id 3 port 33\n"
)
MILD = (
    "[Mar 03 2026 18:39:57] [ERROR] [tid 5183] detected NVSwitch non-fatal error 22013 on NodeId 0 on"
    " NVSwitch pci bus id 00000000:08:00.0 physical id 3 port 60\n"
)
READY_LINE = (
    "[Mar 03 2026 18:39:19] [INFO] [tid 5183] Successfully configured all the available NVSwitches to route"
    " GPU NVLink traffic.\n"
)
NO_TOPOLOGY = (
    "[Sep 08 2025 23:21:50] [ERROR] detected number of NVSwitches don't match with any supported system"
    " topology, aborting fabric manager\n"
)
MULTICAST = (
    "[Apr 17 2024 01:51:39] [ERROR] [tid 29] failed to find the GPU handle 10187860174420860981 in the"
    " multicast team request setup 5653964288847403984.\n"
)
TALK = (
    "[Jul 24 2024 03:14:18] [INFO] [tid 855] Sending inband response message:  Message header details: magic"
    " Id:adbc request Id:2b59bdc21b9504c4 status:0 type:3 length:24\n"
)


def events(root: Path, text: str) -> list[SourceEvent]:
    return look(FabricManagerSource(), write(root, {LOG: text}))[1]


def test_a_fault_of_a_switch_names_its_place(tmp_path: Path) -> None:
    (event,) = events(tmp_path, TALK + FATAL)
    assert (event.entity, event.kind, event.code, event.severity) == (
        "pci/0000:86:00.0", "fabric_sxid", 20034, "critical",
    )  # fmt: skip
    assert event.attributes == {
        "count": 1, "logged_at": "Jul 23 2024 07:53:55", "fatal": True, "physical_id": 3, "port": 33,
        "bdf": "0000:86:00.0",
    }  # fmt: skip
    assert event.t_ns is None


@pytest.mark.parametrize(
    ("line", "kind", "severity"),
    [
        (MILD, "fabric_sxid", "warning"),
        (READY_LINE, "fabric_manager_ready", "info"),
        (NO_TOPOLOGY, "fabric_manager_failed", "critical"),
        (MULTICAST, "fabric_manager_error", "warning"),
        (
            "[ERROR] fabric manager NVIDIA GPU driver interface version 550.127.05 don't match with driver"
            " version 550.120. Please update with matching NVIDIA driver package.\n",
            "fabric_manager_failed",
            "critical",
        ),
    ],
)
def test_what_each_line_means(tmp_path: Path, line: str, kind: str, severity: str) -> None:
    (event,) = events(tmp_path, line)
    assert (event.kind, event.severity) == (kind, severity)


@pytest.mark.parametrize(
    ("text", "ready"),
    [
        (TALK, (None, "not_told")),
        (READY_LINE + FATAL, (1, "ok")),
        (READY_LINE + NO_TOPOLOGY, (0, "ok")),
        (NO_TOPOLOGY + READY_LINE, (1, "ok")),
    ],
)
def test_the_state_is_what_it_said_last(tmp_path: Path, text: str, ready: tuple[float | None, str]) -> None:
    found, _ = look(FabricManagerSource(), write(tmp_path, {LOG: text}))
    assert found["host", READY] == ready


def test_a_node_without_it_says_nothing(tmp_path: Path) -> None:
    assert look(FabricManagerSource(), tmp_path) == ({}, [])
    assert not FabricManagerSource().read(Live(tmp_path), 0.0).samples


def test_history_sets_the_state_and_is_no_news_but_what_an_agent_before_has_not_seen_is(
    tmp_path: Path,
) -> None:
    root, kept = write(tmp_path / "root", {LOG: READY_LINE + MILD, **MOUNTS}), tmp_path
    source = FabricManagerSource()
    source.keep_in(kept)
    reading = source.read(Live(root), 0.0)
    assert [sample.value for sample in reading.samples] == [1] and not reading.events
    write(root, {LOG: READY_LINE + MILD + FATAL})
    again = FabricManagerSource()
    again.keep_in(kept)
    reading = again.read(Live(root), 0.0)
    assert [sample.value for sample in reading.samples] == [1]
    assert [event.code for event in reading.events] == [20034]
    assert not again.read(Live(root), 15.0).events


def test_a_log_that_comes_later_is_news(tmp_path: Path) -> None:
    source = FabricManagerSource()
    tree = Live(write(tmp_path, MOUNTS))
    assert not source.read(tree, 0.0).samples
    write(tmp_path, {LOG: NO_TOPOLOGY})
    assert [event.kind for event in source.read(tree, 15.0).events] == ["fabric_manager_failed"]


def test_a_log_on_a_network_mount_is_not_touched(tmp_path: Path) -> None:
    mounts = "1 0 0:9 / / rw - nfs4 server:/root rw\n"
    source = FabricManagerSource()
    assert not source.read(Live(write(tmp_path, {LOG: FATAL, "proc/self/mountinfo": mounts})), 0.0).samples


def test_a_flood_is_one_event_with_a_count(tmp_path: Path) -> None:
    source = FabricManagerSource()
    tree = Live(write(tmp_path, {LOG: TALK, **MOUNTS}))
    source.read(tree, 0.0)
    write(tmp_path, {LOG: TALK + MULTICAST * 1_000 + MILD * 10_000})
    told: dict[str, Any] = {event.kind: event.attributes for event in source.read(tree, 15.0).events}
    assert set(told) == {"fabric_manager_error", "fabric_sxid", "log_flood"}
    assert told["fabric_manager_error"]["count"] > 500
    assert told["log_flood"]["skipped_bytes"] > 1_000_000


def test_secrets_are_masked(tmp_path: Path) -> None:
    (event,) = events(tmp_path, "[ERROR] [tid 1] cannot log in with password=hunter22\n")
    assert "hunter22" not in event.message


@settings(max_examples=50)
@given(
    st.one_of(
        st.binary(max_size=300), st.builds(lambda tail: FATAL.encode()[:60] + tail, st.binary(max_size=300))
    )
)
def test_any_line_is_taken(line: bytes) -> None:
    said = parse(line)
    assert said is None or said.text.isprintable()
