"""Ranks, and hosts, whose own work takes longer than their peers' or than it used to.

In: a ``StepTable`` and its ``Model``. Out: ``SlowRanks``. Two bounds: against the peers, which knows how far
apart the job's GPUs always are and how many there are (of 16,384 like ones some are 6 % slow by chance), and
against the rank's own first steps, which silicon does not move.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

from clusterwatch.analysis.slow import alarm, quantiles
from clusterwatch.analysis.slow.steps import StepTable
from clusterwatch.analysis.slow.work import Model

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]
Bools = NDArray[np.bool_]

UNIT_MIN: Final = 0.012
"""An excess counts from 1.5 of these on: below 1.8 % nobody is looked at, however quiet the job."""
RULE: Final = alarm.Rule(allowed=1.5, most=6.0, opens=15.0)
"""In units of the noise; a pause of any length adds 4.5, so four bad steps are the fewest that open."""
CENTRE: Final = 0.4
_FADES: Final = 0.1
"""weight of a new step in what is remembered of the steps before"""
_CHANCE: Final = 0.01
"""that one rank of a healthy job stands out as far by silicon alone"""
_BASE_STEPS: Final = 20
_BASE_SHARE: Final = 3
"""Own history is at most this part of the steps, so that it ends before what it is compared with."""
_BASE_MIN_STEPS: Final = 6
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


def find(table: StepTable, model: Model) -> SlowRanks:
    """Ranks that stay slower than their peers or than themselves."""
    return of_residual(model.residual)


def of_residual(residual: Floats) -> SlowRanks:
    """The same on residuals alone, (S, R)."""
    centred = residual - np.nan_to_num(quantiles.low(residual, CENTRE))[:, None]
    noise = _faded(quantiles.spread(centred))
    peers, peer_unit = _opened(centred, noise)
    base = _base(centred)
    history, own_unit = _opened(centred - base[None, :], noise)
    is_slow = (peers.opened >= 0) | (history.opened >= 0)
    by_peers = (peers.opened >= 0) & ((history.opened < 0) | (peers.opened <= history.opened))
    onset = np.where(by_peers, peers.onset, history.onset)
    opened = np.where(by_peers, peers.opened, history.opened)
    excess, bad = np.zeros(len(base)), np.zeros(len(base), np.int64)
    for rank in np.flatnonzero(is_slow).tolist():
        onset[rank] = _refined(centred[:, rank], int(onset[rank]), int(opened[rank]))
        series = centred[onset[rank] :, rank]
        unit = (peer_unit if by_peers[rank] else own_unit)[onset[rank] :]
        above = series - (0.0 if by_peers[rank] else base[rank]) > RULE.allowed * unit
        bad[rank] = int(above.sum())
        excess[rank] = float(np.median(series[above])) if bad[rank] else 0.0
    score = np.maximum(peers.score, history.score)
    return SlowRanks(is_slow, onset, excess, score, bad, noise, centred)


def _opened(excess: Floats, noise: Floats) -> tuple[alarm.Alarms, Floats]:
    """(alarms, unit by step): an excess counts in units of the noise and of how far apart ranks stay."""
    ranks = excess.shape[1]
    apart = _faded(quantiles.spread(_remembered(excess)))
    factor = outlier_bound(ranks) * (1 + 2 / np.sqrt(max(1, ranks))) / RULE.allowed
    unit = np.maximum(UNIT_MIN, np.maximum(noise, factor * apart))
    return alarm.watch(excess / unit[:, None], RULE), unit


def outlier_bound(count: int) -> float:
    """How many standard deviations the largest of ``count`` like values stays below, 99 times of 100."""
    return float(np.sqrt(2 * np.log(max(2, count) / _CHANCE)))


def _faded(values: Floats) -> Floats:
    """A running mean that forgets; NaN keeps what was."""
    found = np.empty(len(values))
    last = np.nan
    for row, value in enumerate(values.tolist()):
        if not np.isnan(value):
            last = value if np.isnan(last) else last + _FADES * (value - last)
        found[row] = 0.0 if np.isnan(last) else last
    return found


def _remembered(values: Floats) -> Floats:
    """A running mean of each column; one step counts as no more than its neighbours allow."""
    found = np.empty_like(values)
    last = np.nan_to_num(quantiles.median(values[:_BASE_MIN_STEPS], axis=0))
    for row in range(len(values)):
        change = np.nan_to_num(values[row] - last)
        last = last + _FADES * np.clip(change, -0.2, 0.2)
        found[row] = last
    return found


def _base(values: Floats) -> Floats:
    """Each rank's usual residual at the start; 0 (the peers') while there are too few steps."""
    rows = min(_BASE_STEPS, len(values) // _BASE_SHARE)
    if rows < _BASE_MIN_STEPS:
        return np.zeros(values.shape[1])
    return np.nan_to_num(quantiles.median(values[1:rows], axis=0))


def _refined(series: Floats, onset: int, opened: int) -> int:
    """The row where the level changed, near where the sum began to grow; 0 where it never was otherwise."""
    end = min(len(series), max(opened + 1, onset + _ONSET_REACH))
    row, _, _ = alarm.change_row(series[:end], onset - _ONSET_REACH, end)
    return row
