"""When a job stood still, and what made it slow, by its incidents; and how fast the culprit was named.

In: ids and ns UTC bounds. Out: ``Stall``s for the count of a job's time, words for its causes, ``Naming``.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median
from typing import Final

from django.db.models import Q, QuerySet

from clusterwatch.analysis.goodput_model import NEVER_NS, Stall
from clusterwatch.analysis.verdicts import SLOW_CLASSES
from clusterwatch.incidents.models import Incident
from clusterwatch.jobs.goodput_ledger import at, ns_of

STANDING: Final = ("hang", "crash")
"""Classes of incidents in which the whole job makes no progress."""
READ_MAX: Final = 1_000
"""Incidents of one job that are looked at, the newest first."""


def _overlapping(job_id: int, start_ns: int, end_ns: int) -> QuerySet[Incident]:
    lasting = Q(resolved_at__isnull=True) | Q(resolved_at__gt=at(start_ns))
    return Incident.objects.filter(lasting, job_id=job_id, since__lt=at(end_ns)).order_by("-since")


def stalls(job_id: int, start_ns: int, end_ns: int) -> list[Stall]:
    """Standstills that overlap [start, end), suspected ones too: time stood still is lost either way."""
    rows = _overlapping(job_id, start_ns, end_ns).filter(fault_class__in=STANDING)[:READ_MAX]
    return [
        Stall(ns_of(one.since), NEVER_NS if one.resolved_at is None else ns_of(one.resolved_at), one.verdict)
        for one in rows
    ]


def slow_cause(job_id: int, start_ns: int, end_ns: int) -> str:
    """The verdict of what made the job slow in [start, end); empty where there is none, or more than one."""
    rows = _overlapping(job_id, start_ns, end_ns).filter(
        fault_class__in=SLOW_CLASSES, opened_at__isnull=False
    )
    words = set(rows.values_list("verdict", flat=True)[:READ_MAX])
    return words.pop() if len(words) == 1 else ""


def ended_by(job_id: int, start_ns: int, end_ns: int) -> str:
    """The verdict of the newest standstill that began in [start, end); empty where there was none."""
    rows = Incident.objects.filter(
        job_id=job_id, fault_class__in=STANDING, since__gte=at(start_ns), since__lt=at(end_ns)
    )
    return rows.order_by("-since", "-id").values_list("verdict", flat=True).first() or ""


@dataclass(frozen=True, slots=True)
class Naming:
    """Paged standstills of a job. Medians are None where there is none to take them of.

    Attributes:
        named_count: those that name a culprit.
        to_name_s: from the last progress until the incident was there.
        to_move_s: from the last progress until it was over.
    """

    count: int
    named_count: int
    to_name_s: float | None
    to_move_s: float | None


def naming(incidents: QuerySet[Incident], job_id: int) -> Naming:
    """``incidents``: those the asking person may see."""
    rows: Sequence[Incident] = list(
        incidents.filter(job_id=job_id, fault_class__in=STANDING, opened_at__isnull=False).order_by("-since")[
            :READ_MAX
        ]
    )
    named = [one for one in rows if (one.diagnosis or {}).get("culprit_ranks")]
    told_s = [
        (
            min(told for told in (one.suspected_at, one.opened_at) if told is not None) - one.since
        ).total_seconds()
        for one in named
    ]
    over_s = [(one.resolved_at - one.since).total_seconds() for one in rows if one.resolved_at is not None]
    return Naming(
        len(rows), len(named), median(told_s) if told_s else None, median(over_s) if over_s else None
    )
