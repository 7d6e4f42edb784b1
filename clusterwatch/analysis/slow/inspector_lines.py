"""Lines of NCCL's Inspector as columns: one row per process and finished call, as its plugin tells it.

In: what a reader holds, in any order, with repeated and absurd rows. Out: ``Lines``, by process and
launch, each call once; ``Seats``: which process sits where in which communicator. Ids of communicators are
cut in the log: where two processes claim one seat, two communicators share an id and nobody can tell whose
call is whose.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

Ints = NDArray[np.int64]
Bools = NDArray[np.bool_]
UNKNOWN: Final = -1


@dataclass(frozen=True, slots=True, order=True)
class Process:
    host: str
    pid: int


@dataclass(frozen=True, slots=True, order=True)
class Communicator:
    """``id`` is cut to 14 digits by the plugin."""

    id: str
    n_ranks: int
    nnodes: int


COLUMNS: Final = (
    "process", "comm", "comm_rank", "op", "sn", "peer", "size_bytes", "launch_ns", "start_ns", "end_ns",
    "is_old",
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Lines:
    """Arrays of one length. Times are ns of the host's clock.

    Attributes:
        process, comm, op: indices in ``processes``, ``comms``, ``ops``.
        comm_rank, peer: ranks inside the communicator; ``peer`` is ``UNKNOWN`` of collectives.
        sn: the plugin's number of the call: of collectives by communicator and operation.
        launch_ns: the host put it on the stream; ``start_ns``, ``end_ns``: its kernel ran.
        is_old: 1 where the plugin logs calls of every size, so that a jump in ``sn`` is a lost line.
    """

    process: Ints
    comm: Ints
    comm_rank: Ints
    op: Ints
    sn: Ints
    peer: Ints
    size_bytes: Ints
    launch_ns: Ints
    start_ns: Ints
    end_ns: Ints
    is_old: Ints
    processes: tuple[Process, ...]
    comms: tuple[Communicator, ...]
    ops: tuple[str, ...]

    def __len__(self) -> int:
        return len(self.process)

    def rows(self, which: Bools | Ints) -> Lines:
        """The rows chosen, in that order."""
        columns = {name: getattr(self, name)[which] for name in COLUMNS}
        return Lines(**columns, processes=self.processes, comms=self.comms, ops=self.ops)

    @property
    def is_p2p(self) -> Bools:
        found: Bools = self.peer != UNKNOWN
        return found


def tidied(lines: Lines) -> Lines:
    """Each call once, by process and launch, the order of the program; times that run backwards are gone.

    Cost: O(n log n).
    """
    kept = lines.rows((lines.start_ns <= lines.end_ns) & (lines.launch_ns <= lines.start_ns))
    stream = np.where(kept.is_p2p, UNKNOWN, kept.op)
    order = np.lexsort((kept.start_ns, kept.sn, stream, kept.comm_rank, kept.comm, kept.process))
    kept, stream = kept.rows(order), stream[order]
    if not len(kept):
        return kept
    same = stream[1:] == stream[:-1]
    for column in (kept.process, kept.comm, kept.comm_rank, kept.sn):
        same &= column[1:] == column[:-1]
    kept = kept.rows(np.concatenate(([True], ~same)))
    return kept.rows(np.lexsort((kept.start_ns, kept.launch_ns, kept.process)))


@dataclass(frozen=True, slots=True)
class Seats:
    """Who sits where: one entry per process and communicator, sorted by communicator and rank in it.

    Attributes:
        is_shared: by communicator: two of them share its id, so its calls cannot be told apart.
    """

    comm: Ints
    comm_rank: Ints
    process: Ints
    is_shared: Bools

    @classmethod
    def of(cls, lines: Lines) -> Seats:
        """Cost: O(n log n)."""
        triples = np.unique(np.stack((lines.comm, lines.comm_rank, lines.process)), axis=1)
        is_shared = np.zeros(len(lines.comms), np.bool_)
        comm, comm_rank, process = triples
        twice = (comm[1:] == comm[:-1]) & (comm_rank[1:] == comm_rank[:-1])
        is_shared[comm[1:][twice]] = True
        order = np.lexsort((process, comm))
        again = (comm[order][1:] == comm[order][:-1]) & (process[order][1:] == process[order][:-1])
        is_shared[comm[order][1:][again]] = True
        return cls(comm, comm_rank, process, is_shared)

    def who(self, comm: Ints, comm_rank: Ints) -> Ints:
        """The process at each seat, ``UNKNOWN`` where nobody told it or two did."""
        if not len(self.comm):
            return np.full(len(comm), UNKNOWN)
        wide = int(max(self.comm_rank.max(), comm_rank.max(initial=0))) + 2
        known, asked = self.comm * wide + self.comm_rank, comm * wide + comm_rank
        place = np.minimum(np.searchsorted(known, asked), len(known) - 1)
        found = (known[place] == asked) & (comm_rank >= 0) & ~self.is_shared[comm]
        return np.where(found, self.process[place], UNKNOWN)


def jobs(seats: Seats, process_count: int) -> Ints:
    """A number by process; those that share a communicator share it: they are of one job."""
    parent = list(range(process_count))

    def root(one: int) -> int:
        while parent[one] != one:
            parent[one] = parent[parent[one]]
            one = parent[one]
        return one

    usable = ~seats.is_shared[seats.comm]
    first: dict[int, int] = {}
    for comm, process in zip(seats.comm[usable].tolist(), seats.process[usable].tolist(), strict=True):
        parent[root(process)] = root(first.setdefault(comm, process))
    return np.fromiter((root(one) for one in range(process_count)), np.int64, process_count)
