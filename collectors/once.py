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
from pathlib import Path
from typing import Any, TextIO

from collectors import sources
from collectors.sources.base import Reading, Sample, Source, SourceEvent
from collectors.sources.tree import Tree


def run(roots: list[Path], interval_s: float | None, chosen: list[str], out: TextIO) -> int:
    """Prints the records; returns the exit code 0, also where parts are missing or broken."""
    trees = [Tree(root) for root in roots] or [Tree()]
    waits = not roots and interval_s is not None
    if waits:
        trees = trees * 2
    running = [sources.make(name) for name in chosen]
    readings: list[tuple[Source, Reading]] = []
    at_s = 0.0
    for number, tree in enumerate(trees):
        if number:
            if waits:
                time.sleep(interval_s or 0)
            at_s += interval_s or 0
        readings = [(source, _look(source, tree, at_s)) for source in running]
    host = trees[-1].host_name()
    for source, sample in best_samples(readings):
        _print(out, _sample_line(sample, source, host))
    for _, reading in readings:
        for event in reading.events:
            _print(out, _event_line(event, host))
    return 0


def best_samples(readings: Iterable[tuple[Source, Reading]]) -> Iterator[tuple[str, Sample]]:
    """(source, sample), one for each entity, metric and labels: of two sources, that which knows a value."""
    best: dict[tuple[str, str, tuple[tuple[str, str], ...]], tuple[str, Sample]] = {}
    for source, reading in readings:
        for sample in reading.samples:
            key = (sample.entity, sample.metric, tuple(sorted(sample.labels.items())))
            if key not in best or (best[key][1].value is None and sample.value is not None):
                best[key] = source.name, sample
    yield from best.values()


def _look(source: Source, tree: Tree, at_s: float) -> Reading:
    try:
        return source.read(tree, at_s)
    except Exception as error:  # noqa: BLE001  one broken source must not hide what the others see
        print(f"clusterwatch-agent: source {source.name} failed: {error!r}", file=sys.stderr)
        return Reading()


def _sample_line(sample: Sample, source: str, host: str) -> dict[str, Any]:
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


def _event_line(event: SourceEvent, host: str) -> dict[str, Any]:
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
