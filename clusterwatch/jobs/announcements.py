"""What a training process says of itself becomes rows: job, rank, process groups.

In: ``RankInventory`` records of one ingest transaction. Out: rows, and per process what its hot frames'
numbers mean (``RefLayout``). Jobs are locked in one order, so gateways never wait for each other in a circle.
"""

from __future__ import annotations

import hashlib
from array import array
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import lru_cache

from clusterwatch.jobs.models import Group, Job, Rank
from collectors.wire.limits import JOB_LABELS_MAX
from collectors.wire.records import GroupInfo, RankInventory

_RANK_FIELDS = (
    "role", "world_size", "node", "host", "ref", "epoch", "pid", "local_rank", "gpu_index", "gpu_uuid",
    "torch_version", "backend", "blind", "groups", "started_at", "process_state", "process_state_at",
    "exited_at", "exit_ns", "exit_code", "exit_signal", "clean_exit", "exception",
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Announcement:
    """One ``RankInventory`` and who sent it."""

    cluster_id: int
    node_id: int
    epoch: str
    record: RankInventory

    @property
    def started_ns(self) -> int:
        return self.record.started_ns or self.record.t_ns


@dataclass(frozen=True, slots=True)
class RefLayout:
    """What the numbers of one process in a node's hot frames mean."""

    node_id: int
    epoch: str
    ref: int
    rank_id: int
    job_id: int
    groups: tuple[int, ...]
    """``Group`` ids by the rank's own group index; -1 where that index is not taken"""


def members_hash(ranks: Sequence[int]) -> str:
    """The members of a group in group order as 32 hex digits (DESIGN 5.1)."""
    return _range_hash(ranks) if isinstance(ranks, range) else _hash(ranks)


def _hash(ranks: Sequence[int]) -> str:
    return hashlib.blake2b(array("q", ranks).tobytes(), digest_size=16).hexdigest()


@lru_cache(maxsize=4_096)
def _range_hash(ranks: range) -> str:
    """All ranks of a job name the same world: it is hashed once, not by each."""
    return _hash(ranks)


def at(t_ns: int) -> datetime:
    """ns UTC as an aware datetime, to the microsecond."""
    return datetime.fromtimestamp(t_ns // 1000 / 1e6, UTC)


def apply_announcements(items: Sequence[Announcement]) -> list[RefLayout]:
    """Writes jobs, groups and ranks; runs inside the ingest transaction.

    Two announcements of one (attempt, world, rank) must not be in one call.
    """
    by_job: dict[tuple[int, str], list[Announcement]] = defaultdict(list)
    for item in items:
        by_job[item.cluster_id, item.record.id.job].append(item)
    layouts = []
    for (cluster_id, key), of_job in sorted(by_job.items()):
        job = _job_for(cluster_id, key, of_job)
        layouts += _write_ranks(job, of_job, _write_groups(job, of_job))
    return layouts


def layouts_of(ranks: Iterable[Rank]) -> list[RefLayout]:
    """The same for rows that are there already."""
    return [
        RefLayout(
            rank.node_id,
            rank.epoch,
            rank.ref,
            rank.pk,
            rank.job_id,
            tuple(-1 if group is None else int(group) for group in rank.groups),
        )
        for rank in ranks
    ]


# --- the job ----------------------------------------------------------------------------------------------


def lock_newest_job(cluster_id: int, key: str) -> Job | None:
    """The newest job of a scheduler's id, locked until the transaction ends."""
    jobs = Job.objects.select_for_update(no_key=True).filter(cluster_id=cluster_id, key=key)
    return jobs.order_by("-id").first()


def _job_for(cluster_id: int, key: str, items: Sequence[Announcement]) -> Job:
    job = lock_newest_job(cluster_id, key)
    if job is None or _is_a_new_run(job, items):
        job = _create(cluster_id, key, items)
    _freshen(job, items)
    return job


def _is_a_new_run(job: Job, items: Sequence[Announcement]) -> bool:
    """An ended key that comes again is a new job, unless it is the next attempt or a late word of the old."""
    if job.ended_at is None:
        return False
    newest_attempt = max(item.record.id.attempt for item in items)
    first_started = at(min(item.started_ns for item in items))
    return newest_attempt <= job.attempt and first_started > job.ended_at


def _create(cluster_id: int, key: str, items: Sequence[Announcement]) -> Job:
    """Another gateway may make the same job at the same moment: the one that is there wins."""
    started_at = at(min(item.started_ns for item in items))
    Job.objects.bulk_create(
        [Job(cluster_id=cluster_id, key=key, started_at=started_at)], ignore_conflicts=True
    )
    job = lock_newest_job(cluster_id, key)
    assert job is not None, "the row was just made, or was there"
    return job


def _freshen(job: Job, items: Sequence[Announcement]) -> None:
    """Takes over names, the newest attempt, and that the job lives (again)."""
    newest = max(items, key=lambda item: (item.record.id.attempt, item.record.t_ns)).record
    job.name = newest.job_name or job.name
    job.user = newest.user or job.user
    # The newest labels stand; old ones stay as far as there is room.
    job.labels = dict(list((newest.labels | job.labels | newest.labels).items())[:JOB_LABELS_MAX])
    job.attempt = max(job.attempt, newest.id.attempt)
    job.started_at = min(job.started_at, at(min(item.started_ns for item in items)))
    job.state = Job.State.RUNNING
    job.ended_at = None
    job.save()


# --- groups and ranks --------------------------------------------------------------------------------------

_GroupKey = tuple[int, str, str, str, str]
"""attempt, world, name, desc, hash of members"""


def _key(item: Announcement, group: GroupInfo) -> _GroupKey:
    identity = item.record.id
    return identity.attempt, identity.world, group.name, group.desc, members_hash(group.members)


def _write_groups(job: Job, items: Sequence[Announcement]) -> dict[_GroupKey, int]:
    """Ids of every group the announcements name; missing ones are made."""
    wanted = {_key(item, group): group for item in items for group in item.record.groups}
    if not wanted:
        return {}
    known = _known_groups(job, wanted)
    missing = [key for key in sorted(wanted) if key not in known]
    if not missing:
        return known
    Group.objects.bulk_create(
        [
            Group(
                job=job,
                attempt=key[0],
                world=key[1],
                name=key[2],
                desc=key[3],
                members_hash=key[4],
                backend=wanted[key].backend,
                ranks=list(wanted[key].members),
            )
            for key in missing
        ],
        ignore_conflicts=True,
    )
    return _known_groups(job, wanted)


def _known_groups(job: Job, wanted: Iterable[_GroupKey]) -> dict[_GroupKey, int]:
    hashes = {key[4] for key in wanted}
    rows = Group.objects.filter(job=job, members_hash__in=hashes).values_list(
        "attempt", "world", "name", "desc", "members_hash", "id"
    )
    return {(row[0], row[1], row[2], row[3], row[4]): row[5] for row in rows}


def _write_ranks(job: Job, items: Sequence[Announcement], group_ids: dict[_GroupKey, int]) -> list[RefLayout]:
    existing = {
        (rank.attempt, rank.world, rank.rank): rank
        for rank in Rank.objects.filter(
            job=job,
            attempt__in={item.record.id.attempt for item in items},
            rank__in={item.record.id.rank for item in items},
        )
    }
    rows = []
    for item in items:
        identity = item.record.id
        before = existing.get((identity.attempt, identity.world, identity.rank))
        if before is not None and _is_stale(before, item):
            continue
        rows.append(_rank_row(job, item, before, _group_list(item, group_ids)))
    saved = Rank.objects.bulk_create(
        rows,
        update_conflicts=True,
        unique_fields=["job", "attempt", "world", "rank"],
        update_fields=_RANK_FIELDS,
    )
    return layouts_of(saved)


def _is_stale(before: Rank, item: Announcement) -> bool:
    """A late word of a process that another one has replaced."""
    return before.pid != item.record.pid and at(item.started_ns) < before.started_at


def _group_list(item: Announcement, group_ids: dict[_GroupKey, int]) -> list[int | None]:
    """Group ids by the rank's own index, None where an index is free."""
    groups = item.record.groups
    listed: list[int | None] = [None] * (max((group.index for group in groups), default=-1) + 1)
    for group in groups:
        listed[group.index] = group_ids[_key(item, group)]
    return listed


def _rank_row(job: Job, item: Announcement, before: Rank | None, groups: list[int | None]) -> Rank:
    record = item.record
    row = Rank(
        job=job,
        attempt=record.id.attempt,
        world=record.id.world,
        rank=record.id.rank,
        role=record.id.role,
        world_size=record.world_size,
        node_id=item.node_id,
        host=record.host,
        ref=record.ref,
        epoch=item.epoch,
        pid=record.pid,
        local_rank=record.local_rank,
        gpu_index=record.gpu_index,
        gpu_uuid=record.gpu_uuid or "",
        torch_version=record.torch_version,
        backend=record.backend,
        blind=list(record.blind),
        groups=groups,
        started_at=at(item.started_ns),
    )
    if before is not None and before.pid == record.pid and before.node_id == item.node_id:
        _keep_fate(row, before)
    return row


def _keep_fate(row: Rank, before: Rank) -> None:
    """The same process spoke again: what is known of its end and its start stays."""
    row.started_at = min(row.started_at, before.started_at)
    row.process_state, row.process_state_at = before.process_state, before.process_state_at
    row.exited_at, row.exit_ns = before.exited_at, before.exit_ns
    row.exit_code, row.exit_signal = before.exit_code, before.exit_signal
    row.clean_exit, row.exception = before.clean_exit, before.exception
