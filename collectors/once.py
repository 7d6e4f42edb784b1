"""``clusterwatch-agent once``: one look at this machine or at a recorded tree, as JSON lines.

In: no root (this machine), one root (what that snapshot says) or two (the same node, ``interval_s`` apart:
the second one's records, with rates). Out: lines on a stream, samples and events; faults of a source go to
stderr.
"""

from __future__ import annotations

import json
import math
import sys
import time
from collections.abc import Iterable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any, Final, TextIO

import msgspec

from collectors import pollers, sources
from collectors.sources.base import FIRST_SAMPLE, RESET, Reading, Sample, Source, SourceEvent
from collectors.sources.tree import Tree

JOB: Final = "job"


def run(roots: list[Path], interval_s: float | None, chosen: list[str], out: TextIO) -> int:
    """Prints the records; returns the exit code 0, also where parts are missing or broken."""
    trees = snapshots(roots) if roots else [Tree()]
    waits = not roots and interval_s is not None
    if waits:
        trees = trees * 2
    running = [make(name) for name in chosen]
    readings: list[tuple[Source, Reading]] = []
    at_s = 0.0
    for number, tree in enumerate(trees):
        if number:
            if waits:
                time.sleep(interval_s or 0)
            at_s += interval_s or 0
        new_boot = number > 0 and tree.boot_id() != trees[number - 1].boot_id()
        if new_boot:
            running = [make(name) for name in chosen]
        readings = [(source, _look(source, tree, at_s)) for source in running]
        if new_boot:
            readings = [(source, _begun_again(reading)) for source, reading in readings]
    host = trees[-1].host_name()
    for source, sample in best_samples(readings):
        _print(out, sample_line(sample, source, host))
    for event in best_events(reading for _, reading in readings):
        _print(out, event_line(event, host))
    return 0


def snapshots(roots: list[Path]) -> list[Tree]:
    """Trees of one node, in order: what one of them refused to tell is not asked of the next."""
    first = Tree(roots[0])
    return [first, *(Tree(root, earlier=first) for root in roots[1:])]


def _begun_again(reading: Reading) -> Reading:
    """The first look after a reboot: counters have no change, since all of them were set back."""
    samples = [
        msgspec.structs.replace(sample, quality=RESET) if sample.quality == FIRST_SAMPLE else sample
        for sample in reading.samples
    ]
    return Reading(samples, reading.events)


def names() -> list[str]:
    """Everything that can be looked at by hand: the node's sources, then the pollers."""
    return [*sources.names(), *pollers.names()]


def make(name: str) -> Source:
    """A new source or poller. Raises ``KeyError``."""
    return sources.make(name) if name in sources.REGISTRY else pollers.make(name)


def best_samples(readings: Iterable[tuple[Source, Reading]]) -> Iterator[tuple[str, Sample]]:
    """(source, sample), one for each entity, metric and labels: of two sources, that which knows a value."""
    best: dict[tuple[str, str, tuple[tuple[str, str], ...]], tuple[str, Sample]] = {}
    for source, reading in readings:
        for sample in reading.samples:
            labels = tuple(sorted(sample.labels.items())) if sample.labels else ()
            key = (sample.entity, sample.metric, labels)
            if key not in best or (best[key][1].value is None and sample.value is not None):
                best[key] = source.name, sample
    yield from best.values()


def best_events(readings: Iterable[Reading]) -> list[SourceEvent]:
    """All events; of two that tell one job, as the node and its scheduler do, that which knows more of it.

    What only the other knows is filled in. A fault that stands is told once, and not
    beside the moment it began.
    """
    events: list[SourceEvent] = []
    jobs: dict[str, int] = {}
    for event in (event for reading in readings for event in reading.events):
        if event.kind != JOB or event.entity not in jobs:
            jobs |= {event.entity: len(events)} if event.kind == JOB else {}
            events.append(event)
            continue
        place = jobs[event.entity]
        lesser, richer = sorted((events[place], event), key=_told)
        known = {key: value for key, value in richer.attributes.items() if value is not None}
        events[place] = replace(richer, attributes={**richer.attributes, **lesser.attributes, **known})
    return list(_once_each(events))


def _once_each(events: list[SourceEvent]) -> Iterator[SourceEvent]:
    """Without standing faults that are told already, and without a single flap whose loss of link is told."""
    told = {(event.entity, event.kind) for event in events if not event.standing}
    for event in events:
        if event.standing and (event.entity, event.kind) in told:
            continue
        single = event.kind == "link_flap" and event.attributes.get("downs") == 1
        if single and (event.entity, "link_down") in told:
            continue
        told.add((event.entity, event.kind))
        yield event


def _told(event: SourceEvent) -> int:
    """How much of a thing an event knows."""
    return sum(value is not None for value in event.attributes.values())


def _look(source: Source, tree: Tree, at_s: float) -> Reading:
    try:
        return source.read(tree, at_s)
    except Exception as error:  # noqa: BLE001  one broken source must not hide what the others see
        print(f"clusterwatch-agent: source {source.name} failed: {error!r}", file=sys.stderr)
        return Reading()


def sample_line(sample: Sample, source: str, host: str | None) -> dict[str, Any]:
    """A sample as it is printed; ``host`` None: it belongs to no node."""
    value, quality = sample.value, sample.quality
    if value is not None and not math.isfinite(value):
        value, quality = None, "out_of_range"
    line: dict[str, Any] = {
        "type": "sample",
        "ts_ns": time.time_ns(),
        "host": host,
        "entity": sample.entity,
        "metric": sample.metric,
        "value": value,
        "quality": quality,
        "source": source,
    }
    return line | {"labels": sample.labels} if sample.labels else line


def event_line(event: SourceEvent, host: str | None) -> dict[str, Any]:
    """An event as it is printed; ``host`` None: it belongs to no node."""
    return {
        "type": "event",
        "ts_ns": event.t_ns if event.t_ns is not None else time.time_ns(),
        "host": host,
        "entity": event.entity,
        "kind": event.kind,
        "code": event.code,
        "severity": event.severity,
        "message": event.message,
        "attributes": event.attributes,
    }


def _print(out: TextIO, line: dict[str, Any]) -> None:
    print(json.dumps(line, ensure_ascii=False, allow_nan=False), file=out)
