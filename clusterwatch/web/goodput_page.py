"""Where the GPU-time of a cluster's jobs went, as its page shows it: by class, month, user and partition.

In: ``ClusterTime`` of jobs the person may see. Out: ``ClusterTimePage``; widths are SVG units. Causes are
verdicts of incidents; a cluster with one month has one row.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Final

from clusterwatch.analysis.goodput_model import Kind
from clusterwatch.jobs import goodput
from clusterwatch.web.job_phases import RIBBON_WIDTH, Band, ClassRow, bands, class_rows

SPANS: Final = {
    "day": ("24 h", 1),
    "week": ("7 days", 7),
    "month": ("31 days", 31),
    "year": ("12 months", 366),
}
"""Word in the address -> (as shown, days)."""
GROUPS_SHOWN: Final = 12
CAUSES_SHOWN: Final = 4


@dataclass(frozen=True, slots=True)
class GroupRow:
    """Time of a month, a user or a partition. ``name``: empty where jobs have none."""

    name: str
    gpu_hours: float
    lost_hours: float
    """stalled and restarting"""
    goodput_low: float | None
    goodput_high: float | None
    bands: tuple[Band, ...]
    causes: tuple[tuple[str, float], ...] = ()
    """(verdict, GPU-hours)"""


@dataclass(frozen=True, slots=True)
class ClusterTimePage:
    found: goodput.ClusterTime
    ribbon: tuple[Band, ...]
    classes: tuple[ClassRow, ...]
    lost_hours: float
    months: tuple[GroupRow, ...]
    partitions: tuple[GroupRow, ...]
    users: tuple[GroupRow, ...]
    more_count: int
    """users and partitions that are not shown"""

    unit: str = "GPU"
    """as the table of classes names it"""


def since(word: str, until: datetime) -> datetime:
    """When a span of the page begins; an unknown word is a month."""
    return until - timedelta(days=SPANS.get(word, SPANS["month"])[1])


def build(found: goodput.ClusterTime) -> ClusterTimePage | None:
    """None where no job of the span is counted."""
    if not found.total.all_ns:
        return None
    left = max(0, len(found.users) - GROUPS_SHOWN) + max(0, len(found.partitions) - GROUPS_SHOWN)
    return ClusterTimePage(
        found=found,
        ribbon=bands(found.total, RIBBON_WIDTH),
        classes=class_rows(found.total, _all_causes(found)),
        lost_hours=_lost_hours(found.total),
        months=tuple(_row(month.strftime("%Y-%m"), of, causes) for month, of, causes in found.months),
        partitions=tuple(_row(name or "", of) for name, of in found.partitions[:GROUPS_SHOWN]),
        users=tuple(_row(name or "", of) for name, of in found.users[:GROUPS_SHOWN]),
        more_count=left + found.left_out_count,
    )


def _lost_hours(of: goodput.Total) -> float:
    return (of.ns[Kind.STALLED] + of.ns[Kind.RESTART]) / 3.6e12


def _all_causes(found: goodput.ClusterTime) -> tuple[tuple[Kind, str, int], ...]:
    """Causes of all months together, the most first."""
    spent: dict[tuple[Kind, str], int] = {}
    for _, _, causes in found.months:
        for kind, cause, ns in causes:
            spent[kind, cause] = spent.get((kind, cause), 0) + ns
    return tuple(sorted(((*key, ns) for key, ns in spent.items()), key=lambda one: (-one[2], one[0], one[1])))


def _row(name: str, of: goodput.Total, causes: Sequence[tuple[Kind, str, int]] = ()) -> GroupRow:
    ratios = of.ratios
    by_cause: dict[str, float] = {}
    for _, cause, ns in causes:
        by_cause[cause] = by_cause.get(cause, 0.0) + ns / 3.6e12
    most = sorted(by_cause.items(), key=lambda one: (-one[1], one[0]))
    return GroupRow(
        name,
        of.all_ns / 3.6e12,
        _lost_hours(of),
        ratios.goodput_low,
        ratios.goodput_high,
        bands(of, RIBBON_WIDTH),
        tuple(most[:CAUSES_SHOWN]),
    )
