"""``clusterwatch bench detect --hour``: what an hour of one large job's steps costs the live detector.

In: a number of ranks. Out: processor time of a look, of those of the first and of the last quarter, and the
memory after the warm-up and at the end. Steps of 5 s are looked at every ten seconds, as live; a GPU becomes
8 % slow after half an hour. What is read from the store before a look is not counted.
"""

from __future__ import annotations

import argparse
import resource
import time
from typing import Any, Final

import numpy as np

from clusterwatch.analysis.slow import live
from clusterwatch.analysis.slow.layout import Layout

STEP_S: Final = 5.0
LOOK_STEPS: Final = 2
_STAGES: Final = 8
_TENSOR: Final = 8
_WARM_LOOKS: Final = 20
"""Own history of the ranks is made of the first steps."""
_SLOW_FROM: Final = 360
_SLOW_RATIO: Final = 1.08


def add_options(parser: argparse.ArgumentParser) -> None:
    """The options of this part."""
    parser.add_argument("--hour", action="store_true", help="an hour of steps of one job, live")


def run(ranks: int, steps: int = int(3600 / STEP_S)) -> dict[str, Any]:
    """Looks at all steps; prints nothing.

    Args:
        ranks: of the job, a multiple of 64.
        steps: an hour of them, fewer in tests.
    """
    layout, random = _layout(ranks), np.random.default_rng(7)
    kept, culprit = live.Kept.of(layout), ranks // 3
    silicon = 1.0 + 0.004 * random.standard_normal(ranks)
    looks_s, stored_bytes, warm_mb, seen_step = [], 0, 0, None
    for first in range(0, steps, LOOK_STEPS):
        batch = _batch(first, silicon, culprit, random)
        began = time.process_time()
        kept.take(batch, layout)
        stored = live.pack(kept)
        kept = live.unpack(stored)
        looks_s.append(time.process_time() - began)
        stored_bytes = max(stored_bytes, len(stored))
        if seen_step is None and _opened(kept)[culprit]:
            seen_step = first + LOOK_STEPS
        if len(looks_s) == _WARM_LOOKS:
            warm_mb = _memory_mb()
    opened, quarter = _opened(kept), max(1, len(looks_s) // 4)
    return {
        "bench": "detect", "hour": True, "ranks": ranks, "steps": steps,
        "look_p50_ms": _ms(float(np.quantile(looks_s, 0.5))),
        "look_p99_ms": _ms(float(np.quantile(looks_s, 0.99))),
        "first_quarter_ms": _ms(sum(looks_s[:quarter]) / quarter),
        "last_quarter_ms": _ms(sum(looks_s[-quarter:]) / quarter),
        "step_ms": _ms(sum(looks_s) / steps), "stored_max_bytes": stored_bytes,
        "memory_warm_mb": warm_mb, "memory_end_mb": _memory_mb(),
        "slow_ranks": int(opened.sum()), "slow_right": bool(opened[culprit]), "seen_step": seen_step,
        "slow_from_step": _SLOW_FROM,
    }  # fmt: skip


def _opened(kept: live.Kept) -> Any:
    """(R,) ranks that stand out against their peers or against themselves."""
    return (kept.watched.peers.opened >= 0) | (kept.watched.own.opened >= 0)


def _layout(ranks: int) -> Layout:
    rank = np.arange(ranks)
    stage_ranks = ranks // _STAGES
    none = ("",) * ranks
    return Layout(rank // stage_ranks, rank % stage_ranks // _TENSOR, rank // 8, rank % 8, none, none)


def _batch(first: int, silicon: Any, culprit: int, random: np.random.Generator) -> live.Batch:
    """The next steps of all ranks."""
    shape = LOOK_STEPS, len(silicon)
    work_s = 0.8 * STEP_S * silicon * np.exp(0.003 * random.standard_normal(shape))
    if first >= _SLOW_FROM:
        work_s[:, culprit] *= _SLOW_RATIO
    numbers = np.arange(first, first + LOOK_STEPS)
    input_s = 0.02 * np.exp(0.05 * random.standard_normal(shape))
    nothing = np.zeros(shape)
    return live.Batch(numbers, work_s, input_s, nothing, nothing, np.full(LOOK_STEPS, STEP_S))


def _ms(seconds: float) -> float:
    return round(1e3 * seconds, 1)


def _memory_mb() -> int:
    """The most that the process held until now."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024
