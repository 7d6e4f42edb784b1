"""An InfiniBand node: full counters, ports without PMA, down, not set up, renamed, set back, wrapped."""

from __future__ import annotations

import json
from collections.abc import Mapping

from tests.collectors.trap_nodes import Node, base, event

HOST = "gtn-0207"
FULL = {
    "link_downed": 255,
    "link_error_recovery": 255,
    "port_rcv_constraint_errors": 255,
    "local_link_integrity_errors": 15,
    "excessive_buffer_overrun_errors": 15,
    "symbol_error": 65_535,
    "port_xmit_discards": 65_535,
    "VL15_dropped": 65_535,
    "port_rcv_remote_physical_errors": 65_535,
    "port_xmit_wait": 4_294_967_295,
    "port_xmit_data": 18_446_744_073_709_551_615,
    "port_rcv_data": 4_294_967_295,
    "port_rcv_packets": 4_294_967_295,
}


def port(
    device: str,
    guid: int,
    bus: int,
    counters: Mapping[str, object] | None = None,
    hw: Mapping[str, object] | None = None,
    number: int = 1,
    **files: str,
) -> dict[str, str | bytes]:
    """Files of one port. ``files``: contents of the port's own files in place of the usual ones."""
    folder = f"sys/class/infiniband/{device}"
    own = {
        "state": "4: ACTIVE\n",
        "phys_state": "5: LinkUp\n",
        "rate": "400 Gb/sec (4X NDR)\n",
        "link_layer": "InfiniBand\n",
        "lid": "0x52\n",
    } | files
    found: dict[str, str | bytes] = {
        f"{folder}/node_guid": f"e8eb:d303:0077:{guid:04x}\n",
        f"{folder}/device": f"../../../bus/pci/devices/0000:{bus:02x}:00.0",
        **{f"{folder}/ports/{number}/{name}": text for name, text in own.items()},
    }
    for kind, values in (("counters", counters or {}), ("hw_counters", hw or {})):
        found |= {f"{folder}/ports/{number}/{kind}/{name}": f"{value}\n" for name, value in values.items()}
    return found


def node() -> Node:
    errors = "sys/class/infiniband/mlx5_9/ports/1/counters"
    before = base(HOST) | {
        **port("mlx5_0", 0x1A00, 0x10, FULL),
        **port("mlx5_1", 0x1A10, 0x11, {"link_downed": 3, "port_xmit_data": 500},
               state="1: DOWN\n", phys_state="2: Polling\n", rate="10 Gb/sec (4X SDR)\n"),
        **port("mlx5_2", 0x1A20, 0x12, dict.fromkeys(FULL, "N/A (no PMA)")),
        **port("mlx5_3", 0x1A30, 0x13, {"symbol_error": 255}, state="2: INIT\n", lid="0xffff\n"),
        **port("mlx5_4", 0x1A40, 0x14, {"port_xmit_data": 1_000, "link_downed": 2},
               {"out_of_sequence": 10}),
        **port("mlx5_6", 0x1A60, 0x16, {"link_downed": 250, "port_xmit_wait": 4_294_967_290,
                                        "symbol_error": 65_535, "port_xmit_data": 9_000_000_000,
                                        "port_rcv_data": 7_000},
               {"lifespan": 10, "rx_write_requests": 4_294_967_200, "out_of_sequence": 40,
                "np_cnp_sent": 5, "rp_cnp_handled": 2**40}),
        **port("mlx5_7", 0x1A70, 0x17, {"symbol_error": 0},
               {"rx_write_requests": 4_000_000_000, "duplicate_request": 700, "out_of_buffer": 4}),
        **port("mlx5_8", 0x1A80, 0x18, {"port_xmit_data": 2**63 + 5},
               {"rx_write_requests": 3_000_000, "np_cnp_sent": 3_000_000_000}),
        **port("mlx5_9", 0x1A90, 0x19, {"symbol_error": 1, "port_rcv_errors": 2, "port_xmit_discards": 3,
                                        "link_downed": 4, "link_error_recovery": 5, "port_xmit_data": 6}),
        **port("mlx5_10", 0x1AA0, 0x1A, {"symbol_error": 0}, rate="10 Gb/sec (4X SDR)\n"),
        **port("mlx5_11", 0x1AB0, 0x1B, {"symbol_error": 4}, phys_state="6: LinkErrorRecovery\n"),
        **port("mlx5_12", 0x1AC0, 0x1C, {"symbol_error": ""}),
        "read_errors.json": json.dumps({
            f"{errors}/symbol_error": "EINVAL", f"{errors}/port_rcv_errors": "EOPNOTSUPP",
            f"{errors}/link_downed": "EPERM", f"{errors}/port_xmit_data": "EIO",
        }),
    }  # fmt: skip
    after = base(HOST) | {
        **port("mlx5_0", 0x1A00, 0x10, FULL),
        **port("mlx5_1", 0x1A10, 0x11, {"link_downed": 4, "port_xmit_data": 500},
               state="1: DOWN\n", phys_state="2: Polling\n", rate="10 Gb/sec (4X SDR)\n"),
        **port("mlx5_2", 0x1A20, 0x12, dict.fromkeys(FULL, "N/A (no PMA)")),
        **port("mlx5_3", 0x1A30, 0x13, {"symbol_error": 255}, state="2: INIT\n", lid="0xffff\n"),
        # The card of mlx5_4 came back under another name; a new card took the old one.
        **port("mlx5_5", 0x1A40, 0x14, {"port_xmit_data": 16_000, "link_downed": 3},
               {"out_of_sequence": 70}),
        **port("mlx5_4", 0x1A4F, 0x2F, {"port_xmit_data": 9_000_000, "link_downed": 200}),
        **port("mlx5_6", 0x1A60, 0x16, {"link_downed": 255, "port_xmit_wait": 14_681_376_621,
                                        "symbol_error": 3, "port_xmit_data": 120, "port_rcv_data": 8_500},
               {"lifespan": 10, "rx_write_requests": 150, "out_of_sequence": 45,
                "np_cnp_sent": 5, "rp_cnp_handled": 2**40 + 60}),
        **port("mlx5_7", 0x1A70, 0x17, {"symbol_error": 0},
               {"rx_write_requests": 100, "duplicate_request": 0, "out_of_buffer": 4}),
        **port("mlx5_8", 0x1A80, 0x18, {"port_xmit_data": 2**63 + 6_000_005},
               {"rx_write_requests": 1_000_000, "np_cnp_sent": 1_000}),
        **port("mlx5_9", 0x1A90, 0x19, {"symbol_error": 1, "port_rcv_errors": 2, "port_xmit_discards": 3,
                                        "link_downed": 4, "link_error_recovery": 5, "port_xmit_data": 6}),
        **port("mlx5_10", 0x1AA0, 0x1A, {"symbol_error": 0}, rate="10 Gb/sec (4X SDR)\n"),
        **port("mlx5_11", 0x1AB0, 0x1B, {"symbol_error": 4}, phys_state="6: LinkErrorRecovery\n"),
        **port("mlx5_12", 0x1AC0, 0x1C, {"symbol_error": ""}),
        **port("mlx5_13", 0x1AD0, 0x1D, {"symbol_error": 1}, {"out_of_sequence": 3}),
        "read_errors.json": json.dumps({
            f"{errors}/port_rcv_errors": "EOPNOTSUPP",
            f"{errors}/link_downed": "EPERM", f"{errors}/port_xmit_data": "EIO",
        }),
        "etc/clusterwatch/agent.toml": "\n".join(
            f'[[rdma]]\ndevice = "mlx5_{number}"\nport = 1\nrate_gbps = 400' for number in (0, 5, 10, 14)
        ),
        "commands/ibnetdiscover.txt": FABRIC,
    }  # fmt: skip
    full = {f"port/mlx5_0/1 {name.lower()}_total": (None, "saturated") for name in FULL}
    full |= {f"port/mlx5_0/1 {name.lower()}_delta_count": (None, "saturated") for name in FULL}
    without = {f"port/mlx5_2/1 {name.lower()}_total": (None, "not_available") for name in FULL}
    return Node(before, after, samples=full | without | SAMPLES, events=EVENTS, silent=SILENT, unless=UNLESS)


FABRIC = """\
vendid=0x2c9
switchguid=0xe8ebd30300e10000(e8ebd30300e10000)
Switch\t65 "S-e8ebd30300e10000"\t\t# "MF0;ib-leaf-02:MQM9700/U1" enhanced port 0 lid 4 lmc 0
[9]\t"H-e8ebd30300771a40"[1](e8ebd30300771a40) \t\t# "gtn-0207 mlx5_4" lid 82 2xNDR
[10]\t"H-e8ebd30300771a00"[1](e8ebd30300771a00) \t\t# "gtn-0207 mlx5_0" lid 83 4xNDR
[11]\t"H-e8ebd30300779900"[1](e8ebd30300779900) \t\t# "gtn-0208 mlx5_0" lid 84 4xNDR
[64]\t"S-e8ebd30300e20000"[3]\t\t# "MF0;ib-spine-01:MQM9700/U1" lid 2 4xNDR

Ca\t1 "H-e8ebd30300771a00"\t\t# "gtn-0207 mlx5_0"
[1](e8ebd30300771a00) \t"S-e8ebd30300e10000"[10]\t\t# lid 83 lmc 0 "MF0;ib-leaf-02:MQM9700/U1" lid 4 4xNDR
"""

SAMPLES = {
    "port/mlx5_0/1 rate_gbps": (400, "ok"),
    "port/mlx5_0/1 tx_bytes_per_s": (None, "saturated"),
    "port/mlx5_0/1 rx_bytes_per_s": (None, "saturated"),
    "port/mlx5_0/1 tx_utilization_ratio": (None, "saturated"),
    "port/mlx5_1/1 rate_gbps": (None, "link_down"),
    "port/mlx5_1/1 link_downed_total": (4, "ok"),
    "port/mlx5_1/1 link_downed_delta_count": (1, "ok"),
    "port/mlx5_2/1 rate_gbps": (400, "ok"),
    "port/mlx5_2/1 tx_bytes_per_s": (None, "not_available"),
    "port/mlx5_3/1 rate_gbps": (None, "link_down"),
    # 16 bits wide: 255 says nothing of it.
    "port/mlx5_3/1 symbol_error_total": (255, "ok"),
    "port/mlx5_3/1 symbol_error_delta_count": (0, "ok"),
    "port/mlx5_5/1 port_xmit_data_delta_count": (15_000, "ok"),
    "port/mlx5_5/1 tx_bytes_per_s": (1_000.0, "ok"),
    "port/mlx5_5/1 link_downed_delta_count": (1, "ok"),
    "port/mlx5_5/1 out_of_sequence_delta_count": (60, "ok"),
    "port/mlx5_5/1 out_of_sequence_per_s": (1.0, "ok"),
    "port/mlx5_4/1 link_downed_total": (200, "ok"),
    "port/mlx5_4/1 link_downed_delta_count": (None, "first_sample"),
    "port/mlx5_6/1 link_downed_total": (None, "saturated"),
    "port/mlx5_6/1 link_downed_delta_count": (None, "saturated"),
    "port/mlx5_6/1 port_xmit_wait_total": (14_681_376_621, "ok"),
    "port/mlx5_6/1 symbol_error_total": (3, "ok"),
    "port/mlx5_6/1 symbol_error_delta_count": (None, "reset"),
    "port/mlx5_6/1 port_xmit_data_delta_count": (None, "reset"),
    "port/mlx5_6/1 tx_bytes_per_s": (None, "reset"),
    "port/mlx5_6/1 rx_bytes_per_s": (100.0, "ok"),
    "port/mlx5_6/1 rx_write_requests_delta_count": (246, "ok"),
    "port/mlx5_6/1 rx_write_requests_per_s": (4.1, "ok"),
    "port/mlx5_6/1 out_of_sequence_delta_count": (5, "ok"),
    "port/mlx5_6/1 rp_cnp_handled_per_s": (1.0, "ok"),
    "port/mlx5_7/1 rx_write_requests_delta_count": (None, "reset"),
    "port/mlx5_7/1 duplicate_request_delta_count": (None, "reset"),
    "port/mlx5_7/1 duplicate_request_total": (0, "ok"),
    "port/mlx5_8/1 port_xmit_data_total": (2**63 + 6_000_005, "ok"),
    "port/mlx5_8/1 port_xmit_data_delta_count": (6_000_000, "ok"),
    "port/mlx5_8/1 tx_bytes_per_s": (400_000.0, "ok"),
    "port/mlx5_8/1 rx_write_requests_delta_count": (None, "reset"),
    "port/mlx5_8/1 np_cnp_sent_delta_count": (None, "reset"),
    # Not listed as broken in the second snapshot, but not opened again either.
    "port/mlx5_9/1 symbol_error_total": (None, "einval"),
    "port/mlx5_9/1 symbol_error_delta_count": (None, "einval"),
    "port/mlx5_9/1 port_rcv_errors_total": (None, "eopnotsupp"),
    "port/mlx5_9/1 link_downed_total": (None, "eperm"),
    "port/mlx5_9/1 port_xmit_data_total": (None, "eio"),
    "port/mlx5_9/1 tx_bytes_per_s": (None, "eio"),
    "port/mlx5_9/1 port_xmit_discards_delta_count": (0, "ok"),
    "port/mlx5_9/1 link_error_recovery_total": (5, "ok"),
    "port/mlx5_11/1 rate_gbps": (None, "link_down"),
    "port/mlx5_12/1 symbol_error_total": (None, "empty"),
    "port/mlx5_13/1 symbol_error_total": (1, "ok"),
    "port/mlx5_13/1 symbol_error_delta_count": (None, "first_sample"),
}  # fmt: skip
EVENTS = (
    event("port/mlx5_6/1", "counter_reset"),
    event("port/mlx5_7/1", "counter_reset"),
    event("port/mlx5_8/1", "counter_reset"),
    event("port/mlx5_1/1", "link_down", rdma_device="mlx5_1"),
    event("port/mlx5_5/1", "ib_peer", switch="ib-leaf-02", switch_port=9, width_speed="2xNDR",
          peer="gtn-0207 mlx5_4", severity="warning"),
    event("port/mlx5_0/1", "ib_peer", switch="ib-leaf-02", switch_port=10, width_speed="4xNDR",
          peer="gtn-0207 mlx5_0", severity="info"),
    event("port/mlx5_14/1", "port_missing"),
)  # fmt: skip
SILENT = (
    "port/mlx5_6/1 lifespan_total",
    "port/mlx5_10/1 rate_gbps",
    "port/mlx5_10/1 tx_utilization_ratio",
    "port/mlx5_1/1 tx_utilization_ratio",
)
UNLESS = (
    lambda one: one["kind"] == "counter_reset" and one["entity"] in ("port/mlx5_0/1", "port/mlx5_5/1"),
    lambda one: one["kind"] == "link_down" and one["entity"] == "port/mlx5_0/1",
    lambda one: "gtn-0208" in json.dumps(one),
)
