"""A job's time as its page shows it: the ribbon of classes, start-ups by part, checkpoints.

In: what ``jobs.goodput`` and ``incidents.standstills`` read. Out: ``JobTimePage``; widths are SVG units,
never styles. What nobody told is a word, not a zero.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final

import numpy as np
from django.db.models import QuerySet

from clusterwatch.analysis import checkpoints as saves
from clusterwatch.analysis.goodput_model import Kind
from clusterwatch.analysis.startup import FIRST_STEP, LAUNCH, PARTS
from clusterwatch.incidents import standstills
from clusterwatch.incidents.models import Incident
from clusterwatch.jobs import goodput
from clusterwatch.jobs.goodput_ledger import at
from clusterwatch.jobs.models import Checkpoint, Job, StartUp

RIBBON_WIDTH: Final = 1_000
HOUR_HEIGHT: Final = 40
HOUR_SLOTS_MIN: Final = 24
ATTEMPTS_SHOWN: Final = 5
SAVES_SHOWN: Final = 12
TREND_SAVES: Final = 60
CAUSES_SHOWN: Final = 3
LATE_SHOWN: Final = 3
WORDS: Final = {
    Kind.PRODUCTIVE: ("Productive", "steps at the job's own usual pace, that were kept"),
    Kind.EVALUATION: ("Evaluation", "between steps, as the job's ranks told; counts as useful"),
    Kind.DEGRADED: ("Degraded", "the part of a step beyond the usual pace"),
    Kind.STALLED: ("Stalled", "the whole job made no progress: from the last one until a step began again"),
    Kind.RESTART: ("Restart", "between two attempts, and steps that an earlier attempt had done already"),
    Kind.CHECKPOINT: ("Checkpoint", "writing one, and waiting for the slowest rank that writes"),
    Kind.STARTUP: ("Start-up", "from the start of a process to its first step"),
    Kind.IDLE: ("Idle", "the attempt lasts, but the process has not begun or is gone"),
    Kind.UNKNOWN: ("Unknown", "nobody told what the rank did; never counted as useful"),
}
PART_WORDS: Final[dict[str, str]] = {
    LAUNCH: "after the first process began",
    "allocate": "allocation",
    "container": "container",
    "import": "imports",
    "init": "process groups, rendezvous",
    "first_collective": "first collective",
    "load": "load of a checkpoint",
    "compile": "compiling",
    "data_loading": "first batches",
    "checkpoint": "writing a checkpoint",
    FIRST_STEP: "process start to first step",
}


@dataclass(frozen=True, slots=True)
class Band:
    """A piece of a ribbon: where it begins and how long it is, in SVG units."""

    kind: str
    word: str
    at: float
    length: float


@dataclass(frozen=True, slots=True)
class ClassRow:
    """One class of time. ``each_s``: by rank and all in all, as if spread evenly."""

    kind: str
    word: str
    meaning: str
    gpu_hours: float
    seconds: float
    ratio: float
    causes: tuple[tuple[str, float], ...]
    """(verdict, GPU-hours)"""


@dataclass(frozen=True, slots=True)
class HourColumn:
    start: datetime
    at: int
    bands: tuple[Band, ...]
    title: str


@dataclass(frozen=True, slots=True)
class PartRow:
    """A told part of a start-up; ``width`` of its bar, 0 to 100."""

    word: str
    told_count: int
    p50_s: float
    p99_s: float
    longest_s: float
    late_count: int
    width: float
    slowest: tuple[Mapping[str, Any], ...]
    """late ranks by name"""
    more_count: int
    """late ranks beyond those"""


@dataclass(frozen=True, slots=True)
class StartUpCard:
    row: StartUp
    parts: tuple[PartRow, ...]
    not_told: str
    """parts that no rank told, in words"""


@dataclass(frozen=True, slots=True)
class SaveRow:
    row: Checkpoint
    end: datetime
    gpu_hours: float
    is_whole: bool


@dataclass(frozen=True, slots=True)
class Advice:
    """The checkpoint to go on from. ``repeated_s``: work that is done again."""

    found: saves.Recommended
    end: datetime
    repeated_s: float


@dataclass(frozen=True, slots=True)
class JobTimePage:
    time: goodput.JobTime | None
    ribbon: tuple[Band, ...]
    classes: tuple[ClassRow, ...]
    hours: tuple[HourColumn, ...]
    lost_hours: float
    """stalled and restarting, in GPU-hours"""
    naming: standstills.Naming
    startups: tuple[StartUpCard, ...]
    saves: tuple[SaveRow, ...]
    trend: str
    """whether saves take longer than they did; empty where there are too few"""
    advice: Advice | None

    @property
    def hour_slots(self) -> int:
        """Columns of the drawing: a few hours are not stretched over all of it."""
        return max(HOUR_SLOTS_MIN, len(self.hours))

    @property
    def unit(self) -> str:
        return "GPU" if self.time is None or self.time.has_gpus else "process"


def build(job: Job, incidents: QuerySet[Incident], now: datetime) -> JobTimePage:
    """Everything of a job's time in eight queries. ``incidents``: those the person may see."""
    time = goodput.of_job(job)
    kept = list(goodput.checkpoints(job)[:TREND_SAVES])
    told, begun = goodput.whole_saves(kept)[::-1], list(goodput.startups(job))
    whole = {(one.attempt, one.world, one.step) for one, _, _ in saves.whole(told)}
    end = job.ended_at or now
    trend = saves.trend_ratio(np.array([one.longest_s for one in reversed(kept)]))
    lost_ns = 0 if time is None else time.total.ns[Kind.STALLED] + time.total.ns[Kind.RESTART]
    return JobTimePage(
        time=time,
        ribbon=() if time is None else bands(time.total, RIBBON_WIDTH),
        classes=() if time is None else class_rows(time.total, time.causes),
        hours=() if time is None else tuple(_hours(time)),
        lost_hours=lost_ns / 3.6e12,
        naming=standstills.naming(incidents, job.pk),
        startups=tuple(_startup(row) for row in begun[:ATTEMPTS_SHOWN]),
        saves=tuple(
            SaveRow(
                one, at(one.end_ns), one.cost_gpu_ns / 3.6e12, (one.attempt, one.world, one.step) in whole
            )
            for one in kept[:SAVES_SHOWN]
        ),
        trend=_trend(trend, len(kept)),
        advice=_advice(goodput.recommended_of(job, begun, told, end), end),
    )


def advice(job: Job, before: datetime) -> Advice | None:
    """The checkpoint to go on from when things went wrong at ``before``; None where no whole one is known."""
    return _advice(goodput.recommended(job, before), before)


def _advice(found: saves.Recommended | None, before: datetime) -> Advice | None:
    return None if found is None else Advice(found, at(found.save.end_ns), goodput.repeated_s(found, before))


def _trend(ratio: float | None, count: int) -> str:
    if ratio is None:
        return ""
    way = "longer" if ratio >= 0 else "less"
    return (
        f"The newest third of the last {count} took {abs(round(100 * ratio))} % {way} than the oldest third."
    )


def bands(of: goodput.Total, whole: int) -> tuple[Band, ...]:
    """Classes one after the other; ``whole`` units are all of it."""
    found, begin, all_ns = [], 0.0, of.all_ns
    for kind, ns in of.ns.items():
        if ns:
            length = whole * ns / all_ns
            found.append(Band(kind.value, WORDS[kind][0], round(begin, 2), round(length, 2)))
            begin += length
    return tuple(found)


def class_rows(of: goodput.Total, causes: Sequence[tuple[Kind, str, int]]) -> tuple[ClassRow, ...]:
    """Every class, those without time as well. ``causes``: (class, verdict, ns), the most first."""
    all_ns = of.all_ns
    return tuple(
        ClassRow(
            kind.value,
            *WORDS[kind],
            ns / 3.6e12,
            ns / 1e9,
            ns / all_ns,
            tuple((cause, spent / 3.6e12) for its, cause, spent in causes if its == kind)[:CAUSES_SHOWN],
        )
        for kind, ns in of.ns.items()
    )


def _hours(time: goodput.JobTime) -> list[HourColumn]:
    return [
        HourColumn(
            start,
            place,
            bands(of, HOUR_HEIGHT),
            ", ".join(f"{b.word} {_percent(of, b)} %" for b in bands(of, 100)),
        )
        for place, (start, of) in enumerate(time.hours)
    ]


def _percent(of: goodput.Total, band: Band) -> str:
    return f"{100 * of.ns[Kind(band.kind)] / of.all_ns:.1f}"


def _startup(row: StartUp) -> StartUpCard:
    """Parts in the order they happen, told ones as rows."""
    told = [part for part in row.parts if isinstance(part, dict) and part.get("told_count")]
    longest = max((part["longest_s"] for part in told), default=0.0) or 1.0
    known = {part["part"] for part in told}
    return StartUpCard(
        row,
        tuple(
            PartRow(
                PART_WORDS.get(str(part["part"]), str(part["part"])),
                part["told_count"],
                part["p50_s"],
                part["p99_s"],
                part["longest_s"],
                part["late_count"],
                round(100 * part["longest_s"] / longest, 1),
                _slowest(part),
                max(0, part["late_count"] - LATE_SHOWN),
            )
            for part in told
        ),
        ", ".join(PART_WORDS[name] for name in PARTS if name not in known),
    )


def _slowest(part: Mapping[str, Any]) -> tuple[Mapping[str, Any], ...]:
    """Late ranks by name; where nobody is late nobody is named."""
    rows: Sequence[Mapping[str, Any]] = part["slowest"]
    return tuple(rows[: min(LATE_SHOWN, part["late_count"])])
