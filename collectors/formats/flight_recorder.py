"""Decodes one PyTorch flight-recorder dump, pickle or JSON, into ``TraceColumns``.

In: the bytes of one file or capture and the rank it came from (a dump does not say its own rank). Out:
``TraceColumns``. Never runs code from the bytes and never trusts a count or a length in them.

Three readers give one answer. A pickle goes to the compiled reader where it is built, and whatever that one
declines goes to the plain one, which alone decides what is wrong with a file. JSON is read into structs, or
as plain objects where it is unusual.

Source: PyTorch's FlightRecorder.hpp and FlightRecorderDetail.hpp, dump versions 1.0 to 2.10. Fields are read
tolerantly: a missing one is unknown, one too many is passed over; only an unknown major version is refused.
"""

from __future__ import annotations

import contextlib
import gc
import importlib
from array import array
from collections.abc import Iterator
from typing import Any, Final

import msgspec

from collectors.formats import plain_pickle, recorder_rows
from collectors.formats.columns import COLUMNS, TYPE_OF, Entries, TraceColumns
from collectors.formats.recorder_rows import RawEntries
from collectors.formats.recorder_tables import trace_of
from collectors.formats.trace import TraceError
from collectors.wire import limits

DUMP_MAX_BYTES: Final = 64 * 1024 * 1024
"""2,000 entries with 20 frames each take 1.2 MB; a ring fifty times as large still fits."""

KNOWN_MAJORS: Final = (1, 2)
_VERSION_MAX_CHARS: Final = 32


def _compiled_reader() -> Any:
    """``_pickle_columns.c``, or None where it was installed without a compiler."""
    try:
        return importlib.import_module("collectors.formats._pickle_columns")
    except ImportError:
        return None


compiled_reader: Final = _compiled_reader()


def decode(
    data: bytes, rank: int, source: str = "", taken_ns: int | None = None, *, compiled: bool = True
) -> TraceColumns:
    """One dump as columns.

    Args:
        data: the whole file, pickle or JSON (told apart by content).
        rank: global rank it belongs to.
        source: file name or capture, for people.
        taken_ns: when it was taken, ns UTC, when the collector knows it.
        compiled: use the compiled reader where it is built; the answer is the same without it.

    Raises:
        TraceError: it is no dump, cut off, hostile, too large, or of an unknown major version.

    Cost: per entry of a pickle, without and with 20 stack frames, see CONTRIBUTING.md.
    """
    if len(data) > DUMP_MAX_BYTES:
        raise TraceError(f"{len(data)} bytes, the limit is {DUMP_MAX_BYTES}")
    if not data:
        raise TraceError("empty")
    with _collector_paused():
        head, raw = _pickled(data, compiled) if data[:1] == b"\x80" else _json(data)
    return trace_of(head, raw, rank, source, taken_ns)


def _pickled(data: bytes, compiled: bool) -> tuple[dict[Any, Any], RawEntries]:
    if compiled and compiled_reader is not None:
        read = compiled_reader.read(data, limits.ENTRIES_PER_TRACE_MAX)
        if read is not None:
            head, columns, groups, signatures, stacks = read
            _check_version(head)
            return head, RawEntries(_entries(columns), groups, signatures, stacks)
    return _plain(plain_pickle.loads(data))


@contextlib.contextmanager
def _collector_paused() -> Iterator[None]:
    """Half a million small objects of one dump hold no cycle; looking for cycles among them again and again
    takes longer than reading them.
    """
    running = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if running:
            gc.enable()


def _entries(columns: dict[str, bytes]) -> Entries:
    """Columns in the machine's own byte order."""
    return Entries(**{name: array(TYPE_OF[name], columns[name]) for name in COLUMNS})


def _plain(dump: Any) -> tuple[dict[Any, Any], RawEntries]:
    if not isinstance(dump, dict):
        raise TraceError(f"holds a {type(dump).__name__}, not a dump")
    _check_version(dump)
    rows = dump.get("entries") or []
    if not isinstance(rows, list):
        raise TraceError("its entries are no list")
    _check_count(len(rows))
    head = {name: value for name, value in dump.items() if name != "entries"}  # so that they are freed here
    return head, recorder_rows.from_dicts(rows)


def _check_version(dump: dict[Any, Any]) -> None:
    """The version is compared as numbers: as text "2.10" sorts before "2.9"."""
    version = dump.get("version")
    if not isinstance(version, str) or not {"entries", "pg_config", "pg_status"} & dump.keys():
        raise TraceError("no flight-recorder dump: it has no version, entries or groups")
    major = version.partition(".")[0]
    known = major.isdecimal() and int(major) in KNOWN_MAJORS if len(version) <= _VERSION_MAX_CHARS else False
    if not known or not version.isascii():
        raise TraceError(f"dump version {version[:32]!r} is unknown; versions 1 and 2 are read")


def _check_count(count: int) -> None:
    if count > limits.ENTRIES_PER_TRACE_MAX:
        raise TraceError(f"{count} entries, the limit is {limits.ENTRIES_PER_TRACE_MAX}")


_Entry: Final = msgspec.defstruct("_Entry", [(name, Any, None) for name in recorder_rows.FIELDS], gc=False)


class _Dump(msgspec.Struct, gc=False):
    version: Any = msgspec.UNSET
    pg_config: Any = msgspec.UNSET
    pg_status: Any = msgspec.UNSET
    entries: list[_Entry] | None | msgspec.UnsetType = msgspec.UNSET  # type: ignore[valid-type]


_typed: Final = msgspec.json.Decoder(_Dump)


def _json(data: bytes) -> tuple[dict[Any, Any], RawEntries]:
    if data.lstrip()[:1] != b"{":
        raise TraceError("neither a pickle of protocol 2 or later nor a JSON object")
    try:
        dump = _typed.decode(data)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return _plain(_any_json(data))
    head = {name: value for name, value in msgspec.structs.asdict(dump).items() if value is not msgspec.UNSET}
    _check_version(head)
    rows = head.get("entries") or []
    _check_count(len(rows))
    if not rows:
        return head, RawEntries()
    values = zip(*map(msgspec.structs.astuple, rows), strict=True)
    taken = dict(zip(recorder_rows.FIELDS, values, strict=True))
    if any(value is not None for value in taken[recorder_rows.OLD_SEQUENCE]):
        return _plain(_any_json(data))
    return head, recorder_rows.from_columns(taken)


def _any_json(data: bytes) -> Any:
    try:
        return msgspec.json.decode(data)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise TraceError(f"not JSON, or it is cut off: {error}") from error
