"""What slow paths have in common: ports, leaf switches, NVLinks and hosts with the paths that use them.

In: the members of measured paths, a ``Layout``. Out: ``Parts``. A part fits as well as its paths are the slow
ones (F1). All is done on (part, path) pairs, so that it costs what the memberships cost; a ``Part`` with its
ranks is made of those that fit best alone.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

from clusterwatch.analysis.slow.layout import UNKNOWN, Layout, Members

Ints = NDArray[np.int64]
Bools = NDArray[np.bool_]

FITS_MIN: Final = 0.6
"""F1 below this: the slow paths have no part in common."""
KINDS: Final = ("nvlink", "nic", "node", "leaf")
"""The smallest first: of parts that fit alike the smallest is named."""
TIED_MAX: Final = 128
"""More parts than this that fit alike are no part; an NVLink domain has 72 GPUs at most."""
_NVLINK = KINDS.index("nvlink")
_LEAF, _NODE = KINDS.index("leaf"), KINDS.index("node")


@dataclass(frozen=True, slots=True)
class Part:
    """``kind``: nic, leaf, nvlink or node; ``ranks``: whose part it is, or who is behind it."""

    kind: str
    name: str
    ranks: tuple[int, ...]
    paths: frozenset[int]


@dataclass(frozen=True, slots=True)
class Fit:
    """The parts that explain the slow paths alike, and all of their paths; ``f1``: 0 to 1."""

    f1: float
    parts: tuple[Part, ...]
    paths: frozenset[int]


@dataclass(frozen=True, slots=True)
class Parts:
    """K parts of a job, U uses of paths by them.

    Attributes:
        kind: (K,) index in ``KINDS``.
        use_part, use_path, use_rank: (U,) one for each member of a path that is behind a part.
        pair_part, pair_path: the same without the rank, each pair once.
    """

    layout: Layout
    kind: Ints
    use_part: Ints
    use_path: Ints
    use_rank: Ints
    pair_part: Ints
    pair_path: Ints

    @classmethod
    def of(cls, members: Members, measured: Bools, crosses: Bools, layout: Layout) -> Parts:
        """Args: ``measured``, ``crosses``: (paths,). Cost: O(m log m) of memberships."""
        path = np.repeat(np.arange(members.count), members.sizes())
        use = measured[path] & (layout.node[members.ranks] != UNKNOWN)
        path, rank = path[use], members.ranks[use]
        kinds, found = [np.zeros(0, np.int64)], []
        for kind, ids in enumerate(_ids(layout)):
            mine = (ids[rank] != UNKNOWN) & (crosses[path] != (kind == _NVLINK))
            first = sum(map(len, kinds))
            kinds.append(np.full(int(ids.max(initial=-1)) + 1, kind))
            found.append(np.stack((ids[rank[mine]] + first, path[mine], rank[mine])))
        uses = np.concatenate(found, axis=1)
        wide = max(1, members.count)
        pairs = np.unique(uses[0] * wide + uses[1])
        return cls(layout, np.concatenate(kinds), uses[0], uses[1], uses[2], pairs // wide, pairs % wide)

    def best(self, slow: set[int], paths_min: int = 1) -> Fit | None:
        """The parts whose paths are the slow ones; None where nothing fits.

        Args:
            paths_min: so many slow paths must use a part that is not an NVLink.
        """
        if not len(self.kind):
            return None
        is_slow = np.isin(self.pair_path, list(slow))
        hits = np.bincount(self.pair_part[is_slow], minlength=len(self.kind))
        sizes = np.bincount(self.pair_part, minlength=len(self.kind))
        f1 = np.where(hits > 0, 2 * hits / (len(slow) + np.maximum(sizes, 1)), 0.0)
        f1[(self.kind != _NVLINK) & (hits < paths_min)] = 0.0
        top = float(f1.max())
        if top >= FITS_MIN:
            return self._smallest(top, f1 > top - 1e-9)
        # a part all of whose paths are slow may be one of several faults: it is scored by its own paths too
        whole = (f1 > 0) & (hits == sizes) & (sizes > 1)
        if not whole.any():
            return None
        return self._smallest(1.0, whole & (sizes == sizes[whole].max()))

    def _smallest(self, f1: float, which: Bools) -> Fit:
        numbers = np.flatnonzero(which)
        numbers = numbers[self.kind[numbers] == self.kind[numbers].min()]
        paths = frozenset(self.pair_path[np.isin(self.pair_part, numbers)].tolist())
        if len(numbers) > TIED_MAX:
            return Fit(0.0, (), paths)
        return Fit(f1, tuple(self._part(number) for number in numbers.tolist()), paths)

    def _part(self, number: int) -> Part:
        mine = self.use_part == number
        ranks = np.unique(self.use_rank[mine])
        first, kind, layout = int(ranks[0]), int(self.kind[number]), self.layout
        name = _name(kind, first, layout)
        if kind == _LEAF:
            ranks = np.array([rank for rank, leaf in enumerate(layout.leaf) if leaf == name], np.int64)
        if kind == _NODE:
            ranks = np.flatnonzero(layout.node == layout.node[first])
        paths = frozenset(self.use_path[mine].tolist())
        return Part(KINDS[kind], name, tuple(ranks.tolist()), paths)


def crossing(members: Members, place: Ints) -> Bools:
    """Paths whose members are not all in one place. Args: ``place``: (R,) index of each rank's."""
    if not len(members.ranks):
        return np.zeros(members.count, np.bool_)
    of = place[members.ranks]
    start = np.minimum(members.start[:-1], len(of) - 1)
    differs = np.maximum.reduceat(of, start) != np.minimum.reduceat(of, start)
    found: Bools = differs & (members.sizes() > 0)
    return found


def _ids(layout: Layout) -> tuple[Ints, ...]:
    """For each kind the number of a rank's part, ``UNKNOWN`` where it has none."""
    gpus = int(layout.gpu.max(initial=0)) + 2
    nvlink = _dense(layout.node * gpus + layout.gpu + 1, layout.node != UNKNOWN)
    names = _dense(np.unique(np.array(layout.nic, str), return_inverse=True)[1].reshape(-1), None)
    wide = int(names.max(initial=0)) + 1
    has_nic = np.array([bool(name) for name in layout.nic], np.bool_)
    has_leaf = np.array([bool(name) for name in layout.leaf], np.bool_)
    leaf = np.unique(np.array(layout.leaf, str), return_inverse=True)[1].reshape(-1)
    nic = _dense(layout.node * wide + names, has_nic)
    return nvlink, nic, _dense(layout.node, layout.node != UNKNOWN), _dense(leaf, has_leaf)


def _dense(values: Ints, known: Bools | None) -> Ints:
    """The values numbered from 0."""
    is_known = np.ones(len(values), np.bool_) if known is None else known
    found = np.full(len(values), UNKNOWN)
    found[is_known] = np.unique(values[is_known], return_inverse=True)[1].reshape(-1)
    return found


def _name(kind: int, rank: int, layout: Layout) -> str:
    names = {
        "nvlink": f"nvlink:n{layout.node[rank]}:g{layout.gpu[rank]}", "nic": layout.nic[rank],
        "node": f"node {layout.node[rank]}", "leaf": layout.leaf[rank],
    }  # fmt: skip
    return names[KINDS[kind]]
