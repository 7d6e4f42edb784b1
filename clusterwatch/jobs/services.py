"""Writes of jobs that people and detectors ask for; the wire's are in ``announcements`` and ``exits``."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from datetime import timedelta
from typing import Final

import redis
from django.db import transaction
from django.db.models import F, FloatField, Q
from django.db.models.functions import Cast, Extract, Now
from django.utils import timezone

from clusterwatch.jobs.models import Capture, Job, Rank
from clusterwatch.store import valkey
from collectors.wire.records import CaptureWant

logger = logging.getLogger(__name__)

CAPTURE_EVERY_S: Final = 2.0
"""A job is asked for traces no more often than this: the second capture answers with the first one's row."""
CAPTURE_GRACE_S: Final = 5.0
"""An answer may take this much longer than its deadline (spool, wire, commit)."""


def request_capture(
    job_id: int,
    *,
    want: Sequence[CaptureWant],
    ranks: Sequence[int] | None = None,
    by: str,
    reason: str,
    deadline_s: float = 10.0,
    ras_rank: int | None = None,
) -> Capture:
    """Asks the nodes of a job for traces or stacks: a row, and after the commit a notice to the gateways.

    A request that follows another one for the same things within ``CAPTURE_EVERY_S`` returns that one.

    Args:
        want: any of ``window``, ``ring``, ``stacks``.
        ranks: global ranks of the newest attempt; None means every rank.
        deadline_s: how long the nodes may take.
        ras_rank: the node of this global rank, one of those asked, also asks NCCL's RAS for the whole job.
    Raises:
        Job.DoesNotExist: no such job.
    """
    asked = sorted(set(ranks)) if ranks is not None else None
    with transaction.atomic():
        job = Job.objects.select_for_update(no_key=True).get(pk=job_id)
        recent = Capture.objects.filter(
            job=job, requested_at__gt=timezone.now() - timedelta(seconds=CAPTURE_EVERY_S)
        ).order_by("-id")
        for capture in recent:
            if capture.want == list(want) and capture.ranks == asked:
                return capture
        nodes = _nodes_of(job, asked)
        # Nobody is left to ask: the answer is complete, and empty.
        fate = {} if nodes else {"state": Capture.State.DONE, "done_at": timezone.now()}
        capture = Capture.objects.create(
            job=job,
            requested_by=by,
            reason=reason[:255],
            want=list(want),
            ranks=asked,
            deadline_s=deadline_s,
            ras_rank=ras_rank,
            expected_nodes=nodes,
            **fate,
        )
        transaction.on_commit(lambda: _notify(capture.pk))
    return capture


def expire_captures() -> int:
    """Ends captures whose deadline and grace have passed without every answer; returns how many."""
    age_s = Cast(Extract(Now() - F("requested_at"), "epoch"), FloatField())
    late = Capture.objects.annotate(age_s=age_s).filter(
        state=Capture.State.REQUESTED, age_s__gt=F("deadline_s") + CAPTURE_GRACE_S
    )
    return late.update(state=Capture.State.EXPIRED, done_at=timezone.now())


def set_heard_of(job_id: int, heard_of: bool) -> bool:
    """Whether any node still speaks of a job that has not ended; True when its state changed by it."""
    before, after = Job.State.RUNNING, Job.State.UNKNOWN
    if heard_of:
        before, after = after, before
    living = Job.objects.filter(pk=job_id, ended_at__isnull=True, state=before)
    return living.update(state=after) == 1


def _nodes_of(job: Job, ranks: Sequence[int] | None) -> list[int]:
    """Nodes that hold a living rank of the request, by id."""
    wanted = Q(job=job, attempt=job.attempt, exited_at__isnull=True)
    if ranks is not None:
        wanted &= Q(rank__in=ranks)
    return sorted(set(Rank.objects.filter(wanted).values_list("node_id", flat=True)))


def _notify(capture_id: int) -> None:
    """Wakes the gateways; without Valkey they find the row by their own look every 2 s."""
    try:
        valkey.client().publish(valkey.CAPTURE_CHANNEL, str(capture_id))
    except redis.RedisError as error:
        logger.warning("capture_notice_failed capture=%d error=%s", capture_id, error)
