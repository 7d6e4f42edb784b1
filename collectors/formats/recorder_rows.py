"""Entries of a flight-recorder dump as columns, without a Python step per field where the dump is ordinary.

In: the entries as dicts (pickle) or structs (JSON). Out: ``RawEntries``: numbers in their columns, and for
what repeats (group, signature, stack) an index into the distinct raw values, which ``recorder_tables`` then
reads. Anything unusual is taken value by value: slower, same answer.

Two rules keep hostile input linear. A key made of values is used only where the values were seen to be flat
and short; else values are told apart by identity, since a pickle may share one huge list between all entries.
"""

from __future__ import annotations

import contextlib
import marshal
from array import array
from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain
from operator import itemgetter
from typing import Any, Final

from collectors.formats.columns import COMPLETED, NULL, SCHEDULED, STARTED, Entries
from collectors.formats.trace import TraceError
from collectors.wire import limits

TIMES: Final = {
    "created_ns": "time_created_ns",
    "started_ns": "time_discovered_started_ns",
    "completed_ns": "time_discovered_completed_ns",
}
"""Column to field. Unknown times are None in a pickle and 0 in JSON."""

COUNTS: Final = {
    "record_id": "record_id",
    "sequence": "collective_seq_id",
    "p2p_sequence": "p2p_seq_id",
    "op_id": "op_id",
    "timeout_ms": "timeout_ms",
}
GROUP: Final = ("pg_id", "process_group")
SIGNATURE: Final = (
    "profiling_name", "is_p2p", "input_sizes", "output_sizes", "input_dtypes", "output_dtypes",
)  # fmt: skip
CALL: Final = GROUP + SIGNATURE
OLD_SEQUENCE: Final = "seq_id"
"""Versions before 2.0 count collectives and sends in one number."""

FIELDS: Final = (
    *COUNTS.values(), *TIMES.values(), *GROUP, *SIGNATURE, "state", "retired", "duration_ms", "frames",
    OLD_SEQUENCE,
)  # fmt: skip

_STATE_OF: Final = {"scheduled": SCHEDULED, "started": STARTED, "completed": COMPLETED}
_DURATION_MAX_MS: Final = 9.0e12
"""Some 285 years; more has no place in 64 bits of ns."""
_KEYS_MAX: Final = 64
"""Keys of an entry; PyTorch 2.13 writes 22."""
_CALLS_MAX_BYTES: Final = 16 * 1024 * 1024
"""A call of some tensors takes 100 to 200 bytes."""


@dataclass(slots=True)
class RawEntries:
    """Columns whose ``group``, ``signature`` and ``stack`` point into the lists of raw values beside them."""

    columns: Entries = field(default_factory=Entries)
    groups: Sequence[Any] = ()
    """rows of ``GROUP``"""
    signatures: Sequence[Any] = ()
    """rows of ``SIGNATURE``"""
    stacks: Sequence[Any] = ()
    """values of ``frames``"""


def integer(value: Any) -> int | None:
    """An integer of at most 64 bits; the JSON flavour writes some as text. As everywhere in Python, what
    compares equal to a number is that number.
    """
    if isinstance(value, str):
        digits = value.removeprefix("-")
        if not (digits.isascii() and digits.isdecimal()) or len(digits) > 19:
            return None
        value = int(value)
    elif isinstance(value, float) and value.is_integer():
        value = int(value)
    if not isinstance(value, int) or not -(2**63) <= value < 2**63:
        return None
    return int(value)


def count(value: Any) -> int | None:
    """A number that only exists from 0 up; the recorder writes -1 for "not known"."""
    number = integer(value)
    return None if number is None or number < 0 else number


def from_dicts(rows: list[Any]) -> RawEntries:
    """Columns of the entries of a pickle, or of JSON that the typed reader did not take."""
    if not rows:
        return RawEntries()
    if set(map(type, rows)) != {dict}:
        odd = next(row for row in rows if type(row) is not dict)
        raise TraceError(f"an entry is a {type(odd).__name__}")
    taken = _taken(rows)
    if taken[OLD_SEQUENCE].count(None) < len(rows):
        taken["collective_seq_id"] = [row.get("collective_seq_id", row.get(OLD_SEQUENCE)) for row in rows]
    return from_columns(taken)


def _taken(rows: list[dict[Any, Any]]) -> dict[str, Sequence[Any]]:
    """Values of each of ``FIELDS``; at one go where all entries have the keys of the first."""
    names = list(rows[0])
    if 1 < len(names) <= _KEYS_MAX and set(map(len, rows)) == {len(names)}:
        with contextlib.suppress(KeyError):
            values = dict(zip(names, zip(*map(itemgetter(*names), rows), strict=True), strict=True))
            absent = (None,) * len(rows)
            return {name: values.get(name, absent) for name in FIELDS}
    return {name: [row.get(name) for row in rows] for name in FIELDS}


def from_columns(taken: Mapping[str, Sequence[Any]]) -> RawEntries:
    """Columns from the values of each of ``FIELDS``, of length N > 0 each; None where an entry lacks it."""
    size = len(taken["record_id"])
    columns = {name: _numbers(taken[key], 0) for name, key in COUNTS.items()}
    if NULL in columns["record_id"]:
        columns["record_id"] = array(
            "q", [at if number == NULL else number for at, number in enumerate(columns["record_id"])]
        )
    columns |= {name: _numbers(taken[key], 1) for name, key in TIMES.items()}
    rows = list(zip(*map(taken.__getitem__, CALL), strict=True))
    call, calls = _numbered(_call_keys(rows), rows)
    stack, stacks = _stacks(taken["frames"])
    entries = Entries(
        **columns,
        group=call,
        signature=call,
        stack=stack,
        state=array("b", _states(taken["state"])),
        retired=array("b", [value is True for value in taken["retired"]]),
        duration_ns=array("q", map(_duration_ns, taken["duration_ms"]))
        if taken["duration_ms"].count(None) < size
        else array("q", [NULL]) * size,
    )
    width = len(GROUP)
    return RawEntries(entries, [row[:width] for row in calls], [row[width:] for row in calls], stacks)


def _numbers(values: Sequence[Any], least: int) -> array[int]:
    """The values as a column; ``NULL`` for what is no number from ``least`` (0 or 1) up."""
    if least and not any(values):
        return array("q", [NULL]) * len(values)
    known: Sequence[Any] = [value or NULL for value in values] if least else values
    try:
        column = array("q", known)
    except (TypeError, OverflowError):
        try:
            column = array("q", [NULL if value is None else value for value in known])
        except (TypeError, OverflowError):
            numbers = map(integer, known)
            column = array("q", [NULL if n is None or n < least else n for n in numbers])
    if min(column) < NULL:
        column = array("q", [value if value >= least else NULL for value in column])
    return column


def _states(values: Sequence[Any]) -> Iterable[int]:
    try:
        return [_STATE_OF.get(value, SCHEDULED) for value in values]
    except TypeError:
        return [_STATE_OF.get(value, SCHEDULED) if isinstance(value, str) else SCHEDULED for value in values]


def _duration_ns(value: Any) -> int:
    return int(value * 1e6) if isinstance(value, float) and 0 <= value < _DURATION_MAX_MS else NULL


def _numbered(keys: Sequence[Hashable], values: Sequence[Any]) -> tuple[array[int], list[Any]]:
    """The place of each key among the distinct keys, in order of first sight, and a value for each."""
    number_of: dict[Hashable, int] = {}
    places = [number_of.setdefault(key, len(number_of)) for key in keys]
    return array("i", places), list(dict(zip(places, values, strict=True)).values())


def _call_keys(rows: list[tuple[Any, ...]]) -> Sequence[Hashable]:
    """Keys that differ where the values do: the values as bytes, in which what a value holds twice stands
    once. By identity where the bytes are many: a pickle may point all entries at one long list.
    """
    keys, room = [], _CALLS_MAX_BYTES
    with contextlib.suppress(ValueError):  # nested deeper than any call
        for key in map(marshal.dumps, rows):
            keys.append(key)
            room -= len(key)
            if room < 0:
                break
        else:
            return keys
    return _identities(rows)


def _identities(rows: list[Any]) -> Sequence[Hashable]:
    return [tuple(map(id, row)) for row in rows]


def _stacks(values: Sequence[Any]) -> tuple[array[int], list[Any]]:
    """Told apart by the identity of their frames, which the recorder shares between stacks; by the content of
    the frames where a sample of them shows no sharing (a dump that was loaded and saved again).
    """
    if not any(values):
        return array("i", [NULL]) * len(values), []
    lists: Sequence[Hashable] = list(map(id, values))
    if not set(map(type, values)) <= {list, tuple, type(None)} or 2 * len(set(lists)) < len(lists):
        return _numbered(lists, values)
    kept = [value[: limits.FRAMES_PER_STACK_MAX] if value else () for value in values]
    some = list(chain.from_iterable(kept[:_SAMPLE]))
    if 2 * len(set(map(id, some))) > len(some):
        with contextlib.suppress(KeyError, TypeError):  # a frame that lacks something or holds a list
            return _numbered([tuple(map(_frame, frames)) for frames in kept], kept)
    return _numbered(_identities(kept), kept)


_SAMPLE: Final = 64
_frame: Final = itemgetter("name", "filename", "line")
