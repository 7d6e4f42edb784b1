"""Builds the arrays of ``store.hot`` from the kept frames of many nodes. Pure; used by one thread.

All nodes' bytes are joined, then read at once. Which row is which rank of which job changes seldom, so that
is worked out only when a node's ranks changed. Cost: linear in ranks and (rank, group) pairs.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from clusterwatch.jobs.announcements import RefLayout
from clusterwatch.store import hot
from collectors.wire.records import HotProgress

Ints = NDArray[np.int64]
_TIMES: Final = ("phase_since_ns", "moved_ns", "heard_ns")
_TIME_MAX_NS: Final = 2**62
"""A hostile node's time beyond this would overflow when the clocks' offset is added."""
_PAIR_NUMBERS: Final = ("enqueued", "completed", "sequence")


@dataclass(frozen=True, slots=True, eq=False)
class RankLayout:
    """What a frame's rows mean: arrays of N ranks and M pairs, -1 where unknown."""

    rank_id: Ints
    job_id: Ints
    group_id: Ints
    group_count: Ints
    """pairs of each rank, N"""
    complete: bool
    """every rank and every group is known"""

    @classmethod
    def build(cls, progress: HotProgress, refs: Mapping[int, RefLayout]) -> RankLayout:
        """Looks every ref and group index of a frame up."""
        numbers = np.frombuffer(progress.ref, "<u4").tolist()
        counts = np.frombuffer(progress.group_count, "<u2").tolist()
        indices = np.frombuffer(progress.group_index, "<u2").tolist()
        rank_ids, job_ids, group_ids = [], [], []
        place = 0
        for ref, count in zip(numbers, counts, strict=True):
            known = refs.get(ref)
            rank_ids.append(known.rank_id if known else -1)
            job_ids.append(known.job_id if known else -1)
            groups = known.groups if known else ()
            for index in indices[place : place + count]:
                group_ids.append(groups[index] if index < len(groups) else -1)
            place += count
        return cls(
            np.array(rank_ids, np.int64),
            np.array(job_ids, np.int64),
            np.array(group_ids, np.int64),
            np.array(counts, np.int64),
            min(rank_ids, default=0) >= 0 and min(group_ids, default=0) >= 0,
        )

    def only(self, place: int) -> RankLayout:
        """The layout of one rank."""
        start = int(self.group_count[:place].sum())
        end = start + int(self.group_count[place])
        one, groups = slice(place, place + 1), self.group_id[start:end]
        rank_id, known = self.rank_id[one], bool((groups >= 0).all())
        return RankLayout(
            rank_id, self.job_id[one], groups, self.group_count[one], known and int(rank_id[0]) >= 0
        )


class ClockStep(NamedTuple):
    """A jump of a node's clock: times from before it need the offset from before it."""

    offset_ns: int
    """server's clock minus the node's, before"""
    last_ns: int
    """the node's time of the last frame before"""
    forward: bool


class ProgressPart(NamedTuple):
    """Progress of one node (or of one vanished process), with the clock it needs."""

    node_id: int
    seen_ns: int
    offset_ns: int
    progress: HotProgress
    layout: RankLayout
    step: ClockStep | None = None

    def only(self, place: int) -> ProgressPart:
        """The part of one rank."""
        start = int(self.layout.group_count[:place].sum())
        end = start + int(self.layout.group_count[place])
        p = self.progress
        alone = HotProgress(
            ref=p.ref[4 * place : 4 * place + 4],
            phase=p.phase[place : place + 1],
            group_count=p.group_count[2 * place : 2 * place + 2],
            group_index=p.group_index[2 * start : 2 * end],
            **{name: getattr(p, name)[8 * place : 8 * place + 8] for name in ("step", *_TIMES)},
            **{name: getattr(p, name)[8 * start : 8 * end] for name in _PAIR_NUMBERS},
        )
        return self._replace(progress=alone, layout=self.layout.only(place))


class JobArrays:
    """Progress of every job from parts; remembers what rows mean from one second to the next."""

    def __init__(self) -> None:
        self._plan: _Plan | None = None

    def build(self, parts: Sequence[ProgressPart]) -> dict[int, hot.JobProgress]:
        """Progress of every job these parts carry; a rank in several parts has its newest row.

        The arrays that say what rows mean are the same objects as long as they mean the same.
        """
        if not parts:
            self._plan = None
            return {}
        if self._plan is None or not self._plan.fits(parts):
            self._plan = _Plan(parts)
        ranks, pairs = _numbers(parts, self._plan.counts)
        if self._plan.ambiguous:  # which row is the newest may be another each second
            self._plan.choose(ranks["seen_ns"])
        return {
            job_id: hot.JobProgress(
                **job.same,
                **{name: column[job.ranks] for name, column in ranks.items()},
                **{name: column[job.pairs] for name, column in pairs.items()},
            )
            for job_id, job in self._plan.jobs.items()
        }


@dataclass(frozen=True, slots=True)
class _JobRows:
    """Rows of one job among the joined rows of all nodes."""

    ranks: Ints | slice
    pairs: Ints | slice
    same: dict[str, NDArray[Any]]
    """the columns of ``hot.ROW_COLUMNS``"""


class _Plan:
    """What the joined rows of some parts mean."""

    def __init__(self, parts: Sequence[ProgressPart]) -> None:
        self._layouts = [part.layout for part in parts]  # kept alive, so that an id stays theirs
        self._of = [(part.node_id, id(part.layout)) for part in parts]
        self.counts = np.array([len(part.layout.rank_id) for part in parts], np.int64)
        self.jobs: dict[int, _JobRows] = {}
        self._rank_id = _joined(self._layouts, "rank_id")
        self._job_id = _joined(self._layouts, "job_id")
        self._group_id = _joined(self._layouts, "group_id")
        self._node_id = np.repeat([part.node_id for part in parts], self.counts)
        self._row = np.repeat(np.arange(len(self._rank_id)), _joined(self._layouts, "group_count"))
        known = self._rank_id[self._rank_id >= 0]
        self.ambiguous = len(np.unique(known)) < len(known)
        if not self.ambiguous:
            self._split(np.flatnonzero(self._rank_id >= 0))

    def fits(self, parts: Sequence[ProgressPart]) -> bool:
        """These parts have the rows this plan was made for."""
        return self._of == [(part.node_id, id(part.layout)) for part in parts]

    def choose(self, seen_ns: Ints) -> None:
        """Takes the newest row of each rank."""
        order = np.lexsort((seen_ns, self._rank_id))
        ids = self._rank_id[order]
        last = np.append(ids[1:] != ids[:-1], True) & (ids >= 0)
        self._split(np.sort(order[last]))

    def _split(self, keep: Ints) -> None:
        """Sorts the kept rows by job."""
        by_job = keep[np.argsort(self._job_id[keep], kind="stable")]
        jobs, starts = np.unique(self._job_id[by_job], return_index=True)
        ends = np.append(starts[1:], len(by_job))[: len(starts)].tolist()
        place = np.full(len(self._rank_id), -1, np.int64)
        place[by_job] = np.arange(len(by_job))
        pair_place = place[self._row]
        known = np.flatnonzero((pair_place >= 0) & (self._group_id >= 0))
        known = known[np.argsort(pair_place[known], kind="stable")]
        sorted_place = pair_place[known]
        self.jobs = {}
        for job_id, start, end in zip(jobs.tolist(), starts.tolist(), ends, strict=True):
            first, last = np.searchsorted(sorted_place, (start, end))
            ranks, pairs = by_job[start:end], known[first:last]
            same: dict[str, NDArray[Any]] = {
                "rank_id": self._rank_id[ranks],
                "node_id": self._node_id[ranks],
                "row": sorted_place[first:last] - start,
                "group_id": self._group_id[pairs],
            }
            self.jobs[job_id] = _JobRows(_as_slice(ranks), _as_slice(pairs), same)


def _as_slice(rows: Ints) -> Ints | slice:
    """Neighbouring rows as a slice: a view costs nothing."""
    if len(rows) and int(rows[-1]) - int(rows[0]) == len(rows) - 1 and bool((np.diff(rows) == 1).all()):
        return slice(int(rows[0]), int(rows[-1]) + 1)
    return rows


def _joined(layouts: Sequence[RankLayout], name: str) -> Ints:
    return np.concatenate([getattr(layout, name) for layout in layouts])


def _numbers(
    parts: Sequence[ProgressPart], counts: Ints
) -> tuple[dict[str, NDArray[Any]], dict[str, NDArray[Any]]]:
    """All parts' numbers as rank columns and pair columns, times in the server's clock."""
    frames = [part.progress for part in parts]

    def column(name: str, kind: str) -> NDArray[Any]:
        return np.frombuffer(b"".join([getattr(frame, name) for frame in frames]), kind)

    seen = np.repeat(np.array([part.seen_ns for part in parts], np.int64), counts)
    offset = np.repeat(np.array([part.offset_ns for part in parts], np.int64), counts)
    ranks: dict[str, NDArray[Any]] = {
        "seen_ns": seen,
        "step": column("step", "<i8"),
        "phase": column("phase", "u1"),
    }
    stepped = _stepped(parts, counts)
    for name in _TIMES:
        node_time = np.minimum(column(name, "<i8"), _TIME_MAX_NS)
        server_time = node_time + offset
        for rows, step, newest_ns in stepped:
            times = node_time[rows]
            # A clock set forward leaves a gap that tells old times; one set back leaves them in the future.
            old = times <= step.last_ns if step.forward else times > newest_ns
            server_time[rows] = np.where(old, times + step.offset_ns, server_time[rows])
        # Never later than the frame itself; 0 stays "not known".
        ranks[name] = np.where(node_time > 0, np.minimum(server_time, seen), 0)
    return ranks, {name: column(name, "<i8") for name in _PAIR_NUMBERS}


def _stepped(parts: Sequence[ProgressPart], counts: Ints) -> list[tuple[slice, ClockStep, int]]:
    """Rows of nodes whose clock jumped, the jump, and the node's time of the newest frame."""
    found = []
    for place, part in enumerate(parts):
        if part.step is not None:
            start = int(counts[:place].sum())
            rows = slice(start, start + int(counts[place]))
            found.append((rows, part.step, part.seen_ns - part.offset_ns))
    return found
