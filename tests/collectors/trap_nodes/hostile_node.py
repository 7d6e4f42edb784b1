"""A tree that is broken or wants harm: links out of it, loops, empty files, names that are none."""

# ruff: noqa: E501  bytes are as they lie in files
from __future__ import annotations

import json
from pathlib import Path

from tests.collectors.sources.trees import write
from tests.collectors.trap_nodes import base

SECRET = "outside-of-the-tree"


def broken(root: Path) -> Path:
    """Links that loop or lead out, folders in the place of files, files in that of folders, bytes anywhere."""
    outside = write(root.parent / "outside", {"secret": f"{SECRET}\n", "counters/symbol_error": "5\n"})
    port = "sys/class/infiniband/{}/ports/1"
    write(root, base("gtn-0700") | {
        f"{port.format('mlx5_1')}/state": "4: ACTIVE\n",
        f"{port.format('mlx5_1')}/phys_state": b"5: Link\xffUp\n",
        f"{port.format('mlx5_1')}/rate": "",
        f"{port.format('mlx5_1')}/counters/symbol_error": b"\xff\xfe\x00",
        f"{port.format('mlx5_1')}/counters/link_downed": "-4\n",
        f"{port.format('mlx5_1')}/counters/port_rcv_errors": "9" * 5_000,
        f"{port.format('mlx5_1')}/counters/bad\x1b[31mname": "1\n",
        f"{port.format('mlx5_1')}/counters/port_xmit_data/deep": "1\n",
        "sys/class/infiniband/mlx5_\x1b[2J/ports/1/state": "4: ACTIVE\n",
        "sys/class/infiniband/mlx5_9/ports/\u0661/state": "4: ACTIVE\n",
        "sys/class/infiniband/mlx5_9/ports/1": "a file\n",
        "sys/class/net/eth\x1b[0m/device": "../0000:01:00.0",
        "sys/class/net/eth0/device": "",
        "sys/class/net/eth0/carrier_changes": "\n",
        "commands/ethtool_-S_eth0.txt": b"NIC statistics:\n  rx_bits_phy: \xff\n  a: b: 5\n  : 4\n rx\x1b: 1\n",
        "commands/dcgm_metrics.prom": b"\xff\xfeDCGM_FI_DEV_GPU_TEMP{} 5\n<html>500</html>\n",
        "commands/nvidia-smi_query-gpu.csv": b"NVIDIA-SMI has failed because it couldn't communicate\xff\n",
        "commands/gpu_processes.json": "[" * 100_000,
        "commands/squeue_--json.json": json.dumps({"jobs": 5, "errors": "no"}),
        "commands/ibnetdiscover.txt": b"\x00\xff" * 100,
        "etc/clusterwatch/agent.toml": "host = 5\n[gpu]\nuuids = 7\n[[rdma]]\ndevice = 4\n[[mount]]\npath = 3\n",
        "proc/self/mountstats": "", "proc/self/mountinfo": b"\xff\n1 2\n", "proc/diskstats/x": "",
        "proc/4000/environ": b"RANK=1\0SLURM_JOB_ID=\x1b[31m\0LOCAL_RANK=0\0WORLD_SIZE=2\0",
        "dev/kmsg": b"3,1,1000000,-;NVRM: Xid (PCI:0000:0f:00): 94, pid=1, name=\x1b[31m\xff, Contained\n\xff\xff",
        "read_errors.json": json.dumps(["not", "an", "object"]),
    })  # fmt: skip
    links = {
        f"{port.format('mlx5_2')}/counters": outside / "counters",
        f"{port.format('mlx5_3')}/state": outside / "secret",
        f"{port.format('mlx5_4')}/state": Path("state"),
        "sys/class/infiniband/mlx5_5": Path("../infiniband"),
        "proc/self/loop": Path(".."),
        "etc/slurm/topology.conf": outside / "secret",
        "sys/bus/pci/devices/0000:01:00.0": Path("../../../../../../../../../../etc"),
    }
    for name, target in links.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.symlink_to(target)
    write(root, {f"{port.format('mlx5_3')}/phys_state": "5: LinkUp\n"})
    return root
