"""Raw values of a flight-recorder dump as the tables of ``TraceColumns``: groups, signatures, stacks.

In: ``RawEntries`` and the top of the dump. Out: ``TraceColumns``. Each distinct raw value is read once, so
the cost follows what differs, not the entries. What every rank of a job writes alike (the list of the world's
ranks, 165 kB of text at 24,576 ranks) is read once per process and shared.
"""

from __future__ import annotations

import functools
from array import array
from collections import Counter
from collections.abc import Hashable, Iterable, Sequence
from dataclasses import replace
from typing import Any, Final, TypeVar

import msgspec

from collectors.formats.columns import NULL, UNKNOWN_RANK, Signature, Sizes, TraceColumns
from collectors.formats.recorder_rows import RawEntries, count, integer
from collectors.formats.trace import TraceError, TraceGroup
from collectors.wire import limits

_TENSORS_MAX: Final = 8_192
"""Tensors of one call: a coalesced all-gather of a large model has some thousands."""
_DIMENSIONS_MAX: Final = 64
_FRAME_MAX_CHARS: Final = 512
_WORK_MAX: Final = 8_000_000
"""Sizes and frames converted for one dump; shared objects count once, so only a hostile dump gets there."""
_LIST_MAX_CHARS: Final = limits.RANKS_PER_GROUP_MAX * 9
_DIRECTIONS: Final = ("send ", "recv ")

_GroupKey = tuple[int | None, str, str]
_Kept = TypeVar("_Kept", bound=Hashable)


def trace_of(
    head: dict[Any, Any], raw: RawEntries, rank: int, source: str, taken_ns: int | None
) -> TraceColumns:
    """The dump of ``rank``. Raises ``TraceError`` on a value that no recorder writes."""
    made = _Made()
    groups, group = _merged(map(made.group, raw.groups), raw.columns.group)
    if len(groups) > limits.GROUPS_PER_RANK_MAX:
        raise TraceError(f"more than {limits.GROUPS_PER_RANK_MAX} groups")
    told = list(map(made.signature, raw.signatures))
    backend = _backend([prefix for prefix, _ in told], raw.columns.signature)
    signatures, signature = _merged((what for _, what in told), raw.columns.signature)
    stacks, stack = _merged(map(made.stack, raw.stacks), raw.columns.stack)
    return TraceColumns(
        rank=rank,
        version=head["version"],
        backend=backend,
        groups=_groups(groups, head, rank),
        signatures=signatures,
        stacks=stacks,
        entries=replace(raw.columns, group=group, signature=signature, stack=stack),
        source=source,
        taken_ns=taken_ns,
    )


def _merged(values: Iterable[_Kept | None], column: array[int]) -> tuple[tuple[_Kept, ...], array[int]]:
    """Equal values become one, None becomes no value, and the column points at what is left."""
    table: dict[_Kept, int] = {}
    place = [NULL if value is None else table.setdefault(value, len(table)) for value in values]
    if place == list(range(len(place))):
        return tuple(table), column
    place.append(NULL)  # what NULL, the last index, points at
    return tuple(table), array("i", map(place.__getitem__, column))


def _backend(prefixes: Sequence[str], column: array[int]) -> str:
    """The prefix of most entries; of equally many, the first by name."""
    uses: Counter[str] = Counter()
    for at, times in Counter(column).items():
        if prefixes[at]:
            uses[prefixes[at]] += times
    return max(sorted(uses), key=uses.__getitem__, default="")


def name_of(value: Any) -> str:
    """A name as the dump has it; numbers become text. Raises ``TraceError`` if it is too long or no text."""
    if value is None:
        return ""
    text = value if isinstance(value, str) else str(number) if (number := integer(value)) is not None else ""
    if len(text) > limits.NAME_MAX_CHARS:
        raise TraceError(f"a name of {len(text)} characters, the limit is {limits.NAME_MAX_CHARS}")
    if not text.isascii():
        _encodable(text)
    return text


def _encodable(text: str) -> None:
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise TraceError("a name with half of a surrogate pair") from error


class _Made:
    """Reads raw values. Kept by identity: a pickle may point many of them at one list."""

    def __init__(self) -> None:
        self._sizes: dict[int, Sizes] = {}
        self._types: dict[int, tuple[str, ...]] = {}
        self._frames: dict[int, str] = {}
        self._interned: dict[Any, Any] = {}
        self._work = 0

    def group(self, row: tuple[Any, Any]) -> _GroupKey:
        recorder_id, pair = count(row[0]), row[1]
        if isinstance(pair, (tuple, list)) and len(pair) == 2:
            return recorder_id, name_of(pair[0]), name_of(pair[1])
        # Before version 2 an entry carried the process-local number only.
        return recorder_id, name_of(recorder_id), ""

    def signature(self, row: tuple[Any, ...]) -> tuple[str, Signature]:
        """The backend's prefix, and what is called."""
        full, is_p2p, inputs, outputs, input_types, output_types = row
        prefix, colon, op = name_of(full).partition(":")
        op = op if colon else prefix
        told = is_p2p if isinstance(is_p2p, bool) else op.startswith(_DIRECTIONS)
        return prefix if colon else "", Signature(
            op, told, self._shapes(inputs), self._shapes(outputs),
            self._dtypes(input_types), self._dtypes(output_types),
        )  # fmt: skip

    def stack(self, value: Any) -> tuple[str, ...] | None:
        if not isinstance(value, (list, tuple)) or not value:
            return None
        kept = value[: limits.FRAMES_PER_STACK_MAX]
        self._spend(len(kept))
        return tuple(map(self._frame, kept))

    def _spend(self, amount: int) -> None:
        self._work += amount
        if self._work > _WORK_MAX:
            raise TraceError(f"more than {_WORK_MAX} sizes and frames")

    def _shapes(self, value: Any) -> Sizes:
        if not isinstance(value, (list, tuple)) or not value:
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
            shapes.append(tuple(number for item in shape if (number := count(item)) is not None))
        return self._keep(self._sizes, value, tuple(shapes))

    def _dtypes(self, value: Any) -> tuple[str, ...]:
        if not isinstance(value, (list, tuple)) or not value:
            return ()
        known = self._types.get(id(value))
        if known is not None:
            return known
        if len(value) > _TENSORS_MAX:
            raise TraceError(f"a call with {len(value)} tensor types")
        self._spend(len(value))
        return self._keep(self._types, value, tuple(map(name_of, value)))

    def _frame(self, value: Any) -> str:
        known = self._frames.get(id(value))
        if known is not None:
            return known
        if not isinstance(value, dict):
            raise TraceError("a stack frame that is none")
        name, file, line = value.get("name"), value.get("filename"), integer(value.get("line"))
        place = f"{file}:{line}" if isinstance(file, str) and line is not None else "unknown"
        text = f"{name if isinstance(name, str) else '?'} ({place})"[:_FRAME_MAX_CHARS]
        if not text.isascii():  # names of files may hold anything; what is no text is shown as such
            text = text.encode(errors="replace").decode()
        return self._keep(self._frames, value, text)

    def _keep(self, cache: dict[int, Any], key: Any, value: _Kept) -> _Kept:
        """Equal values become one object, so that 2,000 entries of one call hold its shapes once."""
        kept: _Kept = self._interned.setdefault(value, value)
        cache[id(key)] = kept
        return kept


@functools.lru_cache(maxsize=4096)
def ranks_of(text: str) -> tuple[int, ...]:
    """The rank list that pg_config holds as text. Cached: every rank of a job writes the same ones, and gets
    the same tuple. () where it is no list of distinct ranks.
    """
    try:
        items = msgspec.json.decode(text)
    except (msgspec.DecodeError, RecursionError, UnicodeError):
        return ()
    if not isinstance(items, list) or len(items) > limits.RANKS_PER_GROUP_MAX:
        return ()
    ranks = tuple(rank for item in items if (rank := count(item)) is not None)
    return ranks if len(ranks) == len(items) == len(set(ranks)) else ()


def _members(listed: Any, rank: int) -> tuple[int, ...]:
    """() where the list cannot be right: gloo holds the last-made group's local numbers under no name, and a
    list without the rank itself is of another group, as far as the rank is known.
    """
    if isinstance(listed, (list, tuple)) and len(listed) <= limits.RANKS_PER_GROUP_MAX:
        listed = str([number for item in listed if (number := integer(item)) is not None])
    if not isinstance(listed, str) or len(listed) > _LIST_MAX_CHARS:
        return ()
    ranks = ranks_of(listed)
    return ranks if rank == UNKNOWN_RANK or rank in ranks else ()


def _config(dump: dict[Any, Any], rank: int) -> dict[str, tuple[str, tuple[int, ...]]]:
    """name -> (description, members)."""
    return {
        name_of(name): (name_of(value.get("desc")), _members(value.get("ranks"), rank))
        for name, value in _items(dump.get("pg_config"))
        if isinstance(value, dict)
    }


def _items(value: Any) -> Iterable[tuple[Any, Any]]:
    if not isinstance(value, dict):
        return ()
    if len(value) > limits.GROUPS_PER_RANK_MAX:
        raise TraceError(f"{len(value)} groups, the limit is {limits.GROUPS_PER_RANK_MAX}")
    return value.items()


def _groups(seen: tuple[_GroupKey, ...], dump: dict[Any, Any], rank: int) -> tuple[TraceGroup, ...]:
    """Groups of the entries first, in their order, then groups that only pg_config knows.

    pg_config is keyed by name, pg_status by a process-local number; an entry carries both and joins them. Two
    local groups of one name collide in pg_config, so neither may have its members. What can be told of a
    group without an entry is told by ``_unjoined``.
    """
    config = _config(dump, rank)
    status = {integer(key): value for key, value in _items(dump.get("pg_status")) if isinstance(value, dict)}
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
                last_enqueued=count(row.get("last_enqueued_collective")),
                last_started=count(row.get("last_started_collective")),
                last_completed=count(row.get("last_completed_collective")),
            )
        )
    left = [(name, *told) for name, told in config.items() if told[1] and name not in uses]
    rows = [row for number, row in status.items() if number not in {item[0] for item in seen}]
    enqueued = _unjoined(rows, len(left), bool(seen))
    groups += [TraceGroup(name, desc, ranks, last_enqueued=enqueued) for name, desc, ranks in left]
    return tuple(groups)


def _unjoined(rows: list[dict[Any, Any]], groups: int, has_entries: bool) -> int | None:
    """Last collective enqueued in a group without an entry, from the status rows that no entry joins.

    Which row is whose cannot be told, so the smallest number is what each of the groups has made at least.
    A ring that holds nothing while calls were made was off, reset or lost: then the largest number stands, so
    that no call its peers wait in is said to be lacking.
    """
    numbers = [count(row.get("last_enqueued_collective")) for row in rows]
    made = [number for number in numbers if number is not None]
    if not made or (has_entries and (len(made) < len(numbers) or len(numbers) < groups)):
        return None
    return min(made) if has_entries else max(made)
