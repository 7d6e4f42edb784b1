"""What other layers say of a job's incident: gathers signals, places and newest values, asks ``correlate``.

In: a ``Scene`` or a ``Cast`` with a diagnosis, and since when. Out: the diagnosis with causes, and a piece of
evidence. Places of an attempt are read once, signals at each judgement, newest values of named ranks or of
all; ports of ranks and NCCL's settings only where a link tells of a fault, clocks only of those who tell one.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Final

import msgspec
import numpy as np
from numpy.typing import NDArray

from clusterwatch.analysis import correlate
from clusterwatch.analysis.correlate_causes import KINDS, cause_of
from clusterwatch.analysis.correlate_model import Joined, Layer, Onset, Place, Retries, Vitals, World
from clusterwatch.analysis.correlate_time import with_clocks
from clusterwatch.analysis.correlate_words import explained
from clusterwatch.analysis.model import Diagnosis, ProcessState, RankFacts
from clusterwatch.analysis.signals import Signal
from clusterwatch.detect import health_memory, ports, signals
from clusterwatch.detect.scene import Scene
from clusterwatch.detect.slow_look import Cast
from clusterwatch.fleet.models import Cluster, Node, Slot
from clusterwatch.incidents.services import Piece
from clusterwatch.jobs.models import Job, Rank
from clusterwatch.store import hot, node_facts, node_readings
from collectors.wire.codec import WireError

BEFORE_NS: Final = 1_800 * 10**9
AFTER_NS: Final = 600 * 10**9
"""Around the onset: what began later is no cause, and ends are told later."""
CRASH_SLACK_S: Final = 1.0
"""The kernel's log and the end of a process are of one clock, read in two ways."""
CRASH_LASTING_S: Final = 140.0
"""NCCL's longest usual wait for a link that is back already."""
SLOW_SLACK_S: Final = 30.0
"""By so much the first slow step is found too early at most."""
PROGRESS_ERROR_S: Final = 0.5
"""Progress is told once a second."""
AGAIN_NS: Final = 60 * 10**9
FRESH_NS: Final = 10 * 10**9
NODES_MAX: Final = 16
"""Nodes whose clocks or ports are asked for."""
_SLOTLESS: Final = -1
log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Seats:
    """Where the nodes of an attempt are: rack and leaf by node, slot by (node, GPU)."""

    key: tuple[int, int, int]
    nodes: Mapping[int, tuple[str, str]]
    slots: Mapping[tuple[int, int | None], int]
    slot_count: int


def of_stall(
    scene: Scene, world: int, since_ns: int, slack_s: float, diagnosis: Diagnosis
) -> tuple[Diagnosis, list[Piece]]:
    """A stall's diagnosis with its cause. ``slack_s``: a usual gap between two advances of the job."""
    onset = Onset(since_ns, slack_s, clock_error_s=PROGRESS_ERROR_S)
    return _explain(scene.job, _in_scene(scene, world), scene.facts[world], onset, scene.now_ns, diagnosis)


def of_crash(scene: Scene, world: int, gone_ns: int, diagnosis: Diagnosis) -> tuple[Diagnosis, list[Piece]]:
    """A crash's diagnosis with its cause: what struck before the first process ended, by its own clock."""
    facts, ranks = scene.facts[world], _in_scene(scene, world)
    named = [rank for rank in ranks if rank.rank in diagnosis.worst.culprit_ranks]
    ends = [(end_ns, rank.node_id) for rank in named if (end_ns := _end_ns(facts[rank.rank])) is not None]
    at_ns, node_id = min(ends, default=(gone_ns, None))
    onset = Onset(at_ns, CRASH_SLACK_S, CRASH_LASTING_S, node_id=node_id)
    return _explain(scene.job, ranks, facts, onset, scene.now_ns, diagnosis)


def of_slow(
    job: Job, cast: Cast, since_ns: int, now_ns: int, diagnosis: Diagnosis
) -> tuple[Diagnosis, list[Piece]]:
    """The diagnosis of something slow with its cause; signals are read again after ``AGAIN_NS``."""
    key = (job.pk, cast.world, since_ns)
    ranks = [rank for rank in cast.ranks if rank is not None and rank.exited_at is None]
    held = _slow_worlds.get(key)
    if held is None or now_ns - held[0] >= AGAIN_NS or len(held[1].places) != len(ranks):
        while len(_slow_worlds) >= _KEPT_MAX:
            _slow_worlds.pop(next(iter(_slow_worlds)))
        seen = _world(job, ranks, {}, Onset(since_ns, SLOW_SLACK_S), now_ns, frozenset())
        held = _slow_worlds[key] = (now_ns, seen)
    return _explained(diagnosis, held[1])


_slow_worlds: dict[tuple[int, str, int], tuple[int, World]] = {}
_KEPT_MAX: Final = 64
"""Jobs or worlds of which something is kept between looks."""


def _in_scene(scene: Scene, world: int) -> list[Rank]:
    mine = scene.look.world.tolist()
    return [rank for rank, number in zip(scene.ranks, mine, strict=True) if number == world]


def _end_ns(fact: RankFacts) -> int | None:
    raised = fact.exception.at_ns if fact.exception is not None else None
    return min((one for one in (raised, fact.exit_ns) if one is not None), default=None)


def _explain(
    job: Job, ranks: Sequence[Rank], facts: Mapping[int, RankFacts], onset: Onset, now_ns: int,
    diagnosis: Diagnosis,
) -> tuple[Diagnosis, list[Piece]]:  # fmt: skip
    if not any(correlate.is_joined(found) for found in diagnosis.findings):
        return diagnosis, []
    return _explained(diagnosis, _world(job, ranks, facts, onset, now_ns, _named(diagnosis)))


def _explained(diagnosis: Diagnosis, seen: World) -> tuple[Diagnosis, list[Piece]]:
    joined = [correlate.join(found, seen) for found in diagnosis.findings]
    findings = tuple(
        found if one is None else explained(found, one, seen.places)
        for found, one in zip(diagnosis.findings, joined, strict=True)
    )
    told = [one for one in joined if one is not None and (one.cause is not None or one.rows)]
    return replace(diagnosis, findings=findings), [piece(told)] if told else []


def _named(diagnosis: Diagnosis) -> frozenset[int]:
    """Ranks of all findings, or none where one of them names nobody."""
    named = [frozenset(found.culprit_ranks) for found in diagnosis.findings]
    return frozenset().union(*named) if all(named) else frozenset()


def piece(told: Sequence[Joined]) -> Piece:
    """What is frozen: every signal near the named ranks, with why it was taken or not."""
    best = max(told, key=lambda one: one.confidence)
    named = [one for one in told if one.cause is not None]
    title = best.sentence if named else "No signal of another layer explains it"
    part = best.part.label if best.part is not None else ""
    rows = dict.fromkeys(row for one in told for row in one.rows)
    payload = {
        "causes": [one.to_dict() for one in told],
        "rows": [asdict(row) for row in rows],
        "left_out_count": max(one.left_out for one in told),
    }
    weight = 0.95 if named else 0.3
    return Piece("cause", title, "events of nodes and devices", payload, weight, part)


# --- what is known around the onset ------------------------------------------------------------------------


def _world(
    job: Job, ranks: Sequence[Rank], facts: Mapping[int, RankFacts], onset: Onset, now_ns: int,
    named: frozenset[int],
) -> World:  # fmt: skip
    seats = _seats(job, ranks)
    told = _told(job.cluster_id, onset, now_ns)
    unread = f"only the first {len(told)} events were read" if len(told) >= signals.EVENTS_MAX else ""
    nodes = {rank.node_id for rank in ranks}
    mine = [one for one in told if one.node_id is None or one.node_id in nodes]
    linked = _told_by(mine, frozenset({Layer.LINK}))
    near = ports.of_ranks(job.cluster_id, job.key, ranks, linked) if linked else {}
    fatal = _told_by(mine, frozenset(Layer))
    wanted = [rank for rank in ranks if not named or rank.rank in named]
    return World(
        places={rank.rank: _place(rank, facts.get(rank.rank), seats, near) for rank in ranks},
        signals=tuple(with_clocks(mine, _clocks(fatal, now_ns) if len(fatal) > 1 else {})),
        onset=onset,
        vitals=_vitals(job.cluster_id, wanted, seats, now_ns),
        retries=_retries(job, linked, now_ns) if linked else Retries(),
        unread=unread,
    )


def _told(cluster_id: int, onset: Onset, now_ns: int) -> list[Signal]:
    """Signals around the onset, and what stands by the memory of the health rules: told long before, or by
    hot frames alone."""
    until_ns = min(now_ns, onset.at_ns + AFTER_NS)
    told = signals.read(cluster_id, onset.at_ns - BEFORE_NS, until_ns + 1, KINDS)
    blob = hot.load_health(cluster_id)
    if blob is None:
        return told
    try:
        memory = msgspec.msgpack.decode(blob, type=health_memory.Memory)
    except msgspec.MsgspecError:
        return told  # the health rules say so in the log
    stands = [held.signal for _, held in memory.held if held.over_ns is None]
    known = {(one.node_id, one.part, one.kind, one.at_ns) for one in told}
    return told + [one for one in stands if (one.node_id, one.part, one.kind, one.at_ns) not in known]


def _told_by(told: Iterable[Signal], layers: frozenset[Layer]) -> list[int]:
    """Nodes that told something of these layers, by number; at most ``NODES_MAX``."""
    found = {
        one.node_id
        for one in told
        if one.node_id is not None and (cause := cause_of(one)) is not None and cause.layer in layers
    }
    return sorted(found)[:NODES_MAX]


def _place(rank: Rank, fact: RankFacts | None, seats: Seats, near: Mapping[int, str]) -> Place:
    rack, leaf = seats.nodes.get(rank.node_id, ("", ""))
    device = near.get(rank.rank)
    return Place(
        rank=rank.rank,
        node_id=rank.node_id,
        host=rank.host,
        gpu=rank.gpu_index,
        gpu_uuid=rank.gpu_uuid,
        pid=rank.pid,
        ports=frozenset() if device is None else frozenset({device}),
        leaf=leaf,
        rack=rack,
        phase=(fact.phase or "") if fact is not None else "",
        is_blocked=fact is not None and fact.process is ProcessState.BLOCKED,
    )


_seats_of: dict[int, Seats] = {}


def _seats(job: Job, ranks: Sequence[Rank]) -> Seats:
    """Read once for an attempt, and again when ranks come or go."""
    key = (job.attempt, len(ranks), max((rank.pk for rank in ranks), default=0))
    held = _seats_of.get(job.pk)
    if held is not None and held.key == key:
        return held
    nodes = {rank.node_id for rank in ranks}
    rows = Node.objects.filter(pk__in=nodes).values_list("pk", "rack", "leaf")
    slots = Slot.objects.filter(node_id__in=nodes, until__isnull=True)
    by_place = {
        (node, gpu): number for node, gpu, number in slots.values_list("node_id", "gpu_index", "number")
    }
    count = Cluster.objects.filter(pk=job.cluster_id).values_list("slot_count", flat=True).first() or 0
    while len(_seats_of) >= _KEPT_MAX:
        _seats_of.pop(next(iter(_seats_of)))
    found = _seats_of[job.pk] = Seats(key, {pk: (rack, leaf) for pk, rack, leaf in rows}, by_place, count)
    return found


# --- newest values, clocks, settings ----------------------------------------------------------------------


def _vitals(cluster_id: int, ranks: Sequence[Rank], seats: Seats, now_ns: int) -> dict[int, Vitals]:
    """Of ranks with a slot; values that are not fresh are not known. Cost: four reads, linear in ranks."""
    places = [seats.slots.get((rank.node_id, rank.gpu_index), _SLOTLESS) for rank in ranks]
    slots = np.array(places, np.int64)
    known = (slots >= 0) & (slots < seats.slot_count)
    if not known.any():
        return {}
    util, heat, sent, received = (
        _fresh(cluster_id, name, slots[known], seats.slot_count, now_ns)
        for name in ("gpu_util_ratio", "gpu_temperature_c", "nic_tx_mib_per_s", "nic_rx_mib_per_s")
    )
    columns = (_values(util), _values(heat), _values(sent + received))
    mine = [rank.rank for rank, is_known in zip(ranks, known.tolist(), strict=True) if is_known]
    return {rank: Vitals(*values) for rank, *values in zip(mine, *columns, strict=True)}


def _fresh(
    cluster_id: int, name: str, slots: NDArray[np.int64], slot_count: int, now_ns: int
) -> NDArray[np.float64]:
    told = hot.read_metric(cluster_id, name, slot_count)
    values = told.values[slots].astype(np.float64)
    values[told.seen_ns[slots] < now_ns - FRESH_NS] = np.nan
    return values


def _values(column: NDArray[np.float64]) -> list[float | None]:
    return [value if value == value else None for value in column.tolist()]


def _clocks(node_ids: Iterable[int], now_ns: int) -> dict[int, float]:
    """How far the clocks of nodes may be off, by their own word."""
    found: dict[int, float] = {}
    for node_id in node_ids:
        try:
            told = node_readings.latest(node_id, now_ns)
        except WireError as fault:
            log.warning("readings_unreadable node=%d reason=%s", node_id, fault)
            continue
        for reading in told.entities.get("host", ()) if told is not None else ():
            if reading.metric == "clock_error_max_s" and reading.value is not None and not reading.stale:
                found[node_id] = abs(float(reading.value))
    return found


def _retries(job: Job, node_ids: Sequence[int], now_ns: int) -> Retries:
    """NCCL's settings as the first of these nodes that knows any tells them: a job has one environment."""
    for told in node_facts.of_nodes(node_ids, now_ns):
        facts = dict(told.facts.get("host", {}))
        for entity, more in told.facts.items():
            if entity.startswith(f"job/{job.key}/rank/"):
                facts |= more
        timeout, count = _setting(facts, "NCCL_IB_TIMEOUT"), _setting(facts, "NCCL_IB_RETRY_CNT")
        if timeout is not None or count is not None:
            return Retries(timeout, count)
    return Retries()


def _setting(facts: Mapping[str, str], name: str) -> int | None:
    """A variable of the job, else of NCCL's file of settings."""
    told = facts.get(f"env.{name}") or facts.get(f"nccl_conf.{name}") or ""
    return int(told) if told.isascii() and told.isdecimal() and len(told) < 5 else None
