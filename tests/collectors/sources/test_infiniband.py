"""RDMA ports: state, rate, counters of every width, and files that fail."""

from __future__ import annotations

from pathlib import Path

import pytest

from collectors.sources.infiniband import InfinibandSource, rate_of
from collectors.sources.tree import Tree
from tests.collectors.sources.trees import given_lines, look, write

PORT = "sys/class/infiniband/mlx5_0/ports/1"
ENTITY = "port/mlx5_0/1"


def port(root: Path, **files: str) -> Path:
    """A RoCE port that is up, with more or other files; ``__`` in a name is a slash."""
    plain = {"state": "4: ACTIVE", "phys_state": "5: LinkUp", "rate": "400 Gb/sec (4X NDR)"}
    named = {name.replace("__", "/"): text for name, text in (plain | files).items()}
    write(root, {f"{PORT}/{name}": text + "\n" for name, text in named.items()})
    return write(root, {"sys/class/infiniband/mlx5_0/node_guid": "e8eb:d303:0077:1a40\n"})


def test_the_given_node() -> None:
    assert given_lines(InfinibandSource(), "port/") == []


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        ("400 Gb/sec (4X NDR)", (400.0, "ok")),
        ("2.5 Gb/sec (1X SDR)", (None, "unknown_speed")),
        ("10 Gb/sec (4X)", (None, "unknown_speed")),
        ("56 Gb/sec (4X FDR)", (56.0, "ok")),
        ("fast", (None, "unreadable")),
    ],
)
def test_rate(text: str, wanted: tuple[float | None, str]) -> None:
    assert rate_of(text) == wanted


def test_a_polling_port_shows_a_default_rate_that_is_not_believed(tmp_path: Path) -> None:
    """A public port: Down, Polling, rate 10."""
    port(tmp_path, state="1: DOWN", phys_state="2: Polling", rate="10 Gb/sec (4X SDR)")
    found, events = look(InfinibandSource(), tmp_path)
    assert found[ENTITY, "rate_gbps"] == (None, "link_down")
    assert found[ENTITY, "link_up_count"] == (0, "ok")
    assert events == []


@pytest.mark.parametrize(
    ("guid", "wanted"),
    [
        ("e8eb:d303:0077:1A40", {"guid": "e8ebd30300771a40"}),
        ("0000:0000:0000:0000", None),
        ("e8eb:d303", None),
        ("\x00" * 16, None),
    ],
)
def test_a_port_tells_the_guid_that_its_switch_knows_it_by(
    tmp_path: Path, guid: str, wanted: dict[str, str] | None
) -> None:
    port(tmp_path)
    write(tmp_path, {"sys/class/infiniband/mlx5_0/node_guid": f"{guid}\n"})
    told = InfinibandSource().read(Tree(tmp_path), 0.0).samples
    labels = [one.labels for one in told if one.metric == "address_count"]
    assert labels == ([wanted] if wanted else [])


def test_an_expected_port_that_is_down_is_a_fault_as_long_as_it_stands(tmp_path: Path) -> None:
    port(tmp_path, state="1: DOWN", phys_state="2: Polling")
    write(tmp_path, {"etc/clusterwatch/agent.toml": '[[rdma]]\ndevice = "mlx5_0"\nport = 1\n'})
    source = InfinibandSource()
    for _ in range(2):
        (event,) = look(source, tmp_path)[1]
        assert (event.kind, event.entity, event.standing) == ("link_down", ENTITY, True)
        assert event.attributes == {"rdma_device": "mlx5_0", "state": "DOWN", "phys_state": "Polling"}


def test_a_port_that_was_up_and_is_not_is_a_fault_without_an_inventory(tmp_path: Path) -> None:
    source = InfinibandSource()
    assert look(source, port(tmp_path))[1] == []
    (event,) = look(source, port(tmp_path, state="2: INIT"), 10.0)[1]
    assert event.kind == "link_down" and "no subnet manager" in event.message


def test_a_speed_the_kernel_does_not_know_is_that_of_the_network_device(tmp_path: Path) -> None:
    port(tmp_path, rate="10 Gb/sec (4X SDR)")
    assert look(InfinibandSource(), tmp_path)[0][ENTITY, "rate_gbps"] == (None, "unknown_speed")
    for folder in ("sys/class/infiniband/mlx5_0", "sys/class/net/eth4"):
        write(tmp_path, {f"{folder}/device": "../../../0000:12:00.0"})
    write(tmp_path, {"sys/class/net/eth4/speed": "400000\n"})
    assert look(InfinibandSource(), tmp_path)[0][ENTITY, "rate_gbps"] == (400.0, "ok")


def test_five_counters_at_all_ones_are_unknown(tmp_path: Path) -> None:
    """A public H100 port whose counters had all stopped."""
    ones = {"link_downed": 255, "port_xmit_discards": 65_535, "excessive_buffer_overrun_errors": 15}
    ones |= {"port_xmit_wait": 2**32 - 1, "symbol_error": 65_535, "port_rcv_data": 2**32 - 1}
    port(tmp_path, **{f"counters__{name}": str(value) for name, value in ones.items()})
    source = InfinibandSource()
    look(source, tmp_path)
    found, _ = look(source, tmp_path, 60.0)
    for name in ones:
        assert found[ENTITY, f"{name}_total"] == (None, "saturated")
        assert found[ENTITY, f"{name}_delta_count"] == (None, "saturated")
    assert found[ENTITY, "rx_bytes_per_s"] == (None, "saturated")


def test_a_value_beyond_its_width_shows_a_wider_counter(tmp_path: Path) -> None:
    """A public PortXmitWait of 14681376621 beside counters of 8 and 16 bits."""
    source = InfinibandSource()
    look(source, port(tmp_path, counters__port_xmit_wait="14681376621"))
    found, _ = look(source, port(tmp_path, counters__port_xmit_wait="14681376721"), 10.0)
    assert found[ENTITY, "port_xmit_wait_delta_count"] == (100, "ok")


def test_no_pma_keeps_the_port(tmp_path: Path) -> None:
    port(tmp_path, counters__symbol_error="N/A (no PMA)", counters__link_downed="N/A (no PMA)")
    found, _ = look(InfinibandSource(), tmp_path)
    assert found[ENTITY, "symbol_error_total"] == (None, "not_available")
    assert found[ENTITY, "rate_gbps"] == (400.0, "ok")


def test_a_file_that_gave_einval_is_not_opened_again(tmp_path: Path) -> None:
    port(tmp_path, counters__VL15_dropped="0", counters__symbol_error="4")
    write(tmp_path, {"read_errors.json": f'{{"{PORT}/counters/VL15_dropped": "EINVAL"}}'})
    source = InfinibandSource()
    found, _ = look(source, tmp_path)
    assert found[ENTITY, "vl15_dropped_total"] == (None, "einval")
    assert found[ENTITY, "symbol_error_total"] == (4, "ok")
    (tmp_path / "read_errors.json").unlink()
    assert look(source, tmp_path)[0][ENTITY, "vl15_dropped_total"] == (None, "einval")


def test_queue_counters_wrap_and_congestion_counters_do_not(tmp_path: Path) -> None:
    source = InfinibandSource()
    look(
        source, port(tmp_path, hw_counters__rx_write_requests=str(2**32 - 100), hw_counters__np_cnp_sent="7")
    )
    found, events = look(source, port(tmp_path, hw_counters__rx_write_requests="100"), 10.0)
    assert found[ENTITY, "rx_write_requests_delta_count"] == (200, "ok")
    assert found[ENTITY, "rx_write_requests_per_s"] == (20.0, "ok")
    found, events = look(source, port(tmp_path, hw_counters__np_cnp_sent="2"), 20.0)
    assert found[ENTITY, "np_cnp_sent_delta_count"] == (None, "reset")
    assert [(event.kind, event.attributes["counters"]) for event in events] == [
        ("counter_reset", ["np_cnp_sent"])
    ]
    assert not any("lifespan" in metric for _, metric in found)


def test_hw_counters_below_the_device_are_those_of_its_first_port(tmp_path: Path) -> None:
    port(tmp_path)
    write(tmp_path, {"sys/class/infiniband/mlx5_0/hw_counters/out_of_sequence": "3\n"})
    assert look(InfinibandSource(), tmp_path)[0][ENTITY, "out_of_sequence_total"] == (3, "ok")


def test_a_device_that_got_another_name_keeps_its_counters(tmp_path: Path) -> None:
    source = InfinibandSource()
    look(source, port(tmp_path, counters__symbol_error="10"))
    (tmp_path / "sys/class/infiniband/mlx5_0").rename(tmp_path / "sys/class/infiniband/mlx5_9")
    write(tmp_path, {"sys/class/infiniband/mlx5_9/ports/1/counters/symbol_error": "11\n"})
    found, _ = look(source, tmp_path, 10.0)
    assert found["port/mlx5_9/1", "symbol_error_delta_count"] == (1, "ok")


def test_more_than_the_line_can_carry_is_not_shown(tmp_path: Path) -> None:
    source = InfinibandSource()
    look(source, port(tmp_path, counters__port_xmit_data="0"))
    found, _ = look(source, port(tmp_path, counters__port_xmit_data=str(10**12)), 10.0)
    assert found[ENTITY, "tx_utilization_ratio"] == (None, "out_of_range")


def test_names_that_are_no_names_and_no_ports_at_all(tmp_path: Path) -> None:
    write(tmp_path, {"sys/class/infiniband/bad name/ports/1/state": "4: ACTIVE"})
    assert look(InfinibandSource(), tmp_path) == ({}, [])
