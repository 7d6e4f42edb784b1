"""Which steps are looked at closely: each 2**power-th, by the step's number alone, alike on all ranks.

In: how many steps should lie between two. Out: yes or no for a number. Ranks that settle on different powers
still share the steps of the rarest one, since its multiples are multiples of all smaller powers.
"""

from __future__ import annotations

SLACK_RATIO = 1.4
"""A smaller power has to be enough by this much: two ranks near a border do not change back and forth."""


class Rhythm:
    """A power of two between 0 and ``power_max``."""

    def __init__(self, power: int, power_max: int) -> None:
        self.power = power
        self._power_max = power_max

    def holds(self, step: int) -> bool:
        return not step & ((1 << self.power) - 1)

    def settle(self, apart: float) -> bool:
        """Takes the smallest power of at least ``apart`` steps. False where even the largest is less."""
        while (1 << self.power) < apart and self.power < self._power_max:
            self.power += 1
        while self.power and (1 << (self.power - 1)) >= apart * SLACK_RATIO:
            self.power -= 1
        return (1 << self.power) >= apart
