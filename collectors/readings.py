"""The newest look of every source, put together into one ``Readings`` record when it is due.

In: readings as they come in. Out: at most one record in 15 s at this node's own place: when a value came or
went, its reason or the state of a source changed; numbers alone go with the record that is sent each minute.
"""

from __future__ import annotations

import hashlib
import zlib
from collections.abc import Iterable, Mapping, Sequence
from functools import lru_cache
from typing import Final

import msgspec

from collectors.clock import Clock
from collectors.once import best_samples
from collectors.sources.base import OK, Reading, Sample, Source
from collectors.wire import limits, readings
from collectors.wire.readings import SourceWord, Table
from collectors.wire.records import Readings

EVERY_S: Final = 15
CONFIRM_EVERY_S: Final = 60
NODE_ROWS_MAX: Final = 8_192
"""Values of one node; one with eight GPUs and nine network ports has about five thousand."""
FIRST_WAIT_S: Final = 10.0
"""How long the first record waits for sources that have not answered once."""
STARTING: Final = "starting"
NO_REASON: Final = "unknown"
"""The quality of a value that is not known where its source names no other."""
_INT_MIN: Final = -(2**63)
_INT_MAX: Final = 2**64 - 1
"""What msgpack can hold of whole numbers; no source has larger ones to tell."""


class Newest:
    """What is known of this node now. Belongs to the agent's loop."""

    def __init__(self, node: str, clock: Clock, sources: Sequence[Source]) -> None:
        self.slowdown = 1.0
        """the guard's factor on the periods of sources"""
        self._clock = clock
        self._sources = sources
        self._kept: dict[str, tuple[Reading, float]] = {}
        """source -> its newest reading and when it came, monotonic s"""
        self._declared = {spec.name for source in sources for spec in source.metrics}
        self._phase_s = zlib.crc32(node.encode()) % EVERY_S
        self._began_s = clock.monotonic_s()
        self._slot: int | None = None
        self._sent_slot = 0
        self._words = b""
        self._told: dict[str, Reading] = {}
        """readings of the last table that was made"""
        self._told_of: tuple[dict[str, str], float] = ({}, 0.0)
        """states of sources and slowdown at that moment"""

    def keep(self, source: Source, reading: Reading) -> None:
        self._kept[source.name] = reading, self._clock.monotonic_s()

    def due(self, states: Mapping[str, str]) -> Readings | None:
        """The record to send now, if any.

        Args:
            states: each source's, ``ok`` or what keeps it from giving values.
        """
        slot = (self._clock.now_ns() // 10**9 - self._phase_s) // EVERY_S
        if slot == self._slot or (self._slot is None and self._is_early(states)):
            return None
        self._slot = slot
        is_confirmed = 0 <= slot - self._sent_slot < CONFIRM_EVERY_S // EVERY_S
        if is_confirmed and self._words and self._is_as_told(states):
            return None
        table = self.table(states)
        words = digest_of_words(table)
        self._told = {name: reading for name, (reading, _) in self._kept.items()}
        self._told_of = dict(states), self.slowdown
        if words == self._words and is_confirmed:
            return None
        self._words, self._sent_slot = words, slot
        return Readings(t_ns=self._clock.now_ns(), codec=readings.CODEC, data=readings.pack(table))

    def table(self, states: Mapping[str, str]) -> Table:
        """Everything as it is known now; of sources that fail what they said last."""
        now_s = self._clock.monotonic_s()
        told = sorted(self._sources, key=lambda source: states.get(source.name, OK) != OK)
        known = [(source, self._kept[source.name][0]) for source in told if source.name in self._kept]
        samples = list(best_samples(known))
        rows = [(source, sample) for source, sample in samples if may_travel(sample)]
        rows.sort(key=lambda row: self._rank(row[1].metric))
        words = [
            SourceWord(
                source.name,
                states.get(source.name, STARTING)[: limits.READINGS_NAME_MAX_CHARS],
                source.period_s * self.slowdown,
                now_s - self._kept[source.name][1] if source.name in self._kept else None,
            )
            for source in self._sources
        ]
        kept = rows[:NODE_ROWS_MAX]
        return columns(words, kept, len(samples) - len(kept))

    def _is_as_told(self, states: Mapping[str, str]) -> bool:
        """Whether only numbers have changed since the last table, so that none need be made to see it."""
        if (states, self.slowdown) != self._told_of or self._kept.keys() != self._told.keys():
            return False
        return all(are_alike(self._told[name], reading) for name, (reading, _) in self._kept.items())

    def _is_early(self, states: Mapping[str, str]) -> bool:
        starting = STARTING in states.values()
        return starting and self._clock.monotonic_s() - self._began_s < FIRST_WAIT_S

    def _rank(self, metric: str) -> int:
        """What goes first when there is too much: declared metrics, counters, their last changes."""
        return 0 if metric in self._declared else 2 if metric.endswith("_delta_count") else 1


def are_alike(before: Reading, now: Reading) -> bool:
    """Whether two looks of one source gave the same values in the same order, but for their numbers."""
    if len(before.samples) != len(now.samples):
        return False
    return all(
        one is other
        or (
            one.metric == other.metric
            and one.entity == other.entity
            and one.quality == other.quality
            and (one.value is None) == (other.value is None)
            and one.labels == other.labels
        )
        for one, other in zip(before.samples, now.samples, strict=True)
    )


_is_name = lru_cache(maxsize=16_384)(readings.is_name)
"""Names are the same at every look."""


def may_travel(sample: Sample) -> bool:
    """Whether the wire takes a sample's names."""
    sound = _is_name(sample.entity) and _is_name(sample.metric) and _is_name(sample.quality)
    if not sample.labels:
        return sound
    return sound and all(_is_name(text) for pair in sample.labels.items() for text in pair if text)


def columns(words: list[SourceWord], rows: Iterable[tuple[str, Sample]], left_out: int) -> Table:
    """A table of (source, sample) whose names may travel and whose sources are among ``words``."""
    source_place = {word.name: place for place, word in enumerate(words)}
    entities, metrics, qualities = _Places(), _Places(), _Places()
    labels: dict[tuple[tuple[str, str], ...], int] = {(): 0}
    table = Table(words, [], [], [], [], [], [], [], [], left_out=left_out)
    label = []
    for source, sample in rows:
        value, quality = _told(sample)
        table.entity.append(entities[sample.entity])
        table.metric.append(metrics[sample.metric])
        table.source.append(source_place[source])
        table.quality.append(qualities[quality])
        table.value.append(value)
        pairs = tuple(sorted(sample.labels.items())) if sample.labels else ()
        label.append(labels.setdefault(pairs, len(labels)))
    names = {"entities": list(entities), "metrics": list(metrics), "qualities": list(qualities)}
    if len(labels) > 1:
        return msgspec.structs.replace(table, labels=[dict(pairs) for pairs in labels], label=label, **names)
    return msgspec.structs.replace(table, **names)


class _Places(dict[str, int]):
    """Names and their places, in the order of their first use."""

    def __missing__(self, name: str) -> int:
        self[name] = place = len(self)
        return place


def _told(sample: Sample) -> tuple[float | int | None, str]:
    """Value and quality as they travel: whole numbers short, what is no number null with its reason."""
    value = sample.value
    if value is None:
        return None, NO_REASON if sample.quality == OK else sample.quality
    if not _INT_MIN <= value <= _INT_MAX:  # neither does NaN lie there
        return None, "out_of_range"
    if isinstance(value, float) and value.is_integer() and abs(value) < 2**53:
        return int(value), sample.quality
    return value, sample.quality


def digest_of_words(table: Table) -> bytes:
    """A digest of all but the numbers and their ages."""
    sources = [SourceWord(one.name, one.state, one.period_s) for one in table.sources]
    bare = msgspec.structs.replace(table, sources=sources, value=[])
    return hashlib.blake2b(msgspec.msgpack.encode(bare), digest_size=16).digest()
