"""What the wire says of a process's fate becomes rows: exits, process states, captures, ended jobs."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import msgspec
from django.db.models import F, Q
from django.utils import timezone

from clusterwatch.analysis.ending import Ending, of_process
from clusterwatch.jobs.announcements import at
from clusterwatch.jobs.models import Capture, Job, Rank
from collectors.wire.records import CaptureDone, Event, RankExit, RankId

PROCESS_STATE_EVENT = "process_state"
"""The ``kind`` of an event whose field ``word`` says what a process does now."""


@dataclass(frozen=True, slots=True)
class NodeWord:
    """One record about a rank, and which node of which cluster said it."""

    cluster_id: int
    node_id: int
    record: RankExit | Event


def apply_exits(words: Sequence[NodeWord]) -> None:
    """Writes exits and ends jobs whose newest attempt has no living rank; runs in the ingest transaction.

    Only the process a node itself announced can be declared gone by it.
    """
    touched = set()
    for word in words:
        record = word.record
        assert isinstance(record, RankExit)
        rank = _rank_of(word, record.id, record.pid)
        if rank is not None:
            _write_exit(rank, record)
            touched.add(rank.job_id)
    for job in Job.objects.select_for_update(no_key=True).filter(pk__in=touched).order_by("id"):
        _end_if_all_exited(job)


def apply_process_states(words: Sequence[NodeWord]) -> None:
    """Takes over what agents saw their processes do (``stopped``, ``blocked``, ``running``)."""
    for word in words:
        event = word.record
        assert isinstance(event, Event)
        state, pid = event.fields.get("word", ""), event.fields.get("pid", "")
        if event.id is None or not state or len(state) > 20:
            continue
        rank = _rank_of(word, event.id, int(pid) if pid.isdecimal() and len(pid) < 10 else None)
        if rank is None:
            continue
        newer = Q(process_state_at__isnull=True) | Q(process_state_at__lt=at(event.t_ns))
        Rank.objects.filter(newer, pk=rank.pk).update(process_state=state, process_state_at=at(event.t_ns))


def apply_captures_done(answers: Mapping[int, Sequence[CaptureDone]]) -> None:
    """Notes which nodes answered which capture; ``answers`` is node id -> records."""
    by_capture: dict[int, list[tuple[int, CaptureDone]]] = {}
    for node_id, records in answers.items():
        for record in records:
            by_capture.setdefault(record.capture_id, []).append((node_id, record))
    wanted = Capture.objects.select_for_update().filter(pk__in=by_capture).order_by("id")
    for capture in wanted:
        for node_id, record in by_capture[capture.pk]:
            if node_id in capture.expected_nodes and node_id not in capture.answered_nodes:
                capture.answered_nodes.append(node_id)
                capture.silent_ranks.update(record.silent)
        _finish_if_answered(capture)
        capture.save(update_fields=["answered_nodes", "silent_ranks", "state", "done_at"])


def job_ids(keys: Iterable[tuple[int, str, int]]) -> dict[tuple[int, str, int], int | None]:
    """The job a record is about: the newest run of its key that had begun when the record was made.

    Args:
        keys: (cluster id, scheduler's id, t_ns) of records.
    """
    wanted = set(keys)
    runs: dict[tuple[int, str], list[Job]] = {}
    clusters, names = {key[0] for key in wanted}, {key[1] for key in wanted}
    for job in Job.objects.filter(cluster_id__in=clusters, key__in=names).order_by("-id"):
        runs.setdefault((job.cluster_id, job.key), []).append(job)
    return {key: _run_at(runs.get(key[:2], []), key[2]) for key in wanted}


def ensure_jobs(keys: Iterable[tuple[int, str, int]]) -> dict[tuple[int, str, int], int]:
    """The same, and a job of state UNKNOWN for a key that no process has announced (yet)."""
    found = job_ids(keys)
    missing: dict[tuple[int, str], int] = {}
    for (cluster_id, key, t_ns), job_id in found.items():
        if job_id is None:
            missing[cluster_id, key] = min(t_ns, missing.get((cluster_id, key), t_ns))
    if missing:
        Job.objects.bulk_create(
            [
                Job(cluster_id=cluster_id, key=key, state=Job.State.UNKNOWN, started_at=at(t_ns))
                for (cluster_id, key), t_ns in sorted(missing.items())
            ],
            ignore_conflicts=True,
        )
        found |= job_ids(key for key, job_id in found.items() if job_id is None)
    return {key: job_id for key, job_id in found.items() if job_id is not None}


def _run_at(newest_first: Sequence[Job], t_ns: int) -> int | None:
    for job in newest_first:
        if job.started_at <= at(t_ns):
            return job.pk
    return newest_first[-1].pk if newest_first else None


def _rank_of(word: NodeWord, identity: RankId, pid: int | None) -> Rank | None:
    ranks = Rank.objects.filter(
        job__cluster_id=word.cluster_id,
        job__key=identity.job,
        node_id=word.node_id,
        attempt=identity.attempt,
        world=identity.world,
        rank=identity.rank,
    )
    if pid is not None:
        ranks = ranks.filter(pid=pid)
    return ranks.order_by("-id").first()


def _write_exit(rank: Rank, record: RankExit) -> None:
    """A second word on the same exit (the parent's, after the kernel's) fills what was not known."""
    exception: dict[str, Any] | None = (
        msgspec.to_builtins(record.exception) if record.exception is not None else None
    )
    if rank.exit_ns is None or record.t_ns < rank.exit_ns:
        rank.exit_ns, rank.exited_at = record.t_ns, at(record.t_ns)
    rank.exit_code = record.exit_code if record.exit_code is not None else rank.exit_code
    rank.exit_signal = record.signal if record.signal is not None else rank.exit_signal
    rank.clean_exit = record.clean if record.clean is not None else rank.clean_exit
    rank.exception = exception if exception is not None else rank.exception
    rank.process_state, rank.process_state_at = "exited", rank.exited_at
    rank.save(
        update_fields=[
            "exit_ns", "exited_at", "exit_code", "exit_signal", "clean_exit", "exception",
            "process_state", "process_state_at",
        ]
    )  # fmt: skip


def _end_if_all_exited(job: Job) -> None:
    ranks = list(
        Rank.objects.filter(job=job, attempt=job.attempt).order_by(F("exited_at").desc(nulls_first=True))
    )
    if not ranks or ranks[0].exited_at is None:
        return
    fates = {_fate(rank) for rank in ranks}
    job.state = (
        Job.State.FAILED
        if "failed" in fates
        else Job.State.UNKNOWN
        if "unknown" in fates
        else Job.State.ENDED
    )
    job.ended_at = ranks[0].exited_at
    job.save(update_fields=["state", "ended_at"])


def _fate(rank: Rank) -> str:
    """``clean``, ``failed`` or ``unknown``."""
    how = ending(rank)
    if how is Ending.VANISHED:
        return "unknown" if rank.clean_exit is None else "failed"
    return "clean" if how is Ending.CLEAN else "failed"


def ending(rank: Rank) -> Ending:
    """How one process ended, as far as anybody knows."""
    raised = rank.exception.get("type", "") if isinstance(rank.exception, dict) else ""
    return of_process(
        rank.exited_at is not None,
        signal=rank.exit_signal,
        code=rank.exit_code,
        clean=rank.clean_exit,
        raised=raised,
    )


def _finish_if_answered(capture: Capture) -> None:
    if capture.state != Capture.State.REQUESTED:
        return
    if set(capture.expected_nodes) <= set(capture.answered_nodes):
        capture.state, capture.done_at = Capture.State.DONE, timezone.now()


def capture_jobs(capture_ids: Iterable[int]) -> set[tuple[int, int]]:
    """(capture, job) of the captures that exist."""
    return set(Capture.objects.filter(pk__in=set(capture_ids)).values_list("pk", "job_id"))
