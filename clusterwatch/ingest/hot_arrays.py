"""Builds the arrays of ``store.hot`` from the kept frames of many nodes. Pure; runs in a thread of its own.

Cost: linear in ranks, (rank, group) pairs and metric values; all nodes' bytes are joined, then read at once.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from clusterwatch.jobs.announcements import RefLayout
from clusterwatch.store import hot
from collectors.wire.records import HotProgress

Ints = NDArray[np.int64]
_RANK_COLUMNS = ("rank_id", "node_id", "seen_ns", "step", "phase", "phase_since_ns", "moved_ns", "heard_ns")


@dataclass(frozen=True, slots=True)
class RankLayout:
    """What a frame's rows mean: arrays of N ranks and M pairs, -1 where unknown."""

    rank_id: Ints
    job_id: Ints
    group_id: Ints

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
        return cls(np.array(rank_ids, np.int64), np.array(job_ids, np.int64), np.array(group_ids, np.int64))

    @property
    def complete(self) -> bool:
        """Every rank and every group is known."""
        return bool((self.rank_id >= 0).all() and (self.group_id >= 0).all())


@dataclass(frozen=True, slots=True)
class ProgressPart:
    """Progress of one node (or of one vanished process), with the clock it needs."""

    node_id: int
    seen_ns: int
    offset_ns: int
    progress: HotProgress
    layout: RankLayout

    def only(self, place: int) -> ProgressPart:
        """The part of one rank."""
        counts = np.frombuffer(self.progress.group_count, "<u2")
        start = int(counts[:place].sum())
        end = start + int(counts[place])
        p = self.progress
        alone = HotProgress(
            ref=p.ref[4 * place : 4 * place + 4],
            phase=p.phase[place : place + 1],
            group_count=p.group_count[2 * place : 2 * place + 2],
            group_index=p.group_index[2 * start : 2 * end],
            **{
                name: getattr(p, name)[8 * place : 8 * place + 8]
                for name in ("step", "phase_since_ns", "moved_ns", "heard_ns")
            },
            **{name: getattr(p, name)[8 * start : 8 * end] for name in ("enqueued", "completed", "sequence")},
        )
        layout = RankLayout(
            self.layout.rank_id[place : place + 1],
            self.layout.job_id[place : place + 1],
            self.layout.group_id[start:end],
        )
        return ProgressPart(self.node_id, self.seen_ns, self.offset_ns, alone, layout)


@dataclass(frozen=True, slots=True)
class NodePart:
    """One node's state and newest metrics."""

    node_id: int
    cluster_id: int
    seen_ns: int
    link: int
    link_since_ns: int
    slots: tuple[int, ...]
    metrics: Mapping[str, tuple[Sequence[float | None], int]]


def node_states(parts: Sequence[NodePart]) -> hot.NodeStates:
    """One row per node."""

    def column(name: str, kind: Any = np.int64) -> NDArray[Any]:
        return np.fromiter((getattr(part, name) for part in parts), kind, len(parts))

    return hot.NodeStates(
        node_id=column("node_id"),
        cluster_id=column("cluster_id"),
        seen_ns=column("seen_ns"),
        link=column("link", np.uint8),
        link_since_ns=column("link_since_ns"),
    )


def metric_arrays(parts: Sequence[NodePart]) -> dict[tuple[int, str], hot.MetricArray]:
    """Newest value per slot and metric; a host's one value goes to its node's first slot."""
    slots: dict[tuple[int, str], list[int]] = {}
    values: dict[tuple[int, str], list[float | None]] = {}
    seen: dict[tuple[int, str], list[int]] = {}
    sizes: dict[int, int] = {}
    for part in parts:
        sizes[part.cluster_id] = max(sizes.get(part.cluster_id, 0), max(part.slots, default=-1) + 1)
        for name, (newest, seen_ns) in part.metrics.items():
            key = (part.cluster_id, name)
            if key not in slots:
                slots[key], values[key], seen[key] = [], [], []
            slots[key] += part.slots[: len(newest)]
            values[key] += newest
            seen[key] += [seen_ns] * len(newest)
    return {key: _metric_array(sizes[key[0]], slots[key], values[key], seen[key]) for key in slots}


def _metric_array(
    size: int, slots: Sequence[int], values: Sequence[float | None], seen: Sequence[int]
) -> hot.MetricArray:
    array = hot.MetricArray(np.full(size, np.nan, np.float32), np.zeros(size, np.int64))
    # None becomes NaN; a number beyond float32 becomes infinite, which is no error here.
    with np.errstate(over="ignore"):
        array.values[slots] = np.array(values, np.float64).astype(np.float32)
    array.seen_ns[slots] = seen
    return array


def job_progress(parts: Sequence[ProgressPart]) -> dict[int, hot.JobProgress]:
    """Progress of every job these parts carry; a rank in several parts has its newest row."""
    if not parts:
        return {}
    ranks, pairs = _joined(parts)
    keep = _newest_known(ranks["rank_id"], ranks["seen_ns"])
    found = {}
    for job_id in np.unique(ranks["job_id"][keep]).tolist():
        rows = keep[ranks["job_id"][keep] == job_id]
        found[job_id] = _of_job(rows, ranks, pairs)
    return found


def _joined(parts: Sequence[ProgressPart]) -> tuple[dict[str, NDArray[Any]], dict[str, NDArray[Any]]]:
    """All parts as rank columns and pair columns, times in the server's clock."""

    def column(name: str, kind: str) -> NDArray[Any]:
        return np.frombuffer(b"".join(getattr(part.progress, name) for part in parts), kind)

    counts = [len(part.layout.rank_id) for part in parts]
    seen = np.repeat([part.seen_ns for part in parts], counts)
    offset = np.repeat([part.offset_ns for part in parts], counts)
    ranks: dict[str, NDArray[Any]] = {
        "rank_id": np.concatenate([part.layout.rank_id for part in parts]),
        "job_id": np.concatenate([part.layout.job_id for part in parts]),
        "node_id": np.repeat([part.node_id for part in parts], counts),
        "seen_ns": seen,
        "step": column("step", "<i8"),
        "phase": column("phase", "u1"),
    }
    for name in ("phase_since_ns", "moved_ns", "heard_ns"):
        node_time = column(name, "<i8")
        # Never later than the frame itself; 0 stays "not known".
        ranks[name] = np.where(node_time > 0, np.minimum(node_time + offset, seen), 0)
    pairs = {
        "row": np.repeat(np.arange(len(seen)), column("group_count", "<u2")),
        "group_id": np.concatenate([part.layout.group_id for part in parts]),
        "enqueued": column("enqueued", "<i8"),
        "completed": column("completed", "<i8"),
        "sequence": column("sequence", "<i8"),
    }
    return ranks, pairs


def _newest_known(rank_id: Ints, seen_ns: Ints) -> Ints:
    """Rows of the newest word per known rank."""
    order = np.lexsort((seen_ns, rank_id))
    ids = rank_id[order]
    last = np.append(ids[1:] != ids[:-1], True) & (ids >= 0)
    kept: Ints = order[last]
    return kept


def _of_job(
    rows: Ints, ranks: Mapping[str, NDArray[Any]], pairs: Mapping[str, NDArray[Any]]
) -> hot.JobProgress:
    place = np.full(len(ranks["rank_id"]), -1, np.int64)
    place[rows] = np.arange(len(rows))
    kept = (place[pairs["row"]] >= 0) & (pairs["group_id"] >= 0)
    return hot.JobProgress(
        **{name: ranks[name][rows] for name in _RANK_COLUMNS},
        row=place[pairs["row"]][kept],
        **{name: pairs[name][kept] for name in ("group_id", "enqueued", "completed", "sequence")},
    )
