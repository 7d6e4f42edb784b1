"""How much longer transfers take than others of their kind, or than at first where there is no other.

In: ``Cells``. Out: ``Excess`` by step and path, over all its kinds of calls. The reference is a quantile
below the middle, since faults only slow down. An excess counts as far as both times of a path show it, and
less where the faster ones of the kind are far apart already.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

from clusterwatch.analysis.slow import links
from clusterwatch.analysis.slow.edges import Cells, Ints, Paths

Floats = NDArray[np.float64]
Key = tuple[int, str, int]
"""path's key, op, size in bytes"""

_QUANTILE: Final = 0.3
_LOW: Final = 0.1
_SIGMAS: Final = 0.757
"""between those two quantiles of a normal distribution"""
_SPREAD_MIN_PEERS: Final = 8
"""With fewer the lower quantiles are single paths."""
_QUIET: Final = 3.0
"""An excess of fewer spreads than this is no more than ``links.SUDDEN`` allows."""
BASE_MIN, BASE_MAX = 5, 15
"""Steps that a path's own history is made of."""
OWN_MAX: Final = 2_048
"""Kinds of calls with an own history; each costs 120 bytes of what is kept."""


@dataclass(slots=True)
class Own:
    """First transfer times of paths that have no others of their kind, logarithms."""

    first: dict[Key, list[float]]

    def usual(self, key: Key, log_s: float) -> float:
        """The path's usual time; takes the new one in while it is being learned. NaN before."""
        seen = self.first.get(key)
        if seen is None:
            if len(self.first) >= OWN_MAX:
                return float("nan")
            seen = self.first[key] = []
        if len(seen) < BASE_MAX:
            seen.append(log_s)
        return sorted(seen)[(len(seen) - 1) // 2] if len(seen) >= BASE_MIN else float("nan")

    def make_room(self) -> None:
        """Where it is full: sizes that change from step to step leave many that came once or twice."""
        if len(self.first) >= OWN_MAX:
            self.first = {key: seen for key, seen in self.first.items() if len(seen) >= BASE_MIN}


@dataclass(frozen=True, slots=True)
class Excess:
    """Steps x columns; NaN where unknown.

    Attributes:
        path: (Q,) the paths of the columns, rising.
        excess: (S, Q) log of the transfer time against its usual one, all kinds weighed by their time.
        counted: the same as the alarm takes it.
        lost_s: (S, Q) what the step's calls of the path took longer.
    """

    path: Ints
    excess: Floats
    counted: Floats
    lost_s: Floats


def compared(cells: Cells, paths: Paths, own: Own) -> Excess:
    """The excess of every path. Cost: one sort of the cells for each of the two times."""
    time, floor = np.log(cells.time_s), np.log(cells.floor_s)
    order, starts, counts = _kinds(cells)
    usual, shrink = _usual(time, order, starts, counts)
    floor_usual, _ = _usual(floor, order, starts, counts)
    few = np.zeros(len(time), np.bool_)
    few[order] = np.repeat(counts < links.PEERS_MIN, counts)
    _own_usual(cells, np.flatnonzero(few), time, paths, own, usual)
    beyond = time - usual
    beyond = np.where(few, beyond, np.minimum(beyond, floor - floor_usual))
    return _by_path(cells, beyond, usual, shrink)


def _kinds(cells: Cells) -> tuple[Ints, Ints, Ints]:
    """(order by step and kind, where each begins, how many paths it has)."""
    span = int(cells.kind.max(initial=0)) + 1
    code = cells.row * span + cells.kind
    order = np.argsort(code, kind="stable")
    starts = np.flatnonzero(np.diff(code[order], prepend=-1))
    return order, starts, np.diff(starts, append=len(order))


def _usual(log_s: Floats, order: Ints, starts: Ints, counts: Ints) -> tuple[Floats, Floats]:
    """(usual time of each cell's kind in its step, what its excess is to be multiplied by)."""
    ordered = log_s[order]
    number = np.repeat(np.arange(len(starts)), counts)
    ordered = ordered[np.lexsort((ordered, number))]
    middle = ordered[starts + np.rint(_QUANTILE * (counts - 1)).astype(np.int64)]
    low = ordered[starts + np.rint(_LOW * (counts - 1)).astype(np.int64)]
    spread = np.where(counts >= _SPREAD_MIN_PEERS, (middle - low) / _SIGMAS, 0.0)
    shrink = np.minimum(1.0, links.SUDDEN.allowed / np.maximum(_QUIET * spread, 1e-9))
    usual, smaller = np.empty(len(log_s)), np.empty(len(log_s))
    usual[order], smaller[order] = np.repeat(middle, counts), np.repeat(shrink, counts)
    return usual, smaller


def _own_usual(cells: Cells, few: Ints, log_s: Floats, paths: Paths, own: Own, usual: Floats) -> None:
    """Puts a path's own history where there are no others; steps come in order. A rank's own sends have none:
    who waits for whom there changes with the job's schedule."""
    usual[few] = np.nan
    own.make_room()
    groups = few[cells.path[few] < paths.group_count]
    for cell in groups[np.argsort(cells.row[groups], kind="stable")].tolist():
        key = (int(paths.key[cells.path[cell]]), cells.ops[cells.op[cell]], int(cells.size_bytes[cell]))
        usual[cell] = own.usual(key, float(log_s[cell]))


def _by_path(cells: Cells, beyond: Floats, usual: Floats, shrink: Floats) -> Excess:
    """Sums over kinds: an excess weighs as much as the usual time of its calls."""
    path, column = np.unique(cells.path, return_inverse=True)
    shape = (len(cells.steps), len(path))
    cell = cells.row * len(path) + column.reshape(-1)
    known = np.isfinite(beyond)
    cell, beyond, shrink = cell[known], beyond[known], shrink[known]
    weight = np.exp(usual[known]) * cells.calls[known]

    def summed(values: Floats) -> Floats:
        flat: Floats = np.bincount(cell, values, shape[0] * shape[1]).astype(np.float64)
        return flat.reshape(shape)

    with np.errstate(invalid="ignore"):
        total = summed(weight)
        total[total == 0] = np.nan
        excess, counted = summed(beyond * weight) / total, summed(beyond * shrink * weight) / total
    lost = summed(cells.time_s[known] * -np.expm1(-np.maximum(beyond, 0.0)) * cells.calls[known])
    return Excess(path.astype(np.int64), excess, counted, lost)
