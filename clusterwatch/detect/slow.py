"""Who holds up a running job: its new steps are judged, and what is found goes to the incidents.

In: job id, now (ns UTC). Out: incidents of slow parts raised, opened, sharpened and resolved, one for each
host or set of ranks; notes on the job's own shape for its page. A step counts when all living ranks told it,
or when it is so old that the rest will not come. Cost: what is new since the last look.
"""

from __future__ import annotations

import logging
from dataclasses import replace
from typing import Final

import msgspec

from clusterwatch.analysis.model import Finding
from clusterwatch.analysis.slow.paging import CURRENT
from clusterwatch.analysis.verdicts import SLOW_CLASSES
from clusterwatch.detect import causes, slow_look
from clusterwatch.detect.scene import is_blind, roster
from clusterwatch.detect.slow_look import Attempt, Cast, Memory, SlowSighting
from clusterwatch.incidents import services
from clusterwatch.incidents.models import LIVE_STATES, Incident
from clusterwatch.jobs.models import Job
from clusterwatch.jobs.step_notes import StepNote, keep_notes
from clusterwatch.store import hot

log = logging.getLogger(__name__)


def look(job_id: int, now_ns: int) -> int:
    """Looks at a job's new steps; returns how many were taken. Nothing while no gateway writes."""
    job = Job.objects.filter(pk=job_id, ended_at__isnull=True).first()
    if job is None or is_blind(now_ns):
        return 0
    attempt = attempt_of(job)
    told, memory, taken = slow_look.take(attempt, _casts(job), _load(job), now_ns)
    seen = [(world.cast, one) for world in told for one in slow_look.sightings(attempt, world, CURRENT)]
    for cast, one in seen:
        _raise(job, cast, one, now_ns)
    _resolve(attempt, [one.sighting.fingerprint for _, one in seen], now_ns)
    shapes = [one for world in told for one in world.findings if one.fault_class not in SLOW_CLASSES]
    keep_notes(job.pk, [_note(one) for one in shapes])
    hot.save_steps(job.pk, msgspec.msgpack.encode(memory))
    return taken


def attempt_of(job: Job) -> Attempt:
    """The newest attempt of a job."""
    return Attempt(job.cluster_id, job.pk, job.attempt)


def prefix(job: Job) -> str:
    """What the fingerprints of the newest attempt's slow parts begin with."""
    return attempt_of(job).prefix


def _load(job: Job) -> Memory:
    blob = hot.load_steps(job.pk)
    if blob is not None:
        try:
            memory = msgspec.msgpack.decode(blob, type=Memory)
        except msgspec.MsgspecError as fault:
            log.warning("steps_unreadable job=%d reason=%s", job.pk, fault)
        else:
            return memory if memory.attempt == job.attempt else Memory(job.attempt)
    return Memory(job.attempt)


_casts_of: dict[int, tuple[object, list[Cast]]] = {}
_CASTS_MAX: Final = 64


def _casts(job: Job) -> list[Cast]:
    """The worlds of a job; made anew when its ranks or groups changed."""
    ranks, groups = roster(job)
    held = _casts_of.get(job.pk)
    if held is None or held[0] is not ranks:
        while len(_casts_of) >= _CASTS_MAX:
            _casts_of.pop(next(iter(_casts_of)))
        held = _casts_of[job.pk] = (ranks, slow_look.casts_of(ranks, groups.values()))
    return held[1]


def _raise(job: Job, cast: Cast, seen: SlowSighting, now_ns: int) -> None:
    live = services.live_incident(seen.sighting.fingerprint)
    # Steps of the onset leave the window while the trouble lasts; the incident keeps when it began.
    since_ns = seen.sighting.since_ns if live is None else int(live.since.timestamp() * 1e9)
    diagnosis, told = causes.of_slow(job, cast, since_ns, now_ns, seen.sighting.diagnosis)
    sighting = replace(seen.sighting, diagnosis=diagnosis)
    incident, is_new = services.suspect(sighting, now_ns)
    changed = is_new or services.sharpen(incident.pk, sighting, now_ns)
    if changed:
        services.freeze(incident.pk, [seen.piece, *told], now_ns)
    if incident.state == Incident.State.SUSPECTED and seen.page:
        services.open_(incident.pk, now_ns, seen.page)


def _resolve(attempt: Attempt, still: list[str], now_ns: int) -> None:
    over = Incident.objects.filter(
        state__in=LIVE_STATES, job_id=attempt.job_id, fingerprint__startswith=attempt.prefix
    )
    for incident_id in over.exclude(fingerprint__in=still).values_list("pk", flat=True):
        services.resolve(incident_id, now_ns, "its steps are like its peers' again")


def _note(found: Finding) -> StepNote:
    return StepNote(found.verdict, found.summary, list(found.why), found.confidence)
