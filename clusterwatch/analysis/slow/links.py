"""Ports, switches and NVLinks whose transfers are slow: slow paths, and the part that they have in common.

In: a ``StepTable``. Out: ``SlowPart``s. The last to arrive waits for nobody, so the shortest duration of a
call is its transfer. A path is slow against others of its kind, or its own start where there is no other. The
part named is the one whose paths fit the slow ones best (F1); where several fit alike, the smallest, and
where those are still several, none is named alone. Source: DESIGN section 6.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

from clusterwatch.analysis.slow import alarm, quantiles
from clusterwatch.analysis.slow.layout import UNKNOWN
from clusterwatch.analysis.slow.steps import StepTable, Transfer

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]

MOST: Final = 0.7
SUDDEN: Final = alarm.Rule(allowed=0.2, most=MOST, opens=3.0)
"""Rides over congestion of one to five steps."""
LASTING_ROWS: Final = 24
LASTING_MIN: Final = 0.1
"""A weak fault is told by the median of this many steps."""
PEERS_MIN: Final = 3
FITS_MIN: Final = 0.6
"""F1 below this: the slow paths have no part in common."""
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


@dataclass(frozen=True, slots=True)
class Part:
    """``kind``: nic, leaf, nvlink or node; ``ranks``: whose part it is, or who is behind it."""

    kind: str
    name: str
    ranks: tuple[int, ...]
    paths: frozenset[int]


@dataclass(frozen=True, slots=True)
class SlowPart:
    """``parts``: the ones that explain ``slow`` alike; one: it is named. ``fit`` is F1, 0 to 1."""

    parts: tuple[Part, ...]
    slow: tuple[SlowPath, ...]
    fit: float


def find(table: StepTable) -> list[SlowPart]:
    """Independent slow parts, the one that explains most first."""
    slow = slow_paths(table)
    left = {one.path: one for one in slow}
    parts = _parts(table)
    found: list[SlowPart] = []
    while left:
        best = _best(parts, set(left))
        if best is None:
            found.append(SlowPart((), tuple(left.values()), 0.0))
            break
        fit, same = best
        covered = frozenset().union(*(part.paths for part in same)) & set(left)
        found.append(SlowPart(same, tuple(left.pop(path) for path in sorted(covered)), fit))
    return found


def slow_paths(table: StepTable) -> list[SlowPath]:
    """Paths with transfers that stay slow, over all their kinds of calls."""
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
    sudden = alarm.watch(excess, SUDDEN)
    lasting, since = _lasting(excess)
    found = []
    for path in np.flatnonzero((sudden.opened >= 0) | lasting).tolist():
        opened = sudden.opened[path] if sudden.opened[path] >= 0 else since[path]
        first = sudden.onset[path] if sudden.opened[path] >= 0 else max(0, since[path] - LASTING_ROWS)
        row = alarm.change_row(np.clip(excess[: opened + 12, path], -MOST, 2 * MOST), first - 12, opened)
        series = excess[row:, path]
        bad = series > 0.5 * np.nanmedian(series)
        if not bad.any():
            continue
        level = float(np.median(series[bad]))
        gone = float(np.median(lost[row:, path][bad]))
        found.append(SlowPath(path, row, level, gone, max(float(sudden.highest[path]), 1.0)))
    return found


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


def _measured(table: StepTable) -> frozenset[int]:
    """Paths of which anything is known."""
    groups = [transfer.groups for transfer in table.transfers]
    return frozenset(np.concatenate(groups).tolist()) if groups else frozenset()


def _parts(table: StepTable) -> list[Part]:
    """Every part of the job with the measured paths that use it."""
    layout = table.layout
    sets: dict[tuple[str, str], set[int]] = defaultdict(set)
    ranks: dict[tuple[str, str], set[int]] = defaultdict(set)
    for path in sorted(_measured(table)):
        members = table.paths.of_group(path)
        nodes = layout.node[members]
        crosses = len(np.unique(nodes)) > 1
        for rank in members.tolist():
            node = int(layout.node[rank])
            if node == UNKNOWN:
                continue
            names = (("nic", layout.nic[rank]), ("leaf", layout.leaf[rank])) if crosses else (
                ("nvlink", f"nvlink:n{node}:g{layout.gpu[rank]}"),
            )  # fmt: skip
            for key in (*names, ("node", f"node {node}")):
                if key[1]:
                    sets[key].add(path)
                    ranks[key].add(rank)
    for rank, leaf in enumerate(layout.leaf):
        if ("leaf", leaf) in ranks:
            ranks["leaf", leaf].add(rank)
    for node in np.unique(layout.node).tolist():
        if ("node", f"node {node}") in ranks:
            ranks["node", f"node {node}"].update(layout.node_ranks(node))
    return [Part(key[0], key[1], tuple(sorted(ranks[key])), frozenset(sets[key])) for key in sets]


_SIZE: Final = {"nvlink": 0, "nic": 1, "node": 2, "leaf": 3}


def _best(parts: list[Part], slow: set[int]) -> tuple[float, tuple[Part, ...]] | None:
    """(F1, the parts that reach it, of the smallest kind); None where nothing fits."""
    scored = [(2 * len(slow & part.paths) / (len(slow) + len(part.paths)), part) for part in parts]
    scored = [one for one in scored if one[0] > 0]
    if not scored:
        return None
    # a part all of whose paths are slow may be one of several faults: it is scored by its own paths too
    whole = [(len(slow & part.paths) / len(part.paths), part) for _, part in scored]
    top = max(fit for fit, _ in scored)
    if top < FITS_MIN:
        candidates = [part for fit, part in whole if fit >= 1.0 and len(part.paths) > 1]
        if not candidates:
            return None
        most = max(len(part.paths) for part in candidates)
        same = [part for part in candidates if len(part.paths) == most]
        return 1.0, _smallest(same)
    return top, _smallest([part for fit, part in scored if fit > top - 1e-9])


def _smallest(parts: list[Part]) -> tuple[Part, ...]:
    size = min(_SIZE[part.kind] for part in parts)
    return tuple(part for part in parts if _SIZE[part.kind] == size)
