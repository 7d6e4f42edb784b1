"""A recorded node at full size for ``clusterwatch bench agent``: GPUs, RDMA ports, network devices, ranks."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Final

GPUS: Final = 8
COUNTERS: Final = (
    "VL15_dropped", "excessive_buffer_overrun_errors", "link_downed", "link_error_recovery",
    "local_link_integrity_errors", "multicast_rcv_packets", "multicast_xmit_packets",
    "port_rcv_constraint_errors",
    "port_rcv_data", "port_rcv_errors", "port_rcv_packets", "port_rcv_remote_physical_errors",
    "port_rcv_switch_relay_errors", "port_xmit_constraint_errors", "port_xmit_data", "port_xmit_discards",
    "port_xmit_packets", "port_xmit_wait", "symbol_error", "unicast_rcv_packets", "unicast_xmit_packets",
)  # fmt: skip
HARDWARE: Final = (
    "duplicate_request", "implied_nak_seq_err", "local_ack_timeout_err", "np_cnp_sent",
    "np_ecn_marked_roce_packets",
    "out_of_buffer", "out_of_sequence", "packet_seq_err", "req_cqe_error", "req_remote_access_errors",
    "req_transport_retries_exceeded", "resp_cqe_error", "resp_local_length_error", "rnr_nak_retry_err",
    "roce_adp_retrans", "roce_adp_retrans_to", "roce_slow_restart", "rp_cnp_handled", "rp_cnp_ignored",
    "rx_icrc_encapsulated", "rx_read_requests", "rx_write_requests",
)  # fmt: skip
STATISTICS: Final = (
    "rx_packets", "tx_packets", "rx_bytes", "tx_bytes", "rx_out_of_buffer", "rx_crc_errors_phy",
    "rx_discards_phy",
    "tx_discards_phy", "rx_pcs_symbol_err_phy", "rx_corrected_bits_phy", "rx_bits_phy", "rx_bytes_phy",
    "tx_bytes_phy", "link_down_events_phy", "rx_prio3_pause", "rx_prio3_pause_duration", "tx_prio3_pause",
    "tx_prio3_pause_duration", "rx_prio3_buf_discard", "tx_pause_storm_error_events",
    "outbound_pci_stalled_wr",
    "module_unplug", "rx_err_lane_0_phy", "rx_err_lane_1_phy", "rx_err_lane_2_phy", "rx_err_lane_3_phy",
)  # fmt: skip
"""as mlx5 names them, one lossless priority"""
_TRAFFIC: Final = ("packets", "bytes", "bits", "data", "requests", "pause_duration", "cnp", "ecn")
_CONNECTIONS: Final = 8
_OPERATIONS: Final = (
    "NULL", "READ", "WRITE", "COMMIT", "OPEN", "CLOSE", "GETATTR", "SETATTR", "LOOKUP", "CREATE", "REMOVE",
    "RENAME", "READDIR", "ACCESS", "STATFS", "LAYOUTGET", "LAYOUTRETURN", "LAYOUTCOMMIT", "LAYOUTERROR",
)  # fmt: skip
FIELDS: Final = (
    "SM_CLOCK", "GPU_TEMP", "MEMORY_TEMP", "POWER_USAGE", "GPU_UTIL", "CLOCK_THROTTLE_REASONS", "XID_ERRORS",
    "ECC_DBE_VOL_TOTAL", "UNCORRECTABLE_REMAPPED_ROWS", "ROW_REMAP_PENDING", "ROW_REMAP_FAILURE",
    "PCIE_LINK_WIDTH",
    "NVLINK_BANDWIDTH_TOTAL",
)  # fmt: skip


def write(root: Path, step: int) -> None:
    """The node at a moment; counters have risen by ``step``."""
    files: dict[str, str] = {
        "proc/sys/kernel/hostname": "bench\n",
        "proc/sys/kernel/random/boot_id": "7c0f8a51-0000-4000-8000-000000000001\n",
        "proc/stat": f"cpu  {100 + step} 0 50 {900 + step} 10 0 0 0 0 0\nbtime 1700000000\n",
        "proc/meminfo": "MemTotal: 1000000 kB\nMemAvailable: 500000 kB\nDirty: 4 kB\n",
        "proc/diskstats": "".join(
            f"259 {n} nvme{n}n1 {step} 0 {step} {step} {step} 0 {step} {step} 0 {step} 0 0 0 0 0 0 0\n"
            for n in range(8)
        ),
        "dev/kmsg": "".join(f"6,{n},{n}000000,-;usb 1-1: new device\n" for n in range(50)),
    }
    for number in range(GPUS):
        files |= _nic(number, step)
    files |= _mounts(step)
    uuids = ", ".join(f'"{_uuid(number)}"' for number in range(GPUS))
    rdma = "".join(
        f'[[rdma]]\ndevice = "mlx5_{n}"\nport = 1\nrate_gbps = 400\npcie_width = 16\npcie_gen = 5\n'
        for n in range(GPUS)
    )
    files["etc/clusterwatch/agent.toml"] = f'[gpu]\nuuids = [{uuids}]\n{rdma}[[mount]]\npath = "/mnt/0"\n'
    files["commands/dcgm_metrics.prom"] = "".join(
        f"DCGM_FI_DEV_{name}{{{_labels(n)}}} {50 + n + step % 7}\n" for name in FIELDS for n in range(GPUS)
    )
    order = {str(n): _uuid(n) for n in range(GPUS)}
    processes = {"by_uuid": {_uuid(n): [4_000 + n] for n in range(GPUS)}, "nvml_index": order}
    files["commands/gpu_processes.json"] = json.dumps(processes)
    for n in range(GPUS):
        files[f"proc/{4_000 + n}/environ"] = f"RANK={n}\0LOCAL_RANK={n}\0WORLD_SIZE=8\0SLURM_JOB_ID=7\0"
        files[f"proc/{4_000 + n}/cgroup"] = f"0::/system.slice/slurmstepd.scope/job_7/step_0/user/task_{n}\n"
    for name, text in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")


def _mounts(step: int) -> dict[str, str]:
    """Two NFS mounts of eight connections each."""
    listed, stats = [], []
    for number in range(2):
        listed.append(
            f"{90 + number} 1 0:{60 + number} / /mnt/{number} rw,relatime - nfs4 server:/export rw\n"
        )
        xprt = "".join(
            f"\txprt:\ttcp 0 0 1 0 0 {step} {step} 0 {step} 0 2 0 0\n" for _ in range(_CONNECTIONS)
        )
        ops = "".join(
            f"\t{name:>12}: {step} {step} 0 {step * 200} {step * 100} 5 {step} {step} 0\n"
            for name in _OPERATIONS
        )
        stats.append(
            f"device server:/export mounted on /mnt/{number} with fstype nfs4 statvers=1.1\n"
            "\topts:\trw,vers=4.2,rsize=1048576,nconnect=8\n"
            f"\tage:\t{step}\n"
            f"\tbytes:\t{step} {step} 0 0 {step} {step} 0 0\n"
            f"\tRPC iostats version: 1.1  p/v: 100003/4 (nfs)\n{xprt}\tper-op statistics\n{ops}\n"
        )
    return {"proc/self/mountinfo": "".join(listed), "proc/self/mountstats": "".join(stats)}


def _labels(number: int) -> str:
    return f'gpu="{number}",UUID="{_uuid(number)}",pci_bus_id="00000000:{number:02x}:00.0"'


def _uuid(number: int) -> str:
    return f"GPU-00000000-0000-0000-0000-{number:012x}"


def _nic(number: int, step: int) -> dict[str, str]:
    bdf, folder = f"0000:{number + 16:02x}:00.0", f"sys/class/infiniband/mlx5_{number}"
    net, pci = f"sys/class/net/rnic{number}", f"sys/bus/pci/devices/0000:{number + 16:02x}:00.0"
    statistics = "".join(f"  {name}: {_count(name, step)}\n" for name in STATISTICS)
    files = {
        f"{folder}/node_guid": f"e8eb:d303:0077:1a4{number}\n",
        f"{folder}/device": f"../../../{bdf}",
        f"{folder}/ports/1/state": "4: ACTIVE\n",
        f"{folder}/ports/1/phys_state": "5: LinkUp\n",
        f"{folder}/ports/1/rate": "400 Gb/sec (4X NDR)\n",
        f"{net}/device": f"../../../{bdf}",
        f"{net}/operstate": "up\n",
        f"{net}/speed": "400000\n",
        f"{net}/carrier_changes": "2\n",
        f"{pci}/current_link_width": "16\n",
        f"{pci}/max_link_width": "16\n",
        f"{pci}/current_link_speed": "32.0 GT/s PCIe\n",
        f"{pci}/max_link_speed": "32.0 GT/s PCIe\n",
        f"commands/ethtool_-S_rnic{number}.txt": f"NIC statistics:\n{statistics}",
    }
    files |= {f"{folder}/ports/1/counters/{name}": f"{_count(name, step)}\n" for name in COUNTERS}
    return files | {f"{folder}/ports/1/hw_counters/{name}": f"{_count(name, step)}\n" for name in HARDWARE}


def _count(name: str, step: int) -> int:
    """Traffic goes on; on a healthy node what counts errors stands."""
    return step if any(word in name for word in _TRAFFIC) else 3
