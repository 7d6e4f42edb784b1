"""One look at all GPUs, whichever tool told it: from raw fields to samples, changes and events.

In: ``Row`` per GPU and field. Out: ``Reading``. One value per GPU and metric: MIG rows repeat what is the
GPU's; what is measured per instance carries the instance as labels. One UUID at two addresses is believed of
neither.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Final

from collectors.sources.base import OK, Reading, Sample, SourceEvent
from collectors.sources.counters import OUT_OF_RANGE, Change, Count, CounterGroup, samples
from collectors.sources.gpu_metrics import Field
from collectors.sources.gpu_states import Throttle, memory_events, verdict_events, without_dead_sampler

DUPLICATE_UUID: Final = "duplicate_uuid"
LOST: Final = "lost"
SHARE_MAX: Final = 1.25
"""The driver's and our clock are read at different moments; more than that is no share of time."""
LOST_METRICS: Final = ("temperature_c", "power_w", "sm_clock_mhz", "util_ratio")
Labels = tuple[tuple[str, str], ...]


@dataclass(frozen=True, slots=True)
class Row:
    """One field of one GPU. ``raw`` None has its reason in ``quality``."""

    uuid: str
    bdf: str | None
    field: Field
    raw: float | None
    quality: str = OK
    labels: Labels = ()

    def read(self) -> tuple[float | None, str]:
        return self.field.value(self.raw) if self.raw is not None else (None, self.quality)


@dataclass(slots=True)
class _Gpu:
    """What is remembered of one GPU."""

    counters: CounterGroup = field(default_factory=lambda: CounterGroup({}))
    throttle: Throttle = field(default_factory=Throttle)


class GpuTable:
    """Turns rows of one tool into readings, and remembers counters between two looks."""

    def __init__(self) -> None:
        self._gpus: dict[str, _Gpu] = {}

    @property
    def known(self) -> tuple[str, ...]:
        """GPUs of which the look before had values."""
        return tuple(self._gpus)

    def reading(
        self, rows: Iterable[Row], lost: frozenset[str], at_s: float, twice: frozenset[str] = frozenset()
    ) -> Reading:
        """One look.

        Args:
            lost: GPUs that are gone: nothing that a tool still says of them is a value.
            twice: UUIDs that another tool tells at two addresses.
        """
        by_uuid: dict[str, list[Row]] = {}
        for row in rows:
            by_uuid.setdefault(row.uuid, []).append(row)
        found: list[Sample] = []
        events: list[SourceEvent] = []
        unknown = sorted({row.field.sample for own in by_uuid.values() for row in own}.union(LOST_METRICS))
        for uuid in sorted(lost):
            found += [Sample(f"gpu/{uuid}", metric, None, LOST) for metric in unknown]
        for uuid, own in by_uuid.items():
            places = {row.bdf for row in own if row.bdf}
            if uuid in lost:
                continue
            if len(places) > 1:
                events.append(_duplicate(uuid, sorted(places)))
            if len(places) > 1 or uuid in twice:
                found += [Sample(f"gpu/{uuid}", metric, None, DUPLICATE_UUID) for metric in unknown]
                continue
            gpu = self._gpus.setdefault(uuid, _Gpu())
            reading = _one(f"gpu/{uuid}", own, gpu, at_s)
            found += reading.samples
            events += reading.events
        self._gpus = {uuid: gpu for uuid, gpu in self._gpus.items() if uuid in by_uuid}
        return Reading(found, events)

    def quick(self, rows: Iterable[Row], at_s: float) -> Reading:
        """A look between two at some gauges of GPUs that the look before knew."""
        found: list[Sample] = []
        events: list[SourceEvent] = []
        for row in rows:
            gpu = self._gpus.get(row.uuid)
            if gpu is None or row.field.counts:
                continue
            entity, (value, quality) = f"gpu/{row.uuid}", row.read()
            found.append(Sample(entity, row.field.metric, value, quality))
            if row.field.metric == "throttle_reasons_mask":
                events += gpu.throttle.events(entity, value, at_s)
        return Reading(found, events)


def _one(entity: str, rows: list[Row], gpu: _Gpu, at_s: float) -> Reading:
    """Samples and events of one GPU."""
    best: dict[tuple[str, Labels], tuple[Field, float | None, str]] = {}
    for row in rows:
        key = row.field.metric, row.labels if row.field.of_instance else ()
        value, quality = row.read()
        if key not in best or (best[key][1] is None and value is not None):
            best[key] = row.field, value, quality
    gauges = [
        Sample(entity, metric, value, quality, dict(labels))
        for (metric, labels), (spec, value, quality) in best.items()
        if not spec.counts
    ]
    values = {metric: value for (metric, labels), (_, value, _) in best.items() if not labels}
    counted = _counter_samples(entity, best, gpu, at_s)
    events = [
        *gpu.throttle.events(entity, values.get("throttle_reasons_mask"), at_s),
        *memory_events(entity, values),
        *verdict_events(entity, values),
    ]
    return Reading([*without_dead_sampler(gauges, values), *counted], events)


def _counter_samples(
    entity: str, best: Mapping[tuple[str, Labels], tuple[Field, float | None, str]], gpu: _Gpu, at_s: float
) -> list[Sample]:
    counts = {
        metric: Count(None if value is None else int(value), quality)
        for (metric, _), (spec, value, quality) in best.items()
        if spec.counts
    }
    changes = gpu.counters.update(counts, at_s)
    times = {metric for (metric, _), (spec, _, _) in best.items() if spec.time}
    shares = (_share(entity, metric, changes[metric]) for metric in sorted(times))
    return [*samples(entity, gpu.counters, counts, changes), *shares]


def _share(entity: str, metric: str, change: Change) -> Sample:
    """Of a counter of ns: which share of the time since the look before was spent so."""
    if change.per_s is None:
        return Sample(entity, f"{metric}_ratio", None, change.quality)
    share = change.per_s / 1e9
    if share > SHARE_MAX:
        return Sample(entity, f"{metric}_ratio", None, OUT_OF_RANGE)
    return Sample(entity, f"{metric}_ratio", min(share, 1.0))


def _duplicate(uuid: str, places: list[str]) -> SourceEvent:
    text = f"one UUID at {len(places)} addresses ({', '.join(places)}): no value of it is believed"
    return SourceEvent(
        f"gpu/{uuid}", DUPLICATE_UUID, text, "critical", attributes={"bdfs": places}, standing=True
    )
