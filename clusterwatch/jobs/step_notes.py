"""What a job's steps tell of its own shape: unequal stages, skewed data, pauses. Explained, never paged.

In: findings of the last look at its steps. Out: ``StepNote``s for the job's page and REST. Kept in hot state:
a note that is not said again is gone with it.
"""

from __future__ import annotations

import logging

import msgspec
import redis

from clusterwatch.store import hot

log = logging.getLogger(__name__)


class StepNote(msgspec.Struct):
    """``verdict`` is a word of the catalogue, ``why`` what it rests on."""

    verdict: str
    summary: str
    why: list[str]
    confidence: float


def keep_notes(job_id: int, notes: list[StepNote]) -> None:
    """Replaces what was said before."""
    hot.save_step_notes(job_id, msgspec.msgpack.encode(notes))


def notes_of(job_id: int) -> list[StepNote]:
    """The newest notes; empty where there are none, or hot state is away."""
    try:
        blob = hot.load_step_notes(job_id)
        return [] if blob is None else msgspec.msgpack.decode(blob, type=list[StepNote])
    except (redis.RedisError, msgspec.MsgspecError) as fault:
        log.warning("step_notes_unreadable job=%d reason=%s", job_id, fault)
        return []
