"""What any dialect tells of a switch's ports becomes the same samples and events."""

from __future__ import annotations

import math
from collections.abc import Iterable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from collectors.pollers.switch_facts import (
    NEIGHBOURS_MAX,
    PORTS_MAX,
    Neighbour,
    Port,
    SwitchFacts,
)
from collectors.pollers.switch_ports import Rules, SwitchPorts
from collectors.sources.base import Reading, SourceEvent
from collectors.sources.counters import Count, Counter

NAME = "Ethernet1/1"
HOST = Neighbour("gtn-0101", "mlx5_0", "aa:bb:cc:00:00:01")


def a_port(**counters: int) -> Port:
    """A 400G port that is up, with these counters."""
    port = Port(NAME, oper_up=True, admin_up=True, rate_gbps=400.0)
    port.counters = {name: Count(value) for name, value in counters.items()}
    return port


def facts(*ports: Port, uptime_s: float | None = None) -> SwitchFacts:
    return SwitchFacts({port.name: port for port in ports}, uptime_s=uptime_s)


def looks(*ports: Port, rules: Rules = Rules(), period_s: float = 10.0) -> Reading:  # noqa: B008
    """The last of several looks at one port."""
    switch = SwitchPorts("leaf-1", rules)
    reading = Reading()
    for number, port in enumerate(ports):
        reading = switch.reading(facts(port), 1_000.0 + number * period_s)
    return reading


def value(reading: Reading, metric: str, **labels: str) -> tuple[float | None, str]:
    (found,) = [
        (sample.value, sample.quality)
        for sample in reading.samples
        if sample.metric == metric and sample.labels == labels
    ]
    return found


def metrics(reading: Reading) -> set[str]:
    return {sample.metric for sample in reading.samples}


def kinds(events: Iterable[SourceEvent]) -> list[str]:
    return [event.kind for event in events]


def test_bytes_become_rates_and_shares_of_the_ports_own_rate() -> None:
    reading = looks(a_port(tx_bytes=0, rx_bytes=5), a_port(tx_bytes=250_000_000_000, rx_bytes=5))
    assert value(reading, "tx_bytes_per_s") == (25e9, "ok")
    assert value(reading, "tx_utilization_ratio") == (0.5, "ok")
    assert value(reading, "rx_utilization_ratio") == (0.0, "ok")
    assert {sample.entity for sample in reading.samples} == {"switch/leaf-1", f"switchport/leaf-1/{NAME}"}


def test_a_first_look_has_states_and_totals_and_no_rate() -> None:
    reading = looks(a_port(tx_bytes=10, tx_discards=3))
    assert value(reading, "oper_up_count") == (1, "ok")
    assert value(reading, "rate_gbps") == (400.0, "ok")
    assert value(reading, "tx_bytes_per_s") == (None, "first_sample")
    assert value(reading, "tx_utilization_ratio") == (None, "first_sample")
    assert value(reading, "tx_discards_total") == (3, "ok")
    assert value(reading, "tx_discards_delta_count") == (None, "first_sample")


def test_what_a_switch_does_not_tell_is_absent_or_unknown_and_never_zero() -> None:
    reading = looks(Port(NAME), Port(NAME))
    assert value(reading, "oper_up_count") == (None, "unknown")
    assert value(reading, "rate_gbps") == (None, "not_available")
    assert not metrics(reading) & {"tx_bytes_per_s", "tx_discards_total", "pfc_watchdog_active_count"}


def test_a_port_that_is_down_has_no_rate_and_no_utilization() -> None:
    down = a_port(tx_bytes=10)
    down.oper_up = False
    reading = looks(a_port(tx_bytes=10), down)
    assert value(reading, "rate_gbps") == (None, "link_down")
    assert value(reading, "tx_utilization_ratio") == (None, "link_down")


def test_bytes_beyond_what_the_port_can_carry_are_out_of_range() -> None:
    reading = looks(a_port(tx_bytes=0), a_port(tx_bytes=10**15))
    assert value(reading, "tx_bytes_per_s") == (None, "out_of_range")
    assert value(reading, "tx_utilization_ratio") == (None, "out_of_range")


def test_a_counter_that_was_set_back_has_no_negative_rate_and_is_told_once() -> None:
    switch = SwitchPorts("leaf-1", Rules())
    switch.reading(facts(a_port(tx_discards=900, rx_errors=7)), 0.0)
    reading = switch.reading(facts(a_port(tx_discards=2, rx_errors=0)), 10.0)
    assert value(reading, "tx_discards_per_s") == (None, "reset")
    assert kinds(reading.events) == ["counter_reset"]
    reading = switch.reading(facts(a_port(tx_discards=4, rx_errors=0)), 20.0)
    assert value(reading, "tx_discards_delta_count") == (2, "ok")
    assert not reading.events


def test_a_counter_of_32_bits_wraps_when_it_alone_falls_from_above_half() -> None:
    switch = SwitchPorts("leaf-1", Rules())
    kinds_of = {"rx_errors": Counter(bits=32, wraps=True)}
    for at_s, errors in ((0.0, 2**32 - 10), (10.0, 5)):
        look = facts(a_port(rx_errors=errors, tx_discards=1))
        look.kinds = kinds_of
        reading = switch.reading(look, at_s)
    assert value(reading, "rx_errors_delta_count") == (15, "ok")


def test_a_saturated_counter_is_unknown() -> None:
    switch = SwitchPorts("ib-leaf-1", Rules())
    look = facts(a_port(link_downed=255))
    look.kinds = {"link_downed": Counter(bits=8, saturates=True)}
    reading = switch.reading(look, 0.0)
    assert value(reading, "link_downed_total") == (None, "saturated")


def test_a_restart_makes_every_change_unknown_even_where_the_counter_has_grown() -> None:
    switch = SwitchPorts("leaf-1", Rules())
    switch.reading(facts(a_port(tx_discards=5), uptime_s=90_000.0), 0.0)
    reading = switch.reading(facts(a_port(tx_discards=50), uptime_s=100.0), 600.0)
    assert value(reading, "tx_discards_delta_count") == (None, "reset")
    assert kinds(reading.events) == ["switch_restarted"]


def test_an_uptime_that_only_came_to_its_own_end_is_no_restart() -> None:
    switch = SwitchPorts("leaf-1", Rules())
    wraps_s = 2**32 / 100
    first, second = (
        facts(a_port(tx_discards=5), uptime_s=wraps_s - 10),
        facts(a_port(tx_discards=6), uptime_s=50.0),
    )
    first.uptime_wraps_s = second.uptime_wraps_s = wraps_s
    switch.reading(first, 0.0)
    reading = switch.reading(second, 60.0)
    assert value(reading, "tx_discards_delta_count") == (1, "ok")
    assert not reading.events


def test_an_uptime_shorter_than_the_time_between_two_looks_is_a_restart() -> None:
    switch = SwitchPorts("leaf-1", Rules())
    switch.reading(facts(a_port(), uptime_s=30.0), 0.0)
    assert kinds(switch.reading(facts(a_port(), uptime_s=300.0), 3_600.0).events) == ["switch_restarted"]


def test_an_uptime_that_is_not_told_once_is_no_restart() -> None:
    switch = SwitchPorts("leaf-1", Rules())
    switch.reading(facts(a_port(), uptime_s=100.0), 0.0)
    switch.reading(facts(a_port()), 1_000.0)
    assert not switch.reading(facts(a_port(), uptime_s=2_100.0), 2_000.0).events


def test_a_port_whose_counters_were_cleared_is_set_back_alone() -> None:
    before, after = a_port(tx_discards=5), a_port(tx_discards=9)
    after.epoch = "123456"
    reading = looks(before, after)
    assert value(reading, "tx_discards_delta_count") == (None, "reset")


def test_a_zero_pause_counter_is_unknown_once_the_watchdog_acted() -> None:
    counters = {"rx_prio3_pause": 0, "tx_prio3_pause": 40, "pfc_watchdog_drops": 9}
    first, second = a_port(**counters), a_port(**(counters | {"pfc_watchdog_drops": 12}))
    first.watchdog_active = second.watchdog_active = 1
    reading = looks(first, second)
    assert value(reading, "rx_prio3_pause_total") == (None, "pfc_watchdog")
    assert value(reading, "rx_prio3_pause_per_s") == (None, "pfc_watchdog")
    assert value(reading, "tx_prio3_pause_total") == (40, "ok")
    assert value(reading, "tx_prio3_pause_per_s") == (None, "pfc_watchdog"), "it stood still: not counted"
    assert value(reading, "pfc_watchdog_drops_delta_count") == (3, "ok")


def test_a_watchdog_that_let_go_leaves_a_true_zero() -> None:
    counters = {"rx_prio3_pause": 7, "pfc_watchdog_drops": 9}
    first, second = a_port(**counters), a_port(**counters)
    first.watchdog_active = second.watchdog_active = 0
    assert value(looks(first, second), "rx_prio3_pause_per_s") == (0.0, "ok")


def test_without_its_state_a_watchdog_that_dropped_once_may_still_hold() -> None:
    counters = {"rx_prio3_pause": 7, "pfc_watchdog_drops": 9}
    assert value(looks(a_port(**counters), a_port(**counters)), "rx_prio3_pause_per_s")[0] is None


def test_a_zero_pause_counter_is_zero_where_no_watchdog_acted() -> None:
    counters = {"rx_prio3_pause": 0, "pfc_watchdog_drops": 0}
    reading = looks(a_port(**counters), a_port(**counters))
    assert value(reading, "rx_prio3_pause_total") == (0, "ok")
    assert value(reading, "rx_prio3_pause_per_s") == (0.0, "ok")


def test_the_watchdog_is_a_standing_fault_while_it_holds_or_drops() -> None:
    holds = a_port()
    holds.watchdog_active = 2
    (event,) = looks(holds).events
    assert (event.kind, event.severity, event.standing) == ("pfc_watchdog", "critical", True)
    dropping = looks(a_port(pfc_watchdog_drops=1), a_port(pfc_watchdog_drops=4))
    assert kinds(dropping.events) == ["pfc_watchdog"]
    assert not looks(a_port(pfc_watchdog_drops=4), a_port(pfc_watchdog_drops=4)).events


RDMA_ON_0 = (
    a_port(tx_queue0_bytes=0, tx_queue3_bytes=0, tx_queue6_bytes=0),
    a_port(tx_queue0_bytes=20_000_000_000, tx_queue3_bytes=10**11, tx_queue6_bytes=10**11),
)


def test_traffic_outside_the_lossless_priorities_is_a_finding() -> None:
    (event,) = looks(*RDMA_ON_0, rules=Rules(lossless_priorities=frozenset({3}))).events
    assert event.kind == "rdma_on_lossy_priority"
    assert event.attributes["priorities"] == [0], "6 is for control traffic, 3 is lossless"
    assert event.standing


@pytest.mark.parametrize(
    "rules",
    [
        Rules(),
        Rules(lossless_priorities=frozenset()),
        Rules(lossless_priorities=frozenset({0, 3})),
        Rules(lossless_priorities=frozenset({3}), lossy_priorities=frozenset({0, 6})),
        Rules(lossless_priorities=frozenset({3}), lossy_ratio_max=0.1),
    ],
)
def test_expected_little_or_unjudgeable_traffic_is_none(rules: Rules) -> None:
    assert not looks(*RDMA_ON_0, rules=rules).events


def test_a_port_that_tells_its_own_pfc_needs_no_setting() -> None:
    second = a_port(tx_queue0_bytes=20_000_000_000)
    second.lossless = frozenset({3})
    assert kinds(looks(a_port(tx_queue0_bytes=0), second).events) == ["rdma_on_lossy_priority"]


def down_port() -> Port:
    return Port(NAME, oper_up=False, admin_up=True)


def test_a_port_that_was_up_and_is_down_is_a_standing_fault_with_its_other_end() -> None:
    up = a_port()
    up.neighbours = [HOST]
    (event,) = looks(up, down_port(), down_port()).events
    assert (event.kind, event.standing) == ("port_down", True)
    assert event.attributes["peer"] == "gtn-0101"
    assert "gtn-0101" in event.message


def test_a_spare_port_or_one_that_is_shut_is_no_fault() -> None:
    assert not looks(down_port(), down_port()).events
    shut = Port(NAME, oper_up=False, admin_up=False)
    assert not looks(a_port(), shut).events
    unknown = Port(NAME, oper_up=None, admin_up=True)
    assert not looks(a_port(), unknown).events


def test_a_port_that_should_be_up_is_a_fault_at_the_first_look() -> None:
    meant = down_port()
    meant.is_meant_up = True
    assert kinds(looks(meant).events) == ["port_down"]
    once_up = down_port()
    once_up.counters["carrier_changes"] = Count(4)
    assert kinds(looks(once_up).events) == ["port_down"]


def test_a_link_that_came_and_went_repeatedly_flaps() -> None:
    reading = looks(a_port(carrier_changes=10), a_port(carrier_changes=14))
    assert kinds(reading.events) == ["link_flap"]
    assert reading.events[0].attributes["flaps"] == 2
    once = looks(a_port(carrier_changes=10), a_port(carrier_changes=12))
    assert not once.events


def optics(*powers: float, up: bool = True) -> Port:
    port = a_port()
    port.oper_up = up
    port.rx_power_dbm = {str(lane): power for lane, power in enumerate(powers, 1)}
    return port


def test_each_lane_has_its_light() -> None:
    reading = looks(optics(-1.5, -40.0, 99.0))
    assert value(reading, "rx_power_dbm", lane="1") == (-1.5, "ok")
    assert value(reading, "rx_power_dbm", lane="2") == (None, "no_light")
    assert value(reading, "rx_power_dbm", lane="3") == (None, "out_of_range")


@pytest.mark.parametrize(
    ("powers", "weak"),
    [
        ((-1.0, -1.2, -0.8, -1.1), None),
        ((-1.0, -1.2, -5.5, -1.1), ["3"]),
        ((-11.0, -11.5), ["1", "2"]),
        ((-1.0, -math.inf), ["2"]),
        ((-40.0, -40.0), None),
    ],
)
def test_a_weak_lane_of_a_link_that_is_up_is_a_fault(
    powers: tuple[float, ...], weak: list[str] | None
) -> None:
    events = looks(optics(*powers)).events
    assert [event.attributes["lanes"] for event in events] == ([] if weak is None else [weak])
    assert not [event for event in looks(optics(*powers, up=False)).events if event.kind == "optics_weak"]


def test_neighbours_are_labels() -> None:
    port = a_port()
    port.add_neighbour(HOST)
    assert value(
        looks(port), "neighbour_count", peer="gtn-0101", peer_port="mlx5_0", peer_mac="aa:bb:cc:00:00:01"
    ) == (1, "ok")


def test_a_standing_fault_keeps_its_attributes_while_its_numbers_change() -> None:
    first, second = optics(-1.0, -9.0), optics(-1.1, -9.2)
    switch = SwitchPorts("leaf-1", Rules())
    (before,) = switch.reading(facts(first), 0.0).events
    (after,) = switch.reading(facts(second), 10.0).events
    assert before.attributes == after.attributes


def test_a_port_that_is_gone_is_forgotten() -> None:
    switch = SwitchPorts("leaf-1", Rules())
    switch.reading(facts(a_port(tx_discards=1)), 0.0)
    switch.reading(facts(), 10.0)
    reading = switch.reading(facts(a_port(tx_discards=9)), 20.0)
    assert value(reading, "tx_discards_delta_count") == (None, "first_sample")


def test_ports_and_neighbours_are_bounded() -> None:
    look = SwitchFacts()
    for number in range(PORTS_MAX + 50):
        look.port(f"Ethernet{number}")
    assert len(look.ports) == PORTS_MAX
    assert look.port("one too many") is None
    port = a_port()
    for number in range(100):
        port.add_neighbour(Neighbour(f"host-{number}"))
    assert len(port.neighbours) == NEIGHBOURS_MAX


@given(st.lists(st.lists(st.integers(0, 2**64 - 1), min_size=3, max_size=3), max_size=8))
def test_no_row_of_looks_gives_a_negative_rate(rows: list[list[int]]) -> None:
    switch = SwitchPorts("leaf-1", Rules(lossless_priorities=frozenset({3})))
    for number, (tx, discards, queue) in enumerate(rows):
        port = a_port(tx_bytes=tx, tx_discards=discards, tx_queue0_bytes=queue)
        reading = switch.reading(facts(port), number * 10.0)
        assert all((sample.value is None) == (sample.quality != "ok") for sample in reading.samples)
        assert all(sample.value is None or sample.value >= 0 for sample in reading.samples)
