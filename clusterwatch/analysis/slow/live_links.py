"""Transfers of a running job, step by step: what is kept from look to look.

In: ``Edges`` as they are told, the ``Paths`` of the job. Out: ``KeptLinks``, which a caller stores. Told may
be every n-th step, the same numbers on all ranks; a step is taken when every rank that tells transfers told
it or a later one, or when the rest will not come. What is kept does not grow: sums of each path, and the
excess of the last ``WINDOW_ROWS`` told steps. Cost: what the new rows cost.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final

import msgspec
import numpy as np
from numpy.typing import NDArray

from clusterwatch.analysis.slow import alarm, links, quantiles
from clusterwatch.analysis.slow.edge_excess import Excess, Own, compared
from clusterwatch.analysis.slow.edges import Bools, Edges, Floats, Ints, Paths, measured
from clusterwatch.analysis.slow.links import SlowPath

Halves = NDArray[np.float16]

WINDOW_ROWS: Final = 32
"""Told steps; a weak fault is told by the last ``links.LASTING_ROWS`` of them."""
LATE_NS: Final = 45 * 10**9
"""Agents send what was told each ten seconds; what has not come by then will not."""
NEAR_RATIO: Final = 0.5
"""Of the threshold: once a path opened, others of the same fault are hardly a step or two behind."""
OVER_ROWS: Final = 6
"""So many told steps at half of what is allowed end an episode: more than a burst leaves out."""
REFINED_MAX: Final = 128
"""More slow paths than this are dated by their sums alone: a fit of each costs a millisecond."""
VERSION: Final = 1


@dataclass(slots=True)
class KeptLinks:
    """One world of a job between two looks; P paths that were ever measured, R ranks.

    Attributes:
        key: (P,) ``Paths.key`` of them.
        told: (R,) newest step whose transfers a rank told; -1: it tells none.
        rows: told steps taken.
        lasting: (P,) row at which a weak excess was seen to last, -1 where none does.
        steps, ends_ns: of the last ``WINDOW_ROWS`` taken: numbers, and when they were told.
        excess, lost_s: (W, P) of those.
        onsets: path's key -> (step at which it began, whether it was otherwise before).
        step_s: the job's newest step, 0 where it is not known.
        read_ns: when a look read what was told, 0 before the first one.
    """

    key: Ints
    told: Ints
    sums: alarm.Sums
    lasting: Ints
    excess: Halves
    lost_s: Halves
    own: Own
    rows: int = 0
    newest: int = -1
    steps: list[int] = field(default_factory=list)
    ends_ns: list[int] = field(default_factory=list)
    onsets: dict[int, tuple[int, bool]] = field(default_factory=dict)
    step_s: float = 0.0
    read_ns: int = 0

    @classmethod
    def of(cls, rank_count: int) -> KeptLinks:
        no = np.zeros(0, np.int64)
        window = np.zeros((0, 0), np.float16)
        return cls(no, np.full(rank_count, -1), alarm.Sums.of(0), no.copy(), window, window.copy(), Own({}))

    def take(self, edges: Edges, paths: Paths, living: Bools, now_ns: int) -> int:
        """Adds the steps of which no more will come; returns how many. Args: ``living``: (R,) ranks."""
        edges = edges.rows((edges.step > self.newest) & (edges.rank < len(self.told)))
        steps = self._whole(edges, living, now_ns)
        if not len(steps):
            return 0
        self.newest = int(steps[-1])
        cells = measured(edges, steps, paths)
        found = compared(cells, paths, self.own)
        self._widen(paths.key[found.path])
        at = np.zeros(len(steps), np.int64)
        mine = edges.step <= self.newest
        np.maximum.at(at, np.searchsorted(steps, edges.step[mine]), edges.at_ns[mine])
        self._add(found, np.searchsorted(self.key, paths.key[found.path]), steps, at)
        self._see_lasting()
        return len(steps)

    def _whole(self, edges: Edges, living: Bools, now_ns: int) -> Ints:
        """Steps that every rank told or passed over, and all before one that is too old to wait for."""
        steps = np.unique(edges.step)
        if not len(steps):
            return steps
        told = self.told.copy()
        np.maximum.at(told, edges.rank, edges.step)
        tells = living & (self.told >= 0)
        awaited = tells if tells.any() else living
        passed = int(told[awaited].min()) if awaited.any() else int(steps[-1])
        at = np.zeros(len(steps), np.int64)
        np.maximum.at(at, np.searchsorted(steps, edges.step), edges.at_ns)
        old = steps[at < now_ns - LATE_NS]
        until = max(passed, int(old[-1]) if len(old) else -1)
        done = steps[steps <= until]
        if len(done):
            told[awaited & (told < done[-1])] = -1  # nobody waits for them again until they tell something
            self.told = told
        return done

    def _widen(self, keys: Ints) -> None:
        """Makes columns for paths that were never measured before."""
        keys = np.sort(keys)
        if np.isin(keys, self.key).all():
            return
        key = np.union1d(self.key, keys)
        old, sums, count = np.searchsorted(key, self.key), alarm.Sums.of(len(key)), len(key)
        for name in alarm.Sums.__slots__:
            getattr(sums, name)[old] = getattr(self.sums, name)
        lasting = np.full(count, -1)
        lasting[old] = self.lasting
        windows = [np.full((len(self.steps), count), np.nan, np.float16) for _ in range(2)]
        windows[0][:, old], windows[1][:, old] = self.excess, self.lost_s
        self.key, self.sums, self.lasting = key, sums, lasting
        self.excess, self.lost_s = windows

    def _add(self, found: Excess, columns: Ints, steps: Ints, at_ns: Ints) -> None:
        some = np.flatnonzero(np.isfinite(found.excess).any(axis=1))
        counted, excess, lost = (np.full((len(some), len(self.key)), np.nan) for _ in range(3))
        counted[:, columns], excess[:, columns] = found.counted[some], found.excess[some]
        lost[:, columns] = found.lost_s[some]
        for row in counted:
            self.sums.add(self.rows, row, links.SUDDEN)
            self.rows += 1
        self.excess = np.concatenate((self.excess, _halves(excess)))[-WINDOW_ROWS:]
        self.lost_s = np.concatenate((self.lost_s, _halves(lost)))[-WINDOW_ROWS:]
        self.steps = [*self.steps, *steps[some].tolist()][-WINDOW_ROWS:]
        self.ends_ns = [*self.ends_ns, *at_ns[some].tolist()][-WINDOW_ROWS:]

    def _see_lasting(self) -> None:
        """Paths whose median over many steps is high for the job, and is so still."""
        if len(self.steps) < links.LASTING_ROWS:
            return
        window = self.excess[-links.LASTING_ROWS :].astype(np.float64)
        level, recent = quantiles.median(window, axis=0), self._recent()
        level[np.isfinite(window).sum(axis=0) < links.LASTING_ROWS // 2] = np.nan
        apart = float(np.nan_to_num(quantiles.spread(level)))
        bound = max(links.LASTING_MIN, 6 * apart)
        with np.errstate(invalid="ignore"):
            self.lasting[(level > bound) & (recent > bound / 2) & (self.lasting < 0)] = self.rows - 1
            self.lasting[(level < bound / 2) | (recent < bound / 2)] = -1

    def _recent(self) -> Floats:
        """Median excess of the newest steps."""
        return quantiles.median(self.excess[-OVER_ROWS:].astype(np.float64), axis=0)

    def close(self) -> None:
        """Forgets episodes that are over."""
        if len(self.steps) >= OVER_ROWS:
            with np.errstate(invalid="ignore"):
                is_over = self._recent() < links.SUDDEN.allowed / 2
            self.sums.total[(self.sums.opened >= 0) & is_over] = 0.0
        self.sums.close()
        still = set(self.key[(self.sums.opened >= 0) | (self.lasting >= 0)].tolist())
        self.onsets = {key: onset for key, onset in self.onsets.items() if key in still}

    @property
    def stands_out(self) -> bool:
        """Some path is slow now."""
        return bool(len(self.sums.columns) or (self.lasting >= 0).any())

    def slow(self, paths: Paths) -> list[SlowPath]:
        """Paths whose transfers are slow, by number in ``paths``; rows are of the window."""
        place = {key: number for number, key in enumerate(paths.key.tolist())}
        sums = self.sums
        latest = self.excess[-1].astype(np.float64) if len(self.steps) else np.zeros(0)
        near = (sums.total >= NEAR_RATIO * links.SUDDEN.opens) & (latest > links.SUDDEN.allowed)
        columns = np.flatnonzero((sums.opened >= 0) | (self.lasting >= 0) | near).tolist()
        found = []
        for column in columns:
            path = place.get(int(self.key[column]))
            if path is None:
                continue
            series, lost = (one[:, column].astype(np.float64) for one in (self.excess, self.lost_s))
            onset = self._onset(column, series, len(columns) <= REFINED_MAX)
            one = links.told(path, series, lost, onset, float(sums.highest[column]))
            found += [one] if one is not None else []
        return found

    def _onset(self, column: int, series: Floats, is_refined: bool) -> int:
        """Row of the window at which a path's excess began, as it was seen first."""
        key, sums, behind = int(self.key[column]), self.sums, self.rows - len(self.steps)
        if key in self.onsets:
            return int(np.searchsorted(self.steps, self.onsets[key][0]))
        if sums.opened[column] >= 0:
            first, opened = int(sums.onset[column]), int(sums.opened[column])
        elif self.lasting[column] >= 0:
            first, opened = int(self.lasting[column]) - links.LASTING_ROWS, int(self.lasting[column])
        else:
            first, opened = int(sums.zero_at[column]) + 1, self.rows - 1
        row = links.began(series, first - behind, opened - behind) if is_refined else first - behind
        row = min(max(row, 0), len(self.steps) - 1)
        self.onsets[key] = (self.steps[row], row > 0)
        return row


def _halves(values: Floats) -> Halves:
    """Logarithms and seconds to a thousandth of themselves."""
    return np.clip(values, -links.MOST * 20, 60_000.0).astype(np.float16)


# --- what is kept, as bytes ------------------------------------------------------------------------------


class _Stored(msgspec.Struct, array_like=True):
    version: int
    rank_count: int
    path_count: int
    rows: int
    newest: int
    steps: list[int]
    ends_ns: list[int]
    onsets: dict[int, tuple[int, bool]]
    step_s: float
    read_ns: int
    own: list[tuple[int, str, int, list[float]]]
    ranks: bytes
    """int64: told"""
    keys: bytes
    """int64"""
    marks: bytes
    """int32: zero_at, opened, onset, lasting"""
    floats: bytes
    """float32: total, highest"""
    halves: bytes
    """float16: excess, lost"""


def pack(kept: KeptLinks) -> bytes:
    """For ``unpack``; about 160 bytes a path and 8 a rank."""
    sums = kept.sums
    marks = np.concatenate((sums.zero_at, sums.opened, sums.onset, kept.lasting)).astype(np.int32)
    floats = np.concatenate((sums.total, sums.highest)).astype(np.float32)
    own = [(*key, seen) for key, seen in kept.own.first.items()]
    return msgspec.msgpack.encode(_Stored(
        VERSION, len(kept.told), len(kept.key), kept.rows, kept.newest, kept.steps, kept.ends_ns,
        kept.onsets, kept.step_s, kept.read_ns, own, kept.told.astype(np.int64).tobytes(),
        kept.key.astype(np.int64).tobytes(), marks.tobytes(), floats.tobytes(),
        np.stack((kept.excess, kept.lost_s)).tobytes(),
    ))  # fmt: skip


def unpack(data: bytes) -> KeptLinks:
    """Raises ``ValueError`` for bytes that ``pack`` of this version did not make."""
    try:
        stored = msgspec.msgpack.decode(data, type=_Stored)
    except msgspec.MsgspecError as error:
        raise ValueError(f"no kept transfers: {error}") from error
    count, rows = stored.path_count, len(stored.steps)
    parts = (stored.ranks, stored.keys, stored.marks, stored.floats, stored.halves)
    sizes = (8 * stored.rank_count, 8 * count, 16 * count, 8 * count, 4 * rows * count)
    if stored.version != VERSION or tuple(map(len, parts)) != sizes or len(stored.ends_ns) != rows:
        raise ValueError(f"kept transfers of version {stored.version}, or damaged")
    marks = np.frombuffer(stored.marks, np.int32).reshape(4, count).astype(np.int64)
    floats = np.frombuffer(stored.floats, np.float32).reshape(2, count).astype(np.float64)
    halves = np.frombuffer(stored.halves, np.float16).reshape(2, rows, count)
    zero_at, opened, onset, lasting = (row.copy() for row in marks)
    sums = alarm.Sums(floats[0].copy(), floats[1].copy(), zero_at, opened, onset)
    own = Own({(key, op, size): seen for key, op, size, seen in stored.own})
    keys, told = (np.frombuffer(one, np.int64).copy() for one in (stored.keys, stored.ranks))
    return KeptLinks(
        keys, told, sums, lasting, halves[0], halves[1], own, stored.rows, stored.newest,
        stored.steps, stored.ends_ns, stored.onsets, stored.step_s, stored.read_ns,
    )  # fmt: skip
