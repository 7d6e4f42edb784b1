"""Made traces as the files that PyTorch's recorder writes: pickles and JSON, fast for thousands of ranks.

In: ``TraceColumns``. Out: bytes, or a folder of files. The pickles are laid out as PyTorch's own pickler does
it (protocol 2; strings and stack frames are written once and then named by their number; seen in dumps of
torch 2.13). A body of entries is written once for ranks that differ in their times only; each rank's times
are put in place.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Iterable
from dataclasses import dataclass
from hashlib import blake2b
from pathlib import Path
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from collectors.formats.columns import COLUMNS, NULL, STATES, Signature, Sizes, TraceColumns
from collectors.formats.trace import TraceGroup

_BODIES_KEPT: Final = 64
_TIMES: Final = ("created_ns", "started_ns", "completed_ns")
_THREAD: Final = ("python3", "140000000000000")
COMM_LIB_VERSION: Final = "2.28.9"


@dataclass(frozen=True, slots=True)
class _Body:
    """Pickled entries. ``places[name]``: the bytes where the known times of column ``name`` go."""

    data: bytes
    places: dict[str, NDArray[np.int64]]


class PickleWriter:
    """Writes traces as pickles.

    Args:
        repeat_frames: each entry holds its stack frames anew, as in a dump that was loaded and saved again
            by Python (some 20 bytes a frame); else as the recorder shares them (2 to 5 bytes).
    """

    def __init__(self, repeat_frames: bool = False) -> None:
        self._repeat = repeat_frames
        self._bodies: dict[bytes, _Body] = {}
        self._texts: dict[int, tuple[tuple[int, ...], str]] = {}

    def pickle(self, trace: TraceColumns) -> bytes:
        """The dump. Cost: some 10 us an entry for the first of its kind, 0.1 us for its equals."""
        out = _Pickler()
        out.raw(b"\x80\x02}(")
        out.text("version")
        out.text(trace.version)
        self._head(out, trace)
        if not len(trace.entries):
            return bytes(out.data) + b"]u."
        body = self._body(out, trace)
        filled = bytearray(body.data)
        words = np.ndarray((len(filled) - 7,), "<i8", filled, strides=(1,))
        for name in _TIMES:
            times = np.frombuffer(getattr(trace.entries, name), np.int64)
            words[body.places[name]] = times[times != NULL]
        return b"".join((out.data, filled))

    def _head(self, out: _Pickler, trace: TraceColumns) -> None:
        out.text("pg_config")
        out.raw(b"}(")
        for group in trace.groups:
            out.text(group.name)
            out.raw(b"}(")
            for key, value in (("name", group.name), ("desc", group.desc), ("ranks", self._ranks(group))):
                out.text(key)
                out.text(value)
            out.raw(b"u")
        out.raw(b"u")
        out.text("comm_lib_version")
        out.text(COMM_LIB_VERSION)
        out.text("pg_status")
        out.raw(b"}(")
        for group in trace.groups:
            out.text(str(group.recorder_id))
            out.raw(b"}(")
            for key, number in _status(group).items():
                out.text(key)
                out.number(number)
            out.raw(b"u")
        out.raw(b"u")
        out.text("entries")

    def _ranks(self, group: TraceGroup) -> str:
        """The members as text; made once for the many ranks that hold the same tuple."""
        kept = self._texts.get(id(group.ranks))
        if kept is None or kept[0] is not group.ranks:
            if len(self._texts) > 4 * 65_536:
                self._texts.clear()
            kept = self._texts[id(group.ranks)] = (group.ranks, str(list(group.ranks)))
        return kept[1]

    def _body(self, out: _Pickler, trace: TraceColumns) -> _Body:
        key = _body_key(trace, out)
        body = self._bodies.get(key)
        if body is None:
            if len(self._bodies) >= _BODIES_KEPT:
                self._bodies.pop(next(iter(self._bodies)))
            body = self._bodies[key] = _written(out.fork(), trace, self._repeat)
        return body


def _body_key(trace: TraceColumns, out: _Pickler) -> bytes:
    """Equal for traces whose bodies differ in their times only; the head decides what numbers name."""
    names = [number for group in trace.groups for number in (out.known(group.name), out.known(group.desc))]
    digest = blake2b(repr((out.count, names, trace.signatures, trace.stacks)).encode(), digest_size=16)
    for name in COLUMNS:
        values = getattr(trace.entries, name)
        digest.update(np.frombuffer(values, np.int64) == NULL if name in _TIMES else values)
    digest.update(repr([group.recorder_id for group in trace.groups]).encode())
    return digest.digest()


def _written(out: _Pickler, trace: TraceColumns, repeat_frames: bool) -> _Body:
    places: dict[str, list[int]] = {name: [] for name in _TIMES}
    entries, rows = trace.entries, _frames(trace)
    out.raw(b"](")
    for at in range(len(entries)):
        out.raw(b"}(")
        stack = entries.stack[at]
        if stack != NULL:
            out.text("frames")
            out.frames(rows[stack], shared=not repeat_frames)
        for key, value in _row(trace, at).items():
            out.text(key)
            if key in _PLACED:
                if value is not None:
                    places[_PLACED[key]].append(len(out.data) + 2)
                out.time(value)
            else:
                out.value(value)
        out.raw(b"u")
    out.raw(b"eu")
    out.put()
    out.raw(b".")
    return _Body(bytes(out.data), {name: np.array(at, np.int64) for name, at in places.items()})


_PLACED: Final = {
    "time_created_ns": "created_ns",
    "time_discovered_started_ns": "started_ns",
    "time_discovered_completed_ns": "completed_ns",
}


def _row(trace: TraceColumns, at: int) -> dict[str, Any]:
    """One entry without its frames, keys in the recorder's order."""
    entries = trace.entries
    group, what = trace.groups[entries.group[at]], trace.signatures[entries.signature[at]]
    row: dict[str, Any] = {
        "record_id": entries.record_id[at],
        "pg_id": group.recorder_id,
        "process_group": (group.name, group.desc),
        "thread_name": _THREAD[0],
        "thread_id": _THREAD[1],
        "collective_seq_id": entries.sequence[at],
        "p2p_seq_id": entries.p2p_sequence[at],
        "op_id": entries.op_id[at],
        "profiling_name": f"{trace.backend}:{what.op}",
        "time_created_ns": _known(entries.created_ns[at]),
    }
    if entries.duration_ns[at] != NULL:
        row["duration_ms"] = entries.duration_ns[at] / 1e6
    return row | _sizes(what) | {
        "state": STATES[entries.state[at]],
        "time_discovered_started_ns": _known(entries.started_ns[at]),
        "time_discovered_completed_ns": _known(entries.completed_ns[at]),
        "retired": bool(entries.retired[at]),
        "timeout_ms": entries.timeout_ms[at],
        "is_p2p": what.is_p2p,
    }  # fmt: skip


def _sizes(what: Signature) -> dict[str, Any]:
    def lists(sizes: Sizes) -> list[list[int]]:
        return [list(shape) for shape in sizes]

    return {
        "input_sizes": lists(what.input_sizes),
        "input_dtypes": list(what.input_dtypes),
        "output_sizes": lists(what.output_sizes),
        "output_dtypes": list(what.output_dtypes),
    }


def _known(value: int) -> int | None:
    return None if value == NULL else value


def _status(group: TraceGroup) -> dict[str, int]:
    numbers = (group.last_enqueued, group.last_started, group.last_completed)
    keys = ("last_enqueued_collective", "last_started_collective", "last_completed_collective")
    return {key: -1 if number is None else number for key, number in zip(keys, numbers, strict=True)}


def _frames(trace: TraceColumns) -> list[list[tuple[str, str, int]]]:
    """Name, file and line of each frame of each stack; frames are ``function (file:line)``."""
    made = []
    for stack in trace.stacks:
        parts = [frame.removesuffix(")").rpartition(" (") for frame in stack]
        places = [place.rpartition(":") for _, _, place in parts]
        made.append([(p[0], f[0], int(f[2])) for p, f in zip(parts, places, strict=True)])
    return made


class _Pickler:
    """Opcodes as PyTorch's pickler writes them. Source: torch/csrc/jit/serialization/pickler.cpp."""

    def __init__(self) -> None:
        self.data = bytearray()
        self.count = 0
        self._texts: dict[str, int] = {}
        self._shared: dict[tuple[str, str, int], int] = {}

    def fork(self) -> _Pickler:
        """A pickler that goes on after this one, with data of its own."""
        other = _Pickler()
        other.count, other._texts = self.count, dict(self._texts)
        return other

    def known(self, text: str) -> int:
        return self._texts[text]

    def raw(self, data: bytes) -> None:
        self.data += data

    def put(self) -> int:
        """Numbers what was written last."""
        number = self.count
        self.data += b"q%c" % number if number < 256 else b"r" + struct.pack("<I", number)
        self.count += 1
        return number

    def get(self, number: int) -> None:
        self.data += b"h%c" % number if number < 256 else b"j" + struct.pack("<I", number)

    def text(self, text: str) -> None:
        number = self._texts.get(text)
        if number is not None:
            self.get(number)
            return
        encoded = text.encode()
        self.data += b"X" + struct.pack("<I", len(encoded)) + encoded
        self._texts[text] = self.put()

    def number(self, value: int) -> None:
        if 0 <= value < 1 << 8:
            self.data += b"K%c" % value
        elif 0 <= value < 1 << 16:
            self.data += b"M" + struct.pack("<H", value)
        elif -(1 << 31) <= value < 1 << 31:
            self.data += b"J" + struct.pack("<i", value)
        else:
            self.time(value)

    def time(self, value: int | None) -> None:
        """An integer in eight bytes, whatever its size; None as None."""
        self.data += b"N" if value is None else b"\x8a\x08" + struct.pack("<q", value)

    def value(self, value: Any) -> None:
        if isinstance(value, bool):
            self.data += b"\x88" if value else b"\x89"
        elif isinstance(value, int):
            self.number(value)
        elif isinstance(value, float):
            self.data += b"G" + struct.pack(">d", value)
        elif isinstance(value, str):
            self.text(value)
        elif isinstance(value, tuple):
            for item in value:
                self.value(item)
            self.data += b"\x86"
        else:
            self._list(value)

    def _list(self, items: list[Any]) -> None:
        self.data += b"]"
        if items:
            self.data += b"("
            for item in items:
                self.value(item)
            self.data += b"e"

    def frames(self, frames: list[tuple[str, str, int]], shared: bool) -> None:
        self.data += b"]("
        for frame in frames:
            number = self._shared.get(frame) if shared else None
            if number is not None:
                self.get(number)
                continue
            self.data += b"}("
            for key, value in zip(("name", "filename", "line"), frame, strict=True):
                self.text(key)
                self.value(value)
            self.data += b"u"
            self._shared[frame] = self.put()
        self.data += b"e"


def json_dump(trace: TraceColumns) -> bytes:
    """The JSON flavour: sorted keys, unknown times 0, status as text, no frames, no key for no entries."""
    rows = [_row(trace, at) for at in range(len(trace.entries))]
    for row in rows:
        for key in ("time_discovered_started_ns", "time_discovered_completed_ns"):
            row[key] = row[key] or 0
    dump: dict[str, Any] = {
        "version": trace.version,
        "comm_lib_version": COMM_LIB_VERSION,
        "nccl_comm_state": {},
        "pg_config": {
            group.name: {"name": group.name, "desc": group.desc, "ranks": str(list(group.ranks))}
            for group in trace.groups
        },
        "pg_status": {
            str(group.recorder_id): {key: str(number) for key, number in _status(group).items()}
            for group in trace.groups
        },
    }
    if rows:
        dump["entries"] = rows
    return json.dumps(dump, sort_keys=True, separators=(",", ":")).encode()


def write_pickles(folder: Path, traces: Iterable[TraceColumns], writer: PickleWriter | None = None) -> int:
    """One pickle per trace, under the name in its ``source``. Returns the bytes written."""
    writer, size = writer or PickleWriter(), 0
    for trace in traces:
        size += (folder / trace.source).write_bytes(writer.pickle(trace))
    return size


def write_json(folder: Path, traces: Iterable[TraceColumns]) -> int:
    """One JSON file per trace, ``source`` with the ending ``.json``. Returns the bytes written."""
    return sum((folder / f"{t.source}.json").write_bytes(json_dump(t)) for t in traces)
