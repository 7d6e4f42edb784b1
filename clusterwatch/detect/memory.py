"""What detection remembers of a job from tick to tick, kept in Valkey beside hot state.

Losing it costs a second look and the learned gaps, nothing else: incidents and captures are in the database.
"""

from __future__ import annotations

import logging
from typing import Final

import msgspec
import numpy as np

from clusterwatch.analysis.gaps import GapHistory, history_phase, limits
from clusterwatch.analysis.progress import Glance, Judgement, Motion, WorldState
from clusterwatch.store import hot

LOOK_MAX_AGE_NS: Final = 10_000_000_000
"""An older look says nothing of what happened in between: we were blind."""
WORLDS_MAX: Final = 256
FAULTS_NOT_LEARNED: Final = 2
log = logging.getLogger(__name__)


class WorldMemory(msgspec.Struct):
    """One world: its last progress, what it was doing while it stood, and its gaps by phase."""

    moved_ns: int = 0
    still_phase: str = ""
    gaps: dict[str, tuple[int, ...]] = {}

    long_gaps: int = 0
    """gaps that were longer than what opens an incident"""

    def take(self, gap_s: float, phase: str) -> None:
        """Learns a gap. A few that were faults must not hide the next; many are the job's own habit."""
        if gap_s > limits(phase, self.history(phase)).open_s:
            self.long_gaps += 1
            if self.long_gaps <= FAULTS_NOT_LEARNED:
                return
        before = self.history(phase) or GapHistory()
        self.gaps[history_phase(phase)] = before.with_gap(gap_s).counts

    def history(self, phase: str) -> GapHistory | None:
        counts = self.gaps.get(history_phase(phase))
        return GapHistory(counts) if counts else None


class Memory(msgspec.Struct):
    """One attempt of a job."""

    attempt: int
    at_ns: int = 0
    rank_id: bytes = b""
    numbers: bytes = b""
    seen_ns: bytes = b""
    worlds: dict[int, WorldMemory] = {}
    gone_ns: int = 0
    """when the first process that did not end normally was noticed, by our clock"""
    captured_ns: int = 0
    """when traces were last asked for"""
    capture_ids: list[int] = []
    """what was asked for then"""
    earlier_ids: list[int] = []
    """what was asked for before in the same stall: it serves until everybody has answered again"""
    basis: str = ""
    """what the last analysis rested on; the same basis is not analysed again"""

    def glance(self, now_ns: int) -> Glance | None:
        """The look before; None when there is none or it is too old: then no gap spans the time between."""
        if not self.at_ns or not 0 <= now_ns - self.at_ns <= LOOK_MAX_AGE_NS:
            for world in self.worlds.values():
                world.moved_ns = 0
            return None
        columns = (np.frombuffer(part, np.int64) for part in (self.rank_id, self.numbers, self.seen_ns))
        return Glance(self.at_ns, *columns)

    def keep(self, look: Glance) -> None:
        self.at_ns = look.at_ns
        self.rank_id, self.numbers = look.rank_id.tobytes(), look.numbers.tobytes()
        self.seen_ns = look.seen_ns.tobytes()

    def learn(self, judgement: Judgement) -> None:
        """Takes the gaps that ended between the looks into the history."""
        for world in judgement.worlds[:WORLDS_MAX]:
            self._learn(self.worlds.setdefault(world.world, WorldMemory()), world)

    def _learn(self, known: WorldMemory, world: WorldState) -> None:
        if world.motion is Motion.STALLED:
            known.still_phase = world.phase
        if world.motion is not Motion.MOVING:
            return
        gap_s = (world.since_ns - known.moved_ns) / 1e9
        if known.moved_ns and gap_s > 0:
            known.take(gap_s, known.still_phase or world.phase)
        known.moved_ns = max(known.moved_ns, world.since_ns)
        known.still_phase = ""


def load(job_id: int, attempt: int) -> Memory:
    """The memory of a job's attempt; a fresh one when there is none that can be read."""
    blob = hot.load_look(job_id)
    if blob is not None:
        try:
            memory = msgspec.msgpack.decode(blob, type=Memory)
        except msgspec.MsgspecError as fault:
            log.warning("look_unreadable job=%d reason=%s", job_id, fault)
        else:
            return memory if memory.attempt == attempt else _next_attempt(memory, attempt)
    return Memory(attempt)


def _next_attempt(before: Memory, attempt: int) -> Memory:
    """A restarted job pauses as it did before; all else begins anew."""
    worlds = {number: WorldMemory(gaps=world.gaps) for number, world in before.worlds.items()}
    return Memory(attempt, worlds=worlds)


def save(job_id: int, memory: Memory) -> None:
    hot.save_look(job_id, msgspec.msgpack.encode(memory))
