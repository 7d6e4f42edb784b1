"""What is frozen of a scene when an incident opens or its verdict changes.

In: scene, world state, observation, diagnosis. Out: pieces for ``incidents.services.freeze``. Bounded:
of a large job the ranks that matter (culprits, suspects, then others) and counts of the rest.
"""

from __future__ import annotations

import base64
from collections.abc import Iterable, Sequence
from dataclasses import asdict
from typing import Any, Final

import msgspec

from clusterwatch.analysis.model import Diagnosis, Finding, Observation, RankFacts
from clusterwatch.analysis.progress import WorldState
from clusterwatch.detect import last_minutes
from clusterwatch.detect.captures import ras_answers
from clusterwatch.detect.scene import Scene
from clusterwatch.incidents.services import Piece
from collectors.formats.columns import pack

RANKS_KEPT: Final = 64
"""Ranks whose facts, stacks and traces are frozen."""
RAS_WITHIN_NS: Final = 600 * 10**9
"""How far back an answer of RAS belongs to a job of which nothing tells since when it stands still."""
_NAMES_MAX: Final = 8


def pieces(scene: Scene, state: WorldState | None, seen: Observation, diagnosis: Diagnosis) -> list[Piece]:
    """Everything the verdict rests on, strongest first."""
    worst = diagnosis.worst
    kept = _kept(worst, seen)
    found = [
        _collective(scene, state, worst) if state is not None else None,
        _process(seen, worst, kept),
        _stacks(diagnosis),
        *_exceptions(seen),
        last_minutes.piece(scene),
        _ras(scene, state.since_ns if state is not None else scene.now_ns - RAS_WITHIN_NS),
        _traces(seen, kept),
    ]
    return [piece for piece in found if piece is not None]


def _kept(worst: Finding, seen: Observation) -> list[int]:
    order = [*worst.culprit_ranks, *worst.suspect_ranks, *worst.missing_ranks, *sorted(seen.facts)]
    return list(dict.fromkeys(order))[:RANKS_KEPT]


def _who(ranks: Iterable[int]) -> str:
    shown = list(ranks)
    if not shown:
        return ""
    more = f" and {len(shown) - _NAMES_MAX} more" if len(shown) > _NAMES_MAX else ""
    return "rank " + ", ".join(str(r) for r in shown[:_NAMES_MAX]) + more


def _collective(scene: Scene, state: WorldState, worst: Finding) -> Piece:
    groups = scene.known_groups(state.world)
    rows = [
        {
            "name": groups[g.group_id].name if g.group_id in groups else None,
            "desc": groups[g.group_id].desc if g.group_id in groups else None,
            "sequence": g.sequence,
            "waiting": g.waiting,
            "behind": g.behind,
        }
        for g in state.groups
    ]
    title = f"{len(state.waiting)} of {state.rank_count} ranks wait in an open collective call"
    if not state.waiting:
        title = f"none of {state.rank_count} ranks waits in a collective call, and none moves"
    payload = {
        "since_ns": state.since_ns,
        "phase": state.phase,
        "waiting": state.waiting,
        "suspects": [
            {"rank": rank, "reason": str(reason)}
            for rank, reason in zip(state.suspects, state.reasons, strict=True)
        ],
        "groups": rows,
    }
    return Piece("collective_state", title, "hot frames", payload, 0.7, _who(state.suspects[:_NAMES_MAX]))


def _process(seen: Observation, worst: Finding, kept: Sequence[int]) -> Piece | None:
    rows = [_fact_row(seen.facts[rank]) for rank in kept if rank in seen.facts]
    if not rows:
        return None
    counts: dict[str, int] = {}
    for fact in seen.facts.values():
        counts[str(fact.process)] = counts.get(str(fact.process), 0) + 1
    title = "Processes: " + ", ".join(f"{count} {word}" for word, count in sorted(counts.items()))
    return Piece(
        "process", title, "agents", {"counts": counts, "ranks": rows}, 0.8, _who(worst.culprit_ranks)
    )


def _fact_row(fact: RankFacts) -> dict[str, Any]:
    row = asdict(fact)
    row["process"] = str(fact.process)
    row.pop("exception", None)
    return row


def _stacks(diagnosis: Diagnosis) -> Piece | None:
    if not diagnosis.stacks:
        return None
    rows = [
        {"frames": s.frames, "ranks": s.ranks, "source": s.source, "role": s.role} for s in diagnosis.stacks
    ]
    named = [s for s in diagnosis.stacks if s.role != "waiting"]
    first = named[0] if named else diagnosis.stacks[0]
    title = f"{_who(first.ranks)} at {first.frames[-1] if first.frames else 'no frame'}"
    return Piece("stacks", title, first.source, rows, 0.9, _who(first.ranks) if named else "")


def _exceptions(seen: Observation) -> list[Piece]:
    failed = [f for f in seen.facts.values() if f.exception is not None]
    failed.sort(key=lambda f: (f.exit_ns or 0, f.rank))
    if not failed:
        return []
    rows = [
        {"rank": f.rank, "host": f.host, **asdict(f.exception)} for f in failed[:RANKS_KEPT] if f.exception
    ]
    first = rows[0]
    title = f"rank {first['rank']} raised {first['type']}: {first['message']}"
    return [Piece("exception", title, "hook", rows, 0.9, _who([first["rank"]]))]


def _ras(scene: Scene, since_ns: int) -> Piece | None:
    """The newest answer of NCCL's RAS at this stall, else why there was none."""
    told = ras_answers(scene, since_ns)
    if not told:
        return None
    best = next((one for one in told if one.answer), told[0])
    title = f"NCCL RAS: {best.status.sentence}" if best.answer else f"NCCL RAS gave no answer: {best.error}"
    payload = {
        "address": best.address,
        "form": best.form,
        "error": best.error,
        "length_bytes": best.length_bytes,
        "status": msgspec.to_builtins(best.status),
        "answer": best.answer,
    }
    return Piece("nccl_ras", title, "NCCL RAS", payload, 0.6 if best.answer else 0.2)


def _traces(seen: Observation, kept: Sequence[int]) -> Piece | None:
    if not seen.traces:
        return None
    chosen = [t for t in seen.traces if t.rank in set(kept)]
    rows = {t.rank: base64.b64encode(pack(t)).decode() for t in chosen}
    payload = {"format": "collectors.formats.columns.pack, base64", "ranks": rows, "total": len(seen.traces)}
    title = f"Rings of {len(rows)} of {len(seen.traces)} ranks that gave one"
    return Piece("trace", title, "flight recorder", payload, 0.5)
