"""A node whose kernel log has every form of Xid, echoes and roots, and all else that a log can tell."""

# ruff: noqa: E501  lines are as tools print them
from __future__ import annotations

from tests.collectors.trap_nodes import Node, base, event, uuid
from tests.collectors.trap_nodes.gpu_node import BUSES

HOST = "library-07"
_XC = "(0x004505c6 0x00000000 0x00000000 0x00000000 0x00000000 0x00000000)"


def log() -> bytes:
    """Records of the second snapshot: (priority, seconds after boot, text), 1 s apart where no time is given."""
    records: list[tuple[int, float, bytes | str]] = [
        (3, 100.0, f"NVRM: GPU at PCI:0000:97:00: {uuid(5)}"),
        (3, 100.1, "NVRM: GPU Board Serial Number: 1650000000000"),
        (3, 100.2, "NVRM: Xid (PCI:0000:97:00): 95, pid=43105, name=torchrun, -m: a, Uncontained: LTC TAG (0x2,0x0). RST: Yes, D-RST: No"),
        (3, 100.3, "NVRM: Xid (PCI:0000:97:00): 154, GPU recovery action changed from 0x0 (None) to 0x1 (GPU Reset Required)"),
        (3, 101.0, "NVRM: Xid (PCI:0000:97:00): 45, pid=43105, name=torchrun, -m: a, Ch 00000010"),
        (3, 300.0, "NVRM: Xid (0000:1c:00): 14, 0002 00000000 00003d70 00000000"),
        (3, 400.0, "NVRM: Xid (PCI:0000:2a:00 GPU-I:05): 94, pid=77, name=py, Contained: CE User Channel (0x9). RST: No, D-RST: No"),
        (3, 500.0, f"NVRM: Xid (PCI:0000:8a:00): 145, RLW_CTRL Nonfatal XC0 i0 Link -1 {_XC}"),
        (3, 501.0, f"NVRM: Xid (PCI:0000:3e:00): 149, NETIR_LINK_EVT Fatal XC0 i0 Link 08 {_XC}"),
        (3, 502.0, f"NVRM: Xid (PCI:0000:0f:00): 145, RLW_CTRL Nonfatal XC0 i0 Link 03 {_XC}"),
        (3, 503.0, "NVRM: Xid (PCI:0000:0f:00): 45, pid=9, name=python, Ch 00000008, caused by previous Xid 149"),
        (3, 700.0, "NVRM: GPU 0000:a5:00.0: GPU has fallen off the bus."),
        (3, 700.5, "NVRM: GPU 0000:a5:00.0: GPU serial number is 1650000000001."),
        (3, 701.0, "NVRM: A GPU crash dump has been created. If possible, please run"),
        (3, 800.0, "NVRM: Xid (PCI:0000:b8:00): 79, pid='<unknown>', name=<unknown>, GPU has fallen off the bus."),
        (3, 800.1, "NVRM: GPU 0000:b8:00.0: GPU has fallen off the bus."),
        (3, 900.0, "NVRM: Xid (PCI:0000:1C:00): 119, pid=2024380, name=nvidia-smi, Timeout after 6s of waiting for RPC response from GPU1 GSP! Expected function 76 (GSP_RM_CONTROL) (0x20802702 0x4)."),
        (3, 900.1, "NVRM: GPU1 GSP RPC buffer contains function 76 (GSP_RM_CONTROL) and data 0x0000000020802702 0x0000000000000004."),
        (3, 900.2, "NVRM: GPU1 RPC history (CPU -> GSP):"),
        (3, 900.3, "NVRM:     entry function                   data0              data1"),
        (4, 1000.0, "nvidia-nvswitch3: SXid (PCI:0000:05:00.0): 12028, Non-fatal, Link 32 egress non-posted PRIV error (First)"),
        (4, 1000.1, "nvidia-nvswitch3: SXid (PCI:0000:05:00.0): 12028, Severity 0 Engine instance 32 Sub-engine instance 00"),
        (4, 1000.2, "nvidia-nvswitch3: SXid (PCI:0000:05:00.0): 12028, Data {0x00140004, 0x00000100}"),
        (3, 1001.0, "SXid (PCI:0000:06:00.0): 20034, Fatal, Link 30 LTSSM Fault Up"),
        (3, 1100.0, rb"NVRM: Xid (PCI:0000:0f:00): 31, pid=12, name=e\x1b[31m\xff\x0aNVRM: Xid (PCI:0000:0f:00): 62, Ch 00000008, intr 00000000. MMU Fault: ENGINE GRAPHICS GPCCLIENT_T1_0 faulted @ 0x7f_0000. Fault is of type FAULT_PDE ACCESS_TYPE_VIRT_READ"),
        (3, 1200.0, b"NVRM: Xid (PCI:0000:c1:00): 13, Graphics Exception: ESR 0x504648=0x1 \xff\xfe"),
        (3, 1300.0, "NVRM: Xid (PCI:0000:2a:00): 48, pid='<unknown>', name=<unknown>, An uncorrectable double bit error (DBE) has been detected on GPU in the framebuffer at partition 3, subpartition 1."),
        (3, 1300.5, "NVRM: Xid (PCI:0000:2a:00): 63, pid='<unknown>', name=<unknown>, Row Remapper: New row (0x0000000000028d9c) marked for remapping, reset gpu to activate."),
        (12, 1350.0, "NVRM: Xid (PCI:0000:0f:00): 79, pid=1, name=sh, GPU has fallen off the bus."),
        (3, 1400.0, "INFO: task kworker/u8:3:99 blocked for more than 122 seconds."),
        (3, 1401.0, "INFO: task python3:4711 blocked for more than 245 seconds."),
        (6, 1500.0, "oom-kill:constraint=CONSTRAINT_MEMCG,nodemask=(null),cpuset=step_0,mems_allowed=0-1,oom_memcg=/system.slice/slurmstepd.scope/job_55,task_memcg=/system.slice/slurmstepd.scope/job_55/step_0/user/task_0,task=python,pid=4242,uid=1000"),
        (3, 1500.1, "Memory cgroup out of memory: Killed process 4242 (python) total-vm:1kB, anon-rss:1kB, file-rss:1kB, shmem-rss:0kB, UID:1000 pgtables:1kB oom_score_adj:0"),
        (3, 1600.0, "EDAC MC0: 3 CE memory read error on CPU_SrcID#0_MC#0_Chan#0_DIMM#0 (channel:0 slot:0)"),
        (2, 1700.0, "EDAC MC1: 1 UE memory scrubbing error on CPU_SrcID#1_MC#1_Chan#0_DIMM#0"),
        (3, 1800.0, "nvme nvme2: I/O 5 (I/O Cmd) QID 2 timeout, aborting"),
        (3, 1801.0, "I/O error, dev nvme2n1, sector 2048 op 0x1:(WRITE) flags 0x0 phys_seg 1 prio class 2"),
        (3, 1900.0, "nvidia 0000:3e:00.0: PCIe Bus Error: severity=Uncorrected (Fatal), type=Transaction Layer, (Receiver ID)"),
        (5, 2000.0, "nfs: server nas-a.example not responding, still trying"),
        (5, 2001.0, "nfs: server nas-a.example OK"),
        (3, 2100.0, "watchdog: BUG: soft lockup - CPU#3 stuck for 26s! [python:123]"),
        (6, 2200.0, "systemd[1]: Started Session of user NVRM: Xid (PCI:0000:0f:00): 79, gone."),
    ]  # fmt: skip
    lines = [
        b"%d,%d,%d,-;%b\n"
        % (prio, 50 + at, round(seconds * 1e6), text if isinstance(text, bytes) else text.encode())
        for at, (prio, seconds, text) in enumerate(records)
    ]
    lines[2] += b" SUBSYSTEM=pci\n NVRM: Xid (PCI:0000:0f:00): 79, pid=1, name=x, gone.\n"
    return OLD + b"garbage without a head\n\n3,1;short\n" + b"".join(lines)


OLD = b"""\
6,40,1000000,-;NVRM: loading NVIDIA UNIX Open Kernel Module for x86_64  570.172.08
3,41,2000000,-;NVRM: Xid (PCI:0000:8a:00): 13, pid=1, name=old, Graphics Exception
"""


def node() -> Node:
    table = "uuid, pci.bus_id\n" + "".join(
        f"{uuid(number)}, 00000000:{bus}:00.0\n" for number, bus in enumerate(BUSES)
    )
    files = base(HOST) | {
        "commands/nvidia-smi_query-gpu.csv": table,
        "proc/self/mountinfo": "67 21 0:63 / /mnt/shared rw - nfs4 nas-a.example:/export/shared rw,vers=4.2\n",
    }
    return Node(files | {"dev/kmsg": OLD}, files | {"dev/kmsg": log()}, {}, EVENTS, (), UNLESS)


def gpu(number: int) -> str:
    return f"gpu/{uuid(number)}"


EVENTS = (
    event("host", "kmsg_gap", lost=8, t=100),
    event(gpu(5), "xid", 95, t=100.2, pid=43105, name="torchrun, -m: a", bdf="0000:97:00.0",
          recovery_action="GPU_RESET", severity="critical", root_code=...),
    event(gpu(5), "xid", 154, t=100.3, root_code=95, root_entity=gpu(5), recovery_action="GPU_RESET", pid=...),
    event(gpu(5), "xid", 45, t=101, root_code=95, root_entity=gpu(5), name="torchrun, -m: a", severity="info"),
    event(gpu(1), "xid", 14, t=300, pid=..., name=..., bdf="0000:1c:00.0"),
    event(gpu(2), "xid", 94, t=400, gpu_instance=5, pid=77, name="py", severity="warning"),
    event(gpu(4), "xid", 145, t=500, fatal=False, link=..., root_code=149, root_entity=gpu(3)),
    event(gpu(3), "xid", 149, t=501, fatal=True, link=8, severity="critical", root_code=...),
    event(gpu(0), "xid", 145, t=502, fatal=False, link=3, root_code=149, root_entity=gpu(3)),
    event(gpu(0), "xid", 45, t=503, root_code=149, root_entity=gpu(3)),
    event(gpu(6), "gpu_lost", t=700, bdf="0000:a5:00.0", severity="critical"),
    event(gpu(7), "xid", 79, t=800, pid=..., name=..., severity="critical"),
    event(gpu(1), "xid", 119, t=900, pid=2024380, name="nvidia-smi", severity="critical"),
    event("pci/0000:05:00.0", "sxid", 12028, t=1000, fatal=False, link=32),
    event("pci/0000:06:00.0", "sxid", 20034, t=1001, fatal=True, link=30, severity="critical"),
    event(gpu(0), "xid", 31, t=1100, pid=12),
    event("pci/0000:c1:00.0", "xid", 13, t=1200, pid=...),
    event(gpu(2), "xid", 48, t=1300, severity="critical", pid=..., name=...),
    event(gpu(2), "xid", 63, t=1300.5),
    event("host", "hung_task", t=1400, comm="kworker/u8:3", pid=99, seconds=122),
    event("host", "hung_task", t=1401, comm="python3", pid=4711, seconds=245),
    event("host", "oom_kill", pid=4242, name="python", job_id=55),
    event("host", "ecc", t=1600, fatal=False),
    event("host", "ecc", t=1700, fatal=True, severity="critical"),
    event("disk/nvme2", "nvme_error", t=1800),
    event("disk/nvme2n1", "nvme_error", t=1801),
    event(gpu(3), "pcie_error", t=1900, fatal=True),
    event("mount//mnt/shared", "mount_stall", t=2000, server="nas-a.example"),
)  # fmt: skip
UNLESS = (
    lambda one: one["kind"] == "xid" and one["code"] == 79 and one["entity"] != gpu(7),
    lambda one: one["kind"] == "xid" and one["code"] == 62,
    lambda one: one["kind"] == "xid" and one["entity"] == gpu(4) and one["code"] == 13,
    lambda one: one["kind"] == "gpu_lost" and one["entity"] != gpu(6),
    lambda one: any(
        not char.isprintable() for char in str(one["message"]) + str(one["attributes"].get("name"))
    ),
    lambda one: one["kind"] == "mount_stall" and one["ts_ns"] % 10**12 == 2001 * 10**9 % 10**12,
)
