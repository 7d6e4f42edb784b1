"""Reads of what is kept of time: of one job, of a cluster by month, cause, user and partition.

In: jobs the asking person may see, and times. Out: sums of GPU-time by class. A job that nobody counted yet
has none, which is said and is not 0. A cluster is asked alone, so simulated ones never mix with real ones.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Final

from django.db.models import F, QuerySet, Sum
from django.db.models.fields.json import KeyTextTransform
from django.db.models.functions import TruncMonth

from clusterwatch.analysis.checkpoints import Kept, Recommended, recommend
from clusterwatch.analysis.goodput import Ratios, ratios
from clusterwatch.analysis.goodput_model import Kind
from clusterwatch.jobs import goodput_ledger as ledger
from clusterwatch.jobs.models import Checkpoint, GoodputHour, GoodputMark, Job, Rank, StartUp

HOURS_SHOWN: Final = 48
ATTEMPTS_SHOWN: Final = 50
"""Of a job, the newest; its sums are of all."""
GROUPS_MAX: Final = 200
"""Users or partitions of a cluster, those with the most time first; the rest is counted."""
_WORDS: Final = frozenset(kind.value for kind in Kind)


@dataclass(frozen=True, slots=True)
class Total:
    """GPU-time by class; ``ns`` has every class."""

    ns: Mapping[Kind, int]

    @property
    def all_ns(self) -> int:
        return sum(self.ns.values())

    @property
    def ratios(self) -> Ratios:
        return ratios(self.ns)

    @property
    def known_ratio(self) -> float | None:
        """Share of the time of which anybody told."""
        return None if not self.all_ns else 1 - self.ns[Kind.UNKNOWN] / self.all_ns


def total(rows: Iterable[tuple[str, int]]) -> Total:
    """Sums up (class, ns); a word that is no class is not known."""
    ns: dict[Kind, int] = dict.fromkeys(Kind, 0)
    for word, spent in rows:
        ns[Kind(word) if word in _WORDS else Kind.UNKNOWN] += int(spent)
    return Total(ns)


@dataclass(frozen=True, slots=True)
class JobTime:
    """Time of one job.

    Attributes:
        causes: (class, verdict, ns) where an incident took the time, the most first.
        attempts: (number, time), the newest first.
        hours: (start, time), the newest ``HOURS_SHOWN``, oldest first.
        until: up to when it is counted.
        has_gpus: False where its processes have none: then hours are those of processes.
    """

    total: Total
    causes: tuple[tuple[Kind, str, int], ...]
    attempts: tuple[tuple[int, Total], ...]
    hours: tuple[tuple[datetime, Total], ...]
    since: datetime
    until: datetime
    has_gpus: bool


def of_job(job: Job) -> JobTime | None:
    """None where nothing is counted yet. Five queries, or one or two."""
    mine = GoodputHour.objects.filter(job=job)
    mark = GoodputMark.objects.filter(job=job).values_list("until_ns", flat=True).first()
    if mark is None:
        return None
    by_cause = list(mine.values_list("kind", "cause").annotate(ns=Sum("gpu_ns")).order_by("kind", "cause"))
    if not by_cause:
        return None
    named = [(Kind(kind), cause, int(ns)) for kind, cause, ns in by_cause if cause and kind in _WORDS]
    hours = _grouped(mine.values_list("start_at", "kind").annotate(ns=Sum("gpu_ns")).order_by("start_at"))
    return JobTime(
        total=total((kind, ns) for kind, _, ns in by_cause),
        causes=tuple(sorted(named, key=lambda one: (-one[2], one[0], one[1]))),
        attempts=tuple(
            _grouped(
                mine.values_list("attempt", "kind").annotate(ns=Sum("gpu_ns")).order_by("-attempt")
            ).items()
        )[:ATTEMPTS_SHOWN],
        hours=tuple(hours.items())[-HOURS_SHOWN:],
        since=min(hours),
        until=ledger.at(mark),
        has_gpus=Rank.objects.filter(job=job, gpu_index__isnull=False).exists(),
    )


def _grouped(rows: Iterable[tuple[Any, str, Any]]) -> dict[Any, Total]:
    """(key, class, ns) by key, in the order they come."""
    found: dict[Any, list[tuple[str, int]]] = defaultdict(list)
    for key, kind, ns in rows:
        found[key].append((kind, int(ns)))
    return {key: total(told) for key, told in found.items()}


def startups(job: Job) -> QuerySet[StartUp]:
    """Start-ups of a job, the newest attempt first."""
    return StartUp.objects.filter(job=job).order_by("-attempt")


def checkpoints(job: Job) -> QuerySet[Checkpoint]:
    """Saves of a job, the newest first."""
    return Checkpoint.objects.filter(job=job).order_by("-end_ns", "-id")


def recommended(job: Job, before: datetime | None = None) -> Recommended | None:
    """The checkpoint to go on from after something went wrong at ``before`` (None: now). Two queries."""
    moment = datetime.now(UTC) if before is None else before
    return recommended_of(job, list(startups(job)), ledger.saves(job.pk), moment)


def recommended_of(
    job: Job, begun: Sequence[StartUp], saves: Sequence[Kept], before: datetime
) -> Recommended | None:
    """The same of rows that were read already; ``begun``: the newest attempt first."""
    number = next((one.attempt for one in begun if one.started_at <= before), job.attempt)
    first_steps = {one.attempt: one.first_step for one in begun if one.first_step is not None}
    return recommend(saves, first_steps, ledger.ns_of(before), number)


def repeated_s(found: Recommended, before: datetime) -> float:
    """Seconds of work that are done again from there on."""
    return max(0.0, (ledger.ns_of(before) - found.save.end_ns) / 1e9)


def whole_saves(rows: Iterable[Checkpoint]) -> list[Kept]:
    """Rows as the analysis takes them."""
    return [
        Kept(r.attempt, r.world, r.step, r.end_ns, r.saver_count, r.rank_count, r.world_size) for r in rows
    ]


# --- a cluster ------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class ClusterTime:
    """Time of a cluster's jobs in whole hours of [since, until).

    Attributes:
        months: (first day, time, causes as in ``JobTime``), the oldest first.
        users, partitions: (name, time), the most time first; None: nobody told.
        left_out_count: users and partitions beyond ``GROUPS_MAX``.
    """

    total: Total
    months: tuple[tuple[datetime, Total, tuple[tuple[Kind, str, int], ...]], ...]
    users: tuple[tuple[str | None, Total], ...]
    partitions: tuple[tuple[str | None, Total], ...]
    job_count: int
    left_out_count: int


def of_cluster(cluster_id: int, jobs: QuerySet[Job], since: datetime, until: datetime) -> ClusterTime:
    """Sums over the jobs that ``jobs`` holds. Four queries, whose rows grow with months, users and causes."""
    rows = GoodputHour.objects.filter(
        job__cluster_id=cluster_id,
        job__in=jobs.order_by().values("pk"),
        start_at__gte=since.replace(minute=0, second=0, microsecond=0),
        start_at__lt=until,
    )
    months: dict[datetime, list[tuple[str, str, int]]] = defaultdict(list)
    by_month = rows.annotate(month=TruncMonth("start_at", tzinfo=UTC))
    for month, kind, cause, ns in (
        by_month.values_list("month", "kind", "cause").annotate(ns=Sum("gpu_ns")).order_by("month")
    ):
        months[month].append((kind, cause, int(ns)))
    users, more = _ranked(rows.annotate(key=F("job__user")))
    partitions, still_more = _ranked(rows.annotate(key=KeyTextTransform("partition", "job__labels")))
    return ClusterTime(
        total=total((kind, ns) for told in months.values() for kind, _, ns in told),
        months=tuple(
            (month, total((kind, ns) for kind, _, ns in told), _causes(told))
            for month, told in months.items()
        ),
        users=users,
        partitions=partitions,
        job_count=rows.values("job").distinct().count(),
        left_out_count=more + still_more,
    )


def _causes(told: Iterable[tuple[str, str, int]]) -> tuple[tuple[Kind, str, int], ...]:
    named = [(Kind(kind), cause, ns) for kind, cause, ns in told if cause and kind in _WORDS]
    return tuple(sorted(named, key=lambda one: (-one[2], one[0], one[1])))


def _ranked(rows: Any) -> tuple[tuple[tuple[str | None, Total], ...], int]:
    """Time by ``key``, the most first, and how many keys were left out."""
    found = _grouped(rows.values_list("key", "kind").annotate(ns=Sum("gpu_ns")).order_by("key"))
    ordered = sorted(found.items(), key=lambda one: (-one[1].all_ns, one[0] or ""))
    return tuple((key or None, of) for key, of in ordered[:GROUPS_MAX]), max(0, len(ordered) - GROUPS_MAX)
