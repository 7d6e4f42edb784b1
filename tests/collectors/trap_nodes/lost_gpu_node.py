"""A node that loses a GPU without any Xid: the driver counts anew, its ranks and slots keep their names."""

# ruff: noqa: E501  lines are as tools print them
from __future__ import annotations

import json

from tests.collectors.trap_nodes import Node, base, event, uuid
from tests.collectors.trap_nodes.gpu_node import BUSES

HOST = "gtn-0533"
LOST = 3


def smi(numbers: list[int]) -> str:
    return "index, uuid, pci.bus_id, temperature.gpu, power.draw [W]\n" + "".join(
        f"{index}, {uuid(number)}, 00000000:{BUSES[number]}:00.0, {50 + number}, {500 + number}.00 W\n"
        for index, number in enumerate(numbers)
    )


def dcgm(numbers: list[int]) -> str:
    return "".join(
        f'DCGM_FI_DEV_GPU_TEMP{{gpu="{index}",UUID="{uuid(number)}",'
        f'pci_bus_id="00000000:{BUSES[number]}:00.0"}} {50 + number}\n'
        for index, number in enumerate(numbers)
    )


def processes(numbers: list[int]) -> str:
    return json.dumps(
        {
            "by_uuid": {uuid(number): [7_000 + number] for number in numbers},
            "nvml_index": {str(index): uuid(number) for index, number in enumerate(numbers)},
        }
    )


def rank(number: int) -> dict[str, str | bytes]:
    """A rank of torchrun below one task of srun: SLURM_PROCID is the launcher's, not its own."""
    values = (
        f"RANK={8 + number}\0LOCAL_RANK={number}\0LOCAL_WORLD_SIZE=8\0WORLD_SIZE=16\0SLURM_JOB_ID=901\0"
        "SLURM_PROCID=1\0SLURM_LOCALID=0\0SLURM_NODEID=1\0CUDA_VISIBLE_DEVICES=0,1,2,3,4,5,6,7\0"
        "HF_TOKEN=do-not-print-this\0NOTE=\xff\xfe\x1b[31m\0\0=\0"
    ).encode("latin-1")
    return {
        f"proc/{7_000 + number}/environ": values,
        f"proc/{7_000 + number}/cgroup": "0::/system.slice/slurmstepd.scope/job_901/step_0/user/task_0\n",
    }


def node() -> Node:
    everyone, others = list(range(8)), [number for number in range(8) if number != LOST]
    inventory = "".join(f'  "{uuid(number)}",\n' for number in range(8))
    ranks = {name: text for number in range(8) for name, text in rank(number).items()}
    launcher: dict[str, str | bytes] = {
        "proc/6999/environ": b"SLURM_JOB_ID=901\0SLURM_PROCID=1\0SLURM_NODEID=1\0CUDA_VISIBLE_DEVICES=0,1\0",
        "proc/6999/cgroup": "0::/system.slice/slurmstepd.scope/job_901/step_0/user/task_0\n",
    }
    files: dict[str, str | bytes] = (
        base(HOST)
        | ranks
        | launcher
        | {
            "etc/clusterwatch/agent.toml": f"[gpu]\nuuids = [\n{inventory}]\n",
            "commands/nvidia-smi_topo_-m.txt": TOPOLOGY,
        }
    )
    before = files | {
        "commands/nvidia-smi_query-gpu.csv": smi(everyone),
        "commands/dcgm_metrics.prom": dcgm(everyone),
        "commands/gpu_processes.json": processes(everyone),
        "dev/kmsg": b"6,1,1000000,-;NVRM: loading NVIDIA UNIX Open Kernel Module\n",
    }
    after = files | {
        "commands/nvidia-smi_query-gpu.csv": smi(others),
        "commands/dcgm_metrics.prom": dcgm(others),
        "commands/gpu_processes.json": processes(others),
        "dev/kmsg": b"6,1,1000000,-;NVRM: loading NVIDIA UNIX Open Kernel Module\n" + KMSG,
    }
    return Node(before, after, SAMPLES, EVENTS, (), UNLESS)


KMSG = b"""\
3,2,800000000,-;NVRM: The NVIDIA GPU 0000:3e:00.0
3,3,800000010,-;NVRM: (PCI ID: 10de:2330) installed in this system has
3,4,800000020,-;NVRM: fallen off the bus and is not responding to commands.
"""
TOPOLOGY = (
    "\t" + "\t".join(f"GPU{n}" for n in range(8)) + "\tNIC0\tNIC1\tCPU Affinity\tNUMA Affinity\tGPU NUMA ID\n"
    + "".join(
        f"GPU{row}\t"
        + "\t".join(" X " if row == n else "NV18" for n in range(8))
        + ("\tPIX \tSYS" if row in (1, 4) else "\tNODE\tPHB" if row == 6 else "\tSYS\tNODE")
        + "\t0-31\t0\tN/A\n"
        for row in range(8)
    )
    + "\nLegend:\n\n  X    = Self\n  PIX  = one switch\n\nNIC Legend:\n\n  NIC0: mlx5_0\n  NIC1: mlx5_bond_0\n"
)  # fmt: skip


def gpu(number: int, name: str) -> str:
    return f"gpu/{uuid(number)} {name}"


def mapped(number: int, nic: str | None, source: str = "nvml_pid") -> dict[str, object]:
    return event(
        f"job/901/rank/{8 + number}", "rank_map", pid=7_000 + number, local_rank=number,
        gpu_uuid=uuid(number), nic=nic, map_source=source,
    )  # fmt: skip


SAMPLES = {
    gpu(2, "temperature_c"): (52, "ok"),
    gpu(3, "temperature_c"): (None, "lost"),
    gpu(3, "power_w"): (None, "lost"),
    gpu(4, "temperature_c"): (54, "ok"),
    gpu(7, "power_w"): (507.0, "ok"),
}
EVENTS = (
    event(f"gpu/{uuid(LOST)}", "gpu_lost", severity="critical"),
    mapped(0, None),
    mapped(1, "mlx5_0"),
    mapped(2, None),
    mapped(3, None, "env_index"),
    mapped(4, "mlx5_0"),
    mapped(5, None),
    mapped(6, "mlx5_bond_0"),
    mapped(7, None),
)
UNLESS = (
    lambda one: one["kind"] == "gpu_lost" and one["entity"] != f"gpu/{uuid(LOST)}",
    lambda one: one["kind"] == "rank_map" and one["entity"] in ("job/901/rank/1", "job/901/rank/0"),
    lambda one: one["kind"] == "rank_map" and one["message"] == "rank 12 on GPU 3",
    lambda one: "do-not-print" in json.dumps(one),
)
