"""The model of work: what a rank's step takes beyond its stage's, its replica's and the step's own length.

In: work of steps x ranks with stage and replica of each rank. Out: ``Model``: effects and residuals as
logarithms, so that 0.06 is 6 % slower. Quantiles below the middle are taken, because faults only slow down
and a sick node may hold half of a stage. Source: DESIGN section 6. Cost: O(steps x ranks).
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from clusterwatch.analysis.slow import quantiles

Ints = NDArray[np.int64]
Floats = NDArray[np.float64]

QUANTILE = 0.3
_SWEEPS = 3


@dataclass(frozen=True, slots=True)
class Model:
    """Logarithms; NaN where a rank's step is unknown.

    Attributes:
        residual: (S, R) beyond everything below, the slow rank's own.
        step: (S,) of the whole job against its usual.
        stage: (S, stages) beyond what the stage usually takes.
        replica: (S, replicas); all 0 where a replica is one rank, which cannot be told from that rank.
        has_replicas: replicas of more than one rank are in the model.
    """

    residual: Floats
    step: Floats
    stage: Floats
    replica: Floats
    has_replicas: bool


def fit(work: Floats, usual: Floats, stage: Ints, replica: Ints) -> Model:
    """Fits the effects of each step by itself.

    Args:
        work, usual: (S, R) seconds, NaN where unknown.
        stage, replica: (R,) indices.
    """
    with np.errstate(divide="ignore", invalid="ignore"):
        rest = np.log(work) - np.log(usual)
    rest[~np.isfinite(rest)] = np.nan
    step = np.zeros(len(rest))
    stages = _Blocks.of(stage)
    replicas = _Blocks.of(replica)
    stage_effect = np.zeros((len(rest), stages.count))
    replica_effect = np.zeros((len(rest), replicas.count))
    has_replicas = replicas.count > 1 and replicas.smallest > 1
    for _ in range(_SWEEPS):
        step += _taken(rest, quantiles.low(rest, QUANTILE))
        if stages.count > 1 and stages.smallest > 1:
            stage_effect += stages.take(rest)
        if has_replicas:
            replica_effect += replicas.take(rest)
    return Model(rest, step, stage_effect, replica_effect, has_replicas)


def _taken(rest: Floats, effect: Floats) -> Floats:
    """Takes an effect of each step off all ranks, in place."""
    effect = np.where(np.isnan(effect), 0.0, effect)
    rest -= effect[:, None]
    return effect


@dataclass(frozen=True, slots=True)
class _Blocks:
    """Ranks that share an index."""

    number: Ints
    count: int
    columns: tuple[Ints, ...]

    @classmethod
    def of(cls, number: Ints) -> _Blocks:
        count = int(number.max(initial=-1)) + 1
        order = np.argsort(number, kind="stable")
        ends = np.cumsum(np.bincount(number, minlength=count))[:-1]
        return cls(number, count, tuple(np.split(order, ends)))

    @property
    def smallest(self) -> int:
        return min(map(len, self.columns), default=0)

    def take(self, rest: Floats) -> Floats:
        """Takes each block's low quantile off its ranks, in place; returns it by step and block."""
        sizes = {len(columns) for columns in self.columns}
        if len(sizes) == 1:
            grid = rest[:, np.stack(self.columns)]  # (S, blocks, ranks of each)
            effect = quantiles.low(grid, QUANTILE)
        else:
            parts = [quantiles.low(rest[:, columns], QUANTILE) for columns in self.columns]
            effect = np.stack(parts, axis=1)
        effect = np.where(np.isnan(effect), 0.0, effect)
        rest -= effect[:, self.number]
        return effect
