"""What a node knew of its parts <-> the bytes of ``records.Readings.data``.

In: ``Table``: names once each, and per value (a row) the places of its entity, metric, source and quality.
Out: one zstd frame with checksum over its msgpack form. A row is as unique as its entity, metric and labels.

``unpack`` raises ``WireError`` with code ``bad_message``; nothing else escapes.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Annotated, Final

import msgspec
import zstandard
from msgspec import Meta

from collectors.wire import blocks, limits
from collectors.wire.codec import WireError

CODEC: Final = "cwr1"
OK: Final = "ok"
LEVEL: Final = 3
"""of zstd"""

ShortName = Annotated[str, Meta(max_length=limits.READINGS_NAME_MAX_CHARS)]
Names = Annotated[list[ShortName], Meta(max_length=limits.READINGS_ROWS_MAX)]
Places = Annotated[list[Annotated[int, Meta(ge=0)]], Meta(max_length=limits.READINGS_ROWS_MAX)]
Labels = dict[ShortName, ShortName]


class SourceWord(msgspec.Struct, omit_defaults=True, frozen=True):
    """A source of the node. ``age_s``: how old its newest look was at ``t_ns``; None: it never gave one."""

    name: ShortName
    state: ShortName
    """``ok``, or what keeps it from giving values"""
    period_s: float
    age_s: float | None = None


class Table(msgspec.Struct, omit_defaults=True, frozen=True):
    """Values as columns of equal length, in the order in which a page shows them."""

    sources: Annotated[list[SourceWord], Meta(max_length=limits.SOURCES_MAX)]
    entities: Names
    metrics: Names
    qualities: Names
    entity: Places
    metric: Places
    source: Places
    quality: Places
    value: Annotated[list[float | int | None], Meta(max_length=limits.READINGS_ROWS_MAX)]
    labels: Annotated[list[Labels], Meta(max_length=limits.READINGS_ROWS_MAX)] = []
    """sets of labels; the first is the empty one"""
    label: Places = []
    """places in ``labels``; empty while no row has any"""
    left_out: int = 0
    """values that were read, but are too many or have names that cannot travel"""


_encoder = msgspec.msgpack.Encoder()
_decoder = msgspec.msgpack.Decoder(Table)


def pack(table: Table) -> bytes:
    """The bytes of a table whose columns fit each other."""
    raw = _encoder.encode(table)
    return zstandard.ZstdCompressor(level=LEVEL, write_checksum=True).compress(raw)


def unpack(data: bytes) -> Table:
    """A table from a node, checked: bounded, columns of one length, sane places, names and numbers.

    Cost: linear in its rows, about 1 us a row.
    """
    try:
        size = zstandard.frame_content_size(data)
        if not 0 <= size <= limits.READINGS_MAX_DECOMPRESSED_BYTES:
            raise WireError("bad_message", "readings of no bounded size")
        table: Table = _decoder.decode(blocks.decompress(data, size))
    except (zstandard.ZstdError, blocks.BlockError) as error:
        raise WireError("bad_message", f"damaged readings: {error}") from error
    except (msgspec.MsgspecError, RecursionError, UnicodeDecodeError) as error:
        raise WireError("bad_message", f"no readings: {error}") from error
    _check(table)
    return table


def is_name(text: str) -> bool:
    """Whether a name may travel: short, printable, not empty."""
    return 0 < len(text) <= limits.READINGS_NAME_MAX_CHARS and text.isprintable()


def _check(table: Table) -> None:
    rows = len(table.value)
    columns = (
        ("entity", table.entity, len(table.entities)),
        ("metric", table.metric, len(table.metrics)),
        ("source", table.source, len(table.sources)),
        ("quality", table.quality, len(table.qualities)),
        *([("label", table.label, len(table.labels))] if table.label else []),
    )
    for name, places, known in columns:
        if len(places) != rows:
            raise WireError("bad_message", f"{len(places)} places of {name} for {rows} values")
        if rows and max(places) >= known:
            raise WireError("bad_message", f"a place of {name} beyond the {known} there are")
    if table.label and table.labels[0]:
        raise WireError("bad_message", "the first set of labels is not the empty one")
    if table.left_out < 0:
        raise WireError("bad_message", "a negative number of values left out")
    _check_names(table)
    _check_values(table)


def _check_names(table: Table) -> None:
    words = [word for source in table.sources for word in (source.name, source.state)]
    pairs = [text for labels in table.labels for pair in labels.items() for text in pair if text]
    for text in (*words, *table.entities, *table.metrics, *table.qualities, *pairs):
        if not is_name(text):
            raise WireError("bad_message", "readings with an impossible name")
    for names in (table.entities, table.metrics, table.qualities, [one.name for one in table.sources]):
        if len(set(names)) != len(names):
            raise WireError("bad_message", "a name stands twice")
    labels = table.label or [0] * len(table.value)
    if len(set(zip(table.entity, table.metric, labels, strict=True))) != len(table.value):
        raise WireError("bad_message", "a value stands twice")


def _check_values(table: Table) -> None:
    ages = [source.age_s for source in table.sources]
    periods = [source.period_s for source in table.sources]
    if not _are_finite([*table.value, *ages, *periods]) or min([*filter(None, ages), *periods, 0.0]) < 0:
        raise WireError("bad_message", "a number that is none")
    told = zip(table.value, table.quality, strict=True) if None in table.value else ()
    if any(value is None and table.qualities[quality] == OK for value, quality in told):
        raise WireError("bad_message", "a value that is not known and has no reason")


def _are_finite(numbers: Sequence[float | None]) -> bool:
    """Of those that are there."""
    return all(map(math.isfinite, filter(None, numbers)))
