"""Network devices: flaps, pause, bit errors, and drivers that say little or much."""

from __future__ import annotations

import socket
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from collectors.sources.ethernet import EthernetSource
from collectors.sources.ethtool import KernelStats, is_kept, parse
from collectors.sources.tree import Tree
from tests.collectors.sources.trees import Found, given_lines, look, write

NET = "sys/class/net/rnic0"


def nic(root: Path, stats: str = "", **files: str) -> Path:
    plain = {"operstate": "up", "carrier_changes": "2", "device": "../0000:12:00.0"} | files
    write(root, {f"{NET}/{name}": text + "\n" for name, text in plain.items()})
    return write(root, {"commands/ethtool_-S_rnic0.txt": "NIC statistics:\n" + stats})


def two_looks(root: Path, first: str, second: str, passed_s: float = 10.0) -> Found:
    source = EthernetSource()
    look(source, nic(root, first))
    return look(source, nic(root, second), passed_s)[0]


def test_the_given_node() -> None:
    assert given_lines(EthernetSource(), "nic/rnic1") == []


def test_bit_errors_are_of_the_interval(tmp_path: Path) -> None:
    line = "  rx_corrected_bits_phy: {}\n  rx_bits_phy: {}\n  rx_pcs_symbol_err_phy: 4\n"
    found = two_looks(tmp_path, line.format(10, 1_000), line.format(20, 2_000))
    assert found["nic/rnic0", "raw_ber_ratio"] == (0.01, "ok")
    assert found["nic/rnic0", "post_fec_ber_ratio"] == (0.0, "ok")


def test_without_traffic_there_is_no_bit_error_ratio(tmp_path: Path) -> None:
    line = "  rx_corrected_bits_phy: 10\n  rx_bits_phy: 1000\n"
    assert two_looks(tmp_path, line, line)["nic/rnic0", "raw_ber_ratio"] == (None, "no_traffic")


def test_pause_is_a_part_of_the_time(tmp_path: Path) -> None:
    """A public case: pause took 21.7 % of a link while every drop counter stood at 0."""
    line = "  rx_prio3_pause_duration: {}\n  rx_prio3_pause: {}\n"
    found = two_looks(tmp_path, line.format(0, 0), line.format(2_170_000, 50))
    assert found["nic/rnic0", "rx_prio3_pause_ratio"] == (0.217, "ok")
    assert found["nic/rnic0", "rx_prio3_pause_per_s"] == (5.0, "ok")


class Paced(Tree):
    """A recorded tree that is looked at once a second, as a machine is."""

    is_paced = True


def test_what_is_kept_between_two_whole_looks_is_not_told_of_a_link_that_went_down(tmp_path: Path) -> None:
    def told(at_s: float, metric: str) -> tuple[float | None, str]:
        samples = source.read(Paced(tmp_path), at_s).samples
        return next((one.value, one.quality) for one in samples if one.metric == metric)

    source = EthernetSource()
    nic(tmp_path, "  rx_packets: 5\n", speed="400000")
    assert told(0.0, "speed_gbps") == (400, "ok")
    nic(tmp_path, "  rx_packets: 9\n", speed="400000")
    assert told(1.0, "rx_packets_total") == (5, "ok")
    nic(tmp_path, "  rx_packets: 9\n", operstate="down", carrier_changes="3")
    assert told(2.0, "speed_gbps") == (None, "link_down")
    assert told(3.0, "speed_gbps") == (None, "link_down")
    nic(tmp_path, "  rx_packets: 9\n", speed="100000", carrier_changes="4")
    assert told(4.0, "speed_gbps") == (100, "ok")
    assert told(5.0, "rx_packets_total") == (9, "ok")


def test_a_pause_longer_than_the_interval_is_not_believed(tmp_path: Path) -> None:
    line = "  tx_prio3_pause_duration: {}\n"
    found = two_looks(tmp_path, line.format(0), line.format(20_000_000))
    assert found["nic/rnic0", "tx_prio3_pause_ratio"] == (None, "out_of_range")


def test_what_the_driver_does_not_say_is_not_zero(tmp_path: Path) -> None:
    nic(tmp_path)
    write(tmp_path, {"commands/ethtool_-S_rnic0.txt": "no stats available\n"})
    found, _ = look(EthernetSource(), tmp_path)
    assert not any("ber" in metric or "pause" in metric for _, metric in found)
    assert found["nic/rnic0", "carrier_changes_total"] == (2, "ok")


@pytest.mark.parametrize(
    ("changes", "state", "flaps", "downs"), [(8, "up", 4, 4), (7, "down", 3, 4), (4, "up", 2, 2)]
)
def test_a_link_that_comes_and_goes_flaps(
    tmp_path: Path, changes: int, state: str, flaps: int, downs: int
) -> None:
    source = EthernetSource()
    write(tmp_path, {"sys/class/infiniband/mlx5_3/device": "../0000:12:00.0"})
    look(source, nic(tmp_path))
    _, events = look(source, nic(tmp_path, carrier_changes=str(2 + changes), operstate=state), 60.0)
    assert [one.kind for one in events] == ["link_flap"] if state == "up" else ["link_down", "link_flap"]
    event = events[-1]
    assert event.entity == "nic/rnic0"
    assert event.attributes == {"flaps": flaps, "downs": downs, "rdma_device": "mlx5_3"}


def test_flaps_are_counted_for_ten_minutes(tmp_path: Path) -> None:
    source = EthernetSource()
    look(source, nic(tmp_path))
    (event,) = look(source, nic(tmp_path, carrier_changes="4"), 10.0)[1]
    assert (event.kind, event.attributes["flaps"]) == ("link_flap", 1)
    (event,) = look(source, nic(tmp_path, carrier_changes="6"), 20.0)[1]
    assert event.attributes["flaps"] == 2
    assert look(source, tmp_path, 30.0)[1] == []
    (event,) = look(source, nic(tmp_path, carrier_changes="8"), 700.0)[1]
    assert event.attributes["flaps"] == 1


def test_a_link_that_was_never_up_is_no_fault(tmp_path: Path) -> None:
    source = EthernetSource()
    assert look(source, nic(tmp_path, operstate="down"))[1] == []
    assert look(source, nic(tmp_path), 10.0)[1] == []
    (event,) = look(source, nic(tmp_path, operstate="down", carrier_changes="3"), 20.0)[1]
    assert (event.kind, event.standing) == ("link_down", True)


def test_a_pause_storm_that_the_nic_cut_off_is_told(tmp_path: Path) -> None:
    source = EthernetSource()
    look(source, nic(tmp_path, "  tx_pause_storm_error_events: 0\n"))
    (event,) = look(source, nic(tmp_path, "  tx_pause_storm_error_events: 2\n"), 10.0)[1]
    assert (event.kind, event.severity) == ("pause_storm", "critical")


def test_a_stalled_bus_is_a_percentage_and_no_counter(tmp_path: Path) -> None:
    found, _ = look(
        EthernetSource(), nic(tmp_path, "  outbound_pci_stalled_wr: 12\n  outbound_pci_stalled_rd: 900\n")
    )
    assert found["nic/rnic0", "outbound_pci_stalled_wr_percent"] == (12, "ok")
    assert found["nic/rnic0", "outbound_pci_stalled_rd_percent"] == (None, "out_of_range")
    assert ("nic/rnic0", "outbound_pci_stalled_wr_total") not in found


def test_the_speed_of_a_device_without_link_is_not_asked_for(tmp_path: Path) -> None:
    found, _ = look(EthernetSource(), nic(tmp_path, operstate="down", speed="-1"))
    assert found["nic/rnic0", "speed_gbps"] == (None, "link_down")
    assert look(EthernetSource(), nic(tmp_path, speed="400000"))[0]["nic/rnic0", "speed_gbps"] == (
        400.0,
        "ok",
    )


@pytest.mark.parametrize(
    "name", ["rx_prio5_pause", "rx_err_lane_0_phy", "link_down_events_phy", "rx_bits_phy"]
)
def test_statistics_of_the_device_are_kept(name: str) -> None:
    assert is_kept(name)


@pytest.mark.parametrize(
    "name", ["rx12_packets", "tx_queue_4_bytes", "ch3_poll", "tx0_xdp_xmit", "a b", "x" * 200]
)
def test_statistics_of_queues_are_left_out(name: str) -> None:
    assert not is_kept(name)


@given(st.text())
def test_any_text_parses(text: str) -> None:
    parse(text)


def test_the_kernel_refuses_a_device_that_is_not_there() -> None:
    with pytest.raises(OSError):
        KernelStats().read("no-such-netdev")


def test_the_kernel_answers_for_a_device_of_this_machine() -> None:
    for _, netdev in socket.if_nameindex():
        try:
            found = KernelStats().read(netdev)
        except OSError:
            continue
        assert all(count.value is not None and count.value >= 0 for count in found.values())
