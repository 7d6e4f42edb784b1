"""A spool that lives in memory: what ``collectors.sender`` needs of one, bounded, lost with the process.

A simulated node has nothing to lose on a disk; a new process is a new epoch.
"""

from __future__ import annotations

import uuid
from collections import deque
from typing import Final

from collectors.chain import SyncJob
from collectors.wire import codec, records
from collectors.wire.records import LANE_OF, Lane, LaneNext

MAX_BYTES: Final = 2 * 1024 * 1024
"""Per node and lane."""
MIN_BYTES: Final = 96 * 1024
"""Per node and lane: some minutes of blocks and steps, or the rings of its ranks."""
_ALL_NODES_BYTES: Final = 640 * 1024 * 1024


def fair_bytes(node_count: int) -> int:
    """What each lane of each node may hold, so that all together stay bounded while no gateway is there."""
    return max(MIN_BYTES, min(MAX_BYTES, _ALL_NODES_BYTES // (2 * node_count)))


class MemorySpool:
    """Records of both lanes by sequence number; beyond ``max_bytes`` a lane the oldest go and are counted."""

    def __init__(self, max_bytes: int = MAX_BYTES) -> None:
        self.epoch = uuid.uuid4().hex
        self._max_bytes = max_bytes
        self._kept: dict[Lane, deque[tuple[int, bytes]]] = {"urgent": deque(), "bulk": deque()}
        self._bytes: dict[Lane, int] = {"urgent": 0, "bulk": 0}
        self._next: dict[Lane, int] = {"urgent": 1, "bulk": 1}
        self._acked: dict[Lane, int] = {"urgent": 0, "bulk": 0}
        self.dropped_total = 0
        self._unreported: dict[Lane, list[int]] = {"urgent": [], "bulk": []}

    def append(self, record: records.Spooled) -> None:
        """Takes a record into its lane."""
        lane, payload = LANE_OF[str(record.__struct_config__.tag)], codec.encode(record)
        self._kept[lane].append((self._next[lane], payload))
        self._next[lane] += 1
        self._bytes[lane] += len(payload)
        while self._bytes[lane] > self._max_bytes and len(self._kept[lane]) > 1:
            sequence, lost = self._kept[lane].popleft()
            self._bytes[lane] -= len(lost)
            self.dropped_total += 1
            self._unreported[lane].append(sequence)

    def report_drops(self, t_ns: int) -> None:
        """Puts what had to go into the urgent lane, as every spool does."""
        for lane, sequences in self._unreported.items():
            if sequences:
                self._unreported[lane] = []
                self.append(
                    records.Dropped(
                        t_ns,
                        lane,
                        {"records": len(sequences)},
                        "the spool was full",
                        sequences[0],
                        sequences[-1],
                    )
                )

    # --- what the sender asks --------------------------------------------------------------------------

    def next_sequences(self) -> LaneNext:
        return LaneNext(self._next["urgent"], self._next["bulk"])

    def last(self, lane: Lane) -> int:
        """Sequence number of the newest record; 0 before the first."""
        return self._next[lane] - 1

    def acked(self, lane: Lane) -> int:
        return self._acked[lane]

    def read(self, lane: Lane, after: int, max_records: int, max_bytes: int) -> list[tuple[int, bytes]]:
        """Records after a sequence number, oldest first, at least one if there is any."""
        found: list[tuple[int, bytes]] = []
        size = 0
        for sequence, payload in self._kept[lane]:
            if sequence <= after:
                continue
            size += len(payload)
            if found and (len(found) == max_records or size > max_bytes):
                break
            found.append((sequence, payload))
        return found

    def ack(self, lane: Lane, sequence: int) -> None:
        self._acked[lane] = max(self._acked[lane], sequence)
        kept = self._kept[lane]
        while kept and kept[0][0] <= sequence:
            self._bytes[lane] -= len(kept.popleft()[1])

    def note_rejected(self, lane: Lane, sequence: int, reason: str) -> None:
        """Counted only: a simulated node has nobody to tell but the sender's log."""
        self.dropped_total += 1

    def begin_sync(self) -> SyncJob | None:
        """Nothing waits for a disk."""
        return None

    def end_sync(self, job: SyncJob) -> None:
        raise AssertionError("there is no sync to end")

    def begin_epoch(self) -> None:
        """The server is ahead of us: start over as a new sender, with what is still here."""
        self.epoch = uuid.uuid4().hex
        for lane in self._kept:
            left = [payload for _, payload in self._kept[lane]]
            self._kept[lane] = deque(enumerate(left, start=1))
            self._next[lane], self._acked[lane] = len(left) + 1, 0
