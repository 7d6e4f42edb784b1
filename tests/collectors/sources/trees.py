"""Small recorded nodes for tests of sources."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path

import pytest

from collectors.sources.base import Source, SourceEvent
from collectors.sources.tree import Tree

CASES = Path(__file__).parents[4] / "shared" / "cases" / "telemetry"
Found = dict[tuple[str, str], tuple[float | None, str]]


def write(root: Path, files: Mapping[str, str | bytes]) -> Path:
    """Writes files by their path relative to ``root``."""
    for name, content in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content.encode() if isinstance(content, str) else content)
    return root


def look(source: Source, root: Path, at_s: float = 0.0) -> tuple[Found, list[SourceEvent]]:
    reading = source.read(Tree(root), at_s)
    return {(s.entity, s.metric): (s.value, s.quality) for s in reading.samples}, list(reading.events)


def given_lines(source: Source, *entities: str) -> list[str]:
    """Lines of the given node that ``source`` should print and does not; skips where there is none."""
    if not CASES.is_dir():
        pytest.skip("the given nodes are not here")
    look(source, CASES / "node-a/t0", 0.0)
    found, events = look(source, CASES / "node-a/t1", 60.0)
    missed = []
    for text in (CASES / "expected.jsonl").read_text().splitlines():
        line = json.loads(text)
        if not line["entity"].startswith(entities):
            continue
        if line["type"] == "sample":
            right = found.get((line["entity"], line["metric"])) == (line["value"], line["quality"])
        else:
            told = [(e.entity, e.kind, e.message, dict(e.attributes)) for e in events]
            right = (line["entity"], line["kind"], line["message"], line["attributes"]) in told
        if not right:
            missed.append(text)
    return missed
