"""One job at one moment: its rows of the database joined with hot state, as the analysis wants it.

In: job id, now. Out: ``Scene``. All reads of a tick happen here, so that everything that follows judges one
and the same moment.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Final

import numpy as np
from django.db.models import Count, Max

from clusterwatch.analysis.ending import Ending
from clusterwatch.analysis.model import ExceptionFact, KnownGroup, ProcessState, RankFacts
from clusterwatch.analysis.progress import PROCESS_CODES, SILENT_NS, Ints, Look
from clusterwatch.jobs.exits import ending
from clusterwatch.jobs.models import Group, Job, Rank
from clusterwatch.store import hot
from collectors.wire.records import PHASES

BLIND_AFTER_NS: Final = 5_000_000_000
"""No gateway wrote for so long: we see nothing, and say nothing new."""
SILENT_NODES_MAX_RATIO: Final = 0.5
"""More of a job's nodes silent at once is more likely our own line than so many hosts."""

_STATES: Final = {"stopped": ProcessState.STOPPED, "blocked": ProcessState.BLOCKED}
_CODE: Final = {state: code for code, state in enumerate(PROCESS_CODES)}


@dataclass(frozen=True)
class Scene:
    """Everything a tick knows of a job. ``ranks`` are the newest attempt's, in the look's order."""

    job: Job
    now_ns: int
    ranks: tuple[Rank, ...]
    worlds: tuple[str, ...]
    """``Look.world`` holds indices into this"""
    groups: dict[int, Group]
    look: Look
    node_silent_s: dict[int, float]
    """node id -> seconds since its last frame, for every node hot state knows"""

    @cached_property
    def facts(self) -> dict[int, dict[int, RankFacts]]:
        """World number -> global rank -> facts."""
        found: dict[int, dict[int, RankFacts]] = {number: {} for number in range(len(self.worlds))}
        for row, rank in enumerate(self.ranks):
            found[int(self.look.world[row])][rank.rank] = self._facts(row, rank)
        return found

    def known_groups(self, world: int) -> dict[int, KnownGroup]:
        name = self.worlds[world]
        return {
            group.pk: KnownGroup(group.name, group.desc, tuple(group.ranks), group.backend)
            for group in self.groups.values()
            if group.world == name
        }

    def _facts(self, row: int, rank: Rank) -> RankFacts:
        look = self.look
        process = PROCESS_CODES[look.process[row]]
        seen, heard, step = int(look.seen_ns[row]), int(look.heard_ns[row]), int(look.step[row])
        silent_s = (seen - heard) / 1e9 if heard and seen - heard > SILENT_NS else None
        reported = seen > 0
        return RankFacts(
            rank=rank.rank,
            host=rank.host or None,
            gpu=rank.gpu_index,
            gpu_uuid=rank.gpu_uuid or None,
            pid=rank.pid,
            process=process,
            process_since_s=self._since_s(process, rank),
            exit_code=rank.exit_code,
            exit_signal=rank.exit_signal,
            exit_ns=rank.exit_ns,
            clean_exit=_clean_exit(rank),
            exception=_exception(rank),
            phase=PHASES[look.phase[row]] if reported and look.phase[row] < len(PHASES) else None,
            phase_s=(self.now_ns - int(look.phase_since_ns[row])) / 1e9 if reported else None,
            step=step if step >= 0 else None,
            hook_silent_s=silent_s if process is not ProcessState.EXITED else None,
        )

    def _since_s(self, process: ProcessState, rank: Rank) -> float | None:
        if process in (ProcessState.NODE_SILENT, ProcessState.AGENT_GONE):
            return self.node_silent_s.get(rank.node_id)
        since = rank.process_state_at
        return None if since is None else max(0.0, self.now_ns / 1e9 - since.timestamp())


def _exception(rank: Rank) -> ExceptionFact | None:
    raw = rank.exception
    if not isinstance(raw, dict):
        return None
    at_ns = raw.get("t_ns")
    return ExceptionFact(
        str(raw.get("type", "")),
        str(raw.get("message", "")),
        str(raw.get("traceback", "")),
        at_ns if isinstance(at_ns, int) else None,
    )


def _clean_exit(rank: Rank) -> bool | None:
    if ending(rank) is Ending.CLEAN:
        return True
    return False if rank.exit_code or rank.exit_signal or rank.exception else rank.clean_exit


def is_blind(now_ns: int) -> bool:
    """Whether no gateway has written lately: then nothing new can be said, nor anything resolved."""
    word_ns = hot.newest_gateway_word_ns()
    return word_ns is None or now_ns - word_ns > BLIND_AFTER_NS


def read_scene(job: Job, now_ns: int) -> Scene | None:
    """The job now; None when it has no rank yet or no gateway has said anything.

    Cost: two reads of hot state; two queries, four more when a process changed since the last call.
    """
    word_ns = hot.newest_gateway_word_ns()
    ranks, groups = roster(job)
    if word_ns is None or not ranks:
        return None
    worlds = tuple(sorted({rank.world for rank in ranks}))
    nodes = hot.read_nodes()
    silent_s = dict(zip(nodes.node_id.tolist(), ((now_ns - nodes.seen_ns) / 1e9).tolist(), strict=True))
    process = _processes(ranks, nodes, now_ns)
    look = _look(now_ns, word_ns, ranks, worlds, process, hot.read_job(job.pk))
    return Scene(job, now_ns, ranks, worlds, groups, look, silent_s)


_rosters: dict[int, tuple[object, tuple[Rank, ...], dict[int, Group]]] = {}
_ROSTERS_MAX: Final = 64


def roster(job: Job) -> tuple[tuple[Rank, ...], dict[int, Group]]:
    """Ranks and groups of the newest attempt, read again only when one of them changed."""
    mine = Rank.objects.filter(job=job, attempt=job.attempt)
    stamp: object = (
        job.attempt,
        mine.aggregate(
            Count("pk"), Max("pk"), Max("started_at"), Count("exited_at"), Max("process_state_at")
        ),
        Group.objects.filter(job=job, attempt=job.attempt).aggregate(Count("pk"), Max("pk")),
    )
    held = _rosters.get(job.pk)
    if held is None or held[0] != stamp:
        ranks = tuple(mine.order_by("world", "rank"))
        groups = {g.pk: g for g in Group.objects.filter(job=job, attempt=job.attempt)}
        while len(_rosters) >= _ROSTERS_MAX:
            _rosters.pop(next(iter(_rosters)))
        held = _rosters[job.pk] = (stamp, ranks, groups)
    return held[1], held[2]


def _processes(ranks: Sequence[Rank], nodes: hot.NodesRead, now_ns: int) -> list[ProcessState]:
    """What is known of each process from outside it.

    A node's silence is measured by its own gateway's last word; of a gateway that fell silent itself nothing
    is known of its nodes until they come back by another, whatever it said last.
    """
    heard = nodes.word_ns >= now_ns - BLIND_AFTER_NS
    links = dict(zip(nodes.node_id[heard].tolist(), nodes.link[heard].tolist(), strict=True))
    mine = {rank.node_id for rank in ranks}
    quiet = heard & (nodes.link == hot.OPEN) & (nodes.word_ns - nodes.seen_ns > SILENT_NS)
    silent = mine.intersection(nodes.node_id[quiet].tolist())
    we_are_blind = len(silent) > 1 and len(silent) > SILENT_NODES_MAX_RATIO * len(mine)
    return [_process(rank, links, silent, we_are_blind) for rank in ranks]


def _process(rank: Rank, links: dict[int, int], silent: set[int], we_are_blind: bool) -> ProcessState:
    if rank.exited_at is not None:
        return ProcessState.EXITED
    if rank.node_id not in links:
        return ProcessState.UNKNOWN
    if rank.node_id in silent:
        return ProcessState.UNKNOWN if we_are_blind else ProcessState.NODE_SILENT
    if links[rank.node_id] != hot.OPEN:
        return ProcessState.AGENT_GONE
    return _STATES.get(rank.process_state, ProcessState.RUNNING)


def _look(
    now_ns: int,
    word_ns: int,
    ranks: Sequence[Rank],
    worlds: Sequence[str],
    process: Sequence[ProcessState],
    progress: hot.JobProgress,
) -> Look:
    """Hot columns in the order of ``ranks``; a rank nobody reports has ``seen_ns`` 0."""
    ids = np.fromiter((rank.pk for rank in ranks), np.int64, len(ranks))
    order = np.argsort(progress.rank_id, kind="stable")
    place, known = _places(progress.rank_id[order], ids)
    source = order[place] if len(order) else place

    def column(values: Ints, unknown: int) -> Ints:
        picked: Ints = np.where(known, values[source], unknown) if len(order) else np.full(len(ids), unknown)
        return picked

    back = np.full(len(progress.rank_id), -1, np.int64)
    back[source[known]] = np.flatnonzero(known)
    kept = back[progress.row] >= 0 if len(progress.row) else np.zeros(0, bool)
    return Look(
        at_ns=now_ns,
        word_ns=word_ns,
        rank=np.fromiter((rank.rank for rank in ranks), np.int64, len(ranks)),
        rank_id=ids,
        world=np.fromiter((worlds.index(rank.world) for rank in ranks), np.int64, len(ranks)),
        seen_ns=column(progress.seen_ns, 0),
        heard_ns=column(progress.heard_ns, 0),
        moved_ns=column(progress.moved_ns, 0),
        step=column(progress.step, -1),
        phase=column(progress.phase.astype(np.int64), 0).astype(np.uint8),
        phase_since_ns=column(progress.phase_since_ns, now_ns),
        process=np.fromiter((_CODE[state] for state in process), np.uint8, len(ranks)),
        clean=np.fromiter((ending(rank) is Ending.CLEAN for rank in ranks), np.bool_, len(ranks)),
        row=back[progress.row][kept],
        group_id=progress.group_id[kept],
        enqueued=progress.enqueued[kept],
        completed=progress.completed[kept],
        sequence=progress.sequence[kept],
    )


def _places(sorted_ids: Ints, wanted: Ints) -> tuple[Ints, np.ndarray[tuple[int], np.dtype[np.bool_]]]:
    """Where each wanted id lies in ``sorted_ids``, and whether it is there."""
    if not len(sorted_ids):
        return np.zeros(len(wanted), np.int64), np.zeros(len(wanted), bool)
    place = np.minimum(np.searchsorted(sorted_ids, wanted), len(sorted_ids) - 1)
    return place, sorted_ids[place] == wanted
