"""Quantiles of columns with gaps, and spreads that a few bad values do not move."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]

CENTRE = 0.4
"""Quantile that stands for the healthy ones of ranks or hosts that do alike."""
MAD_TO_SIGMA = 1.4826
"""of a normal distribution"""


def low(values: Floats, ratio: float, axis: int = -1) -> Floats:
    """Quantile ``ratio`` along an axis, nearest rank, of what is not NaN; NaN where nothing is.

    A quantile below the middle, because faults only slow down: half of a stage may be on one sick node.
    """
    ordered = np.sort(values, axis=axis)  # NaN last
    count = np.sum(~np.isnan(values), axis=axis)
    place = np.rint(ratio * np.maximum(count - 1, 0)).astype(np.int64)
    found: Floats = np.take_along_axis(ordered, np.expand_dims(place, axis), axis).squeeze(axis)
    return found


def median(values: Floats, axis: int = -1) -> Floats:
    """Lower median of what is not NaN."""
    return low(values, 0.5, axis)


def spread(values: Floats, axis: int = -1) -> Floats:
    """Standard deviation as the median distance from the median tells it; 0 for one value, NaN for none."""
    middle = np.expand_dims(median(values, axis), axis)
    return MAD_TO_SIGMA * median(np.abs(values - middle), axis)
