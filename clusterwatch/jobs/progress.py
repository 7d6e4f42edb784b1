"""Progress of jobs, ranks and groups: database rows joined with what hot state says of them right now.

The words for a rank are those of the live topic ``job:<id>`` (``live/README.md``).
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Final, NamedTuple

import numpy as np
import redis

from clusterwatch.analysis import motion
from clusterwatch.jobs.models import Group, Job, Rank
from clusterwatch.jobs.queries import current_ranks
from clusterwatch.store import hot
from collectors.wire.limits import SILENT_AFTER_S
from collectors.wire.records import PHASES


@dataclass(frozen=True, slots=True)
class RankView:
    """One process with its newest word. Times are aware datetimes; None = not known."""

    id: int
    rank: int
    world: str
    role: str
    attempt: int
    world_size: int
    host: str
    node_id: int
    pid: int
    local_rank: int | None
    gpu_index: int | None
    gpu_uuid: str
    backend: str
    state: str
    """``moving``, ``waiting``, ``behind``, ``still``, ``ended``, ``failed``, ``stopped``, ``unknown``"""
    why: str
    """what the state rests on, for people; empty where the state says it all"""
    step: int | None
    phase: str | None
    phase_since: datetime | None
    last_progress_at: datetime | None
    heard_at: datetime | None
    exited_at: datetime | None
    exit_code: int | None
    exit_signal: int | None
    exception: dict[str, Any] | None
    blind: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class GroupView:
    """One process group and how far each member is. Rank lists are global ranks, sorted."""

    id: int
    name: str
    desc: str
    backend: str
    world: str
    ranks: tuple[int, ...]
    state: str
    """``ok``, ``stuck`` or ``unknown``"""
    sequence: int | None
    """the newest call any member issued"""
    joined: tuple[int, ...] = ()
    missing: tuple[int, ...] = ()
    unreported: tuple[int, ...] = ()
    moved_at: datetime | None = None

    @property
    def label(self) -> str:
        return self.desc or self.name


@dataclass(frozen=True, slots=True)
class JobLive:
    """A job's progress in one line."""

    step: int | None
    last_progress_at: datetime | None
    reported: int
    expected: int


def _at(ns: int) -> datetime | None:
    return datetime.fromtimestamp(ns / 1e9, UTC) if ns > 0 else None


def read_progress(job_id: int) -> hot.JobProgress:
    """Progress of a job; empty while hot state is away, since a page must stand without it."""
    try:
        return hot.read_job(job_id)
    except redis.RedisError:
        return hot.empty_progress()


def _read_nodes() -> hot.NodesRead:
    try:
        return hot.read_nodes()
    except redis.RedisError:
        return hot.empty_nodes()


def job_live(job_ids: Iterable[int]) -> dict[int, JobLive]:
    """Progress of each job from hot state; a job nobody reports is left out."""
    found = {}
    fresh_ns = time.time_ns() - int(SILENT_AFTER_S * 1e9)
    for job_id in job_ids:
        progress = read_progress(job_id)
        if not len(progress.rank_id):
            continue
        found[job_id] = JobLive(
            step=int(progress.step.max()) if progress.step.max() >= 0 else None,
            last_progress_at=_at(int(progress.moved_ns.max())),
            reported=int((progress.seen_ns >= fresh_ns).sum()),
            expected=len(progress.rank_id),
        )
    return found


_WHY: Final = {
    motion.STOPPED: "the process is stopped (state T)",
    motion.BEHIND: "peers wait in a call this rank has not issued",
    motion.WAITING: "waits inside a call for others",
    motion.STILL: "neither moves nor waits in a call",
}


class RankFacts(NamedTuple):
    """What the state of a rank rests on in the database: a page of a whole job reads no more of each."""

    pk: int
    rank: int
    world: str
    host: str
    node_id: int
    process_state: str
    exited_at: datetime | None
    exit_code: int | None
    exit_signal: int | None
    clean_exit: bool | None


def rank_facts(job: Job, ranks_max: int) -> list[RankFacts]:
    """The newest attempt's ranks by world and rank, at most ``ranks_max``; one query, no model objects."""
    return [RankFacts(*row) for row in current_ranks(job).values_list(*RankFacts._fields)[:ranks_max]]


class Looks:
    """Hot state of one job, read once, with what each rank's state rests on."""

    def __init__(self, job_id: int) -> None:
        self.now_ns = time.time_ns()
        self.progress = read_progress(job_id)
        nodes = _read_nodes()
        links = zip(nodes.link.tolist(), nodes.seen_ns.tolist(), nodes.word_ns.tolist(), strict=True)
        self.nodes: dict[int, tuple[int, int, int]] = dict(zip(nodes.node_id.tolist(), links, strict=True))
        self.row_of = {rank_id: row for row, rank_id in enumerate(self.progress.rank_id.tolist())}

    def states(self, ranks: Sequence[Rank | RankFacts]) -> list[tuple[str, str]]:
        """One of the state words for each rank, and why."""
        unseen = [self._unseen(rank) for rank in ranks]
        ends = [_how_it_ended(rank) for rank in ranks]
        waiting, behind = motion.waiting_and_behind(len(self.progress.rank_id), _calls(self.progress))
        rows = np.array([self.row_of.get(rank.pk, -1) for rank in ranks], np.int64)
        state = motion.states(
            exits=np.array([kind for kind, _ in ends], np.uint8),
            silent=np.array([bool(why) for why in unseen], bool),
            stopped=np.array([rank.process_state == "stopped" for rank in ranks], bool),
            moves=self.now_ns - np.append(self.progress.moved_ns, 0)[rows] <= motion.STILL_AFTER_NS,
            waiting=np.append(waiting, False)[rows],
            behind=np.append(behind, 0)[rows],
        )
        return [
            (motion.RANK_STATES[place], why or (unheard if place == motion.UNKNOWN else _WHY.get(place, "")))
            for place, (_, why), unheard in zip(state.tolist(), ends, unseen, strict=True)
        ]

    def _unseen(self, rank: Rank | RankFacts) -> str:
        """Why nothing is known of the rank at this moment; empty where its word is fresh."""
        node = self.nodes.get(rank.node_id)
        if rank.pk not in self.row_of or node is None:
            return "no hot frame carries this rank"
        link, seen_ns, word_ns = node
        if self.now_ns - word_ns > SILENT_AFTER_S * 1e9:
            return "the node's gateway is silent"
        if link != hot.OPEN:
            return "the agent's connection is closed"
        return "the node is silent" if self.now_ns - seen_ns > SILENT_AFTER_S * 1e9 else ""


def _how_it_ended(rank: Rank | RankFacts) -> tuple[int, str]:
    ended = rank.exited_at is not None
    return motion.how_it_ended(ended, signal=rank.exit_signal, code=rank.exit_code, clean=rank.clean_exit)


def _calls(progress: hot.JobProgress) -> motion.Calls:
    known = progress.group_id >= 0
    groups, group = np.unique(progress.group_id[known], return_inverse=True)
    return motion.Calls(
        place=progress.row[known].astype(np.int64),
        group=group,
        group_count=len(groups),
        number=motion.newest_number(progress.sequence[known], progress.enqueued[known]),
        in_flight=progress.enqueued[known] > progress.completed[known],
    )


def rank_views(job: Job, ranks: Sequence[Rank], looks: Looks | None = None) -> list[RankView]:
    """Each of ``ranks`` with its newest word.

    Cost: linear in ranks and (rank, group) rows; two reads of hot state without ``looks``.
    """
    looks = looks or Looks(job.pk)
    words = looks.states(ranks)
    return [_rank_view(rank, looks, *said) for rank, said in zip(ranks, words, strict=True)]


def _rank_view(rank: Rank, looks: Looks, state: str, why: str) -> RankView:
    row, progress = looks.row_of.get(rank.pk), looks.progress
    step = int(progress.step[row]) if row is not None else -1
    phase = int(progress.phase[row]) if row is not None else 0
    return RankView(
        id=rank.pk,
        rank=rank.rank,
        world=rank.world,
        role=rank.role,
        attempt=rank.attempt,
        world_size=rank.world_size,
        host=rank.host,
        node_id=rank.node_id,
        pid=rank.pid,
        local_rank=rank.local_rank,
        gpu_index=rank.gpu_index,
        gpu_uuid=rank.gpu_uuid,
        backend=rank.backend,
        state=state,
        why=why,
        step=step if step >= 0 else None,
        phase=PHASES[phase] if 0 < phase < len(PHASES) else None,
        phase_since=None if row is None else _at(int(progress.phase_since_ns[row])),
        last_progress_at=None if row is None else _at(int(progress.moved_ns[row])),
        heard_at=None if row is None else _at(int(progress.heard_ns[row])),
        exited_at=rank.exited_at,
        exit_code=rank.exit_code,
        exit_signal=rank.exit_signal,
        exception=rank.exception,
        blind=tuple(str(word) for word in rank.blind),
    )


def group_views(
    job: Job, groups: Sequence[Group], ranks: Sequence[Rank | RankFacts], looks: Looks | None = None
) -> list[GroupView]:
    """How far each member of each group is, from hot state.

    Cost: linear in the (rank, group) rows of ``groups``; a read of hot state without ``looks``.
    """
    progress = read_progress(job.pk) if looks is None else looks.progress
    now_ns = time.time_ns() if looks is None else looks.now_ns
    rank_of = {rank.pk: rank.rank for rank in ranks}
    numbers: dict[int, dict[int, int]] = {}
    moved: dict[int, int] = {}
    mine = np.isin(progress.group_id, np.array([group.pk for group in groups], np.int64))
    best = motion.newest_number(progress.sequence[mine], progress.enqueued[mine]).tolist()
    rows = progress.row[mine]
    columns = (progress.rank_id[rows].tolist(), progress.moved_ns[rows].tolist())
    for rank_id, moved_ns, group_id, number in zip(
        *columns, progress.group_id[mine].tolist(), best, strict=True
    ):
        rank = rank_of.get(rank_id)
        if rank is None:
            continue
        numbers.setdefault(group_id, {})[rank] = number
        moved[group_id] = max(moved.get(group_id, 0), moved_ns)
    return [_group_view(g, numbers.get(g.pk, {}), moved.get(g.pk, 0), now_ns) for g in groups]


def _group_view(group: Group, numbers: dict[int, int], moved_ns: int, now_ns: int) -> GroupView:
    members = tuple(sorted(group.ranks))
    front = max(numbers.values(), default=-1)
    joined = tuple(r for r in members if numbers.get(r) == front) if front >= 0 else ()
    missing = tuple(r for r in members if r in numbers and numbers[r] < front)
    still = moved_ns > 0 and now_ns - moved_ns > motion.STILL_AFTER_NS
    state = "unknown" if not numbers else "stuck" if missing and still else "ok"
    return GroupView(
        id=group.pk,
        name=group.name,
        desc=group.desc,
        backend=group.backend,
        world=group.world,
        ranks=members,
        state=state,
        sequence=front if front >= 0 else None,
        joined=joined,
        missing=missing,
        unreported=tuple(r for r in members if r not in numbers),
        moved_at=_at(moved_ns),
    )
