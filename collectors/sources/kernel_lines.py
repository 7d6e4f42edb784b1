"""Lines of the kernel's log that are faults of a host, its links, memory, disks and file systems.

In: one record at a time. Out: an event, or none: most lines are no fault. GPU faults are in ``xid_lines``.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, MutableMapping
from functools import cached_property
from typing import Final

from collectors.sources.base import HOST, Attribute, SourceEvent
from collectors.sources.gpu_identity import UUID, gpus, lost_uuids, normal_bdf
from collectors.sources.kmsg import Record
from collectors.sources.mountstats import path_of
from collectors.sources.pci_places import rdma_at, rdma_of_netdev
from collectors.sources.tree import Tree
from collectors.wire.records import Severity

_BDF: Final = r"((?:[0-9a-fA-F]{4}:)?[0-9a-fA-F]{2}:[0-9a-fA-F]{2}\.[0-7])"
_JOB: Final = re.compile(r"job_(\d{1,10})\b")
_OOM_SAME_US: Final = 5_000_000
_KILLED_MAX: Final = 1_024
_MOUNT_POINT: Final = 4
"""Its word in a line of mountinfo."""


class Place:
    """Where and when a line belongs: time of boot, devices by their address or name."""

    def __init__(self, tree: Tree, boot_ns: int | None, listed: Mapping[str, str] | None = None) -> None:
        """``listed``: address -> UUID of the GPUs that earlier looks found: a lost one is in no list now."""
        self._tree = tree
        self._boot_ns = boot_ns
        self._listed = listed or {}
        self._uuids: dict[str, str | None] = {}
        self._rdma: dict[tuple[str, str], str | None] = {}

    def t_ns(self, usec: int) -> int | None:
        """Wall time of a record; None (now) where the time of boot is not known."""
        return None if self._boot_ns is None else self._boot_ns + usec * 1_000

    def uuid_at(self, bdf: str) -> str | None:
        """Of the GPU at an address (``0000:12:00.0``)."""
        if bdf not in self._uuids:
            self._uuids[bdf] = self._listed_now.get(bdf) or self._driver_uuid(bdf) or self._listed.get(bdf)
        return self._uuids[bdf]

    @cached_property
    def _listed_now(self) -> dict[str, str]:
        return listed_gpus(self._tree)

    @cached_property
    def only_lost_uuid(self) -> str | None:
        """The one GPU of the inventory that is in no list: an address that is in none either is its own."""
        lost = lost_uuids(self._tree) - set(self._listed.values())
        return next(iter(lost)) if len(lost) == 1 else None

    def _driver_uuid(self, bdf: str) -> str | None:
        try:
            text = self._tree.read_text(f"proc/driver/nvidia/gpus/{bdf}/information", 4_096)
        except OSError:
            return None
        match = UUID.search(text)
        return match[0] if match else None

    def device(self, bdf_text: str) -> tuple[str, str]:
        """(entity, address): a GPU goes by its UUID whatever names it."""
        bdf = normal_bdf(bdf_text) or bdf_text
        uuid = self.uuid_at(bdf)
        return (f"gpu/{uuid}" if uuid else f"pci/{bdf}"), bdf

    def rdma_of(self, netdev: str, bdf_text: str) -> str | None:
        """By the network device, else by the address: the device may have been renamed since."""
        key = netdev, normal_bdf(bdf_text) or ""
        if key not in self._rdma:
            self._rdma[key] = rdma_of_netdev(self._tree, netdev) or rdma_at(self._tree, key[1])
        return self._rdma[key]

    def mount_of(self, server: str) -> str | None:
        """The first mount of an NFS server."""
        try:
            text = self._tree.read_text("proc/self/mountinfo")
        except OSError:
            return None
        for line in text.splitlines():
            words = line.split(" ")
            if len(words) > _MOUNT_POINT and any(word.startswith(f"{server}:") for word in words):
                return path_of(words[_MOUNT_POINT])
        return None


def listed_gpus(tree: Tree) -> dict[str, str]:
    """Address -> UUID of the GPUs that are there now."""
    return {gpu.bdf: gpu.uuid for gpu in gpus(tree) if gpu.bdf is not None}


class Teller:
    """Tells events of one look.

    Args:
        killed: process -> when its end for want of memory was told (microseconds since boot); several lines
            tell it, perhaps at two looks.
    """

    def __init__(self, place: Place, killed: MutableMapping[int, int]) -> None:
        self._place = place
        self._killed = killed

    def event(self, record: Record) -> SourceEvent | None:
        for pattern, tell in _RULES:
            if match := pattern.match(record.text):
                return tell(self, match, record)
        return None

    def link_down(self, match: re.Match[str], _: Record) -> SourceEvent:
        netdev = match[2]
        rdma = self._place.rdma_of(netdev, match[1])
        attributes: dict[str, Attribute] = {"rdma_device": rdma} if rdma else {}
        return SourceEvent(f"nic/{netdev}", "link_down", f"{netdev}: Link down", attributes=attributes)

    def port_down(self, match: re.Match[str], _: Record) -> SourceEvent:
        device, port = match[1], match[2]
        text = f"{device} port {port}: Link down"
        return SourceEvent(f"port/{device}/{port}", "link_down", text, attributes={"rdma_device": device})

    def hung_task(self, match: re.Match[str], _: Record) -> SourceEvent:
        comm, pid, seconds = match[1], int(match[2]), int(match[3])
        text = f"{comm} (pid {pid}) does not run for more than {seconds} s"
        return SourceEvent(HOST, "hung_task", text, attributes={"comm": comm, "pid": pid, "seconds": seconds})

    def lockup(self, match: re.Match[str], _: Record) -> SourceEvent:
        told: dict[str, Attribute] = {"cpu": int(match[1]), "seconds": int(match[2]), "comm": match[3]}
        text = f"CPU {match[1]} is stuck for {match[2]} s in {match[3]}"
        return SourceEvent(HOST, "lockup", text, "critical", attributes=told | {"pid": int(match[4])})

    def hard_lockup(self, match: re.Match[str], _: Record) -> SourceEvent:
        return SourceEvent(
            HOST, "lockup", f"hard lockup of CPU {match[1]}", "critical", attributes={"cpu": int(match[1])}
        )

    def oom_constraint(self, match: re.Match[str], record: Record) -> SourceEvent | None:
        """The first of the lines; it has the control group, and with it the job."""
        job = _JOB.search(match[1])
        return self._oom(int(match[3]), match[2], record, {"job_id": int(job[1])} if job else {})

    def oom_killed(self, match: re.Match[str], record: Record) -> SourceEvent | None:
        return self._oom(int(match[1]), match[2], record, {})

    def _oom(self, pid: int, name: str, record: Record, more: dict[str, Attribute]) -> SourceEvent | None:
        told = self._killed.get(pid)
        if told is not None and record.usec - told <= _OOM_SAME_US:
            return None
        if len(self._killed) >= _KILLED_MAX:
            self._killed.clear()
        self._killed[pid] = record.usec
        text = f"out of memory: {name} (pid {pid}) killed"
        return SourceEvent(HOST, "oom_kill", text, attributes={"pid": pid, "name": name, **more})

    def edac(self, match: re.Match[str], _: Record) -> SourceEvent:
        fatal = match[3] == "UE"
        text = f"{match[2]} {'un' if fatal else ''}corrected memory errors at controller {match[1]}"
        return SourceEvent(HOST, "ecc", text, "critical" if fatal else "warning", attributes={"fatal": fatal})

    def machine_check(self, match: re.Match[str], _: Record) -> SourceEvent:
        return SourceEvent(HOST, "ecc", f"machine check: {match[1][:160]}")

    def disk(self, match: re.Match[str], _: Record) -> SourceEvent:
        device = match["device"]
        kind = "nvme_error" if device.startswith("nvme") else "disk_error"
        what = match["what"].strip(" ,:")[:160]
        severity: Severity = "critical" if what.startswith(_DISK_GONE) else "warning"
        return SourceEvent(f"disk/{device}", kind, f"{device}: {what}", severity)

    def file_system(self, match: re.Match[str], record: Record) -> SourceEvent:
        device = match["device"]
        severity: Severity = "critical" if _READ_ONLY.search(record.text) else "warning"
        return SourceEvent(f"disk/{device}", "fs_error", record.text[:200], severity)

    def read_only(self, _: re.Match[str], record: Record) -> SourceEvent:
        return SourceEvent(HOST, "fs_error", record.text[:200], "critical")

    def pcie(self, match: re.Match[str], _: Record) -> SourceEvent:
        entity, bdf = self._place.device(match[1])
        is_corrected, is_fatal = match[2].startswith("Correct"), match[2].endswith("(Fatal)")
        severity: Severity = "info" if is_corrected else "critical" if is_fatal else "warning"
        told: dict[str, Attribute] = {"bdf": bdf, "fatal": is_fatal}
        text = f"PCIe bus error at {bdf}: {match[2]}"
        return SourceEvent(entity, "pcie_error", text, severity, attributes=told)

    def nic(self, match: re.Match[str], _: Record) -> SourceEvent:
        entity, bdf = self._place.device(match[1])
        if match[2]:
            entity = f"nic/{match[2]}"
        severity: Severity = "critical" if "compromised" in match[3] else "warning"
        text = f"{match[2] or bdf}: {match[3][:160]}"
        return SourceEvent(entity, "nic_error", text, severity, attributes={"bdf": bdf})

    def nfs(self, match: re.Match[str], _: Record) -> SourceEvent:
        server = match[1]
        mount = self._place.mount_of(server)
        text = f"NFS server {server} does not respond"
        return SourceEvent(
            f"mount/{mount}" if mount else HOST, "mount_stall", text, attributes={"server": server}
        )

    def segfault(self, match: re.Match[str], _: Record) -> SourceEvent:
        told: dict[str, Attribute] = {"name": match[1], "pid": int(match[2])}
        return SourceEvent(
            HOST, "segfault", f"{match[1]} (pid {match[2]}) crashed in {match[3]}", attributes=told
        )

    def panic(self, match: re.Match[str], _: Record) -> SourceEvent:
        return SourceEvent(HOST, "kernel_panic", f"kernel panic: {match[1][:160]}", "critical")

    def whole_line(self, match: re.Match[str], record: Record) -> SourceEvent:
        return SourceEvent(HOST, "rcu_stall" if "stall" in match[0] else "peermem_error", record.text[:200])


Rule = tuple[re.Pattern[str], Callable[[Teller, re.Match[str], Record], SourceEvent | None]]
_DISK: Final = r"(?P<device>nvme\d+(?:n\d+)?(?:c\d+n\d+)?|[shv]d[a-z]{1,3}|dm-\d+|md\d+)"
_DISK_GONE: Final = ("Disabling", "Removing", "no available path")
_NETDEV: Final = r"([A-Za-z0-9_.-]{1,15})"
_READ_ONLY: Final = re.compile("remounting filesystem read-only|forced readonly", re.IGNORECASE)
_PATTERNS: Final = (
    (rf"\S+ {_BDF} {_NETDEV}: (?:\S+: )?(?:\S+ )?(?:NIC )?Link (?:is )?[Dd]own", Teller.link_down),
    (r"mlx\S+ \S+ ([a-z0-9_]{1,63}): Port: (\d{1,3}) Link DOWN", Teller.port_down),
    (
        r"INFO: task (.{1,64}):(\d{1,10}) blocked (?:in I/O wait )?for more than (\d{1,9}) seconds",
        Teller.hung_task,
    ),
    (
        r"(?:NMI )?(?:watchdog: )?BUG: soft lockup - CPU#(\d{1,5}) stuck for (\d{1,9})s! "
        r"\[(.{1,64}):(\d{1,10})\]",
        Teller.lockup,
    ),
    (
        r"(?:NMI )?(?:watchdog: )?Watchdog detected hard LOCKUP on cpu (\d{1,5})",
        Teller.hard_lockup,
    ),
    (r"(?:rcu: )?INFO: \S+ (?:self-)?detected (?:expedited )?stall", Teller.whole_line),
    (r"Kernel panic - not syncing: (.*)", Teller.panic),
    (r"oom-kill:constraint=.*task_memcg=(.*),task=(.{1,64}),pid=(\d{1,10}),", Teller.oom_constraint),
    (
        r"(?:(?:Memory cgroup )?[Oo]ut of memory[^:]{0,64}: )?Kill(?:ed)? process (\d{1,10}) \((.{1,64}?)\)"
        r"(?:,| total| score|$)",
        Teller.oom_killed,
    ),
    (r"EDAC MC(\d{1,3}): (\d{1,9}) (CE|UE) ", Teller.edac),
    (
        r"(?:mce: )?\[Hardware Error\]: ((?:CPU \d+: Machine Check|Machine check events).*)",
        Teller.machine_check,
    ),
    (
        rf"nvme {_DISK}: "
        r"(?P<what>(?:I/O|controller is down|Removing|resetting|Disabling|Device not ready).*)",
        Teller.disk,
    ),
    (rf"block {_DISK}: (?P<what>no available path.*)", Teller.disk),
    (rf"(?:\w+: )?(?P<what>(?:I/O|critical \w+) error), dev {_DISK}", Teller.disk),
    (rf"(?P<what>Buffer I/O error) on dev(?:ice)? {_DISK}", Teller.disk),
    (rf"{_DISK}: (?P<what>.* @ LBA .*)", Teller.disk),
    (rf"EXT[234]-fs error \(device {_DISK}", Teller.file_system),
    (rf"EXT[234]-fs \({_DISK}[^)]*\): .*[Rr]emounting filesystem read-only", Teller.file_system),
    (rf"XFS \({_DISK}[^)]*\): .*(?:[Cc]orruption|[Ss]hutting down|metadata I/O error)", Teller.file_system),
    (rf"BTRFS \w+ \(device {_DISK}[^)]*\):? .*forced readonly", Teller.file_system),
    (
        r"(?:EXT[234]-fs|F2FS-fs|XFS|BTRFS)\b.*(?:[Rr]emounting filesystem read-only|forced readonly)",
        Teller.read_only,
    ),
    (
        rf"\S+ {_BDF}: (?:AER: )?PCIe Bus Error: "
        r"severity=(Correct(?:ed|able)|Uncorrect(?:ed|able) \((?:Non-)?Fatal\))",
        Teller.pcie,
    ),
    (
        rf"mlx5_core {_BDF}(?: {_NETDEV})?: .*?(Detected insufficient power.*|Port module event\[error\].*|"
        r"Port module event.*High Temperature.*|[^:]*health compromised.*|\S+ timeout\. Will cause a leak.*|"
        r"assert_var.*|Fatal error \d+ detected.*)",
        Teller.nic,
    ),
    (r"nfs: server (\S{1,128}) not responding", Teller.nfs),
    (
        r"(.{1,64})\[(\d{1,10})\]: segfault at .* in (libnccl\S{0,60}|libcuda\S{0,60})\[",
        Teller.segfault,
    ),
    (r"nvidia[-_]peermem.*invalid context", Teller.whole_line),
)
# All from the start of a line: names that a user chose (of a control group, a process) come later in it.
_RULES: Final[tuple[Rule, ...]] = tuple((re.compile(pattern), tell) for pattern, tell in _PATTERNS)
