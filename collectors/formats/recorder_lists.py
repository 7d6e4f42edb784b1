"""The list-based reader, kept until its last user reads columns.

In: the bytes of one file or capture and the rank it came from (a dump does not say its own rank). Out:
``RankTrace``. Never runs code from the bytes and never trusts a count or a length in them.

Source: PyTorch's FlightRecorder.hpp and FlightRecorderDetail.hpp, dump versions 1.0 to 2.10. Fields are read
tolerantly: a missing one is None; only an unknown major version is refused.
"""

from __future__ import annotations

import functools
import json
from collections import Counter
from collections.abc import Iterable
from typing import Any, Final, TypeVar

import msgspec

from collectors.formats import plain_pickle
from collectors.formats.trace import RankTrace, TraceEntries, TraceError, TraceGroup
from collectors.wire import limits

DUMP_MAX_BYTES: Final = 64 * 1024 * 1024
"""2,000 entries with 20 frames each take 1.2 MB; a ring fifty times as large still fits."""

KNOWN_MAJORS: Final = (1, 2)
_TENSORS_MAX: Final = 8_192
"""Tensors of one call: a coalesced all-gather of a large model has some thousands."""
_DIMENSIONS_MAX: Final = 64
_FRAME_MAX_CHARS: Final = 512
_WORK_MAX: Final = 8_000_000
"""Sizes and frames converted for one dump; shared objects count once, so only a hostile dump gets there."""

_Sizes = tuple[tuple[int, ...], ...]
_Kept = TypeVar("_Kept")


def decode(data: bytes, rank: int, source: str = "", taken_ns: int | None = None) -> RankTrace:
    """One dump as columns.

    Args:
        data: the whole file, pickle or JSON (told apart by content).
        rank: global rank it belongs to.
        source: file name or capture, for people.
        taken_ns: when it was taken, ns UTC, when the collector knows it.

    Raises:
        TraceError: it is no dump, cut off, hostile, too large, or of an unknown major version.
    """
    if len(data) > DUMP_MAX_BYTES:
        raise TraceError(f"{len(data)} bytes, the limit is {DUMP_MAX_BYTES}")
    dump = _load(data)
    if not isinstance(dump, dict):
        raise TraceError(f"holds a {type(dump).__name__}, not a dump")
    version = _version(dump)
    rows = dump.get("entries") or []
    if not isinstance(rows, list):
        raise TraceError("its entries are no list")
    if len(rows) > limits.ENTRIES_PER_TRACE_MAX:
        raise TraceError(f"{len(rows)} entries, the limit is {limits.ENTRIES_PER_TRACE_MAX}")
    columns = _Columns()
    for row in rows:
        columns.add(row)
    groups = _groups(columns.groups, dump, rank)
    backend = max(sorted(columns.backends), key=columns.backends.__getitem__, default="")
    return RankTrace(rank, version, backend, groups, columns.entries, source, taken_ns)


def _load(data: bytes) -> Any:
    if not data:
        raise TraceError("empty")
    if data[:1] == b"\x80":
        return plain_pickle.loads(data)
    if data.lstrip()[:1] != b"{":
        raise TraceError("neither a pickle of protocol 2 or later nor a JSON object")
    try:
        return msgspec.json.decode(data)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise TraceError(f"not JSON: {error}") from error


def _version(dump: dict[Any, Any]) -> str:
    """The version text. Compared as numbers: as text "2.10" sorts before "2.9"."""
    version = dump.get("version")
    if not isinstance(version, str) or not {"entries", "pg_config", "pg_status"} & dump.keys():
        raise TraceError("no flight-recorder dump: it has no version, entries or groups")
    major = version.partition(".")[0]
    if len(version) > 32 or not major.isdecimal() or int(major) not in KNOWN_MAJORS:
        raise TraceError(f"dump version {version[:32]!r} is unknown; versions 1 and 2 are read")
    return version


def _integer(value: Any) -> int | None:
    """An integer of at most 64 bits; the JSON flavour writes some as text."""
    if isinstance(value, str):
        digits = value.removeprefix("-")
        if not digits.isdecimal() or len(digits) > 19:
            return None
        value = int(value)
    if type(value) is not int or not -(2**63) <= value < 2**63:
        return None
    return value


def _count(value: Any) -> int | None:
    """A number that only exists from 0 up; the recorder writes -1 for "not known"."""
    number = _integer(value)
    return None if number is None or number < 0 else number


def _time(value: Any) -> int | None:
    """ns UTC; the JSON flavour writes 0 where the pickle has None."""
    number = _integer(value)
    return None if number is None or number <= 0 else number


def _name(value: Any) -> str:
    if value is None:
        return ""
    text = value if isinstance(value, str) else str(number) if (number := _integer(value)) is not None else ""
    if len(text) > limits.NAME_MAX_CHARS:
        raise TraceError(f"a name of {len(text)} characters, the limit is {limits.NAME_MAX_CHARS}")
    return text


class _Columns:
    """Fills ``TraceEntries`` row by row and numbers the groups in the order they first appear."""

    def __init__(self) -> None:
        self.entries = TraceEntries()
        self.groups: dict[tuple[int | None, str, str], int] = {}
        self.backends: Counter[str] = Counter()
        self._sizes: dict[int, _Sizes] = {}
        self._texts: dict[int, tuple[str, ...]] = {}
        self._stacks: dict[int, tuple[str, ...]] = {}
        self._frames: dict[int, str] = {}
        self._interned: dict[Any, Any] = {}
        self._work = 0

    def add(self, row: Any) -> None:
        if not isinstance(row, dict):
            raise TraceError(f"an entry is a {type(row).__name__}")
        out, get = self.entries, row.get
        backend, colon, op = _name(get("profiling_name")).partition(":")
        if colon:
            self.backends[backend] += 1
        is_p2p = get("is_p2p")
        record_id = _count(get("record_id"))
        out.record_id.append(len(out) if record_id is None else record_id)
        out.group.append(self._group(row))
        sequence = get("collective_seq_id", get("seq_id"))
        out.sequence.append(_count(sequence))
        out.p2p_sequence.append(_count(get("p2p_seq_id")))
        out.op_id.append(_count(get("op_id")))
        op = op if colon else backend
        out.op.append(op)
        out.is_p2p.append(is_p2p if isinstance(is_p2p, bool) else op.startswith(("send ", "recv ")))
        state = get("state")
        out.state.append(state if state in ("scheduled", "started", "completed") else "scheduled")
        out.retired.append(get("retired") is True)
        out.created_ns.append(_time(get("time_created_ns")))
        out.started_ns.append(_time(get("time_discovered_started_ns")))
        out.completed_ns.append(_time(get("time_discovered_completed_ns")))
        duration = get("duration_ms")
        out.duration_ms.append(float(duration) if isinstance(duration, float) and duration >= 0 else None)
        out.timeout_ms.append(_count(get("timeout_ms")))
        out.input_sizes.append(self._size(get("input_sizes")))
        out.output_sizes.append(self._size(get("output_sizes")))
        out.input_dtypes.append(self._types(get("input_dtypes")))
        out.output_dtypes.append(self._types(get("output_dtypes")))
        out.frames.append(self._stack(get("frames")))

    def _group(self, row: dict[Any, Any]) -> int:
        pair, recorder_id = row.get("process_group"), _count(row.get("pg_id"))
        if isinstance(pair, (tuple, list)) and len(pair) == 2:
            key = (recorder_id, _name(pair[0]), _name(pair[1]))
        else:  # before version 2 an entry carried the process-local number only
            key = (recorder_id, _name(recorder_id), "")
        index = self.groups.setdefault(key, len(self.groups))
        if index >= limits.GROUPS_PER_RANK_MAX:
            raise TraceError(f"more than {limits.GROUPS_PER_RANK_MAX} groups")
        return index

    def _spend(self, amount: int) -> None:
        self._work += amount
        if self._work > _WORK_MAX:
            raise TraceError(f"more than {_WORK_MAX} sizes and frames")

    def _size(self, value: Any) -> _Sizes:
        """Shapes, one tuple per tensor. Cached by identity: a pickle shares what it writes once."""
        if not isinstance(value, list) or not value:
            return ()
        known = self._sizes.get(id(value))
        if known is not None:
            return known
        if len(value) > _TENSORS_MAX:
            raise TraceError(f"a call with {len(value)} tensors")
        shapes = []
        for shape in value:
            if not isinstance(shape, (list, tuple)) or len(shape) > _DIMENSIONS_MAX:
                raise TraceError("a tensor shape that is none")
            self._spend(1 + len(shape))
            shapes.append(tuple(number for item in shape if (number := _count(item)) is not None))
        return self._keep(self._sizes, value, tuple(shapes))

    def _types(self, value: Any) -> tuple[str, ...]:
        if not isinstance(value, list) or not value:
            return ()
        known = self._texts.get(id(value))
        if known is not None:
            return known
        if len(value) > _TENSORS_MAX:
            raise TraceError(f"a call with {len(value)} tensor types")
        self._spend(len(value))
        return self._keep(self._texts, value, tuple(map(_name, value)))

    def _stack(self, value: Any) -> tuple[str, ...]:
        if not isinstance(value, list) or not value:
            return ()
        known = self._stacks.get(id(value))
        if known is not None:
            return known
        kept = value[: limits.FRAMES_PER_STACK_MAX]
        self._spend(len(kept))
        return self._keep(self._stacks, value, tuple(map(self._frame, kept)))

    def _frame(self, value: Any) -> str:
        known = self._frames.get(id(value))
        if known is not None:
            return known
        if not isinstance(value, dict):
            raise TraceError("a stack frame that is none")
        name, file, line = value.get("name"), value.get("filename"), _integer(value.get("line"))
        place = f"{file}:{line}" if isinstance(file, str) and line is not None else "unknown"
        text = f"{name if isinstance(name, str) else '?'} ({place})"
        return self._keep(self._frames, value, text[:_FRAME_MAX_CHARS])

    def _keep(self, cache: dict[int, _Kept], key: Any, value: _Kept) -> _Kept:
        """Equal values become one object, so that 2,000 entries of one call hold its shapes once."""
        kept: _Kept = self._interned.setdefault(value, value)
        cache[id(key)] = kept
        return kept


@functools.lru_cache(maxsize=4096)
def _ranks(text: str) -> tuple[int, ...]:
    """The rank list that pg_config holds as text. Cached: every rank of a job writes the same ones."""
    try:
        items = json.loads(text)
    except (ValueError, RecursionError):
        return ()
    if not isinstance(items, list) or len(items) > limits.RANKS_PER_GROUP_MAX:
        return ()
    ranks = tuple(rank for item in items if (rank := _count(item)) is not None)
    return ranks if len(ranks) == len(items) == len(set(ranks)) else ()


def _config(dump: dict[Any, Any], rank: int) -> dict[str, tuple[str, tuple[int, ...]]]:
    """name -> (description, members). Members are () where the list cannot be right: gloo holds the last-made
    group's local numbers under no name, and a list without the rank itself is of another group.
    """
    config = dump.get("pg_config")
    found: dict[str, tuple[str, tuple[int, ...]]] = {}
    for name, value in _items(config):
        if not isinstance(value, dict):
            continue
        listed = value.get("ranks")
        text = listed if isinstance(listed, str) else json.dumps(listed) if isinstance(listed, list) else ""
        ranks = _ranks(text) if len(text) <= limits.RANKS_PER_GROUP_MAX * 9 else ()
        found[_name(name)] = (_name(value.get("desc")), ranks if rank in ranks else ())
    return found


def _items(value: Any) -> Iterable[tuple[Any, Any]]:
    if not isinstance(value, dict):
        return ()
    if len(value) > limits.GROUPS_PER_RANK_MAX:
        raise TraceError(f"{len(value)} groups, the limit is {limits.GROUPS_PER_RANK_MAX}")
    return value.items()


def _groups(
    seen: dict[tuple[int | None, str, str], int], dump: dict[Any, Any], rank: int
) -> tuple[TraceGroup, ...]:
    """Groups of the entries first, in their order, then groups that only pg_config knows.

    pg_config is keyed by name, pg_status by a process-local number; an entry carries both and joins them. Two
    local groups of one name collide in pg_config, so neither may have its members.
    """
    config = _config(dump, rank)
    status = {_integer(key): value for key, value in _items(dump.get("pg_status")) if isinstance(value, dict)}
    uses = Counter(name for _, name, _ in seen)
    groups = []
    for recorder_id, name, desc in seen:
        known = config.get(name)
        sure = known is not None and uses[name] == 1 and known[0] in ("", desc)
        row = status.get(recorder_id, {}) if recorder_id is not None else {}
        groups.append(
            TraceGroup(
                name=name,
                desc=desc,
                ranks=known[1] if known is not None and sure else (),
                recorder_id=recorder_id,
                last_enqueued=_count(row.get("last_enqueued_collective")),
                last_started=_count(row.get("last_started_collective")),
                last_completed=_count(row.get("last_completed_collective")),
            )
        )
    groups += [
        TraceGroup(name, desc, ranks) for name, (desc, ranks) in config.items() if ranks and name not in uses
    ]
    return tuple(groups)
