"""Differences that the job itself makes: unequal stages, data shards, sequences. Never anybody's fault.

In: a ``StepTable`` and its ``Model``. Out: ``Workload``.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

from clusterwatch.analysis.slow import quantiles
from clusterwatch.analysis.slow.steps import StepTable
from clusterwatch.analysis.slow.work import Model

Floats = NDArray[np.float64]

STAGE_MIN: Final = 0.1
"""A last stage with its loss is some per cent longer in a job that is cut well."""
SKEW_MIN: Final = 0.1
SEQUENCE_MIN: Final = 0.05
SEQUENCE_MIN_ALONE: Final = 0.08
"""Where a replica is one rank, its effect has that rank's noise, and the largest of many is told."""


@dataclass(frozen=True, slots=True)
class Workload:
    """Logarithmic effects; None where it is not there.

    Attributes:
        stage: (stage, beyond the shorter ones).
        skew: (replica, beyond the others at most times).
        sequences: median over steps of the longest replica's effect, which moves.
    """

    stage: tuple[int, float] | None
    skew: tuple[int, float] | None
    sequences: float | None


def explain(table: StepTable, model: Model, residual: Floats) -> Workload:
    """What of the differences between ranks is the job's own."""
    moving = model.replica if model.has_replicas else residual
    usual = np.nan_to_num(quantiles.median(moving, axis=0))
    skew = None
    if model.has_replicas and len(usual) > 1:
        longest = int(np.argmax(usual))
        beyond = float(usual[longest] - quantiles.low(usual, 0.3))
        skew = (longest, beyond) if beyond > SKEW_MIN else None
    rest = moving - usual
    top = np.nanmax(np.where(np.isnan(rest), -np.inf, rest), axis=1) if rest.size else np.zeros(0)
    top = top[np.isfinite(top)]
    sequences = float(np.median(top)) if len(top) and rest.shape[1] > 1 else 0.0
    least = SEQUENCE_MIN if model.has_replicas else SEQUENCE_MIN_ALONE
    return Workload(_stage(table.stage_work), skew, sequences if sequences > least else None)


def _stage(work: Floats) -> tuple[int, float] | None:
    known = work[work > 0]
    if len(known) < 2:
        return None
    longest = int(np.argmax(work))
    beyond = float(np.log(work[longest] / quantiles.low(known, 0.3)))
    return (longest, beyond) if beyond > STAGE_MIN else None
