"""Faults of a host in the kernel's own words, and lines that only look like them."""

# ruff: noqa: E501  (lines of logs stay as they are printed)

from __future__ import annotations

from pathlib import Path

import pytest

from tests.collectors.sources.kernel_node import A, events
from tests.collectors.sources.trees import write


@pytest.mark.parametrize(
    ("line", "entity", "kind", "told"),
    [
        ("INFO: task kworker/u64:3:412 blocked for more than 122 seconds.", "host", "hung_task", {"comm": "kworker/u64:3", "pid": 412, "seconds": 122}),
        ("watchdog: BUG: soft lockup - CPU#12 stuck for 26s! [python:4242]", "host", "lockup", {"cpu": 12, "seconds": 26, "comm": "python", "pid": 4242}),
        ("rcu: INFO: rcu_sched self-detected stall on CPU", "host", "rcu_stall", {}),
        ("EDAC MC0: 1 CE memory read error on CPU_SrcID#0", "host", "ecc", {"fatal": False}),
        ("EDAC MC1: 2 UE memory read error", "host", "ecc", {"fatal": True}),
        ("mce: [Hardware Error]: Machine check events logged", "host", "ecc", {}),
        ("nvme nvme2: I/O 512 QID 4 timeout, aborting", "disk/nvme2", "nvme_error", {}),
        ("blk_update_request: I/O error, dev nvme2n1, sector 0 op 0x0", "disk/nvme2n1", "nvme_error", {}),
        ("critical medium error, dev sda, sector 5", "disk/sda", "disk_error", {}),
        ("EXT4-fs error (device nvme2n1p1): ext4_find_entry", "disk/nvme2n1", "fs_error", {}),
        ("pcieport 0000:0a:00.0: AER: PCIe Bus Error: severity=Uncorrected (Fatal), type=Transaction Layer", f"gpu/{A}", "pcie_error", {"bdf": "0000:0a:00.0", "fatal": True}),
        ("mlx5_core 0000:12:00.0: Port module event[error]: module 0, Cable error, High Temperature", "pci/0000:12:00.0", "nic_error", {"bdf": "0000:12:00.0"}),
        ("mlx5_core 0000:12:00.0: poll_health:955: device's health compromised - reached miss count", "pci/0000:12:00.0", "nic_error", {"bdf": "0000:12:00.0"}),
        ("python[77]: segfault at 0 ip 00007f sp 00007f error 4 in libnccl.so.2.21.5[7f00+1000]", "host", "segfault", {"name": "python", "pid": 77}),
    ],
)  # fmt: skip
def test_faults_of_the_host(
    tmp_path: Path, line: str, entity: str, kind: str, told: dict[str, object]
) -> None:
    (event,) = events(tmp_path, line)
    assert (event.entity, event.kind, event.attributes) == (entity, kind, told)


@pytest.mark.parametrize(
    "line",
    [
        "mlx5_core 0000:12:00.0 eth0: Link up",
        "nfs: server nas-a OK",
        "NVRM: loading NVIDIA UNIX Open Kernel Module",
        "systemd[1]: Started Xid watcher (PCI:0000:0a:00): 94",
        "INFO: lockdep is turned off.",
        "EXT4-fs (nvme2n1p1): mounted filesystem",
        "oom_reaper: reaped process 55 (python)",
        "Xid (PCI:0000:0a:00): 94, said by nobody",
    ],
)
def test_lines_that_are_no_fault(tmp_path: Path, line: str) -> None:
    assert events(tmp_path, line) == []


def test_a_kill_for_memory_told_in_two_lines_is_one_event_with_its_job(tmp_path: Path) -> None:
    line = "oom-kill:constraint=CONSTRAINT_MEMCG,nodemask=(null),oom_memcg=/x,task_memcg=/system.slice/slurmstepd.scope/job_55012/step_0,task=python,pid=43105,uid=0"
    found = events(
        tmp_path,
        "python invoked oom-killer: gfp_mask=0xcc0",
        line,
        "Memory cgroup out of memory: Killed process 43105 (python) total-vm:1kB",
    )
    assert [(event.kind, event.attributes) for event in found] == [
        ("oom_kill", {"pid": 43105, "name": "python", "job_id": 55012})
    ]
    (event,) = events(tmp_path, "Out of memory: Killed process 9 (a b) total-vm:1kB")
    assert event.attributes == {"pid": 9, "name": "a b"}


def test_a_server_that_does_not_answer_stalls_its_mount(tmp_path: Path) -> None:
    write(tmp_path, {"proc/self/mountinfo": "67 21 0:63 / /mnt/shared rw shared:6 - nfs4 nas-a:/export rw\n"})
    (event,) = events(tmp_path, "nfs: server nas-a not responding, still trying")
    assert (event.kind, event.entity, event.attributes) == (
        "mount_stall",
        "mount//mnt/shared",
        {"server": "nas-a"},
    )


@pytest.mark.parametrize(
    ("line", "entity", "severity"),
    [
        ("mlx5_core 0000:0d:00.0 rnic0: Link down", "nic/rnic0", "warning"),
        ("bnxt_en 0000:0d:00.0 ens3f0np0: NIC Link is Down", "nic/ens3f0np0", "warning"),
        ("igb 0000:01:00.0 eth0: igb: eth0 NIC Link is Down", "nic/eth0", "warning"),
        ("mlx5_core 0000:0d:00.0 mlx5_9: Port: 1 Link DOWN", "port/mlx5_9/1", "warning"),
        ("INFO: task python:7 blocked in I/O wait for more than 245 seconds.", "host", "warning"),
        ("INFO: rcu_sched detected stalls on CPUs/tasks:", "host", "warning"),
        ("NMI watchdog: Watchdog detected hard LOCKUP on cpu 3", "host", "critical"),
        ("Kernel panic - not syncing: Fatal machine check", "host", "critical"),
        ("mce: [Hardware Error]: CPU 3: Machine Check: 0 Bank 8: 8c00004000010090", "host", "warning"),
        ("nvme nvme2: Disabling device after reset failure: -19", "disk/nvme2", "critical"),
        ("block nvme2n1: no available path - failing I/O", "disk/nvme2n1", "critical"),
        ("Buffer I/O error on dev nvme2n1p1, logical block 5, async page read", "disk/nvme2n1", "warning"),
        ("nvme2n1: I/O Cmd(0x2) @ LBA 5, 8 blocks, Unrecovered Read Error (sct 0x2 / sc 0x81)", "disk/nvme2n1", "warning"),
        ("EXT4-fs (md127p3): Remounting filesystem read-only", "disk/md127", "critical"),
        ("BTRFS info (device sdb: state EA): forced readonly", "disk/sdb", "critical"),
        ("XFS (nvme2n1p1): Filesystem has been shut down due to log error, shutting down", "disk/nvme2n1", "warning"),
        ("EXT4-fs (mapper/data): Remounting filesystem read-only", "host", "critical"),
        ("pcieport 0000:00:01.0: PCIe Bus Error: severity=Correctable, type=Physical Layer, (Receiver ID)", "pci/0000:00:01.0", "info"),
        ("mlx5_core 0000:12:00.0: PCIe Bus Error: severity=Uncorrectable (Non-Fatal), type=Transaction", "pci/0000:12:00.0", "warning"),
        ("mlx5_core 0000:12:00.0 rnic3: Port module event[error]: module 0, Cable error, High Temperature", "nic/rnic3", "warning"),
        ("mlx5_core 0000:5c:00.0: mlx5_pcie_event:299:(pid 268269): Detected insufficient power on the PCIe slot (27W).", "pci/0000:5c:00.0", "warning"),
        ("mlx5_core 0000:12:00.0: wait_func:1135:(pid 9): 2ERR_QP(0x507) timeout. Will cause a leak of a command resource", "pci/0000:12:00.0", "warning"),
        ("mlx5_core 0000:12:00.0: print_health:401:(pid 0): device's health compromised - reached miss count", "pci/0000:12:00.0", "critical"),
    ],
)  # fmt: skip
def test_more_faults_of_the_host(tmp_path: Path, line: str, entity: str, severity: str) -> None:
    (event,) = events(tmp_path, line)
    assert (event.entity, event.severity) == (entity, severity)


@pytest.mark.parametrize(
    "line",
    [
        "usb 1-1: Product: nfs: server nas-a not responding",
        "usb 1-1: Product: INFO: task x:1 blocked for more than 9 seconds",
        "oom-kill:constraint=CONSTRAINT_NONE",
        "mlx5_core 0000:12:00.0: Port module event: module 0, Cable plugged",
        "pcieport 0000:00:01.0: pciehp: Slot(1): Link Down",
        "INFO: task python:7 is blocked on a mutex likely owned by task x:8.",
        "EXT4-fs (nvme2n1p1): re-mounted r/w. Quota mode: none.",
        "python[77]: segfault at 0 ip 00007f sp 00007f error 4 in libtorch.so[7f00+1000]",
        "md/raid1:md127: active with 2 out of 2 mirrors",
    ],
)
def test_near_misses(tmp_path: Path, line: str) -> None:
    assert events(tmp_path, line) == []


def test_a_renamed_device_keeps_its_rdma_device(tmp_path: Path) -> None:
    write(tmp_path, {"sys/class/infiniband/mlx5_2/device": "../../../0000:8d:00.0"})
    (event,) = events(tmp_path, "mlx5_core 0000:8d:00.0 eth7: Link down")
    assert (event.entity, event.attributes) == ("nic/eth7", {"rdma_device": "mlx5_2"})
