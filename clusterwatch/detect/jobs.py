"""One tick of one job: read, judge, and hand the outcome to the incidents.

In: job id, now (ns UTC). Out: nothing returned; incidents, captures and the memory of the job change.
"""

from __future__ import annotations

from datetime import timedelta
from typing import Final

from django.db.models import Q, QuerySet

from clusterwatch.analysis.progress import LOOKS_APART_NS, Judgement, glance, judge
from clusterwatch.detect import agents, crash, memory, slow, stall
from clusterwatch.detect.exits import all_clean, all_gone
from clusterwatch.detect.scene import Scene, is_blind, read_scene
from clusterwatch.incidents import services
from clusterwatch.incidents.models import LIVE_STATES, Incident
from clusterwatch.incidents.services import moment
from clusterwatch.jobs.models import Job
from clusterwatch.jobs.services import set_heard_of

WATCH_ENDED: Final = timedelta(seconds=60)
"""A job that ended is looked at for so long: late exits, and a restart that does not come."""
UNHEARD_NS: Final = 10 * 60 * 10**9
"""After so long without a frame of any living process a job counts no more as running: its hosts may be gone
for good, and nobody will tell its end. Longer than a reboot of a gateway or a switch takes."""
STALLS: Final = frozenset({"hang", "none", "unknown"})
"""Classes of incidents that are over when the job moves."""


def watched_jobs(now_ns: int) -> QuerySet[Job]:
    """Jobs a tick looks at: those that have not ended, or only just."""
    alive = Q(ended_at__isnull=True) | Q(ended_at__gt=moment(now_ns) - WATCH_ENDED)
    return Job.objects.filter(alive).order_by("id")


def running_jobs() -> QuerySet[Job]:
    """Jobs whose steps are looked at."""
    return Job.objects.filter(ended_at__isnull=True).order_by("id")


def detect_job(job_id: int, now_ns: int) -> None:
    """Looks at a job once. While no gateway writes, nothing new is said and nothing resolved."""
    job = Job.objects.filter(pk=job_id).first()
    if job is None or is_blind(now_ns):
        return
    scene = read_scene(job, now_ns)
    if scene is None:
        return
    kept = memory.load(job_id, job.attempt)
    before = kept.glance(now_ns)
    judgement = judge(before, scene.look)
    kept.learn(judgement)
    if not crash.handle(scene, judgement, kept):
        if judgement.stalled and not all_gone(scene.ranks):
            stall.handle(scene, judgement, kept)
        else:
            _settle(scene, judgement)
    agents.handle(scene, judgement)
    _keep_state(scene)
    if before is None or now_ns - before.at_ns >= LOOKS_APART_NS:
        kept.keep(glance(scene.look))
    memory.save(job_id, kept)


def _keep_state(scene: Scene) -> None:
    """A running job that no node has spoken of for long is in an unknown state until one does again."""
    alive = [row for row, rank in enumerate(scene.ranks) if rank.exited_at is None]
    if not alive:
        return
    newest_ns = max(int(scene.look.seen_ns[row]) for row in alive)
    registered_ns = max(int(scene.ranks[row].started_at.timestamp() * 1e9) for row in alive)
    silent_ns = scene.look.word_ns - max(newest_ns, registered_ns)
    if scene.job.state == Job.State.RUNNING and silent_ns > UNHEARD_NS:
        set_heard_of(scene.job.pk, False)
    elif scene.job.state == Job.State.UNKNOWN and scene.look.word_ns - newest_ns < UNHEARD_NS:
        set_heard_of(scene.job.pk, True)


def _settle(scene: Scene, judgement: Judgement) -> None:
    """Resolves what is over: the job moves again, has ended, or its next attempt makes progress."""
    if judgement.moving and _makes_progress(scene):
        _resolve_forerunners(scene)
    live = services.live_incident(stall.fingerprint(scene))
    if live is None:
        return
    if all_clean(scene.ranks):
        services.resolve(live.pk, scene.now_ns, "the job ended normally")
    elif live.fault_class not in STALLS:
        return
    elif all_gone(scene.ranks):
        services.resolve(live.pk, scene.now_ns, "the job was ended from outside while it stood still")
    elif judgement.moving and not judgement.stalled:
        stood_s = scene.now_ns / 1e9 - live.since.timestamp()
        services.resolve(live.pk, scene.now_ns, f"the job moves again after {stood_s:.0f} s")


def _makes_progress(scene: Scene) -> bool:
    """A step was done; where no step is counted, numbers of a group moved."""
    return bool((scene.look.step >= 1).any() or (scene.look.completed >= 1).any())


def _resolve_forerunners(scene: Scene) -> None:
    """Closes incidents of earlier attempts, and of earlier runs under the same scheduler's id."""
    job = scene.job
    earlier = Incident.objects.filter(
        state__in=LIVE_STATES, job__cluster_id=job.cluster_id, job__key=job.key, job_id__lte=job.pk
    ).exclude(fingerprint__in=(stall.fingerprint(scene), agents.fingerprint(scene)))
    earlier = earlier.exclude(fingerprint__startswith=slow.prefix(job))
    for incident_id in earlier.values_list("pk", flat=True):
        services.resolve(incident_id, scene.now_ns, f"attempt {job.attempt} of the job makes progress")
