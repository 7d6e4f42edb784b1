"""Counts where the time of a job's GPUs went: one stretch after the other, each once.

In: a job's id, now (ns UTC). Out: rows of ``jobs.goodput_ledger``. Steps arrive some seconds after they end,
so counting follows ``BEHIND_NS`` behind, and waits up to ``WAIT_MAX_NS`` for ranks that have told nothing of
the end of a stretch. What comes later still stays unknown.
Cost at 24,576 ranks with steps of 2 s: see docs/goodput.md. A fixed number of queries per stretch.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Final

import numpy as np
from django.db import transaction

from clusterwatch.analysis import checkpoints, startup
from clusterwatch.analysis.goodput import Before, repeats_until, split
from clusterwatch.analysis.goodput_attempts import Attempt, Stretch, is_told, lives, next_stretch
from clusterwatch.analysis.goodput_model import Floats, Ints, Kind, Spans, Split, Stall, Steps
from clusterwatch.analysis.goodput_phases import Changes, Open, spans
from clusterwatch.incidents import standstills
from clusterwatch.jobs import goodput_ledger as ledger
from clusterwatch.jobs import goodput_memory
from clusterwatch.jobs.goodput_ledger import Cast
from clusterwatch.jobs.goodput_memory import Kept
from clusterwatch.jobs.models import GoodputMark, Job
from clusterwatch.store import phase_history, step_history

SECOND_NS: Final = 10**9
BEHIND_NS: Final = 90 * SECOND_NS
"""Agents send steps every ten seconds, gateways commit within a few; the rest is for long steps."""
REACH_NS: Final = 45 * SECOND_NS
"""Words so much younger than a stretch's end are read for it, and twice the usual step more."""
LATE_REACH_NS: Final = 90 * SECOND_NS
"""The same for what is counted late: what was sent late is stored by the minute."""
BACK_NS: Final = 5 * SECOND_NS
"""Ranks end a step so far apart at most; a save belongs to one stretch."""
WAIT_MAX_NS: Final = 900 * SECOND_NS
WIDTH_NS: Final = 300 * SECOND_NS
WIDE_RANKS: Final = 4_096
WIDE_WIDTH_NS: Final = 60 * SECOND_NS
"""Of a job with more ranks: what is read at once stays below the store's bound."""
WIDTH_MIN_NS: Final = 15 * SECOND_NS
STRETCHES_MAX: Final = 12
"""In one look; what is left is counted by the next one."""
STARTUP_WATCHED_NS: Final = 3_600 * SECOND_NS


@dataclass(frozen=True, slots=True, eq=False)
class _Told:
    """What a stretch's ranks told, by place."""

    steps: Steps
    phases: dict[str, Spans]
    still: Open
    is_whole: bool


def look(job_id: int, now_ns: int) -> int:
    """Counts what can be counted by now; returns how many stretches that were."""
    for number in range(STRETCHES_MAX):
        if not _count_next(job_id, now_ns):
            return number
    return STRETCHES_MAX


@transaction.atomic
def _count_next(job_id: int, now_ns: int) -> bool:
    """Counts the next stretch; False where none is ready."""
    job = Job.objects.select_related("cluster").filter(pk=job_id).first()
    found = lives(ledger.attempts(job_id)) if job is not None else []
    if job is None or not found:
        return False
    mark = ledger.lock_mark(job, found[0].started_ns, now_ns)
    count = max(one.rank_count for one in found)
    width_ns = WIDE_WIDTH_NS if count > WIDE_RANKS else WIDTH_NS
    stretch = next_stretch(found, mark.until_ns, now_ns - BEHIND_NS, width_ns)
    if stretch is None:
        if (
            job.ended_at is not None
            and found[-1].ended_ns is not None
            and mark.until_ns >= found[-1].ended_ns
        ):
            ledger.set_done(mark)
        return False
    if stretch.is_gap:
        _count_gap(job_id, mark, stretch, found)
        return True
    return _count_stretch(job_id, mark, stretch, found, now_ns)


def _count_gap(job_id: int, mark: GoodputMark, gap: Stretch, found: list[Attempt]) -> None:
    """Between two attempts all ranks of the later one are lost to the restart."""
    number = gap.attempt.number
    cause = _cause_before(job_id, gap.attempt, found)
    lost_ns = gap.attempt.rank_count * (gap.end_ns - gap.start_ns)
    ledger.add_hours(job_id, number, gap.start_ns, {(Kind.RESTART, cause): lost_ns})
    ledger.move_mark(mark, mark.attempt, gap.end_ns, bytes(mark.memory))


def _cause_before(job_id: int, attempt: Attempt, found: list[Attempt]) -> str:
    before = [one for one in found if one.number < attempt.number]
    return standstills.ended_by(job_id, before[-1].started_ns, attempt.started_ns) if before else ""


def _count_stretch(
    job_id: int, mark: GoodputMark, stretch: Stretch, found: list[Attempt], now_ns: int
) -> bool:
    cast = ledger.cast(job_id, stretch.attempt.number)
    kept = _kept(job_id, mark, stretch, cast, found)
    told = _told(job_id, stretch, cast, kept, now_ns)
    while not told.is_whole and stretch.end_ns - stretch.start_ns > WIDTH_MIN_NS:
        stretch = replace(stretch, end_ns=(stretch.start_ns + stretch.end_ns) // 2)
        told = _told(job_id, stretch, cast, kept, now_ns)
    stalls = _stalls(job_id, stretch)
    if _is_early(stretch, cast, kept, told, stalls, now_ns):
        return False
    first_step = None
    if not kept.memory.is_judged and len(told.steps.step):
        first_step = int(told.steps.step.min())
        repeats = repeats_until(kept.before, first_step)
        kept = replace(kept, memory=replace(kept.memory, repeats_until=repeats, is_judged=True))
    counted = split(
        stretch.start_ns, stretch.end_ns, cast.roster, told.steps, told.phases, stalls, kept.memory
    )
    _keep(job_id, stretch, cast, told, counted, kept, first_step)
    after = goodput_memory.pack(replace(kept, memory=counted.memory, phases=told.still), cast.ranks)
    ledger.move_mark(mark, stretch.attempt.number, stretch.end_ns, after)
    return True


def _kept(job_id: int, mark: GoodputMark, stretch: Stretch, cast: Cast, found: list[Attempt]) -> Kept:
    """The memory of this attempt; of a new one only how the one before ended."""
    number = stretch.attempt.number
    kept = goodput_memory.unpack(bytes(mark.memory), cast.ranks)
    if mark.attempt == number:
        return kept
    before = Before(kept.memory.last_step, ledger.saved_step(job_id, mark.attempt))
    fresh = goodput_memory.unpack(b"", cast.ranks)
    return replace(fresh, before=before, cause=_cause_before(job_id, stretch.attempt, found))


def _told(job_id: int, stretch: Stretch, cast: Cast, kept: Kept, now_ns: int) -> _Told:
    pace_s = max((max(told[-10:]) for told in kept.memory.paces_s.values() if told), default=0.0)
    is_late = now_ns - stretch.end_ns > 2 * BEHIND_NS
    reach_ns = stretch.end_ns + (LATE_REACH_NS if is_late else REACH_NS) + int(2e9 * min(pace_s, 450.0))
    number = stretch.attempt.number
    rows = step_history.since(job_id, number, stretch.start_ns - BACK_NS, reach_ns)
    who = cast.places(rows.worlds, rows.world, rows.rank)
    known = who >= 0
    steps = Steps(
        who[known], rows.step[known], rows.end_ns[known],
        rows.duration_s[known].astype(np.float64), rows.checkpoint_s[known].astype(np.float64),
    )  # fmt: skip
    changes = _changes(job_id, number, stretch.start_ns, reach_ns, cast)
    phases, still = spans(changes, kept.phases, stretch.end_ns)
    return _Told(steps, phases, still, rows.is_whole)


def _changes(job_id: int, attempt: int, from_ns: int, until_ns: int, cast: Cast) -> Changes:
    rows = phase_history.between(job_id, attempt, from_ns, until_ns)
    who = cast.places(rows.worlds, rows.world, rows.rank)
    known = who >= 0
    return Changes(
        who[known], rows.t_ns[known], rows.phase[known], rows.before[known], rows.before_s[known], rows.words
    )


def _stalls(job_id: int, stretch: Stretch) -> list[Stall]:
    """Standstills that began in this attempt."""
    found = standstills.stalls(job_id, stretch.start_ns, stretch.end_ns)
    return [one for one in found if one.start_ns >= stretch.attempt.started_ns]


def _is_early(
    stretch: Stretch, cast: Cast, kept: Kept, told: _Told, stalls: list[Stall], now_ns: int
) -> bool:
    """Most ranks have told nothing of the stretch's end yet, and waiting may help."""
    end_ns = stretch.end_ns
    if now_ns - end_ns >= WAIT_MAX_NS or end_ns == stretch.attempt.ended_ns:
        return False
    if any(one.start_ns < end_ns <= one.end_ns for one in stalls):
        return False
    awaited = (kept.memory.first_ns > 0) & (cast.roster.exit_ns > end_ns)
    covered = [
        of.who[(of.start_ns < end_ns) & (of.end_ns >= end_ns)]
        for name, of in told.phases.items()
        if name in ("evaluation", "checkpoint", "teardown")
    ]
    return not is_told(told.steps, awaited, end_ns, np.concatenate([np.zeros(0, np.int64), *covered]))


def _keep(
    job_id: int, stretch: Stretch, cast: Cast, told: _Told, counted: Split, kept: Kept, first_step: int | None
) -> None:
    """Rows of one stretch: hours by class and cause, saves, and the start-up while it goes on."""
    number, start_ns, end_ns = stretch.attempt.number, stretch.start_ns, stretch.end_ns
    causes = {Kind.RESTART: kept.cause}
    if counted.ns[Kind.DEGRADED]:
        causes[Kind.DEGRADED] = standstills.slow_cause(job_id, start_ns, end_ns)
    spent = {(str(kind), causes.get(kind, "")): ns for kind, ns in counted.ns.items() if kind != Kind.STALLED}
    spent |= {(str(Kind.STALLED), cause): ns for cause, ns in counted.stalled_ns.items()}
    ledger.add_hours(job_id, number, start_ns, spent)
    found = checkpoints.saves(told.steps, cast.roster, counted.usual_s, start_ns, end_ns)
    if found:
        ledger.keep_saves(job_id, number, cast, found)
    was, now = kept.memory.first_ns, counted.memory.first_ns
    is_starting = start_ns - stretch.attempt.started_ns < STARTUP_WATCHED_NS and not was.all()
    if is_starting or (was != now).any():
        told_s = _startup_parts(job_id, number, stretch, cast, now)
        summary = startup.summarise(cast.roster.started_ns, now, told_s)
        ledger.keep_startup(job_id, number, cast, summary, first_step)


def _startup_parts(
    job_id: int, attempt: int, stretch: Stretch, cast: Cast, first_ns: Ints
) -> dict[str, Floats]:
    """Seconds of each part that ranks told before their first step, from all they told since the start."""
    begun_ns = stretch.attempt.started_ns
    rows = _changes(job_id, attempt, begun_ns, min(stretch.end_ns, begun_ns + STARTUP_WATCHED_NS), cast)
    before_step = (first_ns[rows.who] == 0) | (rows.t_ns <= first_ns[rows.who] + SECOND_NS)
    found = {}
    for place, word in enumerate(rows.words):
        told = before_step & (rows.before == place) & np.isfinite(rows.before_s)
        if word in startup.PARTS and told.any():
            seconds = np.bincount(rows.who[told], rows.before_s[told], len(first_ns))
            heard = np.bincount(rows.who[told], minlength=len(first_ns)) > 0
            found[word] = np.where(heard, seconds, np.nan)
    return found
