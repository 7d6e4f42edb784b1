"""Small recorded nodes for tests of sources."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path

import pytest

from collectors.sources.base import Source, SourceEvent
from collectors.sources.tree import Tree

CASES = Path(__file__).parents[4] / "shared" / "cases" / "telemetry"
Found = dict[tuple[str, str], tuple[float | None, str]]


def write(root: Path, files: Mapping[str, str | bytes]) -> Path:
    """Writes files by their path relative to ``root``."""
    for name, content in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content.encode() if isinstance(content, str) else content)
    return root


def look(source: Source, root: Path, at_s: float = 0.0) -> tuple[Found, list[SourceEvent]]:
    reading = source.read(Tree(root), at_s)
    return {(s.entity, s.metric): (s.value, s.quality) for s in reading.samples}, list(reading.events)


def given_lines(source: Source, *entities: str) -> list[str]:
    """Lines of the given node that ``source`` should print and does not; skips where there is none."""
    if not CASES.is_dir():
        pytest.skip("the given nodes are not here")
    look(source, CASES / "node-a/t0", 0.0)
    found, events = look(source, CASES / "node-a/t1", 60.0)
    missed = []
    for text in (CASES / "expected.jsonl").read_text().splitlines():
        line = json.loads(text)
        if not line["entity"].startswith(entities):
            continue
        if line["type"] == "sample":
            right = found.get((line["entity"], line["metric"])) == (line["value"], line["quality"])
        else:
            told = [(e.entity, e.kind, e.message, dict(e.attributes)) for e in events]
            right = (line["entity"], line["kind"], line["message"], line["attributes"]) in told
        if not right:
            missed.append(text)
    return missed


def full_node(root: Path) -> Path:
    """A healthy node with a little of everything that sources read."""
    port = "sys/class/infiniband/mlx5_{0}"
    files: dict[str, str | bytes] = {
        "proc/sys/kernel/hostname": "node-1\n",
        "proc/sys/kernel/random/boot_id": "7c0f8a51-0000-4000-8000-000000000001\n",
        "proc/stat": "cpu  100 0 50 900 10 0 0 0 0 0\nbtime 1700000000\nprocs_running 1\nprocs_blocked 0\n",
        "proc/loadavg": "0.50 0.40 0.30 1/200 4000\n",
        "proc/meminfo": "MemTotal: 1000 kB\nMemAvailable: 500 kB\nDirty: 4 kB\n",
        "proc/diskstats": "259 0 nvme0n1 10 0 100 50 20 0 200 100 0 500 0 0 0 0 0 0 0\n",
        "proc/self/mountinfo": "66 21 0:61 / /mnt/blob rw shared:5 - fuse.blobfs blobfs rw\n",
        "sys/fs/fuse/connections/61/waiting": "0\n",
        "dev/kmsg": "6,1,1000000,-;usb 1-1: new device\n",
        "commands/nvme_smart-log_nvme0.json": '{"temperature": 309, "percent_used": 4}',
        "commands/chronyc_tracking.csv": (
            "0A0B0C0D,10.11.12.13,3,1700000000.5,0.000012500,-0.000004000,0.000021000,"
            "-17.250,0.003,0.041,0.000310000,0.000095000,64.3,Normal\n"
        ),
        "commands/adjtimex.txt": " offset: 0\n maxerror: 24500\n esterror: 40\n status: 8192\n",
        "commands/df_dev_shm.txt": "Filesystem 1B-blocks Used Available Use% Mounted on\n"
        "tmpfs 1000 100 900 10% /dev/shm\n",
        "proc/sys/kernel/osrelease": "5.15.0-118-generic\n",
        "proc/sys/kernel/numa_balancing": "0\n",
        "proc/cmdline": "BOOT_IMAGE=/vmlinuz root=/dev/sda1 iommu=pt\n",
        "proc/driver/nvidia/version": "NVRM version: NVIDIA UNIX x86_64 Kernel Module  550.90.07  now\n",
        "sys/class/nvme/nvme0/firmware_rev": "GDC7302Q\n",
        "proc/sys/fs/file-nr": "990\t0\t100000\n",
        "proc/4000/limits": "Max open files            1024                 4096                 files\n",
        "sys/fs/cgroup/system.slice/pids.current": "900\n",
        "sys/fs/cgroup/system.slice/pids.max": "10000\n",
        "commands/ethtool_-S_rnic0.txt": "NIC statistics:\n  rx_bits_phy: 100\n  rx_corrected_bits_phy: 1\n",
    }
    for number in range(2):
        folder, bdf = port.format(number), f"0000:1{number}:00.0"
        files |= {
            f"{folder}/node_guid": f"e8eb:d303:0077:1a4{number}\n",
            f"{folder}/device": f"../../../{bdf}",
            f"{folder}/fw_ver": "28.39.1002\n",
            f"{folder}/ports/1/state": "4: ACTIVE\n",
            f"{folder}/ports/1/phys_state": "5: LinkUp\n",
            f"{folder}/ports/1/rate": "400 Gb/sec (4X NDR)\n",
            f"{folder}/ports/1/counters/port_xmit_data": "1000\n",
            f"{folder}/ports/1/counters/symbol_error": "0\n",
            f"{folder}/ports/1/hw_counters/out_of_sequence": "3\n",
            f"sys/class/net/rnic{number}/device": f"../../../{bdf}",
            f"sys/class/net/rnic{number}/operstate": "up\n",
            f"sys/class/net/rnic{number}/carrier_changes": "2\n",
            f"sys/bus/pci/devices/{bdf}/current_link_width": "16\n",
            f"sys/bus/pci/devices/{bdf}/max_link_width": "16\n",
            f"sys/bus/pci/devices/{bdf}/current_link_speed": "32.0 GT/s PCIe\n",
            f"sys/bus/pci/devices/{bdf}/max_link_speed": "32.0 GT/s PCIe\n",
        }
    gpus = [f"GPU-00000000-0000-0000-0000-00000000000{number}" for number in range(2)]
    files["commands/dcgm_metrics.prom"] = "".join(
        f'DCGM_FI_DEV_GPU_TEMP{{gpu="{n}",UUID="{uuid}",pci_bus_id="00000000:4{n}:00.0"}} 5{n}\n'
        for n, uuid in enumerate(gpus)
    )
    rows = "".join(f"{n}, {uuid}, 00000000:4{n}:00.0, 500.00 W\n" for n, uuid in enumerate(gpus))
    files["commands/nvidia-smi_query-gpu.csv"] = f"index, uuid, pci.bus_id, power.draw [W]\n{rows}"
    files["commands/gpu_processes.json"] = json.dumps(
        {"by_uuid": {gpus[0]: [4000]}, "nvml_index": {"0": gpus[0]}}
    )
    files["proc/4000/environ"] = b"RANK=0\0LOCAL_RANK=0\0WORLD_SIZE=2\0SLURM_JOB_ID=7\0"
    files["proc/4000/cgroup"] = "0::/system.slice/slurmstepd.scope/job_7/step_0/user/task_0\n"
    uuids = ", ".join(f'"{uuid}"' for uuid in gpus)
    files["etc/clusterwatch/agent.toml"] = f'[gpu]\nuuids = [{uuids}]\n[[mount]]\npath = "/mnt/blob"\n'
    return write(root, files)
