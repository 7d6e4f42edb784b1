"""Steps of a job as arrays, and what they show: the part of a look at slow ranks that changes nothing.

In: a job's ranks and groups, what was remembered, a moment. Out: ``Told`` by world, and what to remember. The
live look (``slow``) and the one at stored history (``replay``) are both made of it.
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
from clusterwatch.analysis.slow import live, live_links, quantiles
from clusterwatch.analysis.slow.layout import UNKNOWN, Layout, Members
from clusterwatch.analysis.slow.live_links import KeptLinks
from clusterwatch.analysis.slow.paging import PageRule
from clusterwatch.analysis.verdicts import SLOW_CLASSES
from clusterwatch.detect import link_look
from clusterwatch.detect.link_look import Seats, Wiring
from clusterwatch.incidents.services import Piece, Sighting
from clusterwatch.jobs.models import Group, Rank
from clusterwatch.store import step_history
from clusterwatch.store.step_history import StepColumns

FIRST_LOOK_NS: Final = 10 * 60 * 10**9
LATE_NS: Final = 45 * 10**9
"""Agents send steps each ten seconds; what has not come by then belongs to a rank that tells nothing."""
SLACK_NS: Final = 120 * 10**9
"""Of the stored rows before a step's end: records are made later than the steps in them."""
RANKS_MIN: Final = 4
WORLDS_MAX: Final = 16
RANKS_SHOWN: Final = 64
LINK_VERDICTS: Final = frozenset({"slow_nic", "slow_nvlink", "slow_switch", "slow_cause_unknown"})
log = logging.getLogger(__name__)


class World(msgspec.Struct):
    """What is remembered of one world."""

    name: str
    kept: bytes
    ends_ns: list[int]
    """ends of ``kept.steps``"""
    links: bytes = b""
    """what ``link_look`` keeps of its transfers"""
    newest_ns: int = 0
    """end of the newest step taken"""


class Memory(msgspec.Struct):
    """What is remembered of one attempt."""

    attempt: int
    worlds: list[World] = []


@dataclass(frozen=True, slots=True)
class Attempt:
    """Which steps: of one attempt of one job."""

    cluster_id: int
    job_id: int
    number: int

    @property
    def prefix(self) -> str:
        """What the fingerprints of its slow parts begin with."""
        return f"{self.cluster_id}/{self.job_id}/{self.number}/slow/"


@dataclass(frozen=True, slots=True)
class Cast:
    """The ranks of one world, by rank number, with their layout."""

    world: str
    ranks: tuple[Rank | None, ...]
    layout: Layout
    paths: Members
    names: tuple[str, ...]
    lives: NDArray[np.bool_]
    """by rank"""
    wiring: Wiring

    @property
    def living(self) -> int:
        return int(self.lives.sum())

    @property
    def has_gpus(self) -> bool:
        return any(rank is not None and rank.gpu_index is not None for rank in self.ranks)

    @property
    def facts(self) -> dict[int, RankFacts]:
        return {
            number: RankFacts(number, rank.host or None, rank.gpu_index, rank.gpu_uuid or None, rank.pid)
            for number, rank in enumerate(self.ranks)
            if rank is not None
        }

    @property
    def coverage(self) -> Coverage:
        return Coverage(
            expected=self.layout.rank_count, reported=sum(rank is not None for rank in self.ranks)
        )


@dataclass(frozen=True, slots=True)
class Told:
    """What the newest steps of a world show."""

    cast: Cast
    findings: tuple[Finding, ...]
    kept: live.Kept
    ends_ns: list[int]
    transfers: KeptLinks

    @property
    def usual_s(self) -> float:
        """Own work of a usual step; 0 where it is not known."""
        return float(np.nan_to_num(quantiles.median(self.kept.usual_s)))


@dataclass(frozen=True, slots=True)
class SlowSighting:
    """A slow part as an incident would tell it; ``page`` says why it pages, None: it is suspected only."""

    sighting: Sighting
    piece: Piece
    page: str | None


def take(
    attempt: Attempt, casts: Sequence[Cast], memory: Memory, now_ns: int, until_ns: int | None = None
) -> tuple[list[Told], Memory, int]:
    """Takes the steps that are new since ``memory``: (what they show by world, what to remember, how many).

    Args:
        until_ns: rows told later than this are left out, as if they had not come yet.
    """
    told = step_history.since(attempt.job_id, attempt.number, _from_ns(memory, now_ns), until_ns)
    worlds = {world.name: world for world in memory.worlds}
    links = link_look.Look(attempt.cluster_id, attempt.job_id, attempt.number, now_ns, until_ns)
    links.read({
        cast.world: link_look.kept_of(
            worlds[cast.world].links if cast.world in worlds else b"", cast.layout.rank_count
        )
        for cast in casts[:WORLDS_MAX]
    })  # fmt: skip
    shown: list[Told] = []
    taken = 0
    for cast in casts[:WORLDS_MAX]:
        before = worlds.get(cast.world)
        kept, ends_ns = _kept(before, cast)
        ends = dict(zip(kept.steps, ends_ns, strict=True))
        batch, end_ns = _batch(told, cast, kept.newest, now_ns)
        kept.take(batch, cast.layout)
        kept.close()
        taken += len(batch.steps)
        ends |= zip(batch.steps.tolist(), end_ns, strict=True)
        ends_ns = [ends[step] for step in kept.steps]
        newest_ns = end_ns[-1] if end_ns else before.newest_ns if before is not None else 0
        found = _judge(attempt, cast, kept, ends_ns, until_ns) if kept.stands_out else []
        transfers = links.take(cast.world, cast.wiring, cast.lives, _step_s(batch))
        found += links.findings(cast.world, cast.wiring, cast.layout, cast.facts)
        packed = live.pack(kept), ends_ns, live_links.pack(transfers)
        worlds[cast.world] = World(cast.world, *packed, newest_ns)
        shown.append(Told(cast, tuple(found), kept, ends_ns, transfers))
    return shown, Memory(attempt.number, list(worlds.values())), taken


def sightings(attempt: Attempt, told: Told, rule: PageRule) -> list[SlowSighting]:
    """The slow parts of a world, one for each host or set of ranks."""
    by_fingerprint: dict[str, list[Finding]] = {}
    for found in told.findings:
        if found.fault_class in SLOW_CLASSES:
            by_fingerprint.setdefault(_fingerprint(attempt, told.cast.world, found), []).append(found)
    return [_sighting(attempt, told, name, found, rule) for name, found in by_fingerprint.items()]


def _sighting(
    attempt: Attempt, told: Told, fingerprint: str, found: list[Finding], rule: PageRule
) -> SlowSighting:
    diagnosis = Diagnosis(tuple(found), told.cast.coverage)
    worst = diagnosis.worst
    sighting = Sighting(
        fingerprint=fingerprint,
        cluster_id=attempt.cluster_id,
        diagnosis=diagnosis,
        since_ns=_since_ns(worst, told),
        job_id=attempt.job_id,
        node_id=_node_id(told.cast, worst),
        threshold_source="steps beyond what the job's own spread allows",
        gpu_count=told.cast.living,
    )
    usual_s = told.usual_s or told.transfers.step_s
    pages = bool(worst.culprit_ranks) or told.cast.has_gpus or not rule.needs_gpu
    evidence = (
        link_look.piece(worst, told.transfers, told.cast.wiring)
        if worst.verdict in LINK_VERDICTS
        else _evidence(worst, told.kept)
    )
    return SlowSighting(sighting, evidence, rule.reason(worst, usual_s) if pages else None)


# --- ranks -----------------------------------------------------------------------------------------------


def casts_of(ranks: Iterable[Rank], groups: Iterable[Group], at_ns: int | None = None) -> list[Cast]:
    """The worlds of an attempt, the largest first; those too small to compare are left out.

    Args:
        at_ns: who lived then; None: who lives now.
    """
    by_world: dict[str, list[Rank]] = {}
    for rank in ranks:
        by_world.setdefault(rank.world, []).append(rank)
    told = list(groups)
    seats = Seats.of(rank for mine in by_world.values() for rank in mine)
    casts = [_cast(world, mine, told, seats, at_ns) for world, mine in by_world.items()]
    return sorted((cast for cast in casts if cast.living >= RANKS_MIN), key=lambda cast: -cast.living)


def lives_at(rank: Rank, at_ns: int | None) -> bool:
    """Whether a rank's process lived at a moment; None: now."""
    if at_ns is None or rank.exited_at is None:
        return rank.exited_at is None
    return rank.exited_at.timestamp() * 1e9 > at_ns


def _cast(
    world: str, ranks: Sequence[Rank], groups: Iterable[Group], seats: Seats, at_ns: int | None
) -> Cast:
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
    mine = [group for group in groups if group.world == world and group.ranks and max(group.ranks) < count]
    told = [(group.desc or group.name, tuple(group.ranks)) for group in mine]
    layout, paths, names = live.layout_of(count, told, node, gpu, tuple(hosts))
    lives = np.zeros(count, np.bool_)
    lives[[rank.rank for rank in ranks if lives_at(rank, at_ns)]] = True
    how = link_look.wiring(by_number, mine, layout, paths, seats)
    return Cast(world, tuple(by_number), layout, paths, names, lives, how)


# --- steps -----------------------------------------------------------------------------------------------


def _from_ns(memory: Memory, now_ns: int) -> int:
    newest = [world.newest_ns for world in memory.worlds if world.newest_ns]
    return min(newest) - SLACK_NS if newest else now_ns - FIRST_LOOK_NS


def _kept(world: World | None, cast: Cast) -> tuple[live.Kept, list[int]]:
    if world is not None:
        try:
            kept = live.unpack(world.kept)
        except ValueError as fault:
            log.warning("kept_steps_unreadable world=%s reason=%s", world.name, fault)
        else:
            fresh = live.Kept.of(cast.layout)
            if len(kept.watched.base) == cast.layout.rank_count and len(kept.usual_s) == len(fresh.usual_s):
                return kept, world.ends_ns
    return live.Kept.of(cast.layout), []


def _batch(told: StepColumns, cast: Cast, newest: int, now_ns: int) -> tuple[live.Batch, list[int]]:
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


def _step_s(batch: live.Batch) -> float:
    return float(quantiles.median(batch.step_s)) if len(batch.steps) else float("nan")


def _table(
    values: NDArray[np.float32], row: NDArray[np.int64], rank: NDArray[np.int64], steps: int, ranks: int
) -> NDArray[np.float64]:
    found = np.full((steps, ranks), np.nan)
    found[row.reshape(-1), rank] = values
    return found


def _judge(
    attempt: Attempt, cast: Cast, kept: live.Kept, ends_ns: list[int], until_ns: int | None
) -> list[Finding]:
    """What the last steps show, read again as a whole."""
    if kept.held is not None:
        return live.findings(kept, kept.held, cast.layout, cast.paths, cast.names, cast.facts)
    told = step_history.since(attempt.job_id, attempt.number, ends_ns[0] - SLACK_NS, until_ns)
    window, _ = _batch(told, cast, kept.steps[0] - 1, ends_ns[-1] + LATE_NS + 1)
    window = window.rows(np.isin(window.steps, kept.steps))
    return live.findings(kept, window, cast.layout, cast.paths, cast.names, cast.facts)


# --- what an incident tells ------------------------------------------------------------------------------


def _fingerprint(attempt: Attempt, world: str, found: Finding) -> str:
    """One story per host, or per set of ranks: a slow GPU that proves to be its host stays one incident.

    Ports, switches and NVLinks are parts of their own.
    """
    hosts = {culprit.host for culprit in found.culprits}
    host = hosts.pop() if len(hosts) == 1 else None
    ranks = "ranks " + ",".join(map(str, found.culprit_ranks[:16]))
    if found.verdict == "slow_cause_unknown":
        where = f"transfers {world}"
    elif found.verdict in LINK_VERDICTS:
        part = found.switch if found.verdict == "slow_switch" else ranks
        where = f"{found.verdict} {part}"
    else:
        where = f"host {host}" if host else ranks
    return (attempt.prefix + where)[:200]


def _since_ns(found: Finding, told: Told) -> int:
    windows = [(told.kept.steps, told.ends_ns)]
    if found.verdict in LINK_VERDICTS:
        windows.append((told.transfers.steps, told.transfers.ends_ns))
    for steps, ends_ns in windows:
        if found.onset_step in steps:
            return ends_ns[steps.index(found.onset_step) - len(steps)]
    return windows[-1][1][0]


def _node_id(cast: Cast, found: Finding) -> int | None:
    ranks = [cast.ranks[rank] for rank in found.culprit_ranks]
    nodes = {rank.node_id for rank in ranks if rank is not None}
    return nodes.pop() if len(nodes) == 1 else None


def _evidence(found: Finding, kept: live.Kept) -> Piece:
    watched, ranks = kept.watched, list(found.culprit_ranks[:RANKS_SHOWN])
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
