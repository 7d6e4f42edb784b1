"""Ports, switches and NVLinks whose transfers are slow: slow paths, and the part that they have in common.

In: a ``StepTable``. Out: ``SlowPart``s. The last to arrive waits for nobody, so the shortest duration of a
call is its transfer. A path is slow against others of its kind, or its own start where there is no other. The
part named is the one whose paths fit the slow ones best (F1); where several fit alike, the smallest, and
where those are still several, none is named alone. Source: DESIGN section 6.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

from clusterwatch.analysis.slow import alarm, quantiles
from clusterwatch.analysis.slow.link_parts import Part, Parts, crossing
from clusterwatch.analysis.slow.steps import StepTable, Transfer

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]

MOST: Final = 0.7
SUDDEN: Final = alarm.Rule(allowed=0.2, most=MOST, opens=3.0)
"""Rides over congestion of one to five steps."""
LASTING_ROWS: Final = 24
LASTING_MIN: Final = 0.1
"""A weak fault is told by the median of this many steps."""
BURST_ROWS: Final = 10
"""Fewer bad steps in a row, and more good ones since, were congestion and not a part."""
BURSTS_RATIO: Final = 0.15
"""of all steps: a part that comes and goes is slow in more of them"""
BAD_MIN: Final = 0.1
"""of an excess; noise of a healthy path stays below"""
PEERS_MIN: Final = 3
_QUANTILE: Final = 0.3
_BASE_STEPS: Final = 15


@dataclass(frozen=True, slots=True)
class SlowPath:
    path: int
    onset: int
    """row of the first bad step"""
    excess: float
    """median of log(transfer time against its peers) in the bad steps"""
    lost_s: float
    """a step, by all its calls"""
    score: float
    bad_rows: int = 0
    seen_rows: int = 0
    """bad ones and all known ones from the onset on"""


@dataclass(frozen=True, slots=True)
class SlowPart:
    """``parts``: the ones that explain ``slow`` alike; one: it is named. ``fit`` is F1, 0 to 1."""

    parts: tuple[Part, ...]
    slow: tuple[SlowPath, ...]
    fit: float


def find(table: StepTable) -> list[SlowPart]:
    """Independent slow parts, the one that explains most first."""
    slow = slow_paths(table)
    if not slow:
        return []
    measured = np.zeros(table.paths.count, np.bool_)
    for transfer in table.transfers:
        measured[transfer.groups] = True
    parts = Parts.of(table.paths, measured, crossing(table.paths, table.layout.node), table.layout)
    return explain(slow, parts)


def explain(slow: Sequence[SlowPath], parts: Parts, paths_min: int = 1) -> list[SlowPart]:
    """The parts behind slow paths, the one that explains most first. ``paths_min``: as of ``Parts.best``."""
    left = {one.path: one for one in slow}
    found: list[SlowPart] = []
    while left:
        best = parts.best(set(left), paths_min)
        if best is None:
            found.append(SlowPart((), tuple(left.values()), 0.0))
            break
        covered = sorted(best.paths & set(left))
        found.append(SlowPart(best.parts, tuple(left.pop(path) for path in covered), best.f1))
    return found


def slow_paths(table: StepTable) -> list[SlowPath]:
    """Paths with transfers that stay slow, over all their kinds of calls."""
    excess, lost = _combined(table)
    sudden = alarm.watch(excess, SUDDEN)
    lasting, since = _lasting(excess)
    found = []
    for path in np.flatnonzero((sudden.opened >= 0) | lasting).tolist():
        is_sudden = sudden.opened[path] >= 0
        opened = int(sudden.opened[path] if is_sudden else since[path])
        first = int(sudden.onset[path]) if is_sudden else max(0, opened - LASTING_ROWS)
        series, gone = excess[:, path], lost[:, path]
        one = told(path, series, gone, began(series, first, opened), float(sudden.highest[path]))
        found += [one] if one is not None and not is_past_burst(series) else []
    return found


def began(excess: Floats, first: int, opened: int) -> int:
    """Row at which a path's excess began. Args: rows where its sum began to grow, and where it opened."""
    return alarm.change_row(np.clip(excess[: max(0, opened) + 12], -MOST, 2 * MOST), first - 12, opened)


def is_past_burst(excess: Floats) -> bool:
    """Whether a path was slow in short bursts only, few of its steps, and has been fast for longer since."""
    bad = excess[np.isfinite(excess)] > BAD_MIN
    ends = np.flatnonzero(np.diff(np.concatenate(([False], bad, [False]))))
    if len(ends) == 0:
        return False
    longest = int(np.max(ends[1::2] - ends[::2]))
    since = len(bad) - int(ends[-1])
    return longest < BURST_ROWS < since and bool(np.mean(bad) < BURSTS_RATIO)


def told(path: int, excess: Floats, lost: Floats, onset: int, score: float) -> SlowPath | None:
    """A path that opened, by its excess from a row on; None without a bad step. ``lost``: seconds a step."""
    series = excess[onset:]
    if not np.isfinite(series).any():
        return None
    bad = series > 0.5 * np.nanmedian(series)
    if not bad.any():
        return None
    return SlowPath(
        path, onset, float(np.median(series[bad])), float(np.median(lost[onset:][bad])), max(score, 1.0),
        int(bad.sum()), int(np.sum(np.isfinite(series))),
    )  # fmt: skip


def _combined(table: StepTable) -> tuple[Floats, Floats]:
    """(excess, seconds lost) by step and path, over all kinds of calls."""
    count = table.paths.count
    excess, lost = np.full((len(table.steps), count), np.nan), np.zeros((len(table.steps), count))
    total = np.zeros_like(lost)
    seen = np.zeros_like(lost)
    for transfer in table.transfers:
        own = _excess(transfer)
        known = ~np.isnan(own)
        share = np.nan_to_num(quantiles.median(transfer.time_s, axis=0)) * transfer.calls
        columns = transfer.groups
        total[:, columns] += np.where(known, own, 0.0) * share
        seen[:, columns] += known * share
        lost[:, columns] += np.nan_to_num(transfer.time_s * -np.expm1(-own)) * transfer.calls
    some = seen > 0
    excess[some] = total[some] / seen[some]
    return excess, lost


def _excess(transfer: Transfer) -> Floats:
    """(S, G) log of the transfer time against others of the kind, or against the path's own start."""
    with np.errstate(divide="ignore", invalid="ignore"):
        logs = np.log(transfer.time_s)
    if transfer.time_s.shape[1] >= PEERS_MIN:
        usual = quantiles.low(logs, _QUANTILE)[:, None]
    else:
        usual = quantiles.median(logs[:_BASE_STEPS], axis=0)[None, :]
    return logs - usual


def _lasting(excess: Floats) -> tuple[NDArray[np.bool_], Ints]:
    """(paths whose median over many steps is high for the job, row where it was first so)."""
    rows, columns = excess.shape
    since = np.full(columns, -1)
    if rows < LASTING_ROWS:
        return since >= 0, since
    half = LASTING_ROWS // 2
    for end in range(LASTING_ROWS, rows + 1, half):
        level = quantiles.median(excess[end - LASTING_ROWS : end], axis=0)
        apart = float(np.nan_to_num(quantiles.spread(level)))
        new = (level > max(LASTING_MIN, 6 * apart)) & (since < 0)
        since[new] = end - 1
    return since >= 0, since
