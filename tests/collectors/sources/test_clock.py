"""The clock as the kernel and chrony tell it, kept, left alone and set."""

from __future__ import annotations

import os
import stat
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from collectors.sources import clock as clock_source
from collectors.sources.clock import ClockSource
from collectors.sources.clock_chrony import Servers, Tracking, servers, tracking
from collectors.sources.clock_kernel import Kept, Steps, kept, parsed
from collectors.sources.tree import Tree
from tests.collectors.sources.trees import look, write

TRACKING = (
    "0A0B0C0D,10.11.12.13,3,1796277092.721244734,0.000012500,-0.000004000,0.000021000,"
    "-17.250,0.003,0.041,0.000310000,0.000095000,64.3,Normal\n"
)
LOST = (
    "00000000,,0,0.000000000,0.000000000,0.000000000,0.000000000,-17.250,0,0,1.0,1.0,0.0,Not synchronised\n"
)
ALONE = (
    "7F7F0101,,8,1796277092.7,0.000000000,0.000000000,0.000000000,0.000,0.000,0.000,"
    "0.000000000,0.000000000,0.0,Normal\n"
)
SOURCES = (
    "^,*,10.11.12.13,2,6,377,12,-0.000010000,-0.000012000,0.000400000\n"
    "^,+,10.11.12.14,2,6,17,40,0.000020000,0.000020000,0.000500000\n"
    "^,x,10.11.12.15,2,6,377,3,0.870000000,0.870000000,0.000600000\n"
    "^,?,10.11.12.16,0,6,0,4294967295,0.000000000,0.000000000,0.000000000\n"
)


def adjtimex(status: int = 0x2001, offset: int = 1_500_000, state: int = 0, maxerror: int = 24_500) -> str:
    return (
        f"         mode: 0\n       offset: {offset}\n    frequency: -1130496\n     maxerror: {maxerror}\n"
        f"     esterror: 40\n       status: {status}\ntime_constant: 7\n         tick: 10000\n"
        f"     raw time:  1796277092s 721244us = 1796277092.721244\n return value = {state}\n"
    )


def chrony(root: Path, said: str = TRACKING, sources: str = SOURCES) -> Path:
    return write(root, {"commands/chronyc_tracking.csv": said, "commands/chronyc_sources.csv": sources})


def test_a_clock_that_chrony_keeps(tmp_path: Path) -> None:
    # chrony leaves nothing to the kernel's own loop.
    write(chrony(tmp_path), {"commands/adjtimex.txt": adjtimex(0x2000, offset=0)})
    found, events = look(ClockSource(), tmp_path)
    assert events == []
    assert found["host", "clock_synchronised_count"] == (1, "ok")
    assert found["host", "clock_offset_s"] == (0.0000125, "ok")
    assert found["host", "clock_error_max_s"] == (0.0245, "ok")
    assert found["host", "clock_error_estimated_s"] == (0.00004, "ok")
    assert found["host", "clock_stratum_count"] == (3, "ok")
    assert found["host", "clock_frequency_error_ppm"] == (-17.25, "ok")
    counts = [found["host", f"clock_sources_{name}count"][0] for name in ("", "reachable_", "false_")]
    assert counts == [4, 3, 1]


def test_a_clock_that_the_kernel_slews_for_a_daemon(tmp_path: Path) -> None:
    found, events = look(ClockSource(), write(tmp_path, {"commands/adjtimex.txt": adjtimex()}))
    assert events == [] and found["host", "clock_offset_s"] == (0.0015, "ok")
    assert ("host", "clock_stratum_count") not in found
    found, _ = look(ClockSource(), write(tmp_path, {"commands/adjtimex.txt": adjtimex(0x1, offset=-2_500)}))
    assert found["host", "clock_offset_s"] == (-0.0025, "ok")  # without STA_NANO these are microseconds


@pytest.mark.parametrize(("status", "state"), [(0x40, 0), (0x2041, 5), (0, 5)])
def test_a_clock_that_nothing_keeps(tmp_path: Path, status: int, state: int) -> None:
    text = adjtimex(status, state=state, maxerror=16_000_000)
    found, (event,) = look(ClockSource(), write(tmp_path, {"commands/adjtimex.txt": text}))
    assert (event.entity, event.kind, event.standing) == ("host", "clock_unsynchronised", True)
    assert event.attributes == {"kernel": True, "chrony": False}
    assert found["host", "clock_synchronised_count"] == (0, "ok")
    assert found["host", "clock_offset_s"] == (None, "unsynchronised")
    assert found["host", "clock_error_max_s"] == (16.0, "ok")


@pytest.mark.parametrize("said", [LOST, ALONE])
def test_zeros_of_a_chrony_that_follows_nobody_are_no_offset(tmp_path: Path, said: str) -> None:
    found, (event,) = look(ClockSource(), chrony(tmp_path, said))
    assert event.kind == "clock_unsynchronised" and event.attributes == {"kernel": False, "chrony": True}
    for metric in ("clock_offset_s", "clock_stratum_count", "clock_root_delay_s"):
        assert found["host", metric] == (None, "unsynchronised")


def test_one_answer_of_chrony_is_enough_for_five_minutes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Tree, "is_paced", property(lambda _: True))
    source = ClockSource()
    chrony(tmp_path)
    for at_s, said in ((0.0, TRACKING), (60.0, LOST), (299.0, LOST)):
        chrony(tmp_path, said)
        assert look(source, tmp_path, at_s)[0]["host", "clock_stratum_count"] == (3, "ok")
    assert look(source, tmp_path, 300.0)[0]["host", "clock_stratum_count"] == (None, "unsynchronised")


def test_a_clock_that_was_set_is_told_once(monkeypatch: pytest.MonkeyPatch) -> None:
    wall_ns, boot_ns = 10**18, 10**12
    source = ClockSource(Steps(lambda: wall_ns, lambda: boot_ns))
    monkeypatch.setattr(clock_source, "kept", lambda _: None)
    monkeypatch.setattr(source, "_ask", lambda _: None)
    told = []
    for wall_s, boot_s in ((0, 0), (60, 60), (120.09, 120), (179.5, 180), (239.5, 240), (361.5, 300)):
        wall_ns, boot_ns = 10**18 + int(wall_s * 1e9), 10**12 + int(boot_s * 1e9)
        told.append([event.attributes["step_s"] for event in source.read(Tree(), boot_s).events])
    assert told == [[], [], [], [-0.59], [], [62.0]]


def test_a_thread_that_was_held_up_between_two_clocks_says_nothing() -> None:
    boots = iter(range(0, 10**12, 20_000_000))
    steps = Steps(lambda: 10**18, lambda: next(boots))
    assert steps.moved_s() is None and steps.moved_s() is None


def test_an_agent_that_starts_after_the_clock_was_set_does_not_tell_it() -> None:
    assert Steps(lambda: 10**18, lambda: 10**9).moved_s() is None


def test_the_clock_of_this_machine() -> None:
    told = kept(Tree())
    assert told is None or (told.error_max_s >= 0 and told.error_estimated_s >= 0)
    steps = Steps()
    steps.moved_s()
    moved_s = steps.moved_s()
    assert moved_s is None or abs(moved_s) < 0.1


def test_a_tool_that_fails_or_talks_nonsense(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tool = tmp_path / "chronyc"
    monkeypatch.setenv("PATH", f"{tmp_path}{os.pathsep}{os.environ['PATH']}")
    for script, quality in (("echo 506 no daemon >&2; exit 1", "no_answer"), ("echo what", "unreadable")):
        tool.write_text(f"#!/bin/sh\n{script}\n")
        tool.chmod(tool.stat().st_mode | stat.S_IXUSR)
        samples = {s.metric: (s.value, s.quality) for s in ClockSource().read(Tree(), 0.0).samples}
        assert samples["clock_stratum_count"] == (None, quality)


def test_a_recording_that_cannot_be_read_has_its_reason(tmp_path: Path) -> None:
    write(tmp_path, {"commands/adjtimex.txt": "what"})
    found, events = look(ClockSource(), tmp_path)
    assert events == [] and found["host", "clock_synchronised_count"] == (None, "eio")
    chrony(tmp_path, "0A0B0C0D,only,three\n")
    assert look(ClockSource(), tmp_path)[0]["host", "clock_stratum_count"] == (None, "unreadable")


def test_a_node_without_anything_says_nothing(tmp_path: Path) -> None:
    assert look(ClockSource(), tmp_path) == ({}, [])


@given(st.text(max_size=200) | st.lists(st.text(max_size=12), max_size=15).map(",".join))
def test_garbage_is_no_answer(text: str) -> None:
    tracking(text)
    servers(text)
    parsed(text)


@given(st.sampled_from(["nan", "inf", "-inf", "1e400", "9" * 40, "", "\u0663", "1_0"]), st.integers(0, 13))
def test_an_absurd_cell_costs_the_answer_and_nothing_else(cell: str, place: int) -> None:
    cells = TRACKING.strip().split(",")
    cells[place] = cell
    told = tracking(",".join(cells))
    assert told is None or place in (0, 1, 3, 5, 8, 9, 12)


@given(st.integers(0, 15), st.floats(-1e6, 1e6), st.floats(0, 1e3))
def test_what_chrony_prints_is_read(stratum: int, offset: float, delay: float) -> None:
    line = f"0A0B0C0D,a,{stratum},0.0,{offset:.9f},0,0.5,1.500,0,0,{delay:.9f},0.25,64.0,Normal"
    expected = Tracking(True, stratum, float(f"{offset:.9f}"), 0.5, 1.5, float(f"{delay:.9f}"), 0.25)
    assert tracking(line) == expected
    assert servers(SOURCES * 40).all <= 64 and servers("") == Servers(0, 0, 0)


@given(st.integers(-(10**18), 10**18), st.integers(0, 10**18))
def test_what_the_kernel_tells_is_read(offset: int, maxerror: int) -> None:
    told = parsed(adjtimex(0x2001, offset, 0, maxerror))
    assert told == Kept(True, offset / 1e9, maxerror / 1e6, 0.00004)
