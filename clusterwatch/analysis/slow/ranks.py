"""Ranks, and hosts, whose own work takes longer than their peers' or than it used to.

In: the residuals of a ``Model`` of work. Out: ``SlowRanks``. Two bounds: against the peers, which knows how
far apart the job's GPUs always are and how many there are (of 16,384 like ones some are 6 % slow by chance),
and against the rank's own first steps, which silicon does not move.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

from clusterwatch.analysis.slow import alarm, quantiles

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]
Bools = NDArray[np.bool_]

UNIT_MIN: Final = 0.012
"""An excess counts from 1.5 of these on: below 1.8 % nobody is looked at, however quiet the job."""
OWN_UNIT_MIN: Final = 0.008
"""The same against own history, which silicon does not move: below 1.2 % no change is looked at."""
RULE: Final = alarm.Rule(allowed=1.5, most=6.0, opens=15.0)
"""In units of the noise; a pause of any length adds 4.5, so four bad steps are the fewest that open."""
_FADES: Final = 0.1
"""weight of a new step in what is remembered of the steps before"""
_CHANCE: Final = 0.01
"""that one rank of a healthy job stands out as far by silicon alone"""
_FEW: Final = 3.0
"""How much wider the bound is for few ranks, whose spread is known badly: with 2, one of 20 healthy jobs
of 16 ranks with silicon that differs by 1.5 % had a slow GPU (docs/detect-matrix.md)."""
_STEP_MOST: Final = 0.2
"""what one step may add to the running mean before it fades"""
BASE_ROWS: Final = 20
"""Steps that own history is made of."""
_ONSET_REACH: Final = 12


@dataclass(frozen=True, slots=True)
class SlowRanks:
    """R ranks; rows are of the table.

    Attributes:
        is_slow: (R,) opened.
        onset: (R,) row of the first bad step; 0 where it never was otherwise.
        excess: (R,) median of the logarithmic excess in its bad steps.
        score: (R,) how far beyond the threshold, 1 where it opened.
        bad_rows: (R,)
        noise: (S,) unit of the peers' test, per step.
        residual: (S, R) centred.
    """

    is_slow: Bools
    onset: Ints
    excess: Floats
    score: Floats
    bad_rows: Ints
    noise: Floats
    residual: Floats


def centred(residual: Floats) -> Floats:
    """Residuals (..., R) beyond what the healthy ranks of their step have."""
    usual = np.nan_to_num(quantiles.low(residual, quantiles.CENTRE))
    return residual - np.expand_dims(usual, -1)


def of_residual(residual: Floats) -> SlowRanks:
    """Ranks that stay slower than their peers or than themselves, from the model's residuals, (S, R)."""
    watched = Watched.of(residual.shape[1])
    noise = np.zeros(len(residual))
    for row in range(len(residual)):
        watched.add(residual[row])
        noise[row] = watched.noise
    return watched.told(centred(residual), noise)


@dataclass(slots=True)
class Watched:
    """All ranks of a job as their steps come; what a live job keeps from look to look.

    Attributes:
        rows: steps seen.
        noise: spread of one step's residuals.
        remembered: (R,) running mean of each rank's residual.
        base: (R,) each rank's usual residual in the first steps, NaN until there are enough.
        first: (up to ``BASE_ROWS``, R) residuals that ``base`` is made of.
        peers, own: the sums against the others, and against ``base``.
    """

    rows: int
    noise: float
    peer_unit: float
    own_unit: float
    remembered: Floats
    base: Floats
    first: Floats
    peers: alarm.Sums
    own: alarm.Sums

    @classmethod
    def of(cls, ranks: int) -> Watched:
        nobody = np.full(ranks, np.nan)
        return cls(0, 0.0, UNIT_MIN, OWN_UNIT_MIN, np.zeros(ranks), nobody, np.zeros((0, ranks)),
                   alarm.Sums.of(ranks), alarm.Sums.of(ranks))  # fmt: skip

    def add(self, residual: Floats) -> None:
        """The residuals of one step more, (R,); NaN where unknown."""
        if np.isnan(residual).all():
            self.rows += 1
            return
        beyond = centred(residual)
        fades = max(_FADES, 1 / (self.rows + 1))
        self.noise += fades * (float(quantiles.spread(beyond)) - self.noise)
        change = np.where(np.isnan(beyond), 0.0, beyond - self.remembered)
        self.remembered = self.remembered + fades * np.clip(change, -_STEP_MOST, _STEP_MOST)
        self.peer_unit = self._unit(self.remembered, UNIT_MIN)
        self.peers.add(self.rows, beyond / self.peer_unit, RULE)
        self._against_itself(beyond)
        self.rows += 1

    def _against_itself(self, beyond: Floats) -> None:
        if len(self.first) < BASE_ROWS:
            self.first = np.vstack((self.first, beyond))
            if len(self.first) == BASE_ROWS:
                self.base = quantiles.median(
                    self.first[1:], axis=0
                )  # the first step is never like the others
            return
        self.own_unit = self._unit(self.remembered - self.base, OWN_UNIT_MIN)
        self.own.add(self.rows, (beyond - self.base) / self.own_unit, RULE)

    def _unit(self, lasting: Floats, least: float) -> float:
        """What an excess is counted in: one step's noise, and how far apart the ranks stay."""
        ranks = max(1, len(lasting))
        apart = float(np.nan_to_num(quantiles.spread(lasting)))
        factor = outlier_bound(ranks) * (1 + _FEW / float(np.sqrt(ranks))) / RULE.allowed
        return max(least, self.noise, factor * apart)

    def told(self, history: Floats, noise: Floats) -> SlowRanks:
        """Who opened, from a history (S, R) of centred residuals whose last row is the newest step."""
        is_slow = (self.peers.opened >= 0) | (self.own.opened >= 0)
        by_peers = (self.peers.opened >= 0) & ((self.own.opened < 0) | (self.peers.opened <= self.own.opened))
        behind = self.rows - len(history)
        opened = np.where(by_peers, self.peers.opened, self.own.opened) - behind
        onset = np.where(by_peers, self.peers.onset, self.own.onset) - behind
        usual, unit = np.nan_to_num(self.base), np.where(by_peers, self.peer_unit, self.own_unit)
        excess, bad = np.zeros(len(usual)), np.zeros(len(usual), np.int64)
        for rank in np.flatnonzero(is_slow).tolist():
            onset[rank] = _refined(history[:, rank], int(onset[rank]), int(opened[rank]))
            series = history[onset[rank] :, rank]
            above = series - (0.0 if by_peers[rank] else usual[rank]) > RULE.allowed * unit[rank]
            bad[rank] = int(above.sum())
            excess[rank] = float(np.median(series[above])) if bad[rank] else 0.0
        score = np.maximum(self.peers.highest, self.own.highest)
        return SlowRanks(is_slow, onset, excess, score, bad, noise, history)


def outlier_bound(count: int) -> float:
    """How many standard deviations the largest of ``count`` like values stays below, 99 times of 100."""
    return float(np.sqrt(2 * np.log(max(2, count) / _CHANCE)))


def _refined(series: Floats, onset: int, opened: int) -> int:
    """The row where the level changed, near where the sum began to grow; 0 where it never was otherwise."""
    end = min(len(series), max(opened + 1, onset + _ONSET_REACH))
    if end <= 0:
        return 0
    return alarm.change_row(series[:end], onset - _ONSET_REACH, end)
