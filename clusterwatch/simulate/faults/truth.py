"""What was injected, in the words in which a verdict is judged (DESIGN 4; cases' ``truth.json``)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from typing import Any, Final

import msgspec

from clusterwatch.simulate.kept import Settings

FORMAT: Final = 1


@dataclass(frozen=True, slots=True)
class Truth:
    """One fault. What does not apply is None or empty."""

    fault: str
    kind: str
    """the verdict that names it; ``no_fault`` where nobody may be accused"""
    fault_class: str
    start_ns: int
    end_ns: int | None = None
    acceptable_kinds: tuple[str, ...] = ()
    """verdicts that are right as well"""
    job: str | None = None
    world: str | None = None
    attempt: int | None = None
    culprit_ranks: tuple[int, ...] = ()
    acceptable: tuple[tuple[int, ...], ...] = ()
    """sets of ranks that are right; the culprits are the first"""
    node: str | None = None
    gpu: int | None = None
    gpu_uuid: str | None = None
    link: str | None = None
    switch: str | None = None
    rack: str | None = None
    step: int | None = None
    """step that cannot be finished, counted from 0"""
    severity: dict[str, float] = field(default_factory=dict)

    def as_dict(self) -> dict[str, Any]:
        """Plain values, times as ISO 8601 UTC."""
        row = asdict(self)
        row["class"] = row.pop("fault_class")
        row["start"], row["end"] = _iso(row.pop("start_ns")), _iso(row.pop("end_ns"))
        row["acceptable"] = [list(ranks) for ranks in (self.acceptable or (self.culprit_ranks,))]
        row["acceptable_kinds"] = [self.kind, *self.acceptable_kinds]
        row["blame_hardware"] = self.fault_class in ("hardware", "health")
        return row


def _iso(t_ns: int | None) -> str | None:
    return (
        None if t_ns is None else datetime.fromtimestamp(t_ns / 1e9, UTC).isoformat(timespec="milliseconds")
    )


def as_json(settings: Settings, begun_ns: int, found: Sequence[Truth]) -> bytes:
    """The file that ``--truth`` writes."""
    content = {
        "format": FORMAT,
        "cluster": settings.cluster,
        "gpus": settings.gpu_count,
        "seed": settings.seed,
        "begun": _iso(begun_ns),
        "faults": [truth.as_dict() for truth in found],
    }
    return msgspec.json.format(msgspec.json.encode(content), indent=2) + b"\n"
