"""Jobs that run until they end or stand still, to leave the dumps that a real one would leave.

A rank's program is a list of moves; faults are edits of such a list. Calls are queued on a stream per group,
as NCCL does, and run when every member has one of that number at the head of its stream; a rank goes on
issuing until a ``Sync``. Calls whose members pass different things never end.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from math import prod
from pathlib import Path
from typing import Any, Final

from tests.cases.writer import START_NS, Entry, Flavour, Group, Ring

TICK_NS: Final = 1_000_000


@dataclass(frozen=True)
class Call:
    """A collective; ``outputs`` None = as the inputs."""

    group: Group
    op: str = "all_reduce"
    inputs: tuple[tuple[int, ...], ...] = ((1024,),)
    outputs: tuple[tuple[int, ...], ...] | None = None
    dtype: str = "Float"
    frames: tuple[tuple[str, str, int], ...] | None = None

    @property
    def said(self) -> tuple[Any, ...]:
        """What members must share for the call to end; all-to-all and v-collectives may differ in sizes."""
        if self.op.startswith(("all_to_all", "alltoall")) or self.op.endswith("_v"):
            return (self.op, self.dtype)
        shapes = self.outputs if self.op == "scatter" else self.inputs
        rooted = self.op in ("gather", "scatter")
        both = (shapes,) if rooted else (self.inputs, self.outputs or self.inputs)
        return (self.op, self.dtype, *([prod(shape) for shape in part] for part in both if part is not None))


@dataclass(frozen=True)
class Parts:
    """A coalesced call: members, then the entry that closes it; one number for all."""

    group: Group
    op: str
    members: tuple[Call, ...]

    @property
    def said(self) -> tuple[Any, ...]:
        return (self.op, *(member.said for member in self.members))


@dataclass(frozen=True)
class Half:
    """A send or receive; ``peer`` is global."""

    group: Group
    sends: bool
    peer: int
    size: tuple[int, ...] = (64,)
    dtype: str = "Float"


@dataclass(frozen=True)
class Batch:
    """Sends and receives that are issued together."""

    group: Group
    halves: tuple[Half, ...]


@dataclass(frozen=True)
class Sync:
    """The host waits until everything that it has issued is over."""


@dataclass(frozen=True)
class Pause:
    """The host does something else for so long."""

    seconds: float


@dataclass(frozen=True)
class Halt:
    """The host stops here for ever: it loads data, writes a checkpoint, is dead."""


Move = Call | Parts | Half | Batch | Sync | Pause | Halt
Program = list[Move]


def send(group: Group, peer: int, size: tuple[int, ...] = (64,)) -> Half:
    return Half(group, True, peer, size)


def recv(group: Group, peer: int, size: tuple[int, ...] = (64,)) -> Half:
    return Half(group, False, peer, size)


@dataclass(eq=False)
class _Work:
    """Something on a stream: a call, a send or a batch."""

    rank: int
    group: Group
    said: tuple[Any, ...]
    number: int
    halves: tuple[Half, ...]
    entry: Entry | None
    """the one whose state moves"""
    running: bool = False
    done: bool = False


@dataclass
class Job:
    """A world; ``run`` moves it until nobody can move."""

    world: int
    flavour: Flavour = Flavour()
    groups: list[Group] = field(default_factory=list)
    one_stream: bool = False
    """all groups of a rank share one stream, so a call waits for every earlier one"""
    clock_offset_ns: int = 200_000
    """each host's clock runs so much ahead of the one before"""
    stuck_gpus: frozenset[int] = frozenset()
    """ranks whose GPU starts nothing new once ``stuck_after`` calls have run there"""
    stuck_after: int = 0
    never: frozenset[tuple[str, int]] = frozenset()
    """(group, number) of calls that start everywhere and never end: the network is at fault"""

    def __post_init__(self) -> None:
        self.default = Group("0", "default_pg", tuple(range(self.world)))
        self.groups = [self.default, *self.groups]
        mine = [[group for group in self.groups if rank in group.ranks] for rank in range(self.world)]
        self.rings = [Ring(rank, mine[rank], self.flavour) for rank in range(self.world)]
        self.programs: list[Program] = [[] for _ in range(self.world)]
        self.now_ns = START_NS
        self._streams: list[dict[object, list[_Work]]] = [defaultdict(list) for _ in range(self.world)]
        self._calls: dict[tuple[Group, int], dict[int, _Work]] = defaultdict(dict)
        self._ends: dict[tuple[Group, int, int, bool], list[tuple[_Work, Half]]] = defaultdict(list)
        self._started = [0] * self.world
        self._places = [0] * self.world
        self._asleep_until_ns = [0] * self.world

    def group(self, name: str, desc: str, ranks: Sequence[int]) -> Group:
        """Makes a group on its members, each of which numbers it by itself."""
        made = Group(name, desc, tuple(ranks))
        self.groups.append(made)
        for rank in ranks:
            self.rings[rank].groups.append(made)
        return made

    def groups_of(self, desc: str) -> list[Group]:
        return [group for group in self.groups if group.desc == desc]

    def of(self, rank: int, desc: str) -> Group:
        """The group of a kind that a rank is in."""
        return next(group for group in self.groups if group.desc == desc and rank in group.ranks)

    def every(self, *moves: Move, ranks: Iterable[int] | None = None) -> None:
        """Adds moves to the programs of all ranks, or of some."""
        for rank in range(self.world) if ranks is None else ranks:
            self.programs[rank] += moves

    def repeat(self, count: int, *moves: Move, ranks: Iterable[int] | None = None) -> None:
        """Adds the moves so many times."""
        chosen = None if ranks is None else list(ranks)
        for _ in range(count):
            self.every(*moves, ranks=chosen)

    def run(self) -> Job:
        """Until a standstill; a program may be added to and run again."""
        while self._round():
            self.now_ns += TICK_NS
        return self

    def wait(self, seconds: float) -> Job:
        """Time passes for everybody."""
        self.now_ns += int(seconds * 1e9)
        return self

    # --- one round ------------------------------------------------------------------------------------------

    def _round(self) -> bool:
        issued = [self._issue(rank) for rank in range(self.world)]
        started = [self._start(rank) for rank in range(self.world)]
        ended = [
            self._end(work) for streams in self._streams for line in streams.values() for work in line[:1]
        ]
        asleep = any(until > self.now_ns for until in self._asleep_until_ns)
        for streams in self._streams:
            for key, line in streams.items():
                streams[key] = [work for work in line if not work.done]
        return any(issued) or any(started) or any(ended) or asleep

    def _at(self, rank: int) -> int:
        return self.now_ns + rank * self.clock_offset_ns

    def _issue(self, rank: int) -> bool:
        program, place = self.programs[rank], self._places[rank]
        if place >= len(program) or self._asleep_until_ns[rank] > self.now_ns:
            return False
        move = program[place]
        if isinstance(move, Halt) or (isinstance(move, Sync) and any(self._streams[rank].values())):
            return False
        self._places[rank] += 1
        if isinstance(move, Pause):
            self._asleep_until_ns[rank] = self.now_ns + int(move.seconds * 1e9)
        elif isinstance(move, (Call, Parts)):
            self._collective(rank, move)
        elif isinstance(move, (Half, Batch)):
            self._exchange(rank, move)
        return True

    def _collective(self, rank: int, move: Call | Parts) -> None:
        ring, at_ns = self.rings[rank], self._at(rank)
        parts = move.members if isinstance(move, Parts) else ()
        for number, part in enumerate(parts):
            ring.collective(
                part.group, part.op, part.inputs, part.outputs, part.dtype, at_ns, part=number > 0
            )
        if isinstance(move, Call):
            entry = ring.collective(
                move.group, move.op, move.inputs, move.outputs, move.dtype, at_ns, frames=move.frames
            )
        else:
            entry = ring.collective(move.group, move.op, (), (), "Float", at_ns, part=True)
        number = entry["collective_seq_id"]
        work = _Work(rank, move.group, move.said, number, (), entry)
        self._calls[(move.group, number)][rank] = work
        self._streams[rank]["" if self.one_stream else move.group].append(work)

    def _exchange(self, rank: int, move: Half | Batch) -> None:
        ring, at_ns = self.rings[rank], self._at(rank)
        stream: tuple[object, ...]
        if isinstance(move, Batch):
            ring.open_batch(move.group)
            for half in move.halves:
                ring.p2p(half.group, half.sends, half.peer, half.size, half.dtype, at_ns, batched=True)
            entry = ring.close_batch(move.group, at_ns)
            halves, stream = move.halves, (move.group,)
        else:
            entry = ring.p2p(move.group, move.sends, move.peer, move.size, move.dtype, at_ns)
            halves = (move,)
            stream = (move.group, min(rank, move.peer), max(rank, move.peer))
        work = _Work(rank, move.group, (), 0, halves, entry)
        for half in halves:
            self._ends[(half.group, *self._pair(rank, half), half.sends)].append((work, half))
        self._streams[rank]["" if self.one_stream else stream].append(work)

    @staticmethod
    def _pair(rank: int, half: Half) -> tuple[int, int]:
        return (rank, half.peer) if half.sends else (half.peer, rank)

    def _start(self, rank: int) -> bool:
        moved = False
        for line in self._streams[rank].values():
            if not line or line[0].running:
                continue
            if rank in self.stuck_gpus and self._started[rank] >= self.stuck_after:
                continue
            line[0].running = moved = True
            self._started[rank] += 1
            if line[0].entry is not None:
                self.rings[rank].start(line[0].entry, self._at(rank))
        return moved

    def _end(self, work: _Work) -> bool:
        """Ends a call that all have joined, or an exchange whose other halves run."""
        if work.done or not work.running:
            return False
        together = self._met(work) if work.halves else self._joined(work)
        for one in together:
            one.done = True
            if one.entry is not None:
                self.rings[one.rank].finish(one.entry, self._at(one.rank))
        return bool(together)

    def _joined(self, work: _Work) -> list[_Work]:
        works = self._calls[(work.group, work.number)]
        if len(works) < len(work.group.ranks) or not all(one.running for one in works.values()):
            return []
        alike = len({repr(one.said) for one in works.values()}) == 1
        return list(works.values()) if alike and (work.group.name, work.number) not in self.never else []

    def _met(self, work: _Work) -> list[_Work]:
        """The work alone: its counterparts end in their own turn, once theirs are met too."""
        for half in work.halves:
            key = (half.group, *self._pair(work.rank, half))
            mine, theirs = self._ends[(*key, half.sends)], self._ends[(*key, not half.sends)]
            place = next(i for i, (one, other) in enumerate(mine) if one is work and other is half)
            if place >= len(theirs):
                return []
            partner, other = theirs[place]
            alike = (prod(other.size), other.dtype) == (prod(half.size), half.dtype)
            if not alike or not (partner.running or partner.done):
                return []
        return [work]

    # --- dumps ----------------------------------------------------------------------------------------------

    def pickles(self, without: Iterable[int] = (), **how: Any) -> dict[int, bytes]:
        """The dumps of all ranks but some; ``how`` as of ``Ring.dump``."""
        gone = set(without)
        return {ring.rank: ring.pickled(**how) for ring in self.rings if ring.rank not in gone}

    def write(self, folder: Path, name: str = "comm_lib_trace_rank_{}", **how: Any) -> Path:
        """The dumps as files, as they would lie on a cluster."""
        folder.mkdir(parents=True, exist_ok=True)
        for rank, data in self.pickles(**how).items():
            (folder / name.format(rank)).write_bytes(data)
        return folder

    def open_entries(self, rank: int) -> list[Entry]:
        """What has not ended on a rank, in the order it was issued."""
        return [
            work.entry for line in self._streams[rank].values() for work in line if work.entry is not None
        ]
