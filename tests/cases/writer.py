"""Writes flight-recorder dumps from the description of their format, with none of the product's types.

``Ring`` keeps what one rank's recorder keeps: it numbers what the rank issues and is told how each call
ended. ``Ring.dump`` gives the dictionary that the recorder writes, for any dump version, ``pickled`` and
``as_json`` its two encodings. Nothing here judges anything.

Source: torch's FlightRecorder.hpp and FlightRecorderDetail.hpp.
"""

from __future__ import annotations

import json
import pickle
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Final

START_NS: Final = 1_790_000_000_000_000_000
"""Host clock of the first call of every job."""

Entry = dict[str, Any]
Shapes = Sequence[Sequence[int]]

_SINCE_MINOR: Final = {
    "input_dtypes": 4,
    "output_dtypes": 4,
    "timeout_ms": 3,
    "thread_id": 8,
    "thread_name": 8,
}
"""Minor version of 2.x that brought a field of an entry."""


@dataclass(frozen=True, eq=False)
class Group:
    """A process group: ``ranks`` are global, in the order of group ranks. Made again, it is another one."""

    name: str
    desc: str
    ranks: tuple[int, ...]


@dataclass(frozen=True)
class Flavour:
    """How a recorder writes: its library's prefix, and what was switched on."""

    prefix: str = "nccl"
    timing: bool = False
    """TORCH_NCCL_ENABLE_TIMING: starts are seen"""
    frames: tuple[tuple[str, str, int], ...] = (("train_step", "train.py", 21),)
    """name, file, line, innermost first; the same for each call unless it brings its own"""
    closes_batches: bool = True
    """XCCL writes no closing entry after a batch"""

    @property
    def gloo(self) -> bool:
        return self.prefix == "gloo"


@dataclass
class Ring:
    """The recorder of one process."""

    rank: int
    groups: list[Group]
    """in the order this process made them: their place gives the pg_id, which no other process shares"""
    flavour: Flavour = Flavour()
    entries: list[Entry] = field(default_factory=list)
    first_pg_id: int = 0
    destroyed: set[str] = field(default_factory=set)
    """names of groups that are gone from pg_config and pg_status; their entries stay in the ring"""

    def __post_init__(self) -> None:
        self.made = 0
        self._collectives: dict[Group, int] = defaultdict(int)
        self._p2p: dict[Group, int] = defaultdict(int)
        self._ops: dict[Group, int] = defaultdict(int)
        self._status: dict[int, list[int]] = {}

    # --- what a rank issues ---------------------------------------------------------------------------------

    def collective(
        self,
        group: Group,
        op: str = "all_reduce",
        inputs: Shapes = ((1024,),),
        outputs: Shapes | None = None,
        dtype: str = "Float",
        at_ns: int = START_NS,
        *,
        part: bool = False,
        out_dtype: str | None = None,
        frames: tuple[tuple[str, str, int], ...] | None = None,
    ) -> Entry:
        """One launched collective. ``part``: a further entry of the coalesced call that was begun last."""
        self._collectives[group] += not part
        self._ops[group] += 1
        entry = self._entry(group, op, inputs, inputs if outputs is None else outputs, at_ns, frames)
        entry["input_dtypes"] = [dtype] * len(entry["input_sizes"])
        entry["output_dtypes"] = [out_dtype or dtype] * len(entry["output_sizes"])
        self._enqueue(group, self._collectives[group])
        return entry

    def p2p(
        self, group: Group, sends: bool, peer: int, size: Sequence[int] = (64,), dtype: str = "Float",
        at_ns: int = START_NS, *, batched: bool = False,
    ) -> Entry | None:  # fmt: skip
        """One send or receive; None on gloo, which does not record it but burns an op number.

        Args:
            peer: global rank; the name holds group ranks.
            batched: a member of the batch that ``open_batch`` began.
        """
        self._ops[group] += 1
        if self.flavour.gloo:
            self._enqueue(group, self._ops[group])
            return None
        self._p2p[group] += not batched
        mine, other = group.ranks.index(self.rank), group.ranks.index(peer)
        name = f"send {mine}->{other}" if sends else f"recv {mine}<-{other}"
        entry = self._entry(group, name, (size,), (size,), at_ns)
        entry.update(is_p2p=True, input_dtypes=[dtype], output_dtypes=[dtype])
        if not batched:
            self._enqueue(group, self._p2p[group])
        return entry

    def open_batch(self, group: Group) -> None:
        """Begins a batch of sends and receives: they share one p2p number."""
        self._p2p[group] += 1

    def close_batch(self, group: Group, at_ns: int = START_NS) -> Entry | None:
        """The closing entry, the only one of a batch whose state ever moves; None where none is written."""
        if self.flavour.gloo or not self.flavour.closes_batches:
            return None
        self._ops[group] += 1
        entry = self._entry(group, "coalesced", (), (), at_ns)
        entry["is_p2p"] = True
        self._enqueue(group, self._p2p[group])
        return entry

    def _entry(
        self, group: Group, op: str, inputs: Shapes, outputs: Shapes, at_ns: int,
        frames: tuple[tuple[str, str, int], ...] | None = None,
    ) -> Entry:  # fmt: skip
        entry: Entry = {
            "record_id": self.made,
            "pg_id": self.pg_id(group),
            "process_group": (group.name, group.desc),
            "collective_seq_id": self._collectives[group],
            "p2p_seq_id": self._p2p[group],
            "op_id": self._ops[group],
            "profiling_name": f"{self.flavour.prefix}:{op}",
            "time_created_ns": at_ns,
            "time_discovered_started_ns": None,
            "time_discovered_completed_ns": None,
            "input_sizes": [list(shape) for shape in inputs],
            "output_sizes": [list(shape) for shape in outputs],
            "input_dtypes": [],
            "output_dtypes": [],
            "state": "scheduled",
            "retired": False,
            "timeout_ms": 600_000,
            "is_p2p": False,
            "thread_id": str(140_000_000_000_000 + self.rank),
            "thread_name": "pt_main_thread",
            "frames": [
                {"name": name, "filename": file, "line": line}
                for name, file, line in (self.flavour.frames if frames is None else frames)
            ],
        }
        self.made += 1
        self.entries.append(entry)
        return entry

    # --- how it ended ---------------------------------------------------------------------------------------

    def start(self, entry: Entry, at_ns: int) -> None:
        """The kernel runs; seen only with timing on."""
        if self.flavour.timing and not self.flavour.gloo:
            entry.update(state="started", time_discovered_started_ns=at_ns)
            self._note(entry, 1)

    def finish(self, entry: Entry, at_ns: int) -> None:
        """The call is done. On gloo ``retired`` is the only mark of it."""
        self._note(entry, 2)
        entry["retired"] = True
        if self.flavour.gloo:
            return
        if self.flavour.timing:
            entry["time_discovered_started_ns"] = entry["time_discovered_started_ns"] or at_ns
            entry["duration_ms"] = (at_ns - entry["time_discovered_started_ns"]) / 1e6
            self._note(entry, 1)
        entry.update(state="completed", time_discovered_completed_ns=at_ns)

    def time_out(self, entry: Entry) -> None:
        """The watchdog gave up: retired, not completed. gloo also moves its last completed number."""
        entry["retired"] = True
        if self.flavour.gloo:
            self._note(entry, 2)

    def reset(self) -> None:
        """A soft epoch: record numbers start at 0 again, the groups' sequences go on."""
        self.entries.clear()
        self.made = 0

    def _enqueue(self, group: Group, number: int) -> None:
        self._status.setdefault(self.pg_id(group), [-1, -1, -1])[0] = number

    def _note(self, entry: Entry, column: int) -> None:
        number = entry["p2p_seq_id" if entry["is_p2p"] else "collective_seq_id"]
        number = entry["op_id"] if self.flavour.gloo else number
        row = self._status[entry["pg_id"]]
        row[column] = max(row[column], number)

    # --- what it writes -------------------------------------------------------------------------------------

    def pg_id(self, group: Group) -> int:
        return self.first_pg_id + self.groups.index(group)

    def dump(
        self, version: str = "2.10", keep: int | None = None, only_active: bool = False
    ) -> dict[str, Any]:
        """What the recorder hands out.

        Args:
            keep: the ring holds only so many newest entries.
            only_active: leave out what is completed (gloo filters nothing).
        """
        major, minor = (int(part) for part in version.split("."))
        entries = self.entries if keep is None else self.entries[-keep:]
        if only_active and not self.flavour.gloo:
            entries = [entry for entry in entries if entry["state"] != "completed"]
        rows = [_as_of(entry, major, minor) for entry in entries]
        held = [group for group in self.groups if group.name not in self.destroyed]
        config = {group.name: _told(group, minor) for group in held}
        if self.flavour.gloo:  # one nameless group with group-local numbers: the last one that was made
            config = {"": {"name": "", "desc": "", "ranks": str(list(range(len(self.groups[-1].ranks))))}}
        dump: dict[str, Any] = {"version": version, "pg_config": config, "entries": rows}
        if (major, minor) >= (2, 4):
            dump["pg_status"] = {
                str(self.pg_id(group)): dict(zip(_STATUS, self._status[self.pg_id(group)], strict=True))
                for group in held
                if self.pg_id(group) in self._status
            }
        if (major, minor) >= (2, 8):
            dump["comm_lib_version"] = "" if self.flavour.gloo else "2.29.3"
        return dump

    def pickled(self, version: str = "2.10", keep: int | None = None, only_active: bool = False) -> bytes:
        return pickle.dumps(self.dump(version, keep, only_active), protocol=2)

    def as_json(self, version: str = "2.10", keep: int | None = None, only_active: bool = False) -> bytes:
        """No frames, 0 for an unknown time, counters as text, no ``entries`` when there are none."""
        dump = self.dump(version, keep, only_active)
        times = ("time_discovered_started_ns", "time_discovered_completed_ns")
        rows = [
            {key: (value or 0) if key in times else value for key, value in row.items() if key != "frames"}
            for row in dump.pop("entries")
        ]
        status = dump.get("pg_status", {})
        dump["pg_status"] = {key: {n: str(v) for n, v in row.items()} for key, row in status.items()}
        dump["nccl_comm_state"] = {}
        return json.dumps(dump | ({"entries": rows} if rows else {})).encode()


_STATUS: Final = ("last_enqueued_collective", "last_started_collective", "last_completed_collective")


def _as_of(entry: Entry, major: int, minor: int) -> Entry:
    """The entry as a recorder of that version wrote it."""
    row = {
        key: value for key, value in entry.items() if _SINCE_MINOR.get(key, 0) <= (minor if major > 1 else 0)
    }
    if major == 1:  # one number for everything, no names of groups
        row["seq_id"] = row.pop("collective_seq_id")
        for key in ("p2p_seq_id", "process_group", "op_id"):
            row.pop(key)
    return row


def _told(group: Group, minor: int) -> dict[str, Any]:
    told = {"name": group.name, "desc": group.desc, "ranks": str(list(group.ranks))}
    if minor < 4:
        told.pop("desc")
    return told
