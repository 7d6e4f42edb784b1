"""Signals against one finding: which fit by kind, time and place, made one candidate for each part.

In: a verdict, a ``World``. Out: ``Candidate``s on any rank of the world, and a ``Row`` for each signal near
the ranks that matter, with the reason where it was not taken. Cost: linear in signals and ranks.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

from clusterwatch.analysis.correlate_causes import STALLS, cause_of, is_echo
from clusterwatch.analysis.correlate_model import (
    ROWS_MAX,
    SHARED,
    Candidate,
    Cause,
    Layer,
    Part,
    Row,
    World,
)
from clusterwatch.analysis.correlate_places import CERTAINTY, Index, shared
from clusterwatch.analysis.correlate_time import (
    When,
    closeness,
    patience_s,
    patience_words,
    when,
    with_ends,
)
from clusterwatch.analysis.signals import Signal

TEXT_MAX_CHARS: Final = 200
PART_MAX_CHARS: Final = 100
MAY_HAVE: Final = 0.75
"""A link that was down for longer than NCCL's shortest wait and shorter than its longest."""
LOST: Final = frozenset({"xid_79", "gpu_lost"})
"""What else such a GPU tells follows from it."""


@dataclass(frozen=True, slots=True)
class Gathered:
    """``signals``: how many were looked at, with ends and clocks taken in."""

    candidates: tuple[Candidate, ...]
    rows: tuple[Row, ...]
    left_out: int
    signals: int


@dataclass(frozen=True, slots=True)
class _Hit:
    signal: Signal
    cause: Cause
    part: Part
    ranks: frozenset[int]
    certainty: float


def gather(verdict: str, world: World, index: Index, relevant: frozenset[int]) -> Gathered:
    """Candidates for a verdict, and rows on what lies near ``relevant``."""
    hosts = {index.by_rank[rank].host for rank in relevant if rank in index.by_rank}
    hits: list[_Hit] = []
    rows: list[Row] = []
    told = with_ends(world.signals)
    for signal in told:
        found = _judge(signal, verdict, world, index)
        if isinstance(found, _Hit):
            hits.append(found)
            near = not found.ranks.isdisjoint(relevant) or found.part.host in hosts
            reason = "" if not found.ranks.isdisjoint(relevant) else "no named rank runs on it"
        else:
            near, reason = signal.host in hosts and bool(found), found
        if near:
            rows.append(_row(signal, reason))
    rows.sort(key=lambda row: (not row.taken, row.at_ns, row.host, row.part, row.kind))
    candidates = shared(_candidates(hits), index)
    return Gathered(tuple(candidates), tuple(rows[:ROWS_MAX]), max(0, len(rows) - ROWS_MAX), len(told))


def _judge(signal: Signal, verdict: str, world: World, index: Index) -> _Hit | str:
    """What the signal is here, or why it is nothing; an empty reason: not worth a row."""
    cause = cause_of(signal)
    if cause is None:
        root = signal.fields.get("root_code", "")
        return f"follows from Xid {root[:8]}" if is_echo(signal) else ""
    if verdict not in cause.explains:
        return f"such a signal does not explain {verdict}"
    fits = when(signal, world.onset)
    if fits is not When.FITS:
        return str(fits)
    touched = index.touched(signal, cause)
    if touched is None:
        return "no rank of the job runs on it"
    factor = 1.0
    if cause.layer is Layer.LINK and verdict in STALLS | {"rank_failed"}:
        factor = _outage(signal, world)
        if not factor:
            return _too_short(signal, world)
    part, ranks = touched
    return _Hit(signal, cause, part, ranks, factor * CERTAINTY[part.kind] * closeness(signal, world.onset))


def _outage(signal: Signal, world: World) -> float:
    """Whether so long an outage can have killed a connection of NCCL: 1 yes, 0 no, between: it may have."""
    if signal.until_ns is None:
        return 1.0
    low_s, high_s = patience_s(world.retries)
    down_s = (signal.until_ns - signal.at_ns) / 1e9
    if down_s < low_s:
        return 0.0
    return 1.0 if down_s >= high_s else MAY_HAVE


def _too_short(signal: Signal, world: World) -> str:
    down_s = ((signal.until_ns or signal.at_ns) - signal.at_ns) / 1e9
    return f"down for {down_s:.1f} s only: {patience_words(world.retries)}"


def _candidates(hits: Iterable[_Hit]) -> list[Candidate]:
    """One for each part: its root is what cannot follow from the others."""
    by_part: dict[Part, list[_Hit]] = defaultdict(list)
    for one in hits:
        by_part[one.part].append(one)
    found = []
    for part, mine in by_part.items():
        root = min(mine, key=_order)
        same = [one for one in mine if one.cause.word == root.cause.word]
        found.append(
            Candidate(
                cause=root.cause,
                part=part,
                signals=tuple(one.signal for one in same),
                ranks=frozenset().union(*(one.ranks for one in mine)),
                certainty=max(one.certainty for one in same),
            )
        )
    return sorted(found, key=lambda one: (one.at_ns, one.part.label, one.cause.word))


def _order(hit: _Hit) -> tuple[bool, bool, int, float, str]:
    lost = hit.cause.word in LOST
    return (not lost, not hit.cause.fatal, hit.signal.at_ns, -hit.cause.worth, hit.cause.word)


def _row(signal: Signal, reason: str) -> Row:
    return Row(
        at_ns=signal.at_ns,
        host=signal.host[:PART_MAX_CHARS],
        part=signal.part[:PART_MAX_CHARS],
        kind=signal.kind[:PART_MAX_CHARS],
        text=signal.text[:TEXT_MAX_CHARS],
        taken=not reason,
        reason=reason,
    )


def is_shared(candidate: Candidate) -> bool:
    """Whether many hosts have it in common."""
    return candidate.part.kind in SHARED
