"""Looks at small jobs for tests of the live judgement."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from clusterwatch.analysis.model import ProcessState
from clusterwatch.analysis.progress import PROCESS_CODES, Look
from collectors.wire.records import PHASES

SECOND = 1_000_000_000
START = 1_000_000 * SECOND
WORLD_GROUP = 1
"""the group every rank is in"""

Call = tuple[int, int, int]
"""enqueued, completed, sequence"""


def look(
    at_s: float,
    calls: Sequence[Mapping[int, Call] | None],
    *,
    moved_s: float | Sequence[float] = 0.0,
    seen_s: Mapping[int, float] | None = None,
    heard_s: Mapping[int, float] | None = None,
    process: Mapping[int, ProcessState] | None = None,
    clean: Sequence[int] = (),
    phase: Mapping[int, str] | None = None,
    world: Sequence[int] | None = None,
    step: int = 5,
) -> Look:
    """A look ``at_s`` seconds after the start.

    Args:
        calls: per rank: group id -> numbers; None: never reported.
        moved_s: when numbers last changed, of all or of each rank.
        seen_s, heard_s: last frame and last word of the hook, by rank, where it is not just now.
    """
    count = len(calls)
    moved = [moved_s] * count if isinstance(moved_s, (int, float)) else list(moved_s)
    reported = [one is not None for one in calls]
    seen = [(seen_s or {}).get(r, at_s - 0.2) for r in range(count)]
    states = [(process or {}).get(r, ProcessState.RUNNING) for r in range(count)]
    rows = [(r, g, *numbers) for r, one in enumerate(calls) for g, numbers in (one or {}).items()]
    table = np.array(rows, np.int64).reshape(-1, 5)

    def times(values: Sequence[float]) -> np.ndarray:
        pairs = zip(values, reported, strict=True)
        return np.array([START + int(v * SECOND) if known else 0 for v, known in pairs], np.int64)

    return Look(
        at_ns=START + int(at_s * SECOND),
        word_ns=START + int(at_s * SECOND),
        rank=np.arange(count),
        rank_id=np.arange(count) + 100,
        world=np.array(world if world is not None else [0] * count),
        seen_ns=times(seen),
        heard_ns=times([(heard_s or {}).get(r, seen[r]) for r in range(count)]),
        moved_ns=times(moved),
        step=np.full(count, step),
        phase=np.array([PHASES.index((phase or {}).get(r, "train")) for r in range(count)], np.uint8),
        phase_since_ns=times(moved),
        process=np.array([PROCESS_CODES.index(state) for state in states], np.uint8),
        clean=np.array([r in clean for r in range(count)]),
        row=table[:, 0],
        group_id=table[:, 1],
        enqueued=table[:, 2],
        completed=table[:, 3],
        sequence=table[:, 4],
    )


def waiting(number: int = 11) -> dict[int, Call]:
    """Inside call ``number`` of the world group."""
    return {WORLD_GROUP: (number, number - 1, number)}


def idle(number: int = 10) -> dict[int, Call]:
    """Has finished call ``number`` and issued no other."""
    return {WORLD_GROUP: (number, number, number)}
