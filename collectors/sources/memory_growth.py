"""How fast memory grows and when it will be full: a robust line through the looks of the last ten minutes.

In: (time, bytes) look by look. Out: bytes per second, or why that is not known yet. It is the median of
all pairs' slopes (Theil and Sen), so that a checkpoint's peak does not bend it; growth is steady when most
pairs rise.
"""

from __future__ import annotations

from collections import deque
from itertools import combinations
from statistics import median
from typing import Final

from collectors.sources.base import OK

WINDOW_S: Final = 600.0
LOOKS_MIN: Final = 6
SPAN_MIN_S: Final = 240.0
LOOKS_MAX: Final = 40
STEADY_SHARE: Final = 0.8
"""Share of pairs of looks that must rise."""
GROWN_MIN_BYTES: Final = 64 * 1024 * 1024
"""Less than that within the window is no growth worth a forecast."""
TOO_FEW: Final = "too_few_looks"
NOT_GROWING: Final = "not_growing"


class Growth:
    """The looks at one thing's memory."""

    def __init__(self) -> None:
        self._looks: deque[tuple[float, float]] = deque(maxlen=LOOKS_MAX)
        self._rises = 0.0

    def add(self, at_s: float, used_bytes: float) -> None:
        """Forgets what is older than the window; all of it when time went back."""
        if self._looks and at_s <= self._looks[-1][0]:
            self._looks.clear()
        self._looks.append((at_s, used_bytes))
        while at_s - self._looks[0][0] > WINDOW_S:
            self._looks.popleft()

    def per_s(self) -> tuple[float | None, str]:
        """(bytes per second, quality); negative where it shrinks."""
        if len(self._looks) < LOOKS_MIN or self._looks[-1][0] - self._looks[0][0] < SPAN_MIN_S:
            return None, TOO_FEW
        slopes = [(b - a) / (tb - ta) for (ta, a), (tb, b) in combinations(self._looks, 2)]
        self._rises = sum(slope > 0 for slope in slopes) / len(slopes)
        return median(slopes), OK

    def full_in_s(self, free_bytes: float) -> tuple[float | None, str]:
        """(seconds until ``free_bytes`` more are used, quality); unknown while it does not grow steadily."""
        slope, quality = self.per_s()
        if slope is None:
            return None, quality
        grown = slope * (self._looks[-1][0] - self._looks[0][0])
        if self._rises < STEADY_SHARE or grown < GROWN_MIN_BYTES:
            return None, NOT_GROWING
        return max(0.0, free_bytes) / slope, OK
