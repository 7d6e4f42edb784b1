"""Lines of the kernel's log that are faults of a host, its links, memory, disks and file systems.

In: one record at a time. Out: an event, or none: most lines are no fault. GPU faults are in ``xid_lines``.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Final

from collectors.sources.base import HOST, Attribute, SourceEvent
from collectors.sources.gpu_identity import normal_bdf, uuid_of
from collectors.sources.kmsg import Record
from collectors.sources.pci_places import rdma_of_netdev
from collectors.sources.tree import Tree
from collectors.wire.records import Severity

_BDF: Final = r"((?:[0-9a-fA-F]{4}:)?[0-9a-fA-F]{2}:[0-9a-fA-F]{2}\.[0-7])"
_JOB: Final = re.compile(r"job_(\d{1,10})\b")
_OOM_SAME_US: Final = 5_000_000


class Place:
    """Where and when a line belongs: time of boot, devices by their address or name."""

    def __init__(self, tree: Tree, boot_ns: int | None) -> None:
        self._tree = tree
        self._boot_ns = boot_ns
        self._uuids: dict[str, str | None] = {}

    def t_ns(self, usec: int) -> int | None:
        """Wall time of a record; None (now) where the time of boot is not known."""
        return None if self._boot_ns is None else self._boot_ns + usec * 1_000

    def uuid_at(self, bdf: str) -> str | None:
        if bdf not in self._uuids:
            self._uuids[bdf] = uuid_of(self._tree, bdf)
        return self._uuids[bdf]

    def device(self, bdf_text: str) -> tuple[str, str]:
        """(entity, address): a GPU goes by its UUID whatever names it."""
        bdf = normal_bdf(bdf_text) or bdf_text
        uuid = self.uuid_at(bdf)
        return (f"gpu/{uuid}" if uuid else f"pci/{bdf}"), bdf

    def rdma_of(self, netdev: str) -> str | None:
        return rdma_of_netdev(self._tree, netdev)

    def mount_of(self, server: str) -> str | None:
        """The first mount of an NFS server."""
        try:
            lines = self._tree.read_text("proc/self/mountinfo").splitlines()
        except OSError:
            return None
        for line in lines:
            words = line.split(" ")
            if f"{server}:" in line and len(words) > 4 and any(w.startswith(f"{server}:") for w in words):
                return words[4].replace("\\040", " ")
        return None


class Teller:
    """Tells events of one look. Remembers the memory kill that two lines tell."""

    def __init__(self, place: Place) -> None:
        self._place = place
        self._killed: dict[int, int] = {}

    def event(self, record: Record) -> SourceEvent | None:
        for pattern, tell in _RULES:
            if match := pattern.search(record.text):
                return tell(self, match, record)
        return None

    def link_down(self, match: re.Match[str], _: Record) -> SourceEvent:
        netdev = match[2]
        rdma = self._place.rdma_of(netdev)
        attributes: dict[str, Attribute] = {"rdma_device": rdma} if rdma else {}
        return SourceEvent(f"nic/{netdev}", "link_down", f"{netdev}: Link down", attributes=attributes)

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

    def oom_constraint(self, match: re.Match[str], record: Record) -> SourceEvent:
        """The first of two lines; it has the control group, and with it the job."""
        pid = int(match[3])
        self._killed[pid] = record.usec
        told: dict[str, Attribute] = {"pid": pid, "name": match[2][:64]}
        if job := _JOB.search(match[1]):
            told["job_id"] = int(job[1])
        return SourceEvent(HOST, "oom_kill", f"out of memory: {match[2]} (pid {pid}) killed", attributes=told)

    def oom_killed(self, match: re.Match[str], record: Record) -> SourceEvent | None:
        pid = int(match[1])
        if record.usec - self._killed.get(pid, -_OOM_SAME_US - 1) <= _OOM_SAME_US:
            return None
        text = f"out of memory: {match[2]} (pid {pid}) killed"
        return SourceEvent(HOST, "oom_kill", text, attributes={"pid": pid, "name": match[2][:64]})

    def edac(self, match: re.Match[str], _: Record) -> SourceEvent:
        fatal = match[3] == "UE"
        text = f"{match[2]} {'un' if fatal else ''}corrected memory errors at controller {match[1]}"
        return SourceEvent(HOST, "ecc", text, "critical" if fatal else "warning", attributes={"fatal": fatal})

    def machine_check(self, match: re.Match[str], _: Record) -> SourceEvent:
        return SourceEvent(HOST, "mce", f"machine check: {match[1][:160]}")

    def disk(self, match: re.Match[str], _: Record) -> SourceEvent:
        device = match["device"]
        kind = "nvme_error" if device.startswith("nvme") else "disk_error"
        return SourceEvent(f"disk/{device}", kind, f"{device}: {match['what'].strip(' ,:')[:160]}")

    def file_system(self, match: re.Match[str], record: Record) -> SourceEvent:
        device = match["device"]
        severity: Severity = "critical" if "read-only" in record.text.lower() else "warning"
        return SourceEvent(f"disk/{device}", "fs_error", record.text[:200], severity)

    def read_only(self, _: re.Match[str], record: Record) -> SourceEvent:
        return SourceEvent(HOST, "fs_error", record.text[:200], "critical")

    def pcie(self, match: re.Match[str], _: Record) -> SourceEvent:
        entity, bdf = self._place.device(match[1])
        grades: dict[str, Severity] = {"Corrected": "info", "Uncorrected (Fatal)": "critical"}
        text = f"PCIe bus error at {bdf}: {match[2]}"
        return SourceEvent(
            entity, "pcie_error", text, grades.get(match[2], "warning"),
            attributes={"bdf": bdf, "fatal": match[2] == "Uncorrected (Fatal)"},
        )  # fmt: skip

    def nic(self, match: re.Match[str], _: Record) -> SourceEvent:
        entity, bdf = self._place.device(match[1])
        severity: Severity = "critical" if "compromised" in match[2] else "warning"
        return SourceEvent(entity, "nic_error", f"{bdf}: {match[2][:160]}", severity, attributes={"bdf": bdf})

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

    def whole_line(self, match: re.Match[str], record: Record) -> SourceEvent:
        return SourceEvent(HOST, "rcu_stall" if "stall" in match[0] else "peermem_error", record.text[:200])


Rule = tuple[re.Pattern[str], Callable[[Teller, re.Match[str], Record], SourceEvent | None]]
_DISK: Final = r"(?P<device>nvme\d+(?:n\d+)?(?:c\d+n\d+)?|[shv]d[a-z]{1,3}|dm-\d+)"
_RULES: Final[tuple[Rule, ...]] = (
    (
        re.compile(rf"^\S+ {_BDF} (?:\S+ )?([A-Za-z0-9_.-]{{1,15}}): (?:NIC )?Link (?:is )?[Dd]own"),
        Teller.link_down,
    ),
    (
        re.compile(r"INFO: task (.{1,64}):(\d{1,10}) blocked for more than (\d{1,9}) seconds"),
        Teller.hung_task,
    ),
    (
        re.compile(r"soft lockup - CPU#(\d{1,5}) stuck for (\d{1,9})s! \[(.{1,64}):(\d{1,10})\]"),
        Teller.lockup,
    ),
    (re.compile(r"hard LOCKUP on cpu (\d{1,5})"), Teller.hard_lockup),
    (re.compile(r"rcu: INFO: \S+ (?:self-)?detected (?:expedited )?stall"), Teller.whole_line),
    (
        re.compile(r"oom-kill:constraint=\S*?task_memcg=([^,]*),task=(.{1,64}),pid=(\d{1,10}),"),
        Teller.oom_constraint,
    ),
    (re.compile(r"[Oo]ut of memory: Kill(?:ed)? process (\d{1,10}) \((.{1,64}?)\)"), Teller.oom_killed),
    (re.compile(r"EDAC MC(\d{1,3}): (\d{1,9}) (CE|UE) "), Teller.edac),
    (
        re.compile(r"mce: \[Hardware Error\]: ((?:CPU \d+: Machine Check|Machine check events).*)"),
        Teller.machine_check,
    ),
    (re.compile(rf"\bnvme {_DISK}: (?P<what>(?:I/O|controller is down|Removing|resetting).*)"), Teller.disk),
    (re.compile(rf"(?P<what>\b(?:I/O|critical \w+) error), dev {_DISK}"), Teller.disk),
    (re.compile(rf"EXT4-fs error \(device {_DISK}"), Teller.file_system),
    (re.compile(rf"EXT4-fs \({_DISK}[^)]*\): .*[Rr]emounting filesystem read-only"), Teller.file_system),
    (
        re.compile(rf"XFS \({_DISK}[^)]*\): .*(?:[Cc]orruption|Shutting down|metadata I/O error)"),
        Teller.file_system,
    ),
    (re.compile(r"[Rr]emounting filesystem read-only"), Teller.read_only),
    (
        re.compile(rf"{_BDF}: (?:AER: )?PCIe Bus Error: severity=(Corrected|Uncorrected \((?:Non-)?Fatal\))"),
        Teller.pcie,
    ),
    (
        re.compile(
            rf"^mlx5_core {_BDF}.*?((?:Detected insufficient power|Port module event\[error\]|"
            r".*health compromised|.*cmd .* timeout\. Will cause a leak|.*assert_var).*)"
        ),
        Teller.nic,
    ),
    (re.compile(r"nfs: server (\S{1,255}) not responding"), Teller.nfs),
    (
        re.compile(r"(\S{1,64})\[(\d{1,10})\]: segfault at .* in (libnccl\S{0,60}|libcuda\S{0,60})\["),
        Teller.segfault,
    ),
    (re.compile(r"nvidia[-_]peermem.*invalid context"), Teller.whole_line),
)
