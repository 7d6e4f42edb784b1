"""A RoCE node: a bond, flaps that only the carrier tells, pauses, bit errors, drivers set back, narrow slots."""

# ruff: noqa: E501  lines are as tools print them
from __future__ import annotations

from tests.collectors.trap_nodes import Node, base, event
from tests.collectors.trap_nodes.infiniband_node import port

HOST = "gtn-0311"


def nic(
    netdev: str, bus: int, carrier: int, stats: str | None = None, function: int = 0, **files: str
) -> dict[str, str | bytes]:
    """Files of one network device, and what ethtool says of it."""
    folder = f"sys/class/net/{netdev}"
    found: dict[str, str | bytes] = {
        f"{folder}/device": f"../../../bus/pci/devices/0000:{bus:02x}:00.{function}",
        f"{folder}/operstate": "up\n",
        f"{folder}/carrier_changes": f"{carrier}\n",
        **{f"{folder}/{name}": text for name, text in files.items()},
    }
    if stats is not None:
        found[f"commands/ethtool_-S_{netdev}.txt"] = stats
    return found


def stats(**values: object) -> str:
    return "NIC statistics:\n" + "".join(f"     {name}: {value}\n" for name, value in values.items())


def pci(
    bus: int, width: str, speed: str, max_width: str = "16", max_speed: str = "32.0 GT/s PCIe"
) -> dict[str, str | bytes]:
    folder = f"sys/bus/pci/devices/0000:{bus:02x}:00.0"
    values = (width, speed, max_width, max_speed)
    names = ("current_link_width", "current_link_speed", "max_link_width", "max_link_speed")
    return {f"{folder}/{name}": f"{value}\n" for name, value in zip(names, values, strict=True)}


def roce(
    device: str, guid: int, bus: int, counters: dict[str, object], hw: dict[str, object]
) -> dict[str, str | bytes]:
    return port(device, guid, bus, counters, hw, link_layer="Ethernet\n", lid="0x0\n")


def node() -> Node:
    before = base(HOST) | {
        **roce("mlx5_bond_0", 0x2100, 0x21, {"port_xmit_data": 1_000, "port_rcv_data": 5},
               {"np_cnp_sent": 100, "out_of_sequence": 7, "lifespan": 10}),
        **nic("ens1f0", 0x21, 2), **nic("ens1f1", 0x21, 2, function=1),
        **roce("mlx5_3", 0x2130, 0x31, {"link_downed": 255}, {}), **nic("rnic3", 0x31, 8),
        **nic("rnic4", 0x32, 2, stats(
            rx_prio3_pause=1_000, rx_prio3_pause_duration=50_000_000, rx_prio3_pause_transition=10,
            tx_prio3_pause=5, tx_prio3_pause_duration=0, tx_pause_storm_error_events=0,
            rx_bits_phy=10**15, rx_corrected_bits_phy=100, rx_pcs_symbol_err_phy=0,
            outbound_pci_stalled_wr=23, rx_err_lane_0_phy=4, rx_crc_errors_phy=1)),
        **nic("rnic5", 0x33, 9, stats(
            rx_prio0_pause_duration=0, rx_bits_phy=10**15, rx_corrected_bits_phy=500,
            rx_prio5_pause_duration=80_000_000, link_down_events_phy=4)),
        **nic("rnic6", 0x34, 2, "no stats available\n"),
        **nic("rnic7", 0x35, 2, stats(rx_bits_phy=700, rx_corrected_bits_phy=1, rx_old_events=4)),
        **nic("rnic8", 0x36, 2), **nic("rnic9", 0x37, 4),
        **nic("rnic10", 0x38, 2, speed="200000\n"),
        **roce("mlx5_10", 0x2138, 0x38, {}, {}) ,
        "sys/class/infiniband/mlx5_10/ports/1/rate": "10 Gb/sec (4X SDR)\n",
        **port("mlx5_11", 0x2139, 0x39, {"symbol_error": 0}, link_layer="Ethernet\n"),
        "sys/class/infiniband/mlx5_11/hw_counters/out_of_buffer": "4\n",
        "sys/class/infiniband/mlx5_11/hw_counters/lifespan": "10\n",
        "sys/class/net/lo/operstate": "unknown\n", "sys/class/net/lo/carrier_changes": "0\n",
        "sys/class/net/bond0/operstate": "up\n", "sys/class/net/bond0/carrier_changes": "4\n",
        "sys/class/net/bond0/bonding/slaves": "ens1f0 ens1f1\n",
        **pci(0x31, "16", "32.0 GT/s PCIe"),
        "dev/kmsg": KMSG_BEFORE,
    }  # fmt: skip
    after = base(HOST) | {
        **roce("mlx5_bond_0", 0x2100, 0x21, {"port_xmit_data": 31_000, "port_rcv_data": 5},
               {"np_cnp_sent": 400, "out_of_sequence": 67, "lifespan": 10}),
        **nic("ens1f0", 0x21, 2), **nic("ens1f1", 0x21, 3, function=1, operstate="down\n"),
        **roce("mlx5_3", 0x2130, 0x31, {"link_downed": 255}, {}), **nic("rnic3", 0x31, 14),
        **nic("rnic4", 0x32, 2, stats(
            rx_prio3_pause=7_000, rx_prio3_pause_duration=63_020_000, rx_prio3_pause_transition=30,
            tx_prio3_pause=600_005, tx_prio3_pause_duration=6_000_000, tx_pause_storm_error_events=2,
            rx_bits_phy=10**15 + 24 * 10**12, rx_corrected_bits_phy=72_100, rx_pcs_symbol_err_phy=48,
            outbound_pci_stalled_wr=41, rx_err_lane_0_phy=64, rx_crc_errors_phy=1)),
        # The driver was loaded again: all begins anew, and what grew beyond it is no difference.
        **nic("rnic5", 0x33, 1, stats(
            rx_prio0_pause_duration=75_000_000, rx_bits_phy=10**12, rx_corrected_bits_phy=600,
            rx_prio5_pause_duration=1_000, link_down_events_phy=0)),
        **nic("rnic6", 0x34, 2, "no stats available\n"),
        **nic("rnic7", 0x35, 2, stats(rx_bits_phy=700, rx_corrected_bits_phy=1, rx_new_events=9)),
        **nic("rnic8", 0x36, 4), **nic("rnic9", 0x37, 6),
        **nic("rnic10", 0x38, 2, speed="200000\n"),
        **roce("mlx5_10", 0x2138, 0x38, {}, {}),
        "sys/class/infiniband/mlx5_10/ports/1/rate": "10 Gb/sec (4X SDR)\n",
        **port("mlx5_11", 0x2139, 0x39, {"symbol_error": 0}, link_layer="Ethernet\n"),
        "sys/class/infiniband/mlx5_11/hw_counters/out_of_buffer": "64\n",
        "sys/class/infiniband/mlx5_11/hw_counters/lifespan": "10\n",
        "sys/class/net/lo/operstate": "unknown\n", "sys/class/net/lo/carrier_changes": "0\n",
        "sys/class/net/bond0/operstate": "up\n", "sys/class/net/bond0/carrier_changes": "4\n",
        "sys/class/net/bond0/bonding/slaves": "ens1f0 ens1f1\n",
        **pci(0x31, "8", "16.0 GT/s PCIe"),
        **pci(0x21, "16", "32.0 GT/s PCIe"),
        **pci(0x32, "63", "Unknown", "255", "Unknown speed"),
        **pci(0x33, "4", "8.0 GT/s PCIe", "4", "8.0 GT/s PCIe"),
        "dev/kmsg": KMSG_BEFORE + KMSG_NEW,
        "etc/clusterwatch/agent.toml": "\n".join(
            f'[[rdma]]\ndevice = "{device}"\nport = 1\nrate_gbps = 400\npcie_width = 16\npcie_gen = 5'
            for device in ("mlx5_bond_0", "mlx5_3")
        ),
    }  # fmt: skip
    return Node(before, after, SAMPLES, EVENTS, SILENT, UNLESS)


KMSG_BEFORE = b"""\
6,100,5000000,-;mlx5_core 0000:36:00.0 rnic8: Link up
4,101,6000000,-;mlx5_core 0000:36:00.0 rnic8: Link down
6,102,7000000,-;mlx5_core 0000:36:00.0 rnic8: Link up
"""
KMSG_NEW = b"""\
6,103,900000000,-;mlx5_core 0000:36:00.0 rnic8: Link down
 SUBSYSTEM=pci
 DEVICE=+pci:0000:36:00.0
6,104,902000000,-;mlx5_core 0000:36:00.0 rnic8: Link up
12,105,903000000,-;mlx5_core 0000:36:00.0 rnic8: Link down
6,106,904000000,c;systemd[1]: library-sync@eth0.service: Lost carrier
6,107,905000000,-;library kernel: eth0 carrier lost? no
3,110,906000000,-;mlx5_core 0000:21:00.1 ens1f1: Link down
4,111,907000000,-;mlx5_core 0000:31:00.0: Port module event[error]: module 0, Cable error, High Temperature
3,112,908000000,-;mlx5_core 0000:31:00.0: poll_health:803:(pid 0): device's health compromised - reached miss count
4,113,909000000,-;mlx5_core 0000:31:00.0: mlx5_pcie_event:307:(pid 12): Detected insufficient power on the PCIe slot (27W).
3,114,910000000,-;mlx5_core 0000:31:00.0: wait_func:1116:(pid 1): QUERY_VPORT_COUNTER(0x770) timeout. Will cause a leak of a command resource
"""

SAMPLES = {
    "port/mlx5_bond_0/1 tx_bytes_per_s": (2_000.0, "ok"),
    "port/mlx5_bond_0/1 rx_bytes_per_s": (0.0, "ok"),
    "port/mlx5_bond_0/1 np_cnp_sent_delta_count": (300, "ok"),
    "port/mlx5_bond_0/1 out_of_sequence_per_s": (1.0, "ok"),
    "port/mlx5_3/1 link_downed_delta_count": (None, "saturated"),
    "port/mlx5_10/1 rate_gbps": (200, "ok"),
    "port/mlx5_11/1 out_of_buffer_delta_count": (60, "ok"),
    "nic/bond0 carrier_changes_delta_count": (0, "ok"),
    "nic/rnic3 carrier_changes_delta_count": (6, "ok"),
    "nic/rnic3 carrier_changes_total": (14, "ok"),
    "nic/ens1f1 carrier_changes_delta_count": (1, "ok"),
    "nic/rnic4 rx_prio3_pause_ratio": (0.217, "ok"),
    "nic/rnic4 tx_prio3_pause_ratio": (0.1, "ok"),
    "nic/rnic4 rx_prio3_pause_per_s": (100.0, "ok"),
    "nic/rnic4 tx_prio3_pause_per_s": (10_000.0, "ok"),
    "nic/rnic4 rx_prio3_pause_total": (7_000, "ok"),
    "nic/rnic4 raw_ber_ratio": (3e-9, "ok"),
    "nic/rnic4 post_fec_ber_ratio": (2e-12, "ok"),
    "nic/rnic4 outbound_pci_stalled_wr_percent": (41, "ok"),
    "nic/rnic4 tx_pause_storm_error_events_delta_count": (2, "ok"),
    "nic/rnic4 rx_err_lane_0_phy_per_s": (1.0, "ok"),
    "nic/rnic5 rx_prio0_pause_ratio": (None, "out_of_range"),
    "nic/rnic5 rx_prio5_pause_ratio": (None, "reset"),
    "nic/rnic5 raw_ber_ratio": (None, "reset"),
    "nic/rnic5 rx_bits_phy_delta_count": (None, "reset"),
    "nic/rnic5 rx_corrected_bits_phy_delta_count": (100, "ok"),
    "nic/rnic5 carrier_changes_delta_count": (None, "reset"),
    "nic/rnic5 carrier_changes_total": (1, "ok"),
    "nic/rnic6 carrier_changes_total": (2, "ok"),
    "nic/rnic7 rx_new_events_total": (9, "ok"),
    "nic/rnic7 rx_new_events_delta_count": (None, "first_sample"),
    "pci/0000:31:00.0 pcie_width_count": (8, "ok"),
    "pci/0000:31:00.0 pcie_width_max_count": (16, "ok"),
    "pci/0000:31:00.0 pcie_speed_gts": (16.0, "ok"),
    "pci/0000:31:00.0 pcie_speed_max_gts": (32.0, "ok"),
    "pci/0000:32:00.0 pcie_width_count": (None, "out_of_range"),
    "pci/0000:32:00.0 pcie_speed_gts": (None, "not_available"),
    "pci/0000:33:00.0 pcie_width_count": (4, "ok"),
}
EVENTS = (
    event("nic/rnic3", "link_flap", flaps=3, downs=3, rdma_device="mlx5_3"),
    event("nic/rnic9", "link_flap", flaps=1, downs=1),
    event("nic/rnic8", "link_down", t=900),
    event("nic/ens1f1", "link_down", t=906),
    event("nic/rnic5", "counter_reset"),
    event("host", "kmsg_gap", lost=2),
    event("pci/0000:31:00.0", "pcie_degraded", bdf="0000:31:00.0", rdma_device="mlx5_3"),
)
SILENT = (
    "nic/rnic4 outbound_pci_stalled_wr_total",
    "nic/rnic4 outbound_pci_stalled_wr_per_s",
    "nic/rnic7 raw_ber_ratio",
    "nic/rnic7 rx_old_events_delta_count",
    "nic/rnic6 raw_ber_ratio",
    "nic/rnic6 rx_prio3_pause_ratio",
    "nic/lo carrier_changes_total",
    "port/mlx5_11/1 lifespan_total",
)
UNLESS = (
    lambda one: one["kind"] == "link_flap" and one["entity"] == "nic/rnic8",
    lambda one: one["kind"] == "link_flap" and one["entity"].startswith("port/"),
    lambda one: one["kind"].startswith("link_") and one["entity"] in ("nic/eth0", "host"),
    lambda one: one["kind"] == "pcie_degraded" and "31" not in one["entity"],
)
