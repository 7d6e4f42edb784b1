"""Progress of jobs from the frames of many nodes."""

from __future__ import annotations

import struct

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from clusterwatch.ingest.hot_arrays import ClockStep, JobArrays, ProgressPart, RankLayout
from clusterwatch.jobs.announcements import RefLayout
from collectors.wire.records import HotProgress

NOW_NS = 1_796_000_000_000_000_000


def part(
    node: int, ranks: list[tuple[int, int, list[int]]], number: int = 5, seen_ns: int = NOW_NS
) -> ProgressPart:
    """A node's frame: per rank (rank id, job id, group ids); every number of a group is ``number``."""
    count, pairs = len(ranks), sum(len(groups) for *_, groups in ranks)
    times = struct.pack(f"<{count}q", *[seen_ns - 7] * count)
    numbers = struct.pack(f"<{pairs}q", *[number] * pairs)
    progress = HotProgress(
        ref=struct.pack(f"<{count}I", *range(count)),
        step=struct.pack(f"<{count}q", *range(100, 100 + count)),
        phase=bytes([2]) * count,
        phase_since_ns=bytes(8 * count),
        moved_ns=times,
        heard_ns=times,
        group_count=struct.pack(f"<{count}H", *[len(groups) for *_, groups in ranks]),
        group_index=struct.pack(f"<{pairs}H", *[i for *_, groups in ranks for i in range(len(groups))]),
        enqueued=numbers,
        completed=numbers,
        sequence=numbers,
    )
    refs = {
        ref: RefLayout(node, "e", ref, rank_id, job_id, tuple(groups))
        for ref, (rank_id, job_id, groups) in enumerate(ranks)
    }
    return ProgressPart(node, seen_ns, 0, progress, RankLayout.build(progress, refs))


def test_each_job_has_its_ranks_and_their_groups() -> None:
    jobs = JobArrays().build(
        [part(1, [(11, 1, [100, 101]), (12, 2, [200])], 5), part(2, [(13, 1, [100]), (-1, -1, [-1])], 6)]
    )
    assert jobs[1].rank_id.tolist() == [11, 13]
    assert jobs[1].node_id.tolist() == [1, 2]
    assert jobs[1].step.tolist() == [100, 100]
    assert jobs[1].row.tolist() == [0, 0, 1]
    assert jobs[1].group_id.tolist() == [100, 101, 100]
    assert jobs[1].enqueued.tolist() == [5, 5, 6]
    assert jobs[2].rank_id.tolist() == [12] and jobs[2].group_id.tolist() == [200]
    assert jobs.keys() == {1, 2}, "a rank nobody announced belongs to no job"


def test_a_rank_known_twice_has_its_newest_word() -> None:
    old, new = part(1, [(11, 1, [100])], 5, NOW_NS - 9), part(2, [(11, 1, [100])], 6, NOW_NS)
    arrays = JobArrays()
    for parts in ([old, new], [new, old]):
        job = arrays.build(parts)[1]
        assert (job.rank_id.tolist(), job.node_id.tolist(), job.enqueued.tolist()) == ([11], [2], [6])


def test_what_rows_mean_stays_the_same_object_while_it_means_the_same() -> None:
    arrays, first = JobArrays(), part(1, [(11, 1, [100])])
    before = arrays.build([first])[1]
    after = arrays.build([first._replace(seen_ns=NOW_NS + 5)])[1]
    assert after.rank_id is before.rank_id and after.group_id is before.group_id
    assert after.seen_ns.tolist() == [NOW_NS + 5]
    moved = arrays.build([first._replace(node_id=9)])[1]
    assert moved.node_id.tolist() == [9]


def test_frames_without_ranks_are_no_job() -> None:
    assert JobArrays().build([part(1, [])]) == {}
    assert JobArrays().build([]) == {}


def test_no_time_is_later_than_the_frame_and_none_overflows() -> None:
    late = part(1, [(11, 1, [])])
    late = late._replace(
        offset_ns=NOW_NS, progress=part(1, [(11, 1, [])], seen_ns=2**63 - 1).progress, seen_ns=NOW_NS
    )
    assert JobArrays().build([late])[1].moved_ns.tolist() == [NOW_NS]


HOUR_NS = 3_600 * 10**9


@pytest.mark.parametrize("step_ns", [HOUR_NS, -HOUR_NS])
def test_a_clock_that_jumped_makes_no_rank_older_or_younger_than_it_is(step_ns: int) -> None:
    """The node's clock was right; it was set a second ago. One rank moved 5 s ago, one half a second ago."""
    times = struct.pack("<2q", NOW_NS - 5 * 10**9, NOW_NS + step_ns - 5 * 10**8)
    two = part(1, [(11, 1, []), (12, 1, [])])
    progress = HotProgress(
        **{name: getattr(two.progress, name) for name in HotProgress.__struct_fields__ if name != "moved_ns"},
        moved_ns=times,
    )
    step = ClockStep(offset_ns=0, last_ns=NOW_NS - 10**9, forward=step_ns > 0)
    jumped = two._replace(offset_ns=-step_ns, progress=progress, step=step)
    ages = NOW_NS - JobArrays().build([part(2, [(13, 1, [])]), jumped])[1].moved_ns[1:]
    assert ages.tolist() == [5 * 10**9, 5 * 10**8]


@given(
    st.lists(st.lists(st.tuples(st.integers(1, 3), st.integers(0, 3)), max_size=4), max_size=6), st.randoms()
)
def test_the_order_of_nodes_changes_nothing(nodes: list[list[tuple[int, int]]], random: object) -> None:
    rank_ids = iter(range(1, 999))
    parts = [
        part(
            node,
            [(next(rank_ids), job, list(range(10 * job, 10 * job + groups))) for job, groups in ranks],
            node,
        )
        for node, ranks in enumerate(nodes, 1)
    ]
    expected = _table(parts)
    random.shuffle(parts)  # type: ignore[attr-defined]
    assert _table(parts) == expected


def _table(parts: list[ProgressPart]) -> set[tuple[int, ...]]:
    found = set()
    for job_id, job in JobArrays().build(parts).items():
        for row, group, number in zip(job.row, job.group_id, job.enqueued, strict=True):
            found.add((job_id, int(job.rank_id[row]), int(job.node_id[row]), int(group), int(number)))
        found.update((job_id, rank) for rank in np.unique(job.rank_id).tolist())
    return found
