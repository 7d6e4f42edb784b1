"""Who holds up a running job: its new steps are judged, and what is found goes to the incidents.

In: job id, now (ns UTC). Out: incidents of slow parts raised, opened, sharpened and resolved, one for each
host or set of ranks; notes on the job's own shape for its page. A step counts when all living ranks told it,
or when it is so old that the rest will not come. Cost: what is new since the last look.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Final

import msgspec
import numpy as np
from numpy.typing import NDArray

from clusterwatch.analysis.model import Coverage, Diagnosis, Finding, RankFacts
from clusterwatch.analysis.slow import live, quantiles
from clusterwatch.analysis.slow.layout import UNKNOWN, Layout, Members
from clusterwatch.analysis.verdicts import SLOW_CLASSES
from clusterwatch.detect.scene import is_blind, roster
from clusterwatch.incidents import services
from clusterwatch.incidents.models import LIVE_STATES, Incident
from clusterwatch.incidents.services import Piece, Sighting
from clusterwatch.jobs.models import Group, Job, Rank
from clusterwatch.jobs.step_notes import StepNote, keep_notes
from clusterwatch.store import hot, step_history
from clusterwatch.store.step_history import StepColumns

FIRST_LOOK_NS: Final = 10 * 60 * 10**9
LATE_NS: Final = 45 * 10**9
"""Agents send steps each ten seconds; what has not come by then belongs to a rank that tells nothing."""
SLACK_NS: Final = 120 * 10**9
"""Of the stored rows before a step's end: records are made later than the steps in them."""
RANKS_MIN: Final = 4
WORLDS_MAX: Final = 16
COST_MIN: Final = 0.02
"""A part that costs less of a step is told as suspected and pages nobody."""
BAD_STEPS_MIN: Final = 6
BAD_RATIO_MIN: Final = 0.6
STEPS_KEPT: Final = 64
log = logging.getLogger(__name__)


class _World(msgspec.Struct):
    """What is remembered of one world."""

    name: str
    kept: bytes
    ends_ns: list[int]
    """ends of the last ``live.WINDOW_STEPS`` steps taken"""


class _Memory(msgspec.Struct):
    attempt: int
    worlds: list[_World] = []


@dataclass(frozen=True, slots=True)
class _Cast:
    """The ranks of one world, by rank number, with their layout."""

    world: str
    ranks: tuple[Rank | None, ...]
    layout: Layout
    paths: Members
    names: tuple[str, ...]
    living: int

    @property
    def facts(self) -> dict[int, RankFacts]:
        return {
            number: RankFacts(number, rank.host or None, rank.gpu_index, rank.gpu_uuid or None, rank.pid)
            for number, rank in enumerate(self.ranks)
            if rank is not None
        }


def look(job_id: int, now_ns: int) -> int:
    """Looks at a job's new steps; returns how many were taken. Nothing while no gateway writes."""
    job = Job.objects.filter(pk=job_id, ended_at__isnull=True).first()
    if job is None or is_blind(now_ns):
        return 0
    memory = _load(job)
    told = step_history.since(job.pk, job.attempt, _from_ns(memory, now_ns))
    found: list[Finding] = []
    taken, worlds = 0, {world.name: world for world in memory.worlds}
    for cast in _casts(job)[:WORLDS_MAX]:
        kept, ends_ns = _kept(worlds.get(cast.world), cast)
        batch, end_ns = _batch(told, cast, kept.newest, now_ns)
        kept.take(batch, cast.layout)
        kept.close()
        taken += len(batch.steps)
        ends_ns = [*ends_ns, *end_ns][-live.WINDOW_STEPS :]
        worlds[cast.world] = _World(cast.world, live.pack(kept), ends_ns)
        found_here = _judge(job, cast, kept, ends_ns) if kept.stands_out else []
        found += found_here
        _raise(job, cast, found_here, kept, ends_ns, now_ns)
    _resolve(job, [_fingerprint(job, one) for one in found if one.fault_class in SLOW_CLASSES], now_ns)
    keep_notes(job.pk, [_note(one) for one in found if one.fault_class not in SLOW_CLASSES])
    hot.save_steps(job.pk, msgspec.msgpack.encode(_Memory(job.attempt, list(worlds.values()))))
    return taken


# --- memory ----------------------------------------------------------------------------------------------


def _load(job: Job) -> _Memory:
    blob = hot.load_steps(job.pk)
    if blob is not None:
        try:
            memory = msgspec.msgpack.decode(blob, type=_Memory)
        except msgspec.MsgspecError as fault:
            log.warning("steps_unreadable job=%d reason=%s", job.pk, fault)
        else:
            return memory if memory.attempt == job.attempt else _Memory(job.attempt)
    return _Memory(job.attempt)


def _from_ns(memory: _Memory, now_ns: int) -> int:
    newest = [world.ends_ns[-1] for world in memory.worlds if world.ends_ns]
    return min(newest) - SLACK_NS if newest else now_ns - FIRST_LOOK_NS


def _kept(world: _World | None, cast: _Cast) -> tuple[live.Kept, list[int]]:
    if world is not None:
        try:
            kept = live.unpack(world.kept)
        except ValueError as fault:
            log.warning("kept_steps_unreadable world=%s reason=%s", world.name, fault)
        else:
            if len(kept.watched.base) == cast.layout.rank_count:
                return kept, world.ends_ns
    return live.Kept.of(cast.layout), []


_casts_of: dict[int, tuple[object, list[_Cast]]] = {}
_CASTS_MAX: Final = 64


def _casts(job: Job) -> list[_Cast]:
    """The worlds of a job, the largest first; made anew when its ranks or groups changed."""
    ranks, groups = roster(job)
    held = _casts_of.get(job.pk)
    if held is None or held[0] is not ranks:
        while len(_casts_of) >= _CASTS_MAX:
            _casts_of.pop(next(iter(_casts_of)))
        by_world: dict[str, list[Rank]] = {}
        for rank in ranks:
            by_world.setdefault(rank.world, []).append(rank)
        casts = [_cast(world, mine, groups.values()) for world, mine in by_world.items()]
        casts = sorted((cast for cast in casts if cast.living >= RANKS_MIN), key=lambda cast: -cast.living)
        held = _casts_of[job.pk] = (ranks, casts)
    return held[1]


def _cast(world: str, ranks: Sequence[Rank], groups: Iterable[Group]) -> _Cast:
    count = max(rank.rank for rank in ranks) + 1
    by_number: list[Rank | None] = [None] * count
    for rank in ranks:
        by_number[rank.rank] = rank
    nodes = {node: number for number, node in enumerate(sorted({rank.node_id for rank in ranks}))}
    node, gpu = np.full(count, UNKNOWN, np.int64), np.full(count, UNKNOWN, np.int64)
    hosts = [""] * count
    for rank in ranks:
        node[rank.rank], hosts[rank.rank] = nodes[rank.node_id], rank.host
        gpu[rank.rank] = UNKNOWN if rank.gpu_index is None else rank.gpu_index
    mine = [(group.desc or group.name, tuple(group.ranks)) for group in groups if group.world == world]
    layout, paths, names = live.layout_of(count, mine, node, gpu, tuple(hosts))
    living = sum(rank.exited_at is None for rank in ranks)
    return _Cast(world, tuple(by_number), layout, paths, names, living)


# --- steps -----------------------------------------------------------------------------------------------


def _batch(told: StepColumns, cast: _Cast, newest: int, now_ns: int) -> tuple[live.Batch, list[int]]:
    """(whole steps beyond ``newest``, their ends): up to the first that may still become whole."""
    count = cast.layout.rank_count
    mine = np.zeros(len(told.rank), np.bool_)
    if cast.world in told.worlds:
        mine = (told.world == told.worlds.index(cast.world)) & (told.rank < count) & (told.step > newest)
    steps, row = np.unique(told.step[mine], return_inverse=True)
    tables = {
        name: _table(getattr(told, name)[mine], row, told.rank[mine], len(steps), count)
        for name in ("work_s", "data_wait_s", "checkpoint_s", "late_launch", "duration_s")
    }
    end_ns = np.zeros(len(steps), np.int64)
    np.maximum.at(end_ns, row, told.end_ns[mine])
    whole = np.sum(np.isfinite(tables["duration_s"]), axis=1) >= cast.living
    usable = whole | (end_ns < now_ns - LATE_NS)
    end = int(np.argmin(usable)) if not usable.all() else len(steps)
    batch = live.Batch(
        steps[:end], tables["work_s"][:end], tables["data_wait_s"][:end], tables["checkpoint_s"][:end],
        tables["late_launch"][:end], quantiles.median(tables["duration_s"][:end], axis=1),
    )  # fmt: skip
    return batch, end_ns[:end].tolist()


def _table(
    values: NDArray[np.float32], row: NDArray[np.int64], rank: NDArray[np.int64], steps: int, ranks: int
) -> NDArray[np.float64]:
    found = np.full((steps, ranks), np.nan)
    found[row.reshape(-1), rank] = values
    return found


def _judge(job: Job, cast: _Cast, kept: live.Kept, ends_ns: list[int]) -> list[Finding]:
    """What the last steps show, read again as a whole."""
    told = step_history.since(job.pk, job.attempt, ends_ns[0] - SLACK_NS)
    window, _ = _batch(told, cast, kept.steps[0] - 1, ends_ns[-1] + LATE_NS + 1)
    in_window = np.isin(window.steps, kept.steps)
    window = live.Batch(*(getattr(window, name)[in_window] for name in live.Batch.__slots__))
    return live.findings(kept, window, cast.layout, cast.paths, cast.names, cast.facts)


# --- incidents -------------------------------------------------------------------------------------------


def prefix(job: Job) -> str:
    """What the fingerprints of this attempt's slow parts begin with."""
    return f"{job.cluster_id}/{job.pk}/{job.attempt}/slow/"


def _fingerprint(job: Job, found: Finding) -> str:
    """One story per host, or per set of ranks: a slow GPU that proves to be its host stays one incident."""
    hosts = {culprit.host for culprit in found.culprits}
    host = hosts.pop() if len(hosts) == 1 else None
    where = f"host {host}" if host else "ranks " + ",".join(map(str, found.culprit_ranks[:16]))
    return (prefix(job) + where)[:200]


def _raise(
    job: Job, cast: _Cast, found: list[Finding], kept: live.Kept, ends_ns: list[int], now_ns: int
) -> None:
    by_incident: dict[str, list[Finding]] = {}
    for one in found:
        if one.fault_class in SLOW_CLASSES:
            by_incident.setdefault(_fingerprint(job, one), []).append(one)
    for fingerprint, mine in by_incident.items():
        told = Diagnosis(tuple(mine), _coverage(cast))
        sighting = Sighting(
            fingerprint=fingerprint,
            cluster_id=job.cluster_id,
            diagnosis=told,
            since_ns=_since_ns(told.worst, kept, ends_ns),
            job_id=job.pk,
            node_id=_node_id(cast, told.worst),
            threshold_source="steps beyond what the job's own spread allows",
            gpu_count=cast.living,
        )
        incident, is_new = services.suspect(sighting, now_ns)
        changed = is_new or services.sharpen(incident.pk, sighting, now_ns)
        if changed:
            services.freeze(incident.pk, [_evidence(cast, told.worst, kept)], now_ns)
        if incident.state == Incident.State.SUSPECTED and _is_worth_a_page(told.worst, kept):
            services.open_(incident.pk, now_ns, f"it costs {told.worst.lost_s or 0:.3g} s a step, and stays")


def _coverage(cast: _Cast) -> Coverage:
    return Coverage(expected=cast.layout.rank_count, reported=sum(rank is not None for rank in cast.ranks))


def _is_worth_a_page(found: Finding, kept: live.Kept) -> bool:
    """It costs something, and it is there in most steps: bursts of a busy host come and go.

    Processes without a GPU share their processors with others: how long they work says nothing of a part.
    """
    usual_s = float(np.nan_to_num(quantiles.median(kept.usual_s)))
    if (found.lost_s or 0.0) < COST_MIN * usual_s or any(one.gpu is None for one in found.culprits):
        return False
    if not found.seen_steps:
        return True
    return found.bad_steps >= BAD_STEPS_MIN and found.bad_steps >= BAD_RATIO_MIN * found.seen_steps


def _since_ns(found: Finding, kept: live.Kept, ends_ns: list[int]) -> int:
    if found.onset_step in kept.steps:
        return ends_ns[kept.steps.index(found.onset_step) - len(kept.steps)]
    return ends_ns[0]


def _node_id(cast: _Cast, found: Finding) -> int | None:
    ranks = [cast.ranks[rank] for rank in found.culprit_ranks]
    nodes = {rank.node_id for rank in ranks if rank is not None}
    return nodes.pop() if len(nodes) == 1 else None


def _evidence(cast: _Cast, found: Finding, kept: live.Kept) -> Piece:
    watched, ranks = kept.watched, list(found.culprit_ranks[:STEPS_KEPT])
    payload = {
        "steps": f"{kept.steps[0]} to {kept.steps[-1]}",
        "ranks": ranks,
        "work_beyond_peers_ratio": np.expm1(watched.remembered[ranks]),
        "work_beyond_peers_in_the_first_steps_ratio": np.expm1(np.nan_to_num(watched.base[ranks])),
        "spread_of_a_step_ratio": watched.noise,
        "usual_work_by_stage_s": kept.usual_s,
    }
    return Piece(
        "steps", "Own work of the named ranks against their peers'", "steps of all ranks", payload, 1.0
    )


def _resolve(job: Job, still: list[str], now_ns: int) -> None:
    over = Incident.objects.filter(state__in=LIVE_STATES, job_id=job.pk, fingerprint__startswith=prefix(job))
    for incident_id in over.exclude(fingerprint__in=still).values_list("pk", flat=True):
        services.resolve(incident_id, now_ns, "its steps are like its peers' again")


def _note(found: Finding) -> StepNote:
    return StepNote(found.verdict, found.summary, list(found.why), found.confidence)
