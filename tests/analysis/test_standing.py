"""What stands: begun, told again, over, doubted; and the same signals read twice change nothing."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from clusterwatch.analysis.model import Severity
from clusterwatch.analysis.signals import Signal
from clusterwatch.analysis.standing import (
    ANSWERS_NS,
    FLAPS_QUIET_NS,
    GPU_HOLDS_NS,
    HOLDS_NS,
    OF_TELLER_MAX,
    TOLD_AGAIN_NS,
    Standing,
)

S = 10**9
PORT, GPU = "port/mlx5_0/1", "gpu/GPU-1-3"


def signal(kind: str, at_s: float = 100, node: int | None = 1, part: str = PORT, **more: Any) -> Signal:
    told: dict[str, Any] = {
        "severity": Severity.CRITICAL, "source": "test", "stands": True, "teller_id": node, "until_ns": None,
        "host": f"n{node}", "text": f"{kind} of n{node}",
    }  # fmt: skip
    return Signal(kind=kind, at_ns=int(at_s * S), node_id=node, part=part, **(told | more))


def over(kind: str, at_s: float, node: int = 1, part: str = PORT) -> Signal:
    told = signal("fault_over", at_s, node, part, severity=Severity.INFO, stands=False)
    return replace(told, fields={"kind": kind})


def line(kind: str, at_s: float = 100, **more: Any) -> Signal:
    told: dict[str, Any] = {"stands": False, "source": "kernel_log"}
    return signal(kind, at_s, **(told | more))


def standing(*signals: Signal) -> Standing:
    found = Standing.empty()
    found.take(signals)
    return found


def kinds(found: Standing) -> list[str]:
    return [held.signal.kind for held in found.faults]


def test_a_fault_ends_when_it_is_told_as_over_and_only_the_part_that_is_meant() -> None:
    fan = signal("fan_failed", part="fan/2")
    assert kinds(standing(fan)) == ["fan_failed"]
    assert kinds(standing(fan, over("fan_failed", 101, part="fan/2"))) == []
    for other in (over("fan_failed", 101, 2, "fan/2"), over("fan_failed", 101, 1, "fan/3"),
                  over("psu_failed", 101, 1, "fan/2")):  # fmt: skip
        assert kinds(standing(fan, other)) == ["fan_failed"]


def test_an_end_from_before_the_fault_ends_nothing() -> None:
    found = standing(signal("fan_failed", 100))
    found.take([over("fan_failed", 99)])
    assert kinds(found) == ["fan_failed"]


@pytest.mark.parametrize("end, kind", [("link_up", "link_down"), ("nfs_ok", "nfs_not_responding")])
def test_a_line_of_the_log_may_tell_the_end(end: str, kind: str) -> None:
    assert kinds(standing(line(kind), line(end, 110, severity=Severity.INFO))) == []


def test_it_began_when_it_was_told_first_and_says_what_was_told_last() -> None:
    (held,) = standing(signal("fan_failed"), signal("fan_failed", 900, text="slower")).faults
    assert (held.signal.at_ns, held.told_ns, held.signal.text) == (100 * S, 900 * S, "slower")


def test_the_same_signals_read_again_change_nothing() -> None:
    told = [
        signal("link_down", 100), over("link_down", 110), signal("fan_failed", 100, part="fan/1"),
        signal("agent_started", 150, part="host", severity=Severity.INFO, stands=False),
        signal("fan_failed", 160, part="fan/1"), line("xid", 170, part=GPU, code=79),
        over("fan_failed", 180, part="fan/1"), signal("link_down", 190),
    ]  # fmt: skip
    found = standing(*told)
    before = dict(found.held)
    for first in range(len(told)):
        found.take(told[first:])
        assert found.held == before, f"read again from {first}"


def test_lines_hold_for_a_while_and_fatal_ones_of_a_gpu_for_hours() -> None:
    found = standing(line("lockup", part="host"), line("xid", part=GPU, code=79))
    found.forget(100 * S + HOLDS_NS)
    assert len(found.faults) == 2
    found.forget(100 * S + HOLDS_NS + S)
    assert kinds(found) == ["xid"]
    found.forget(100 * S + GPU_HOLDS_NS + S)
    assert kinds(found) == []


def test_what_a_source_sees_stand_needs_no_telling_again() -> None:
    found = standing(signal("psu_failed"))
    found.forget(100 * S + 30 * 86_400 * S)
    assert kinds(found) == ["psu_failed"]


def test_a_line_of_the_log_does_not_shorten_what_a_source_sees_stand() -> None:
    found = standing(signal("link_down", 100), line("link_down", 101))
    found.forget(101 * S + HOLDS_NS + S)
    assert kinds(found) == ["link_down"]


def start(at_s: float, node: int = 1) -> Signal:
    return signal("agent_started", at_s, node, "host", severity=Severity.INFO, stands=False)


def test_an_agent_that_starts_again_tells_what_stands_or_it_is_over() -> None:
    found = standing(signal("psu_failed"), start(200))
    found.forget(200 * S + TOLD_AGAIN_NS)
    assert kinds(found) == ["psu_failed"]
    found.take([signal("psu_failed", 300)])
    found.forget(900 * S)
    assert kinds(found) == ["psu_failed"]
    found.take([start(1_000)])
    found.forget(1_000 * S + TOLD_AGAIN_NS + S)
    assert kinds(found) == []


def test_a_start_says_nothing_of_others_faults_nor_of_lines_of_the_log() -> None:
    xid, theirs = line("xid", part=GPU, code=79), signal("psu_failed", node=2)
    found = standing(xid, theirs, start(200))
    found.forget(200 * S + TOLD_AGAIN_NS + S)
    assert kinds(found) == ["xid", "psu_failed"]


def test_a_start_of_the_agent_that_polls_a_device_doubts_what_it_told_of_it() -> None:
    device = signal("psu_failed", node=None, part="psu/shelf-1/2", teller_id=7)
    found = standing(device, start(200, node=7))
    found.forget(200 * S + TOLD_AGAIN_NS + S)
    assert kinds(found) == []


def flap(times: int, every_s: int = 60) -> list[Signal]:
    """Down at 0, ``every_s``, ..., each time for four seconds."""
    return [
        one
        for number in range(times)
        for one in (signal("link_down", number * every_s), over("link_down", number * every_s + 4))
    ]


def test_a_link_that_comes_and_goes_is_unstable_until_it_has_been_up_for_long() -> None:
    assert kinds(standing(*flap(2))) == []
    found = standing(*flap(3))
    found.forget(130 * S)
    (held,) = found.faults
    assert held.is_unstable and len(held.begins_ns) == 3 and held.over_ns == 124 * S
    found.forget(124 * S + FLAPS_QUIET_NS)
    assert kinds(found) == ["link_down"]
    found.forget(124 * S + FLAPS_QUIET_NS + S)
    assert kinds(found) == []


def test_flaps_far_apart_are_single_ones() -> None:
    found = standing(*flap(6, every_s=1_000))
    found.forget(5_010 * S)
    assert kinds(found) == []


def test_a_lost_gpu_is_back_when_its_values_have_been_known_for_long() -> None:
    xid = line("xid", part=GPU, code=79)
    found = standing(xid)
    (key,) = found.held
    found.answer([key], 200 * S)
    found.answer([], 400 * S)
    found.answer([key], 500 * S)
    found.forget(500 * S + ANSWERS_NS - S)
    assert kinds(found) == ["xid"]
    found.take([xid])
    found.answer([key], 500 * S + ANSWERS_NS)
    found.forget(500 * S + ANSWERS_NS)
    assert kinds(found) == []
    found.take([xid])
    assert kinds(found) == [], "what was told before is over"
    found.take([replace(xid, at_ns=500 * S + 2 * ANSWERS_NS)])
    assert kinds(found) == ["xid"], "it falls off once more"


def test_paused_and_drained_nodes_are_known_and_are_no_faults() -> None:
    found = standing(
        signal("gpu_paused", part="host", severity=Severity.INFO),
        signal("node_drained", node=2, part="node/n2", severity=Severity.WARNING, fields={"reason": "fan"}),
    )
    assert (found.paused, found.drained, kinds(found)) == ({1}, {2: "fan"}, [])


def test_information_and_a_jobs_own_errors_are_no_faults() -> None:
    found = standing(
        line("oom_kill", part="host"), signal("from_the_future"),
        signal("rate_degraded", severity=Severity.INFO),
    )  # fmt: skip
    assert found.held == {}


def test_no_agent_can_fill_the_table_alone() -> None:
    flood = [signal("fan_failed", part=f"fan/{number}") for number in range(3 * OF_TELLER_MAX)]
    found = standing(*flood, signal("fan_failed", node=2))
    assert len(found.faults) == OF_TELLER_MAX + 1 and found.left_out == 2 * OF_TELLER_MAX
