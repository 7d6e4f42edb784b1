"""Writes of what is kept of a job's time, and the reads that counting it needs.

In: a job, its ranks and attempts. Out: rows of ``jobs.goodput_models``. Whoever holds a job's mark may count;
all writes of one stretch are in the transaction that moves the mark.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from typing import Any, Final

import numpy as np
from django.db.models import Count, F, Max, Min, Q, QuerySet

from clusterwatch.analysis.checkpoints import Kept as KeptSave
from clusterwatch.analysis.checkpoints import Save, whole
from clusterwatch.analysis.goodput_attempts import HOUR_NS, Attempt
from clusterwatch.analysis.goodput_model import NEVER_NS, Ints, Roster
from clusterwatch.analysis.startup import Part, Summary, sentence
from clusterwatch.jobs.goodput_memory import Ranks
from clusterwatch.jobs.models import Checkpoint, GoodputHour, GoodputMark, Job, Rank, StartUp

BACKLOG_NS: Final = 2 * 86_400 * 10**9
"""A job that nobody counted yet is counted from here on: steps are not kept longer."""
SAVES_MAX: Final = 2_000
"""Checkpoints of a job that are looked at, the newest first."""
RECENT: Final = 86_400 * 10**9
"""An ended job may come back with another attempt; after a day it is looked at no more until it does."""


@dataclass(frozen=True, slots=True, eq=False)
class Cast:
    """The ranks of one attempt in one order: by world and rank."""

    roster: Roster
    ranks: Ranks
    hosts: tuple[str, ...]

    def named(self, slowest: Iterable[tuple[int, float]]) -> list[dict[str, Any]]:
        """Places as ranks and hosts."""
        return [
            {"rank": int(self.ranks.rank[place]), "host": self.hosts[place], "s": round(seconds, 6)}
            for place, seconds in slowest
        ]

    def places(self, worlds: Sequence[str], world: Ints, rank: Ints) -> Ints:
        """Places of ranks that others number by their own list of worlds; -1 for one that is not there."""
        number = {name: place for place, name in enumerate(self.ranks.worlds)}
        table = np.array([number.get(name, -1) for name in worlds] or [-1], np.int64)
        mine = self.ranks.world << 32 | self.ranks.rank
        asked = table[world] << 32 | rank
        at = np.minimum(np.searchsorted(mine, asked), len(mine) - 1)
        return np.where((mine[at] == asked) & (asked >= 0), at, -1)


def ns_of(at: datetime) -> int:
    """An aware datetime as ns UTC, exact to the microsecond."""
    since = at - datetime(1970, 1, 1, tzinfo=UTC)
    return ((since.days * 86_400 + since.seconds) * 1_000_000 + since.microseconds) * 1_000


def at(t_ns: int) -> datetime:
    """ns UTC as an aware datetime, to the microsecond."""
    return datetime.fromtimestamp(t_ns // 1000 / 1e6, UTC)


# --- reads ------------------------------------------------------------------------------------------------


def uncounted_jobs(now_ns: int) -> QuerySet[Job]:
    """Jobs that some node speaks of, or that ended lately, and are not counted to their end."""
    living = Q(ended_at__isnull=True) | Q(ended_at__gt=at(now_ns - RECENT))
    heard = Job.objects.filter(living).exclude(state=Job.State.UNKNOWN, ended_at__isnull=True)
    return heard.exclude(ended_at__isnull=False, goodput_mark__is_done=True)


def attempts(job_id: int) -> list[Attempt]:
    """Every attempt of a job with a rank, one query."""
    rows = (
        Rank.objects.filter(job_id=job_id)
        .values("attempt")
        .annotate(
            started=Min("started_at"),
            ended_ns=Max("exit_ns"),
            count=Count("id"),
            living=Count("id", filter=Q(exit_ns__isnull=True)),
        )
        .order_by("attempt")
    )
    return [
        Attempt(
            row["attempt"], ns_of(row["started"]), None if row["living"] else row["ended_ns"], row["count"]
        )
        for row in rows
    ]


def cast(job_id: int, attempt: int) -> Cast:
    """Ranks of an attempt, one query. Cost: about 5 us a rank."""
    rows = list(
        Rank.objects.filter(job_id=job_id, attempt=attempt)
        .order_by("world", "rank")
        .values_list("world", "rank", "started_at", "exit_ns", "host")
    )
    worlds = tuple(sorted({row[0] for row in rows}))
    number = {name: place for place, name in enumerate(worlds)}
    # The database may sort names by the rules of a language; places follow the numbers here.
    rows.sort(key=lambda row: (number[row[0]], row[1]))
    world, rank, started, ended = (
        np.array(column, np.int64)
        for column in (
            [number[row[0]] for row in rows],
            [row[1] for row in rows],
            [ns_of(row[2]) for row in rows],
            [NEVER_NS if row[3] is None else row[3] for row in rows],
        )
    )
    return Cast(
        Roster(world, started, ended), Ranks(worlds, world, rank, started), tuple(row[4] for row in rows)
    )


def saves(job_id: int) -> list[KeptSave]:
    """Checkpoints of a job, the newest ``SAVES_MAX``, the oldest first."""
    rows = Checkpoint.objects.filter(job_id=job_id).order_by("-end_ns", "-id")[:SAVES_MAX]
    found = [
        KeptSave(
            one.attempt, one.world, one.step, one.end_ns, one.saver_count, one.rank_count, one.world_size
        )
        for one in rows
    ]
    return found[::-1]


def saved_step(job_id: int, attempt: int) -> int | None:
    """The step of an attempt's newest whole checkpoint."""
    mine = [one for one, _, _ in whole(saves(job_id)) if one.attempt == attempt]
    return mine[-1].step if mine else None


# --- writes -----------------------------------------------------------------------------------------------


def lock_mark(job: Job, first_ns: int, now_ns: int) -> GoodputMark:
    """The mark of a job, locked until the transaction ends; made where there is none."""
    begin_ns = max(first_ns, now_ns - BACKLOG_NS)
    GoodputMark.objects.bulk_create([GoodputMark(job=job, until_ns=begin_ns)], ignore_conflicts=True)
    return GoodputMark.objects.select_for_update().get(job=job)


def move_mark(mark: GoodputMark, attempt: int, until_ns: int, memory: bytes) -> None:
    mark.attempt, mark.until_ns, mark.memory, mark.is_done = attempt, until_ns, memory, False
    mark.save(update_fields=["attempt", "until_ns", "memory", "is_done"])


def set_done(mark: GoodputMark) -> None:
    """The job ended and nothing of it is left to count."""
    if not mark.is_done:
        mark.is_done = True
        mark.save(update_fields=["is_done"])


def add_hours(job_id: int, attempt: int, start_ns: int, gpu_ns: Mapping[tuple[str, str], int]) -> None:
    """Adds GPU-time by (class, cause) to the hour in which ``start_ns`` lies."""
    hour = at(start_ns // HOUR_NS * HOUR_NS)
    for (kind, cause), spent_ns in sorted(gpu_ns.items()):
        if not spent_ns:
            continue
        row, is_new = GoodputHour.objects.get_or_create(
            job_id=job_id, attempt=attempt, start_at=hour, kind=kind, cause=cause[:40],
            defaults={"gpu_ns": spent_ns},
        )  # fmt: skip
        if not is_new:
            GoodputHour.objects.filter(pk=row.pk).update(gpu_ns=F("gpu_ns") + spent_ns)


def keep_saves(job_id: int, attempt: int, of: Cast, found: Sequence[Save]) -> None:
    """One row per save; a save told again replaces what was told of it."""
    sizes = np.bincount(of.roster.world, minlength=len(of.ranks.worlds))
    rows = [
        Checkpoint(
            job_id=job_id, attempt=attempt, world=of.ranks.worlds[one.world], step=one.step,
            end_ns=one.end_ns, world_size=int(sizes[one.world]), rank_count=one.rank_count,
            saver_count=one.saver_count, p50_s=one.p50_s, p99_s=one.p99_s, longest_s=one.longest_s,
            cost_gpu_ns=one.cost_ns, slowest=of.named(one.slowest),
        )
        for one in found
    ]  # fmt: skip
    Checkpoint.objects.bulk_create(
        rows,
        update_conflicts=True,
        unique_fields=["job", "attempt", "world", "step"],
        update_fields=[
            "end_ns", "world_size", "rank_count", "saver_count", "p50_s", "p99_s", "longest_s",
            "cost_gpu_ns", "slowest",
        ],
    )  # fmt: skip


def keep_startup(job_id: int, attempt: int, of: Cast, summary: Summary, first_step: int | None) -> None:
    """How an attempt started, as far as it is known by now."""
    known = {
        "started_at": at(int(of.roster.started_ns.min())),
        "rank_count": summary.rank_count,
        "stepped_count": summary.stepped_count,
        "first_step_s": summary.first_step_s,
        "sentence": sentence(summary, of.hosts)[:400],
        "parts": [_part(part, of) for part in summary.parts],
    }
    if first_step is not None:
        known["first_step"] = first_step
    StartUp.objects.update_or_create(job_id=job_id, attempt=attempt, defaults=known)


def _part(part: Part, of: Cast) -> dict[str, Any]:
    told = asdict(part)
    return {
        "part": part.name,
        **{name: told[name] for name in ("told_count", "p50_s", "p99_s", "longest_s")},
        "late_count": len(part.late),
        "slowest": of.named(part.slowest),
    }
