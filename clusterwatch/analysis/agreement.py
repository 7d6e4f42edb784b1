"""What the members of every group passed in their newest calls, compared without building one object.

In: ``World``. Out: ``Agreement``: per group and call, whether all that hold it passed the same. Calls lie in
two bands of each group: the ``BAND`` newest ones, and those around its frontier, where launches ran ahead.
Cost: one pass over the kept calls in numpy, no sort.
"""

from __future__ import annotations

from typing import Final

import numpy as np

from clusterwatch.analysis.groups import World
from clusterwatch.analysis.tables import Marks, Numbers
from collectors.formats.columns import NULL

BAND: Final = 64
_BEFORE: Final = 16
"""Calls before the frontier that its band holds."""


class Agreement:
    """``S`` slots, two bands per group, each for one call of it: by place in the bands, then by group: so
    short rings touch the first few places only.
    """

    def __init__(self, world: World) -> None:
        rows = world.rows
        count = len(world.groups)
        self.world = world
        placed = rows.number != NULL
        number, high = rows.number[placed], rows.high[placed]
        self.high = np.full(count, NULL)
        np.maximum.at(self.high, number, high)
        front = np.where(rows.first_open == NULL, rows.high, rows.first_open)[placed]
        self.front = np.full(count, np.iinfo(np.int64).max)
        held = front != NULL
        np.minimum.at(self.front, number[held], front[held])
        self.front -= _BEFORE
        calls = rows.calls
        group = rows.number[rows.call_row]
        slot = self._slots(group, np.ascontiguousarray(calls["sequence"]))
        inside = np.flatnonzero((slot >= 0) & (group != NULL))
        slot = slot[inside]
        digest = rows.call_digest[inside]
        slots = count * 2 * BAND
        self.digest = np.zeros(slots, np.int64)
        self.digest[slot] = digest
        self.differs = np.zeros(slots, np.bool_)
        self.differs[slot[self.digest[slot] != digest]] = True
        self.count = np.bincount(slot, minlength=slots)
        uneven = rows.call_balance[inside]
        self.unbalanced = np.bincount(slot, uneven, slots) != 0 if uneven.any() else np.zeros(slots, np.bool_)

    def _slots(self, group: Numbers, sequence: Numbers) -> Numbers:
        """Slot of each (group, sequence); -1 outside the bands."""
        down = self.high[group] - sequence
        up = sequence - self.front[group]
        newest = (down >= 0) & (down < BAND)
        around = (up >= 0) & (up < BAND)
        slot: Numbers = np.where(newest, down, np.where(around, BAND + up, -1))
        return np.where(slot < 0, -1, slot * len(self.high) + group)

    def groups_that_differ(self) -> list[int]:
        """Numbers of groups with a call in which members passed different things."""
        return self._groups(self.differs)

    def groups_out_of_balance(self) -> list[int]:
        """Numbers of groups with an all-to-all whose sent and received elements do not add up."""
        return self._groups(self.unbalanced)

    def _groups(self, slots: Marks) -> list[int]:
        marks = slots.reshape(2 * BAND, -1).any(axis=0)
        found: list[int] = np.flatnonzero(marks).tolist()
        return found

    def agreed(self, groups: Numbers, sequence: int) -> Numbers:
        """Digest of what all that hold the call passed, per group; 0 where they differ or none holds it."""
        slot = self._slots(groups, np.full(len(groups), sequence))
        good = (slot >= 0) & (self.count[slot] > 0) & ~self.differs[slot]
        return np.where(good, self.digest[slot], 0)

    def holders(self, group: int, sequence: int) -> int:
        """How many members hold the call."""
        slot = int(self._slots(np.array([group]), np.array([sequence]))[0])
        return int(self.count[slot]) if slot >= 0 else 0
