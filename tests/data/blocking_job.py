"""A job of blocking ranks, run to its end or to its standstill, to give the dumps a real one would leave.

Each rank runs a generator of moves; a collective ends when every member has made its call of that number, a
receive when the matching send was made (sends never block, as small ones on gloo). Point-to-point moves are
not recorded, as on gloo. The faults are those of the example job.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from typing import Any

from tests.data.recorder import Job, name_of, parallel

Move = tuple[str, Any, dict[str, Any]]

GONE = ("gone", None, {})
"""A move after which the rank makes no other one."""


def program(job: Job, rank: int, count: int, fault: str, faulty: int, at_step: int) -> Iterator[Move]:
    """TP2 x PP2 x DP2: forward, pipeline exchange, backward, gradient all-reduce; a barrier at the end."""
    tp, dp, peer = name_of(job, "tp", rank), name_of(job, "dp", rank), (rank + 4) % 8
    for step in range(count):
        wrong = rank == faulty and step == at_step
        if wrong and fault in ("data_loader", "stopped", "killed", "raise"):
            yield GONE
        if rank >= 4:
            yield ("recv", peer, {})
        if wrong and fault == "wrong_op":
            yield ("call", tp, {"op": "all_gather", "out": (2048,)})
        elif wrong and fault == "wrong_size":
            yield ("call", tp, {"size": (1023,)})
        else:
            yield ("call", tp, {})
        if wrong and fault == "extra_call":
            yield ("call", tp, {})
        if wrong and fault == "spin":
            yield GONE
        if rank < 4:
            yield ("send", peer, {})
            yield ("recv", peer, {})
        yield ("call", tp, {})
        if rank >= 4:
            yield ("send", peer, {})
        if wrong and fault == "extra_dp":
            yield ("call", dp, {"size": (4096,)})
        yield ("call", dp, {"size": (4096,)})
    yield ("call", "0", {"op": "barrier", "size": None})


class World:
    def __init__(self, fault: str = "", faulty: int = 5, at_step: int = 6, count: int = 9) -> None:
        self.job = parallel("gloo")
        self.programs = {rank: program(self.job, rank, count, fault, faulty, at_step) for rank in range(8)}
        self.waiting: dict[int, tuple[str, Any, dict[str, Any]] | None] = dict.fromkeys(range(8))
        self.sent: dict[tuple[int, int], int] = defaultdict(int)
        self.strict = fault in ("wrong_op", "wrong_size")

    def run(self) -> Job:
        """Moves ranks in turn until nobody can move."""
        moved = True
        while moved:
            moved = sum(self._advance(rank) for rank in range(8)) > 0
        return self.job

    def _advance(self, rank: int) -> bool:
        if rank not in self.programs:
            return False
        pending = self.waiting[rank]
        if pending is None:
            move = next(self.programs[rank], None)
            if move is None or move[0] == "gone":
                del self.programs[rank]
                return False
            return self._begin(rank, move)
        return self._finish(rank, pending)

    def _begin(self, rank: int, move: Move) -> bool:
        kind, where, what = move
        if kind == "send":
            self.sent[(rank, where)] += 1
        elif kind == "recv":
            self.waiting[rank] = move
        else:
            entry = self.job.call(rank, where, state="scheduled", **what)
            self.waiting[rank] = (kind, where, entry)
        return True

    def _finish(self, rank: int, pending: tuple[str, Any, dict[str, Any]]) -> bool:
        kind, where, entry = pending
        if kind == "recv":
            if not self.sent[(where, rank)]:
                return False
            self.sent[(where, rank)] -= 1
        else:
            number = entry["collective_seq_id"]
            members = self.job.groups[where][1]
            if any(self.job.sequences[(member, where)] < number for member in members):
                return False
            if self.strict and len({self._said(member, where, number) for member in members}) > 1:
                return False
            entry["retired"] = True
        self.waiting[rank] = None
        return True

    def _said(self, rank: int, group: str, number: int) -> str:
        for entry in self.job.rings[rank].entries:
            if entry["process_group"][0] == group and entry["collective_seq_id"] == number:
                return str((entry["profiling_name"], entry["input_sizes"]))
        return ""
