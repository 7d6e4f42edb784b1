"""Two lanes of records on disk between the agent and the gateway: bounded, crash-safe, exactly-once.

In: wire records. Out: (sequence, payload) in rising order, deleted once the gateway has committed them.

* A lane is one row of sequence numbers over up to two chains of segment files, one chain per class of data,
  so that when the spool is full whole files of the least precious class go first: blocks (raw samples),
  then steps, then traces, then events. Every record let go is counted and reported by a ``Dropped`` record.
* A record is written at once (it survives a killed agent) and may be sent only after ``sync`` has put it on
  the disk (it survives a power cut): else a lost tail would give its number, already committed by the
  server, to another record. For the same reason a number that damaged bytes may have held is never used
  again.
* ``epoch`` is made with the folder. A server that has committed numbers this spool has not given yet proves
  that the folder is an old copy: ``begin_epoch`` starts a new one.

Not thread-safe but for ``SyncJob.run``.
"""

from __future__ import annotations

import contextlib
import heapq
import json
import logging
import os
import secrets
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import msgspec

from collectors.chain import Chain, OpenFiles, SyncJob
from collectors.clock import Clock, SystemClock
from collectors.segment import Scan, Segment, scan
from collectors.wire import codec, limits, records
from collectors.wire.records import LANE_OF, LANES, Lane, LaneNext

log = logging.getLogger(__name__)

DEFAULT_MAX_BYTES: Final = 256 * 1024 * 1024
SEGMENT_BYTES: Final = 1024 * 1024
_REPORT_RESERVE_BYTES: Final = 64 * 1024
"""What a full spool may still grow by to say what it dropped."""

CHAIN_OF: Final = dict.fromkeys(("block", "readings", "device_readings"), "block") | {
    "steps": "steps", "edges": "steps", "trace": "trace", "stacks": "trace",
}  # fmt: skip
"""Record kind -> chain; every other kind is in ``event``."""
EVICTION_ORDER: Final = ("block", "steps", "trace", "event")


@dataclass(slots=True)
class _Drops:
    counts: dict[str, int] = field(default_factory=dict)
    first: int | None = None
    last: int | None = None

    def add(self, name: str, count: int, first: int, last: int) -> None:
        self.counts[name] = self.counts.get(name, 0) + count
        self.first = first if self.first is None else min(self.first, first)
        self.last = last if self.last is None else max(self.last, last)


class Spool:
    """See the module. Raises ``OSError`` from the constructor when the folder cannot be used."""

    def __init__(
        self,
        folder: Path,
        max_bytes: int = DEFAULT_MAX_BYTES,
        segment_bytes: int = SEGMENT_BYTES,
        clock: Clock | None = None,
    ) -> None:
        self.folder = folder
        self.max_bytes = max_bytes
        self.segment_bytes = segment_bytes
        self.dropped_total = 0
        self.epoch = ""
        self.unreadable_total = 0
        """stretches of damaged bytes and records that changed on disk"""
        self._clock = clock or SystemClock()
        self._acked: dict[Lane, int] = {}
        self._next: dict[Lane, int] = {}
        self._synced: dict[Lane, int] = {}
        self._drops: dict[tuple[Lane, str], _Drops] = {}
        self._dirty: set[Segment] = set()
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        self._chains = {
            name: Chain(name, LANE_OF[kind], folder / LANE_OF[kind])
            for name, kind in zip(EVICTION_ORDER, ("block", "steps", "trace", "event"), strict=True)
        }
        self._load()

    # --- state -----------------------------------------------------------------------------------

    def next_sequences(self) -> LaneNext:
        """The number the next record of each lane will get."""
        return LaneNext(urgent=self._next["urgent"], bulk=self._next["bulk"])

    def acked(self, lane: Lane) -> int:
        return self._acked[lane]

    @property
    def size_bytes(self) -> int:
        return sum(segment.size_bytes for chain in self._chains.values() for segment in chain.segments)

    @property
    def pending_records(self) -> int:
        """Records that the gateway has not acknowledged."""
        return sum(
            segment.count_after(self._acked[chain.lane])
            for chain in self._chains.values()
            for segment in chain.segments
        )

    def is_pending(self, lane: Lane, sequence: int) -> bool:
        """The record lies here and the gateway has not acknowledged it."""
        chains = (chain for chain in self._chains.values() if chain.lane == lane)
        return sequence > self._acked[lane] and any(chain.holds(sequence) for chain in chains)

    # --- in --------------------------------------------------------------------------------------

    def append(self, record: records.Spooled) -> int | None:
        """Writes one record; returns its number, None if it had to be dropped (it is counted then)."""
        kind = str(record.__struct_config__.tag)
        chain = self._chains[CHAIN_OF.get(kind, "event")]
        sequence = self._next[chain.lane]
        self._next[chain.lane] += 1
        payload = msgspec.msgpack.encode(record)
        if len(payload) > limits.RECORD_MAX_BYTES:
            self._drop(chain, 1, sequence, sequence, "too_large")
            return None
        reserve = _REPORT_RESERVE_BYTES if kind == "dropped" else 0
        if not self._make_room(chain, len(payload) - reserve):
            self._drop(chain, 1, sequence, sequence, "spool_full")
            return None
        return sequence if self._write(chain, sequence, payload) else None

    def report_drops(self) -> None:
        """Writes what was dropped since the last call as ``Dropped`` records; call it about once a second."""
        drops, self._drops = self._drops, {}
        for (lane, reason), found in drops.items():
            self.append(
                records.Dropped(
                    t_ns=self._clock.now_ns(),
                    lane=lane,
                    counts=found.counts,
                    reason=reason,
                    first_sequence=found.first,
                    last_sequence=found.last,
                )
            )

    def note_rejected(self, lane: Lane, sequence: int, reason: str) -> None:
        """Counts a record that the gateway refused to store. A refused ``Dropped`` is not reported again."""
        payload = next((data for found, data in self.read(lane, sequence - 1, 1) if found == sequence), None)
        kind = _kind_of(payload)
        if kind != "dropped":
            self._drops.setdefault((lane, f"rejected: {reason}"), _Drops()).add(kind, 1, sequence, sequence)
            self.dropped_total += 1

    # --- to the disk -----------------------------------------------------------------------------

    def begin_sync(self) -> SyncJob | None:
        """What has to be flushed before newer records may be sent, None when nothing has."""
        marks: dict[Lane, int] = {lane: self._next[lane] - 1 for lane in LANES}
        if marks == self._synced:
            return None
        fds: list[int] = []
        for segment in self._dirty:
            with contextlib.suppress(FileNotFoundError):  # let go since: nothing to flush
                fds.append(
                    os.dup(segment.fd) if segment.fd is not None else os.open(segment.path, os.O_RDONLY)
                )
        for folder in {segment.path.parent for segment in self._dirty}:
            fds.append(os.open(folder, os.O_RDONLY | os.O_DIRECTORY))
        self._dirty.clear()
        return SyncJob(fds, marks)

    def end_sync(self, job: SyncJob) -> None:
        """Call after ``job.run`` came back: its records may be sent now."""
        for lane in LANES:
            self._synced[lane] = max(self._synced[lane], job.marks[lane])

    def sync(self) -> None:
        """Flushes now, in this thread."""
        if (job := self.begin_sync()) is not None:
            job.run()
            self.end_sync(job)

    # --- out -------------------------------------------------------------------------------------

    def read(
        self, lane: Lane, after: int, max_records: int, max_bytes: int = limits.RECORD_MAX_BYTES
    ) -> list[tuple[int, bytes]]:
        """Flushed records with a number above ``after``, rising; at least one if there is one."""
        chains = [chain for chain in self._chains.values() if chain.lane == lane]
        out: list[tuple[int, bytes]] = []
        total = 0
        with OpenFiles() as files:
            for sequence, segment, place in heapq.merge(*(chain.places_after(after) for chain in chains)):
                if sequence > self._synced[lane] or len(out) >= max_records:
                    break
                payload = segment.read(files.fd(segment), place)
                if payload is None:
                    self.unreadable_total += 1
                    self._drops.setdefault((lane, "unreadable"), _Drops()).add(
                        "unknown", 1, sequence, sequence
                    )
                    continue
                total += len(payload)
                if out and total > max_bytes:
                    break
                out.append((sequence, payload))
        return out

    def newest_blocks(self, count: int) -> list[records.Block]:
        """The last ``count`` blocks written and still here (to know which minutes were already made)."""
        out: list[records.Block] = []
        with OpenFiles() as files:
            for segment in reversed(self._chains["block"].segments):
                for place in reversed(range(len(segment.sequences))):
                    if len(out) == count:
                        return out
                    payload = segment.read(files.fd(segment), place)
                    with contextlib.suppress(codec.WireError):
                        record = codec.decode_record(payload or b"")
                        out += [record] if isinstance(record, records.Block) else []
        return out

    def ack(self, lane: Lane, sequence: int) -> None:
        """All records of ``lane`` up to ``sequence`` are the server's now; their files go."""
        sequence = min(sequence, self._next[lane] - 1)
        if sequence <= self._acked[lane]:
            return
        self._acked[lane] = sequence
        done = [
            (chain, segment)
            for chain in self._chains.values()
            if chain.lane == lane
            for segment in chain.segments
            if segment.last_sequence <= sequence and segment.fd is None
        ]
        if done:
            self._save_numbers()  # before the files go: the numbers must outlive them
            for chain, segment in done:
                chain.segments.remove(segment)
                segment.delete()

    def begin_epoch(self) -> None:
        """A new epoch over what is held: for a folder that turned out to be an old copy."""
        self.epoch = _new_epoch()
        self._acked = dict.fromkeys(LANES, 0)
        self._save()

    def close(self) -> None:
        """Flushes and closes. Raises ``OSError`` when the disk refuses."""
        self.report_drops()
        self.sync()
        self._save()
        for chain in self._chains.values():
            for segment in chain.segments:
                segment.seal()

    # --- inside ----------------------------------------------------------------------------------

    def _drop(self, chain: Chain, count: int, first: int, last: int, reason: str) -> None:
        if count:
            self._drops.setdefault((chain.lane, reason), _Drops()).add(chain.name, count, first, last)
            self.dropped_total += count

    def _write(self, chain: Chain, sequence: int, payload: bytes) -> bool:
        """Appends; on a disk that refuses, lets older data go and tries once more."""
        for attempt in (1, 2):
            try:
                segment = chain.segment_for(sequence, self.segment_bytes)
                segment.append(sequence, payload)
                self._dirty.add(segment)
                return True
            except OSError as error:
                chain.remove_empty_tail()
                if attempt == 2 or not self._evict(self._victim(chain), "disk_full"):
                    log.error("spool_write_failed error=%s kind=%s", error, chain.name)
                    break
        self._drop(chain, 1, sequence, sequence, "disk_full")
        return False

    def _make_room(self, chain: Chain, needed_bytes: int) -> bool:
        """Lets files go until the bytes fit, never a class more precious than that of the newcomer."""
        while self.size_bytes + needed_bytes > self.max_bytes:
            if not self._evict(self._victim(chain), "spool_full"):
                return False
        return True

    def _victim(self, newcomer: Chain) -> Chain | None:
        order = EVICTION_ORDER[: EVICTION_ORDER.index(newcomer.name) + 1]
        return next((self._chains[name] for name in order if self._chains[name].segments), None)

    def _evict(self, chain: Chain | None, reason: str) -> bool:
        if chain is None:
            return False
        self._save_numbers()  # before the file goes: it may hold the highest number given
        segment = chain.segments.pop(0)
        count = segment.count_after(self._acked[chain.lane])
        if count:
            first = segment.sequences[len(segment.sequences) - count]
            self._drop(chain, count, first, segment.last_sequence, reason)
        segment.delete()
        return True

    def _save_numbers(self) -> None:
        """``_save`` on a disk that may be full: room is being made right now."""
        try:
            self._save()
        except OSError as error:
            log.error("spool_state_not_saved error=%s", error)

    def _load(self) -> None:
        state = self._read_state()
        self.epoch = state.get("epoch") or _new_epoch()
        self._acked = {lane: int(state.get("acked", {}).get(lane, 0)) for lane in LANES}
        self._next = {
            lane: max(int(state.get("next", {}).get(lane, 1)), self._acked[lane] + 1) for lane in LANES
        }
        for chain in self._chains.values():
            chain.folder.mkdir(mode=0o700, exist_ok=True)
            for path in sorted(chain.folder.glob(f"{chain.name}-*.seg")):
                self._load_segment(chain, path)
        self._synced = {lane: self._next[lane] - 1 for lane in LANES}
        self._save()

    def _load_segment(self, chain: Chain, path: Path) -> None:
        try:
            with path.open("rb") as file:
                data = file.read()
                os.fsync(file.fileno())  # what a killed agent wrote may be sent from now on
        except OSError as error:
            log.error("spool_file_unreadable file=%s error=%s", path, error)
            data = bytes(path.stat().st_size)  # as if every byte were damaged
        found = scan(data)
        self._count_damage(chain, path, found)
        if not found.sequences:
            # A first record that was cut off may have held the number in the file's name.
            self._next[chain.lane] = max(
                self._next[chain.lane], _first_of(path) + found.unreadable_sequences_max
            )
            path.unlink(missing_ok=True)
            return
        chain.segments.append(Segment(path, found, len(data)))
        after = found.sequences[-1] + 1 + found.unreadable_sequences_max
        self._next[chain.lane] = max(self._next[chain.lane], after)

    def _count_damage(self, chain: Chain, path: Path, found: Scan) -> None:
        damaged = found.bad_stretches + found.torn
        if damaged:
            log.warning(
                "spool_damage file=%s stretches=%d torn=%s", path.name, found.bad_stretches, found.torn
            )
            first = found.sequences[0] if found.sequences else _first_of(path)
            last = (found.sequences[-1] if found.sequences else first) + found.unreadable_sequences_max
            self.unreadable_total += damaged
            self._drops.setdefault((chain.lane, "unreadable"), _Drops()).add(chain.name, damaged, first, last)

    def _read_state(self) -> dict[str, Any]:
        try:
            state = json.loads((self.folder / "state.json").read_text())
            return state if isinstance(state, dict) else {}
        except FileNotFoundError:
            return {}
        except ValueError:
            log.warning("spool_state_unreadable folder=%s: a new epoch begins", self.folder)
            return {}

    def _save(self) -> None:
        """Puts the state file on the disk so that a reader finds the old or the new one."""
        state = {"format": 1, "epoch": self.epoch, "acked": self._acked, "next": self._next}
        temporary = self.folder / "state.json.new"
        fd = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
        with os.fdopen(fd, "w") as file:
            json.dump(state, file)
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(self.folder / "state.json")


def _new_epoch() -> str:
    return secrets.token_hex(16)


def _first_of(path: Path) -> int:
    digits = path.stem.rpartition("-")[2]
    return int(digits) if digits.isdigit() else 1


def _kind_of(payload: bytes | None) -> str:
    try:
        return str(codec.decode_record(payload or b"").__struct_config__.tag)
    except codec.WireError:
        return "unknown"
