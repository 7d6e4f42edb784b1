"""What stands beside the work: input before a step, the checkpoint's write, pauses that come and go.

In: a ``StepTable`` and its ``Model``. Out: ``SlowInput`` per rank, ``SlowStorage`` per node, ``Pauses``.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

from clusterwatch.analysis.slow import alarm, quantiles
from clusterwatch.analysis.slow.layout import Layout
from clusterwatch.analysis.slow.steps import StepTable
from clusterwatch.analysis.slow.work import Model

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]
Bools = NDArray[np.bool_]

INPUT_RULE: Final = alarm.Rule(allowed=1.5, most=6.0, opens=15.0)
INPUT_UNIT_MIN: Final = 0.02
"""share of a step's work"""
STORAGE_RULE: Final = alarm.Rule(allowed=0.3, most=2.0, opens=0.75)
"""log of the time a write takes; one write that takes three times as long opens it, or two at twice"""
STORAGE_MIN_S: Final = 0.01
PAUSE_MIN: Final = 0.15
PAUSED_RANKS_MIN: Final = 0.3
PAUSED_EVENLY_MIN: Final = 0.6
"""Of the ranks that would have a pause by chance: in a short log not all had their turn."""
PAUSED_STEPS_MIN: Final = 0.005


@dataclass(frozen=True, slots=True)
class SlowInput:
    rank: int
    onset: int
    excess_s: float
    """a step, median of the bad ones"""
    score: float


@dataclass(frozen=True, slots=True)
class SlowStorage:
    node: int
    ranks: tuple[int, ...]
    onset: int
    """row of the first slow write; 0 where all were slow"""
    excess_s: float
    factor: float
    writes: int
    score: float


@dataclass(frozen=True, slots=True)
class Pauses:
    """Single steps, of many ranks, at different times."""

    rank_ratio: float
    step_ratio: float
    median_s: float


def slow_inputs(table: StepTable, model: Model) -> list[SlowInput]:
    """Ranks that wait longer for their input than the others of their stage do."""
    excess = input_excess(table.first_gap, model, table.layout)
    scale = float(quantiles.median(table.stage_work)) if len(table.stage_work) else 0.0
    if scale <= 0:
        return []
    share = excess / scale
    noise = np.nan_to_num(quantiles.spread(share))
    unit = np.maximum(INPUT_UNIT_MIN, noise)
    found = alarm.watch(share / unit[:, None], INPUT_RULE)
    return [_input(found, excess, rank) for rank in found.columns.tolist()]


def input_excess(first_gap: Floats, model: Model, layout: Layout) -> Floats:
    """(S, R) seconds beyond the others of the stage, the replica's own length taken off; NaN where alone."""
    stretched = first_gap / np.exp(model.replica[:, layout.replica])
    excess = np.full_like(stretched, np.nan)
    for stage in range(int(layout.stage.max(initial=0)) + 1):
        columns = np.flatnonzero(layout.stage == stage)
        if len(columns) > 1:
            usual = quantiles.low(stretched[:, columns], quantiles.CENTRE)[:, None]
            excess[:, columns] = stretched[:, columns] - usual
    return excess


def _input(found: alarm.Sums, excess: Floats, rank: int) -> SlowInput:
    first, opened = int(found.onset[rank]), int(found.opened[rank])
    onset = alarm.change_row(excess[: opened + 12, rank], first - 12, opened)
    series = excess[onset:, rank]
    bad = series[series > 0.5 * np.nanmedian(series)]
    return SlowInput(rank, onset, float(np.median(bad)) if len(bad) else 0.0, float(found.highest[rank]))


def slow_storage(table: StepTable) -> list[SlowStorage]:
    """Nodes whose writes before the checkpoint's barrier take longer than other nodes'."""
    rows = np.flatnonzero(np.sum(~np.isnan(table.rare_gap), axis=1) > 1)
    nodes = [node for node in np.unique(table.layout.node).tolist() if node >= 0]
    if not len(rows) or len(nodes) < 2:
        return []
    gaps = table.rare_gap[rows]
    per_node = np.stack(
        [quantiles.low(gaps[:, table.layout.node == node], 0.5) for node in nodes], axis=1
    )  # (writes, nodes)
    with np.errstate(divide="ignore", invalid="ignore"):
        logs = np.log(np.maximum(per_node, 1e-6))
    usual = quantiles.low(logs, quantiles.CENTRE)[:, None]
    excess = logs - usual
    # over all writes at once: of the few nodes of one write a slow one is a good part of the spread
    noise = float(np.nan_to_num(quantiles.spread(excess.reshape(-1))))
    rule = alarm.Rule(max(STORAGE_RULE.allowed, 3 * noise), STORAGE_RULE.most, STORAGE_RULE.opens)
    alarms, found = alarm.watch(excess, rule), []
    for column in alarms.columns.tolist():
        bad = np.flatnonzero(excess[:, column] > rule.allowed)
        bad = bad[bad >= alarms.onset[column]]
        lost = per_node[bad, column] - np.exp(usual[bad, 0])
        if not len(bad) or float(np.median(lost)) < STORAGE_MIN_S:
            continue
        ranks = table.layout.node_ranks(nodes[column])
        factor = float(np.exp(np.median(excess[bad, column])))
        first = int(rows[bad[0]]) if bad[0] else 0
        score = float(alarms.highest[column])
        found.append(
            SlowStorage(nodes[column], ranks, first, float(np.median(lost)), factor, len(bad), score)
        )
    return found


def pauses(table: StepTable, residual: Floats, named: Bools) -> Pauses | None:
    """Steps of many ranks that take longer by themselves, not together: garbage collection and the like.

    Args:
        residual: (S, R) of the work model, centred.
        named: (R,) ranks that are known to be slow; they do not count.
    """
    others = residual[1:, ~named]  # the first step is never like the others
    if others.size == 0 or len(others) < 2:
        return None
    high = np.nan_to_num(others, nan=0.0) > PAUSE_MIN
    lonely = high.copy()
    lonely[1:] &= ~high[:-1]
    lonely[:-1] &= ~high[1:]
    known = max(1, int(np.sum(~np.isnan(others))))
    rank_ratio, step_ratio = float(lonely.any(axis=0).mean()), float(lonely.sum() / known)
    together = lonely.mean(axis=1)
    by_chance = 1.0 - (1.0 - step_ratio) ** len(others)
    least = min(PAUSED_RANKS_MIN, PAUSED_EVENLY_MIN * by_chance)
    if rank_ratio < least or step_ratio < PAUSED_STEPS_MIN or together.max() > 0.5:
        return None
    lost = (table.usual[1:, ~named] * np.expm1(others))[lonely]
    return Pauses(rank_ratio, step_ratio, float(np.median(lost)))
