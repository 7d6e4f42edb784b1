"""Writes flight-recorder dumps from the description of their format, without any of the product's types.

A ``Job`` issues calls on its ranks in the order a test says, then writes each rank's ring as the recorder
would, in pickle or JSON. Times are ns on a clock that each call moves by ``tick_ns``.
"""

from __future__ import annotations

import json
import pickle
from collections import defaultdict
from dataclasses import dataclass, field
from typing import Any

START_NS = 1_790_000_000_000_000_000


@dataclass
class Ring:
    entries: list[dict[str, Any]] = field(default_factory=list)
    made: int = 0


class Job:
    """A world of ranks with groups; ``backend`` decides how states are written (nccl or gloo)."""

    def __init__(
        self, world: int, backend: str = "nccl", timing: bool = False, tick_ns: int = 1_000_000
    ) -> None:
        self.world = world
        self.backend = backend
        self.timing = timing
        self.tick_ns = tick_ns
        self.now_ns = START_NS
        self.groups: dict[str, tuple[str, tuple[int, ...]]] = {"0": ("default_pg", tuple(range(world)))}
        self.rings = [Ring() for _ in range(world)]
        self.sequences: dict[tuple[int, str], int] = defaultdict(int)
        self.p2p_sequences: dict[tuple[int, str], int] = defaultdict(int)

    def group(self, name: str, desc: str, ranks: tuple[int, ...]) -> str:
        self.groups[name] = (desc, ranks)
        return name

    def call(
        self,
        rank: int,
        group: str = "0",
        op: str = "all_reduce",
        size: Any = (1024,),
        out: Any = None,
        dtype: str = "Float",
        state: str = "completed",
        retired: bool | None = None,
    ) -> dict[str, Any]:
        """One collective of one rank; ``state`` as NCCL writes it, on gloo "completed" means retired."""
        self.sequences[(rank, group)] += 1
        entry = self._entry(rank, group, f"{self.backend}:{op}", size, out, dtype, state, retired)
        entry["collective_seq_id"] = self.sequences[(rank, group)]
        entry["op_id"] = self.sequences[(rank, group)] + self.p2p_sequences[(rank, group)]
        return entry

    def all(self, ranks: Any = None, group: str = "0", **what: Any) -> None:
        """The same call on every member, or on ``ranks``."""
        for rank in ranks if ranks is not None else self.groups[group][1]:
            self.call(rank, group, **what)

    def send(
        self, rank: int, peer: int, group: str = "0", state: str = "completed", size: Any = (64,)
    ) -> None:
        self._p2p(rank, peer, group, "send", "->", state, size)

    def recv(
        self, rank: int, peer: int, group: str = "0", state: str = "completed", size: Any = (64,)
    ) -> None:
        self._p2p(rank, peer, group, "recv", "<-", state, size)

    def batch(
        self, rank: int, moves: list[tuple[str, int]], group: str = "0", state: str = "completed"
    ) -> None:
        """A batched send/recv: members stay scheduled for ever, only the closing entry moves."""
        self.p2p_sequences[(rank, group)] += 1
        for kind, peer in moves:
            self._p2p(
                rank, peer, group, kind, "->" if kind == "send" else "<-", "scheduled", (64,), step=False
            )
        entry = self._entry(rank, group, f"{self.backend}:coalesced", None, None, "Float", state, None)
        entry.update(
            is_p2p=True, p2p_seq_id=self.p2p_sequences[(rank, group)], input_dtypes=[], output_dtypes=[]
        )
        entry["collective_seq_id"] = self.sequences[(rank, group)]

    def _p2p(
        self,
        rank: int,
        peer: int,
        group: str,
        kind: str,
        arrow: str,
        state: str,
        size: Any,
        step: bool = True,
    ) -> None:
        if step:
            self.p2p_sequences[(rank, group)] += 1
        members = self.groups[group][1]
        name = f"{self.backend}:{kind} {members.index(rank)}{arrow}{members.index(peer)}"
        entry = self._entry(rank, group, name, size, None, "Float", state, None)
        entry.update(is_p2p=True, p2p_seq_id=self.p2p_sequences[(rank, group)])
        entry["collective_seq_id"] = self.sequences[(rank, group)]

    def _entry(
        self,
        rank: int,
        group: str,
        name: str,
        size: Any,
        out: Any,
        dtype: str,
        state: str,
        retired: bool | None,
    ) -> dict[str, Any]:
        ring = self.rings[rank]
        self.now_ns += self.tick_ns
        gloo = self.backend == "gloo"
        done = state == "completed"
        sizes = [] if size is None else [list(size)]
        outs = sizes if out is None else [list(out)]
        entry = {
            "frames": [],
            "record_id": ring.made,
            "pg_id": 1000 * rank + list(self.groups).index(group),
            "process_group": (group, self.groups[group][0]),
            "collective_seq_id": 0,
            "p2p_seq_id": 0,
            "op_id": 0,
            "profiling_name": name,
            "time_created_ns": self.now_ns,
            "input_sizes": sizes,
            "input_dtypes": [dtype] * len(sizes),
            "output_sizes": outs,
            "output_dtypes": [dtype] * len(outs),
            "state": "scheduled" if gloo else state,
            "time_discovered_started_ns": self.now_ns + 1 if self.timing and state != "scheduled" else None,
            "time_discovered_completed_ns": self.now_ns + 2 if done and not gloo else None,
            "retired": done if retired is None else retired,
            "timeout_ms": 600000,
            "is_p2p": False,
        }
        ring.made += 1
        ring.entries.append(entry)
        return entry

    def wait(self, seconds: float) -> None:
        self.now_ns += int(seconds * 1e9)

    def dump(self, rank: int, keep: int | None = None) -> dict[str, Any]:
        """The rank's dump; ``keep``: the ring holds only so many newest entries."""
        gloo = self.backend == "gloo"
        config = {
            name: {"name": name, "desc": desc, "ranks": str(list(ranks))}
            for name, (desc, ranks) in self.groups.items()
            if rank in ranks
        }
        entries = self.rings[rank].entries
        status: dict[str, list[int]] = {}
        for entry in entries:
            held = status.setdefault(str(entry["pg_id"]), [0, 0])
            number = entry["p2p_seq_id"] if entry["is_p2p"] else entry["collective_seq_id"]
            held[0] = max(held[0], number)
            if entry["retired"]:
                held[1] = max(held[1], number)
        return {
            "version": "2.10",
            "pg_config": {"": {"name": "", "desc": "", "ranks": "[]"}} if gloo else config,
            "comm_lib_version": "",
            "pg_status": {
                key: {
                    "last_enqueued_collective": enqueued,
                    "last_started_collective": -1,
                    "last_completed_collective": completed,
                }
                for key, (enqueued, completed) in status.items()
            },
            "entries": entries if keep is None else entries[-keep:],
        }

    def pickled(self, rank: int, keep: int | None = None) -> bytes:
        return pickle.dumps(self.dump(rank, keep), protocol=2)

    def json(self, rank: int) -> bytes:
        """The JSON flavour: unknown times are 0, counters are text, no frames, no key for an empty ring."""
        dump = self.dump(rank)
        entries = []
        for entry in dump["entries"]:
            row = {key: value for key, value in entry.items() if key != "frames"}
            for key in ("time_discovered_started_ns", "time_discovered_completed_ns"):
                row[key] = row[key] or 0
            entries.append(row)
        dump["pg_status"] = {k: {n: str(v) for n, v in row.items()} for k, row in dump["pg_status"].items()}
        dump["nccl_comm_state"] = {}
        dump["entries"] = entries
        if not entries:
            del dump["entries"]
        return json.dumps(dump).encode()


def parallel(backend: str = "gloo", **options: Any) -> Job:
    """8 ranks, TP2 x PP2 x DP2: tp pairs (0,1).., pp pairs (0,4).., dp pairs (0,2),(1,3),(4,6),(5,7)."""
    job = Job(8, backend, **options)
    for number in range(4):
        job.group(str(number + 1), "tp", (2 * number, 2 * number + 1))
    for number in range(4):
        job.group(str(number + 5), "pp", (number, number + 4))
    for number, pair in enumerate(((0, 2), (1, 3), (4, 6), (5, 7))):
        job.group(str(number + 9), "dp", pair)
    return job


def name_of(job: Job, desc: str, rank: int) -> str:
    """Name of the group of a kind that ``rank`` is in."""
    return next(name for name, (kind, ranks) in job.groups.items() if kind == desc and rank in ranks)


def steps(job: Job, count: int, ranks: Any = range(8)) -> None:
    """Training steps: two tp calls, then one dp call, finished by all."""
    for _ in range(count):
        for desc in ("tp", "tp", "dp"):
            for rank in ranks:
                job.call(rank, name_of(job, desc, rank), size=(4096,) if desc == "dp" else (1024,))
