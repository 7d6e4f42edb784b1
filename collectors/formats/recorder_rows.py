"""Entries of a flight-recorder dump as columns, without a Python step per field where the dump is ordinary.

In: the entries as dicts (pickle) or structs (JSON). Out: ``RawEntries``: numbers in their columns, and for
what repeats (group, signature, stack) an index into the distinct raw values, which ``recorder_tables`` then
reads. Anything unusual is taken value by value: slower, same answer.

Two rules keep hostile input linear. A key made of values is used only where the values were seen to be flat
and short; else values are told apart by identity, since a pickle may share one huge list between all entries.
"""

from __future__ import annotations

import contextlib
from array import array
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain, islice
from operator import itemgetter
from typing import Any, Final

import msgspec

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
OLD_SEQUENCE: Final = "seq_id"
"""Versions before 2.0 count collectives and sends in one number."""

FIELDS: Final = (
    *COUNTS.values(), *TIMES.values(), *GROUP, *SIGNATURE, "state", "retired", "duration_ms", "frames",
    OLD_SEQUENCE,
)  # fmt: skip

_STATE_OF: Final = {"scheduled": SCHEDULED, "started": STARTED, "completed": COMPLETED}
_DURATION_MAX_MS: Final = 9.0e12
"""Some 285 years; more has no place in 64 bits of ns."""
_SHORT: Final = 256
"""Characters of a name, and tensors times dimensions, up to which a call is compared by value."""
_bytes_of: Final = msgspec.msgpack.Encoder().encode


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
    names = [name for name in FIELDS if name in rows[0]]
    try:
        taken: dict[str, Sequence[Any]] = dict(
            zip(names, zip(*map(_getter(names), rows), strict=True), strict=True)
        )
    except KeyError:
        taken = {}
    taken = {name: taken[name] if name in taken else [row.get(name) for row in rows] for name in FIELDS}
    if any(value is not None for value in taken[OLD_SEQUENCE]):
        taken["collective_seq_id"] = [row.get("collective_seq_id", row.get(OLD_SEQUENCE)) for row in rows]
    return from_columns(taken)


def _getter(names: list[str]) -> Callable[[Any], tuple[Any, ...]]:
    if len(names) > 1:
        return itemgetter(*names)
    return lambda row: tuple(row[name] for name in names)


def from_columns(taken: Mapping[str, Sequence[Any]]) -> RawEntries:
    """Columns from the values of each of ``FIELDS``, of length N > 0 each; None where an entry lacks it."""
    size = len(taken["record_id"])
    columns = {name: _numbers(taken[key], 0) for name, key in COUNTS.items()}
    if NULL in columns["record_id"]:
        columns["record_id"] = array(
            "q", [at if number == NULL else number for at, number in enumerate(columns["record_id"])]
        )
    columns |= {name: _numbers(taken[key], 1) for name, key in TIMES.items()}
    group, groups = _numbered(_group_keys(taken), list(zip(*map(taken.__getitem__, GROUP), strict=True)))
    signatures = list(zip(*map(taken.__getitem__, SIGNATURE), strict=True))
    signature, signatures = _numbered(_signature_keys(taken, signatures), signatures)
    stack, stacks = _stacks(taken["frames"])
    entries = Entries(
        **columns,
        group=group,
        signature=signature,
        stack=stack,
        state=array("b", _states(taken["state"])),
        retired=array("b", [value is True for value in taken["retired"]]),
        duration_ns=array("q", map(_duration_ns, taken["duration_ms"]))
        if any(taken["duration_ms"])
        else array("q", [NULL]) * size,
    )
    return RawEntries(entries, groups, signatures, stacks)


def _numbers(values: Sequence[Any], least: int) -> array[int]:
    """The values as a column; ``NULL`` for what is no number from ``least`` up."""
    try:
        column = array("q", values)
    except (TypeError, OverflowError):
        try:
            column = array("q", [NULL if value is None else value for value in values])
        except (TypeError, OverflowError):
            column = array("q", [NULL if (n := integer(value)) is None else n for value in values])
    if min(column) < least:
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


def _group_keys(taken: Mapping[str, Sequence[Any]]) -> Sequence[Hashable]:
    """By value where ids are numbers and names pairs of texts, else by identity."""
    ids, pairs = taken["pg_id"], taken["process_group"]
    if set(map(type, ids)) <= {int} and _texts(pairs) and set(map(len, pairs)) == {2}:
        return list(zip(ids, map(tuple, pairs), strict=True))
    return [(id(number), id(pair)) for number, pair in zip(ids, pairs, strict=True)]


def _signature_keys(taken: Mapping[str, Sequence[Any]], rows: list[Any]) -> Sequence[Hashable]:
    """By value, as bytes that differ where the values do; by identity where that could be long."""
    names, flags, inputs, outputs, input_types, output_types = map(taken.__getitem__, SIGNATURE)
    plain = set(map(type, names)) <= {str} and set(map(type, flags)) <= {bool, type(None)}
    if plain and all(map(_texts, (input_types, output_types))) and all(map(_shapes, (inputs, outputs))):
        with contextlib.suppress(OverflowError, UnicodeEncodeError):  # 65 bits; half a surrogate pair
            if max(map(len, names)) <= _SHORT:
                return list(map(_bytes_of, rows))
    return [tuple(map(id, row)) for row in rows]


def _sequences(values: Sequence[Any]) -> bool:
    return set(map(type, values)) <= {list, tuple}


def _texts(values: Sequence[Any]) -> bool:
    """Each value is a short sequence of texts."""
    if not _sequences(values) or max(map(len, values)) > _SHORT:
        return False
    texts = list(chain.from_iterable(values))
    return set(map(type, texts)) <= {str} and max(map(len, texts), default=0) <= _SHORT


def _shapes(values: Sequence[Any]) -> bool:
    """Each value is a sequence of sequences of numbers, and none is long."""
    if not _sequences(values) or (longest := max(map(len, values))) > _SHORT:
        return False
    shapes = list(chain.from_iterable(values))
    if not _sequences(shapes) or longest * max(map(len, shapes), default=0) > _SHORT:
        return False
    return set(map(type, chain.from_iterable(shapes))) <= {int}


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
    keys = _stack_keys(kept) if 2 * len(set(map(id, some))) > len(some) else None
    return _numbered([tuple(map(id, frames)) for frames in kept] if keys is None else keys, kept)


_SAMPLE: Final = 64
_frame: Final = itemgetter("name", "filename", "line")
_FRAME_VALUES: Final = 3


def _stack_keys(stacks: Sequence[Any]) -> Sequence[Hashable] | None:
    """Keys by the content of the frames; None where a frame is unusual."""
    frames = list(chain.from_iterable(stacks))
    if set(map(type, frames)) != {dict}:
        return None
    try:
        told = list(chain.from_iterable(map(_frame, frames)))
    except KeyError:
        return None
    if not set(map(type, told)) <= {str, int}:
        return None
    values = iter(told)
    return [tuple(islice(values, _FRAME_VALUES * len(stack))) for stack in stacks]
