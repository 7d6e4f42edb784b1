"""Columns of numbers as bytes that compress well: differences, and all lowest bytes first. Pure, in numpy."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray


def deltas(numbers: NDArray[np.int64]) -> NDArray[np.int64]:
    """Differences to the number before; the first one as it is. Overflow wraps and is undone by the sum."""
    return np.diff(numbers, prepend=np.zeros(1, np.int64))


def shuffled(numbers: NDArray[np.generic]) -> bytes:
    """All lowest bytes first."""
    size = numbers.dtype.itemsize
    return np.ascontiguousarray(numbers).view(np.uint8).reshape(-1, size).T.tobytes()


def joined(planes: NDArray[np.uint8], size: int) -> NDArray[np.uint8]:
    """Bytes of numbers of ``size`` bytes each, one after the other, by frame: shape (F, count * size)."""
    frames = len(planes)
    return np.ascontiguousarray(planes.reshape(frames, size, -1).transpose(0, 2, 1)).reshape(frames, -1)
