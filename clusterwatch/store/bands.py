"""Percentiles of each metric over a cluster, every 10 s, as live pages show them: the fleet's yardstick."""

from __future__ import annotations

from typing import Final

import numpy as np
from numpy.typing import NDArray

from clusterwatch.store import hot

EVERY_S: Final = 10
FRESH_S: Final = 10.0
"""A value nobody renewed for so long does not count."""
METRICS_MAX: Final = 64
"""Metrics of a cluster that get percentiles, by name: a hostile node can invent names without end."""
PERCENTILES: Final = (1, 25, 50, 75, 99)

Band = dict[str, float | int]
"""``p1``, ``p25``, ``p50``, ``p75``, ``p99``, ``count`` of values, ``at_ms``"""


def fresh_values(cluster_id: int, slot_count: int, now_ns: int) -> dict[str, NDArray[np.float32]]:
    """Newest value per slot of every metric, NaN where nothing came within ``FRESH_S``."""
    found = {}
    for name in sorted(hot.metric_names(cluster_id))[:METRICS_MAX]:
        array = hot.read_metric(cluster_id, name, slot_count)
        fresh = now_ns - array.seen_ns <= FRESH_S * 1e9
        found[name] = np.where(fresh, array.values, np.float32(np.nan))
    return found


def band(values: NDArray[np.float32], now_ns: int) -> Band | None:
    """Percentiles of the values that are numbers; None without any."""
    there = values[np.isfinite(values)]
    if not len(there):
        return None
    found = np.percentile(there, PERCENTILES).round(4).tolist()
    named = {f"p{p}": value for p, value in zip(PERCENTILES, found, strict=True)}
    return named | {"count": len(there), "at_ms": now_ns // 1_000_000}
