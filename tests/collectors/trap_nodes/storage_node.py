"""A node of many mounts and disks: hung NFS in each way, FUSE, kernels of all ages, drives that count in odd ways."""

# ruff: noqa: E501  lines are as tools print them
from __future__ import annotations

import json

from tests.collectors.trap_nodes import Node, base, event

HOST = "gtn-0640"


def nfs(
    path: str, device: str, xprts: list[str], ops: list[str], moved: str, age: int, head: str = ""
) -> str:
    """One NFS mount of mountstats; ``head``: lines before ``age``."""
    return (
        f"device {device} mounted on {path} with fstype nfs4 statvers=1.1\n"
        "\topts:\trw,vers=4.2,rsize=1048576,hard,proto=tcp,nconnect=4\n"
        f"{head}\tage:\t{age}\n"
        "\timpl_id:\tname='',domain='host: nas\nwith fstype nfs4 statvers=1.1\n device x mounted on\n',date='0,0'\n"
        "\tcaps:\tcaps=0x3ffbffdf,wtmult=512\n"
        "\tnfsv4:\tbm0=0xfdffbfff,pnfs=not configured\n"
        "\tsec:\tflavor=1,pseudoflavor=1\n"
        "\tevents:\t90 120 0 0 30 4 150 0 0 0 0 6 0 0 9 5 0 4 0 0 12 0 0 0 0 0 0 \n"
        f"\tbytes:\t{moved} \n"
        "\tnew-key:\t1 2 3\n"
        "\tRPC iostats version: 1.1  p/v: 100003/4 (nfs)\n"
        + "".join(f"\txprt:\t{line}\n" for line in xprts)
        + "\tper-op statistics\n"
        + "".join(f"\t{line}\n" for line in ops)
        + "\n"
    )


def tcp(sends: int, receives: int) -> str:
    return f"tcp 771 0 1 0 0 {sends} {receives} 0 31000 2 32 40 55"


def rdma(sends: int, receives: int) -> str:
    return f"rdma 0 0 1 0 11 {sends} {receives} 0 11 0 " + " ".join("0" for _ in range(14))


def op(name: str, *numbers: int) -> str:
    return f"{name:>12}: {' '.join(map(str, numbers))} "


QUIET = "0 0 0 0 0 0 0 0"


def mountstats(later: bool) -> str:
    at = int(later)
    return "".join(
        (
            "device rootfs mounted on / with fstype rootfs\n",
            "device proc mounted on /proc with fstype proc\n",
            # Four transports, nine numbers, retransmissions and errors.
            nfs("/mnt/many", "nas-a:/x", [tcp(1_000 + 30 * at, 1_000 + 29 * at)] * 3 + [tcp(500 + 40 * at, 500 + 39 * at)],
                [op("NULL", 1, 1, 0, 44, 24, 0, 0, 0, 0),
                 op("READ", 100 + 600 * at, 120 + 620 * at, 1, 2_000, 6_000 + 6_000_000 * at, 10 + 60 * at, 200 + 1_200 * at, 300 + 1_500 * at, 2 + at),
                 op("WRITE", 10, 10, 0, 900, 90, 1, 5, 6, 0),
                 op("LAYOUTGET", 10 + 60 * at, 10 + 60 * at, 0, 100, 100, 0, 10 + 60 * at, 10 + 60 * at, 0)],
                f"{10 + 6_000 * at} 0 0 0 {20 + 12_000 * at} 0 3 0", 100 + 60 * at),
            # Transports of RDMA, an old kernel's eight numbers, a blank in the path.
            nfs("/mnt/my\\040data", "nas-b:/y", [rdma(50 + 6 * at, 50 + 6 * at), rdma(70, 70)],
                [op("READ", 5 + 6 * at, 5 + 6 * at, 0, 10, 20 + 600 * at, 1, 9 + 12 * at, 10 + 18 * at)],
                QUIET, 100 + 60 * at),
            # Hung: nothing finished, nothing in the per-op lines moves, RPCs wait.
            nfs("/mnt/hung", "nas-c:/z", [tcp(900 + 4 * at, 900), tcp(10, 10)],
                [op("READ", 40, 40, 0, 10, 20, 1, 9, 10, 0), op("WRITE", 7, 7, 0, 10, 20, 1, 9, 10, 0)],
                QUIET, 100 + 60 * at),
            # A dead data server of flexfiles: the transport to the metadata server is idle.
            nfs("/mnt/flex", "hammerspace:/f", [tcp(300, 300)],
                [op("WRITE", 90, 90, 0, 10, 20, 1, 9, 10, 0), op("LAYOUTERROR", at, at, 0, 10, 20, 1, 9, 10, 0)],
                f"0 {4_096 + 60_000_000 * at} 0 0 0 4096 0 1", 100 + 60 * at,
                head="\tnfsv4x:\tpnfs=LAYOUT_NFSV4_1_FLEXFILES\n"),
            # Mounted anew in between.
            nfs("/mnt/again", "nas-d:/w", [tcp(9_000 - 8_000 * at, 9_000 - 8_000 * at)],
                [op("READ", 5_000 - 4_000 * at, 5_000 - 4_000 * at, 0, 9, 9, 9, 9_000, 9_000, 0)],
                f"{900_000 - 800_000 * at} 0 0 0 900000 0 0 0", 5_000 - 4_990 * at),
            "device blobfs mounted on /mnt/blob with fstype fuse.blobfs\n",
            "device nas-e:/v mounted on /mnt/cut with fstype nfs4 statvers=1.0\n\tage:\t5\n"
            "\txprt:\ttcp 771 0 1 0 0 12 12 0 1 0\n\tper-op statistics\n\t        READ: 1 2 3\n\t        WR",
        )
    )  # fmt: skip


MOUNTINFO = """\
21 1 259:1 / / rw,relatime shared:1 - ext4 /dev/nvme2n1p1 rw
66 21 0:61 / /mnt/blob rw,relatime shared:5 - fuse.blobfs blobfs rw,user_id=0
68 21 0:62 / /mnt/busy rw,relatime shared:5 master:3 - fuse.blobfs blobfs rw
69 21 0:64 / /mnt/closed rw - fuse.sshfs x:/y rw
70 21 0:65 / /mnt/gone rw - fuse.sshfs x:/y rw
71 21 0:66 / /mnt/my\\040data rw shared:9 - nfs4 nas-b:/y rw
72 21 0:67 / /mnt/hung rw shared:9 - nfs4 nas-c:/z rw
"""


def disks(later: bool) -> str:
    at = int(later)
    return "".join(
        (
            f" 259 0 nvme0n1 {100 + 60 * at} 0 {800 + 6_000 * at} {50 + 120 * at} {20 + 600 * at} 0 {160 + 12_000 * at} {9 + 2_100 * at} {3 * at} {900 + 30_000 * at} 59 0 0 0 0 {5 + 2 * at} {4 + 9 * at}\n",
            f" 259 1 nvme0n1p1 {100 + 60 * at} 0 800 50 20 0 160 9 0 900 59 0 0 0 0 5 4\n",
            f"   8 0 sda {10 + at} 0 80 {5 + 7 * at} 2 0 16 9 0 90 14\n",
            f"   8 16 sdb {10 + 2 * at} 0 80 {5 + 7 * at} 2 0 16 9 0 90 14 0 0 0 0\n",
            f" 259 9 nvme9n1 10 0 80 5 {2 + at} 0 {16 + 8 * at} {9 + 5 * at} 0 90 14 0 0 0 0 1 2 77 88 99\n",
            f"   8 32 sdc {900 - 890 * at} 0 {9_000 - 8_000 * at} 90 2 0 16 9 0 90 14 0 0 0 0 0 0\n",
            # 32 bits of milliseconds wrap.
            f"   8 48 sdd {10 + 10 * at} 0 80 {4_294_967_290 if not later else 14} 2 0 16 9 0 90 14 0 0 0 0 0 0\n",
            "   7 0 loop0 10 0 80 5 2 0 16 9 0 90 14 0 0 0 0 0 0\n",
            "   8 64 sde 10 0 x 5 2 0 16 9 0 90 14\n",
            "   8\n",
        )
    )


def node() -> Node:
    smart = {
        "nvme0": json.dumps({"critical_warning": 0, "temperature": 315, "percent_used": 7, "media_errors": 0,
                             "data_units_written": 2**100, "num_err_log_entries": 3}),
        "nvme1": json.dumps({"critical_warning": "0x4", "temperature": "42 °C (315 K)", "percent_used": "104%",
                             "media_errors": "12", "data_units_written": "2.210.450 (1.13 TB)"}),
        "nvme3": json.dumps({"critical_warning": {"value": 1, "available_spare": 1}, "temperature": 0,
                             "data_units_written": "2\u202f210\u202f450", "percent_used": 104}),
        "nvme4": "NVMe status: INVALID_FIELD(0x4002)\n",
        "nvme5": "{}",
        "nvme6": json.dumps({"temperature": None, "media_errors": -1, "percent_used": True, "critical_warning": 1e400}),
    }  # fmt: skip
    files = base(HOST) | {
        "proc/self/mountinfo": MOUNTINFO,
        "sys/fs/fuse/connections/64/waiting": "9\n",
        "sys/fs/fuse/connections/61/waiting": "7\n",
        "read_errors.json": json.dumps({
            "sys/fs/fuse/connections/64/waiting": "EACCES", "commands/nvme_smart-log_nvme5.json": "EOPNOTSUPP",
        }),
        "etc/clusterwatch/agent.toml": '[[mount]]\npath = "/mnt/hung"\n[[mount]]\npath = "/mnt/never"\n',
        **{f"commands/nvme_smart-log_{name}.json": text for name, text in smart.items()},
    }  # fmt: skip
    before = files | {
        "proc/self/mountstats": mountstats(later=False),
        "proc/diskstats": disks(later=False),
        "sys/fs/fuse/connections/62/waiting": "3\n",
    }
    after = files | {
        "proc/self/mountstats": mountstats(later=True),
        "proc/diskstats": disks(later=True),
        "sys/fs/fuse/connections/62/waiting": "5\n",
    }
    return Node(before, after, SAMPLES, EVENTS, SILENT, UNLESS)


SAMPLES = {
    "mount//mnt/many read_ops_per_s": (10.0, "ok"),
    "mount//mnt/many read_bytes_per_s": (100_000.0, "ok"),
    "mount//mnt/many read_rtt_s": (0.002, "ok"),
    "mount//mnt/many read_exec_s": (0.0025, "ok"),
    "mount//mnt/many read_queue_s": (0.0001, "ok"),
    "mount//mnt/many read_errors_total": (3, "ok"),
    "mount//mnt/many write_ops_per_s": (0.0, "ok"),
    "mount//mnt/many write_rtt_s": (None, "no_ops"),
    "mount//mnt/many layoutget_ops_per_s": (1.0, "ok"),
    "mount//mnt/many app_bytes_read_per_s": (100.0, "ok"),
    "mount//mnt/many server_bytes_read_per_s": (200.0, "ok"),
    "mount//mnt/many rpc_in_flight_count": (4, "ok"),
    "mount//mnt/my data read_ops_per_s": (0.1, "ok"),
    "mount//mnt/my data read_bytes_per_s": (10.0, "ok"),
    "mount//mnt/my data read_rtt_s": (0.002, "ok"),
    "mount//mnt/my data read_exec_s": (0.003, "ok"),
    "mount//mnt/my data rpc_in_flight_count": (0, "ok"),
    "mount//mnt/hung rpc_in_flight_count": (4, "ok"),
    "mount//mnt/hung read_ops_per_s": (0.0, "ok"),
    "mount//mnt/hung read_rtt_s": (None, "no_ops"),
    "mount//mnt/hung write_exec_s": (None, "no_ops"),
    "mount//mnt/flex app_bytes_written_per_s": (1_000_000.0, "ok"),
    "mount//mnt/flex server_bytes_written_per_s": (0.0, "ok"),
    "mount//mnt/flex rpc_in_flight_count": (0, "ok"),
    "mount//mnt/again read_ops_per_s": (None, "reset"),
    "mount//mnt/again read_rtt_s": (None, "reset"),
    "mount//mnt/again app_bytes_read_per_s": (None, "reset"),
    "mount//mnt/blob fuse_waiting_count": (7, "ok"),
    "mount//mnt/busy fuse_waiting_count": (5, "ok"),
    "mount//mnt/closed fuse_waiting_count": (None, "eacces"),
    "mount//mnt/gone fuse_waiting_count": (None, "not_available"),
    "disk/nvme0n1 read_await_s": (0.002, "ok"),
    "disk/nvme0n1 write_await_s": (0.0035, "ok"),
    "disk/nvme0n1 flush_await_s": (0.0045, "ok"),
    "disk/nvme0n1 read_bytes_per_s": (51_200.0, "ok"),
    "disk/nvme0n1 write_bytes_per_s": (102_400.0, "ok"),
    "disk/nvme0n1 busy_ratio": (0.5, "ok"),
    "disk/nvme0n1 in_flight_count": (3, "ok"),
    "disk/sda read_await_s": (0.007, "ok"),
    "disk/sda write_await_s": (None, "no_ops"),
    "disk/sdb read_await_s": (0.0035, "ok"),
    "disk/nvme9n1 write_await_s": (0.005, "ok"),
    "disk/nvme9n1 flush_await_s": (None, "no_ops"),
    "disk/sdc read_await_s": (None, "reset"),
    "disk/sdc read_bytes_per_s": (None, "reset"),
    "disk/sdd read_await_s": (0.002, "ok"),
    "disk/nvme0 temperature_c": (42, "ok"),
    "disk/nvme0 percent_used_ratio": (0.07, "ok"),
    "disk/nvme0 data_units_written_total": (2**100, "ok"),
    "disk/nvme1 temperature_c": (42, "ok"),
    "disk/nvme1 percent_used_ratio": (1.04, "ok"),
    "disk/nvme1 media_errors_total": (12, "ok"),
    "disk/nvme1 data_units_written_total": (2_210_450, "ok"),
    "disk/nvme1 critical_warning_mask": (4, "ok"),
    "disk/nvme3 critical_warning_mask": (1, "ok"),
    "disk/nvme3 temperature_c": (None, "out_of_range"),
    "disk/nvme3 data_units_written_total": (2_210_450, "ok"),
    "disk/nvme3 media_errors_total": (None, "not_available"),
    "disk/nvme4 temperature_c": (None, "unreadable"),
    "disk/nvme5 temperature_c": (None, "eopnotsupp"),
    "disk/nvme6 temperature_c": (None, "not_available"),
}
EVENTS = (
    event("mount//mnt/hung", "mount_stall", server="nas-c"),
    event("mount//mnt/flex", "mount_stall", server="hammerspace"),
    event("mount//mnt/blob", "mount_stall"),
    event("disk/nvme1", "nvme_error", severity="critical"),
    event("disk/nvme3", "nvme_error", severity="warning"),
    event("mount//mnt/never", "mount_missing"),
)
SILENT = (
    "mount//mnt/my data read_errors_total",
    "disk/sda flush_await_s",
    "disk/sdb flush_await_s",
    "disk/loop0 in_flight_count",
    "disk/nvme0n1p1 in_flight_count",
    "mount// read_ops_per_s",
)
UNLESS = (
    lambda one: (
        one["kind"] == "mount_stall"
        and one["entity"] in ("mount//mnt/many", "mount//mnt/busy", "mount//mnt/again", "mount//mnt/closed")
    ),
    lambda one: one["kind"] == "nvme_error" and one["entity"] in ("disk/nvme0", "disk/nvme6"),
    lambda one: one["kind"] == "mount_missing" and one["entity"] != "mount//mnt/never",
)
