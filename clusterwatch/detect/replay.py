"""Detectors over stored history: what they would have raised, paged and closed, beside what was raised then.

In: a job, a span (ns UTC), a version of the paging rule. Out: ``Replayed``; nothing is written. The steps of
all ranks are looked at in the rhythm of the live detector, each look with the rows told by then.
Stalls cannot be played again: progress is kept for seconds only, and what is left of it is evidence.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Final

from django.db.models import Q

from clusterwatch.analysis.slow.paging import PageRule
from clusterwatch.detect import slow_look
from clusterwatch.detect.schedule import SLOW_EVERY_S
from clusterwatch.detect.slow_look import Attempt, Cast, Memory
from clusterwatch.incidents.models import Incident
from clusterwatch.incidents.services import moment
from clusterwatch.jobs.models import Group, Job, Rank

LOOKS_MAX: Final = 8_640
"""A day of looks; the steps are kept for two."""
_NS: Final = 10**9


class TooLong(ValueError):
    """More looks than are played in one go."""


@dataclass(slots=True)
class Story:
    """One incident as the detector would have told it."""

    fingerprint: str
    verdict: str
    summary: str
    suspected_ns: int
    opened_ns: int | None = None
    resolved_ns: int | None = None
    verdicts: list[str] = field(default_factory=list)
    """words it had one after the other"""
    then: int | None = None
    """number of the incident that was raised for it at the time; None: none was"""


@dataclass(frozen=True, slots=True)
class Replayed:
    """One attempt of one job. ``missed``: incidents of the time that are not raised any more."""

    attempt: Attempt
    job_key: str
    looks: int
    steps: int
    stories: tuple[Story, ...]
    missed: tuple[Incident, ...]
    then: tuple[Incident, ...]

    @property
    def pages(self) -> int:
        return sum(story.opened_ns is not None for story in self.stories)

    @property
    def pages_then(self) -> int:
        return sum(incident.opened_at is not None for incident in self.then)


def jobs_of(cluster_id: int, from_ns: int, to_ns: int) -> list[Job]:
    """Jobs of a cluster that ran within a span."""
    ended = Q(ended_at__isnull=True) | Q(ended_at__gte=moment(from_ns))
    mine = Job.objects.filter(ended, cluster_id=cluster_id, started_at__lte=moment(to_ns))
    return list(mine.order_by("pk"))


def slow_parts(job: Job, from_ns: int, to_ns: int, rule: PageRule) -> list[Replayed]:
    """The detector of slow parts over each attempt of a job within the span.

    Raises ``TooLong`` where the span holds more than ``LOOKS_MAX`` looks.
    """
    if (to_ns - from_ns) // (SLOW_EVERY_S * _NS) > LOOKS_MAX:
        raise TooLong(f"a span of more than {LOOKS_MAX * SLOW_EVERY_S // 3600} h is not played in one go")
    numbers = Rank.objects.filter(job=job).order_by("attempt").values_list("attempt", flat=True).distinct()
    found = [_attempt(job, number, from_ns, to_ns, rule) for number in numbers]
    return [one for one in found if one.steps or one.then]


def _attempt(job: Job, number: int, from_ns: int, to_ns: int, rule: PageRule) -> Replayed:
    attempt = Attempt(job.cluster_id, job.pk, number)
    memory = Memory(number)
    stories: list[Story] = []
    live: dict[str, Story] = {}
    looks = steps = 0
    for now_ns, casts in _moments(attempt, from_ns, to_ns):
        told, memory, taken = slow_look.take(attempt, casts, memory, now_ns, until_ns=now_ns)
        seen = {
            one.sighting.fingerprint: one
            for world in told
            for one in slow_look.sightings(attempt, world, rule)
        }
        for fingerprint in [name for name in live if name not in seen]:
            live.pop(fingerprint).resolved_ns = now_ns
        for fingerprint, one in seen.items():
            worst = one.sighting.diagnosis.worst
            story = live.get(fingerprint)
            if story is None:
                story = live[fingerprint] = Story(fingerprint, worst.verdict, worst.summary, now_ns)
                stories.append(story)
            story.verdict, story.summary = worst.verdict, worst.summary
            if story.verdicts[-1:] != [worst.verdict]:
                story.verdicts.append(worst.verdict)
            if one.page and story.opened_ns is None:
                story.opened_ns = now_ns
        looks, steps = looks + 1, steps + taken
    then = _then(attempt, from_ns, to_ns)
    missed = _paired(stories, then)
    return Replayed(attempt, job.key, looks, steps, tuple(stories), tuple(missed), tuple(then))


def _moments(attempt: Attempt, from_ns: int, to_ns: int) -> Iterator[tuple[int, list[Cast]]]:
    """(moment, worlds as they were then) in the rhythm of the live detector, while anybody lived."""
    ranks = list(
        Rank.objects.filter(job_id=attempt.job_id, attempt=attempt.number).order_by("world", "rank")
    )
    groups = list(Group.objects.filter(job_id=attempt.job_id, attempt=attempt.number))
    began_ns = [int(rank.started_at.timestamp() * _NS) for rank in ranks]
    held: tuple[tuple[int, int], list[Cast]] = ((-1, -1), [])
    for now_ns in range(from_ns, to_ns + 1, SLOW_EVERY_S * _NS):
        there = [rank for rank, began in zip(ranks, began_ns, strict=True) if began <= now_ns]
        state = (len(there), sum(slow_look.lives_at(rank, now_ns) for rank in there))
        if not state[1]:
            continue
        if state != held[0]:
            held = (state, slow_look.casts_of(there, groups, now_ns))
        if held[1]:
            yield now_ns, held[1]


def _then(attempt: Attempt, from_ns: int, to_ns: int) -> list[Incident]:
    """Incidents of the attempt's slow parts that lived within the span."""
    over = Q(resolved_at__isnull=True) | Q(resolved_at__gte=moment(from_ns))
    mine = Incident.objects.filter(over, job_id=attempt.job_id, fingerprint__startswith=attempt.prefix)
    return list(mine.filter(suspected_at__lte=moment(to_ns)).order_by("pk"))


def _paired(stories: list[Story], then: list[Incident]) -> list[Incident]:
    """Gives each story the incident of its time and place; returns those that no story has."""
    left = list(then)
    for story in stories:
        fits = [one for one in left if one.fingerprint == story.fingerprint and _overlap(story, one)]
        if fits:
            story.then = fits[0].pk
            left.remove(fits[0])
    return left


def _overlap(story: Story, incident: Incident) -> bool:
    began = (incident.suspected_at or incident.since).timestamp() * _NS
    ended = incident.resolved_at.timestamp() * _NS if incident.resolved_at else float("inf")
    return story.suspected_ns <= ended and began <= (story.resolved_ns or float("inf"))
