"""Made jobs: groups that divide the world, rings as a recorder keeps them, faults where the truth says."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from clusterwatch.simulate.traces import Fault, Kind, Layout, StepShape, TraceJob
from collectors.formats import columns
from collectors.formats.columns import COMPLETED, NULL, SCHEDULED, STARTED, TraceColumns

FIVE = Layout(tensor=4, context=2, pipeline=4, data=4, expert=2)
TENSOR = Layout(tensor=4, data=4)


def calls(trace: TraceColumns) -> list[tuple[str, int, str]]:
    """Group name, sequence and operation of each collective entry."""
    entries = trace.entries
    return [
        (
            trace.groups[entries.group[at]].name,
            entries.sequence[at],
            trace.signatures[entries.signature[at]].op,
        )
        for at in range(len(entries))
        if not trace.signatures[entries.signature[at]].is_p2p
    ]


@given(
    st.integers(1, 4), st.integers(1, 3), st.integers(1, 4), st.integers(1, 3), st.integers(1, 3)
)  # fmt: skip
@settings(max_examples=60, deadline=None)
def test_groups_of_every_role_divide_the_world(
    tensor: int, context: int, pipeline: int, blocks: int, expert: int
) -> None:
    if tensor * context * pipeline * blocks * expert < 2:
        return
    layout = Layout(tensor, context, pipeline, blocks * expert, expert)
    for role in layout.roles:
        groups = {layout.peers(role, rank) for rank in range(layout.world)}
        assert sorted(rank for group in groups for rank in group) == list(range(layout.world))
        assert {len(group) for group in groups} == {layout.size(role)}
    names = Counter(
        layout.first_name[role] + int(index)
        for role in layout.roles
        for index in set(layout.group_index[role])
    )
    assert set(names) == set(range(len(names))) and set(names.values()) == {1}


def test_tensor_ranks_are_neighbours_and_pipeline_ranks_are_stages_apart() -> None:
    assert FIVE.peers("tp", 5) == (4, 5, 6, 7)
    assert FIVE.peers("pp", 5) == (5, 37, 69, 101)
    assert FIVE.peers("ep", 5) == (5, 13)
    assert FIVE.stage(69) == 2


@pytest.mark.parametrize("wrong", [(0, 1, 1, 8, 1), (1, 1, 1, 1, 1), (2, 1, 1, 3, 2)])
def test_a_layout_that_is_none_is_refused(wrong: tuple[int, ...]) -> None:
    with pytest.raises(ValueError, match="no layout"):
        Layout(*wrong)


@pytest.mark.parametrize("shape", [StepShape(), StepShape(layers=2, microbatches=7, batched_p2p=False)])
@pytest.mark.parametrize("layout", [FIVE, TENSOR, Layout(pipeline=4, data=2), Layout(data=8)])
def test_a_healthy_job_finishes_every_call_of_every_stage(layout: Layout, shape: StepShape) -> None:
    for trace in TraceJob(layout, steps=3, shape=shape).traces():
        columns.check(trace)
        members = [
            at for at, state in enumerate(trace.entries.state)
            if trace.signatures[trace.entries.signature[at]].is_p2p and state == SCHEDULED
        ]  # fmt: skip
        assert bool(members) is (layout.pipeline > 1 and shape.batched_p2p)
        open_now = {at for at, retired in enumerate(trace.entries.retired) if not retired}
        assert open_now == set(members)
        assert all(group.last_enqueued == group.last_completed for group in trace.groups)


def test_members_of_a_group_make_the_same_calls_in_the_same_order() -> None:
    made = {trace.rank: calls(trace) for trace in TraceJob(FIVE, steps=3).traces()}
    for role in FIVE.roles:
        for rank in range(FIVE.world):
            name = str(FIVE.first_name[role] + int(FIVE.group_index[role][rank]))
            first = FIVE.peers(role, rank)[0]
            mine, its = ([c for c in made[r] if c[0] == name] for r in (rank, first))
            assert mine == its


def test_every_send_has_its_receive() -> None:
    moves: Counter[tuple[int, int]] = Counter()
    for trace in TraceJob(FIVE, steps=2).traces():
        pipeline = next(group for group in trace.groups if group.desc == "pp")
        for index in trace.entries.signature:
            words = trace.signatures[index].op.split()
            if len(words) == 2:
                sends = words[0] == "send"
                here, there = (int(n) for n in words[1].replace("<-", "->").split("->"))
                assert pipeline.ranks[here] == trace.rank
                pair = (here, there) if sends else (there, here)
                moves[(pipeline.ranks[pair[0]], pipeline.ranks[pair[1]])] += 1 if sends else -1
    assert len(moves) == 2 * FIVE.world * 3 // 4
    assert not any(moves.values())


def test_a_full_ring_holds_the_newest_entries_in_order() -> None:
    trace = next(TraceJob(TENSOR, ring=300).traces())
    numbers = list(trace.entries.record_id)
    assert trace.truncated and len(numbers) == 300
    assert numbers == list(range(numbers[0], numbers[0] + 300))
    times = np.array(trace.entries.created_ns)
    assert (np.diff(times) > 0).all()
    assert not next(TraceJob(TENSOR, steps=3).traces()).truncated


def test_the_same_seed_gives_the_same_job_and_another_one_another() -> None:
    def packed(seed: int) -> list[bytes]:
        job = TraceJob(TENSOR, (Fault(Kind.MISSING_RANK),), steps=3, seed=seed)
        return [columns.pack(trace) for trace in job.traces()]

    assert packed(1) == packed(1)
    assert packed(1) != packed(2)


@pytest.mark.parametrize("rank", [0, 6, 15])
def test_a_missing_rank_lacks_just_the_call_its_peers_wait_in(rank: int) -> None:
    job = TraceJob(TENSOR, (Fault(Kind.MISSING_RANK, rank, "tp"),), steps=3)
    (truth,) = job.expected
    assert truth.group is not None and truth.seq is not None and truth.op is not None
    call = (truth.group[0], truth.seq, truth.op)
    having = {trace.rank for trace in job.traces() if call in calls(trace)}
    assert having == set(TENSOR.peers("tp", rank)) - {rank}
    (missing,) = job.traces([rank])
    assert calls(missing)[-1] != call
    assert all(missing.entries.retired)


def test_peers_issue_what_comes_next_until_the_cpu_has_to_wait() -> None:
    job = TraceJob(TENSOR, (Fault(Kind.MISSING_RANK, 6, "tp"),), steps=3)
    (peer,) = job.traces([5])
    (other,) = job.traces([0])
    assert calls(peer)[-1][2] == "all_reduce"  # the check of the gradients, whose result the CPU needs
    assert peer.groups[peer.entries.group[-1]].desc == "tp"
    first_open = list(other.entries.retired).index(0)
    assert other.groups[other.entries.group[first_open]].desc == "dp"  # rank 4 has issued it, but waits in tp
    assert calls(other)[-1][2] == "all_reduce"


def test_a_queued_call_is_started_by_its_peers_only() -> None:
    job = TraceJob(TENSOR, (Fault(Kind.QUEUED_NOT_STARTED, 6, "tp"),), steps=3)
    (truth,) = job.expected
    for trace in job.traces(TENSOR.peers("tp", 6)):
        at = [n for n in range(len(trace.entries)) if not trace.entries.retired[n]][0]
        assert trace.entries.sequence[at] == truth.seq
        assert trace.entries.state[at] == (SCHEDULED if trace.rank == 6 else STARTED)


@pytest.mark.parametrize("kind", [Kind.OP_MISMATCH, Kind.SIZE_MISMATCH, Kind.DTYPE_MISMATCH])
def test_one_rank_passes_something_else(kind: Kind) -> None:
    job = TraceJob(TENSOR, (Fault(kind, 6, "tp"),), steps=3)
    (truth,) = job.expected
    said = {}
    for trace in job.traces(TENSOR.peers("tp", 6)):
        entries = trace.entries
        at = next(
            n for n in range(len(entries))
            if (trace.groups[entries.group[n]].desc, entries.sequence[n]) == ("tp", truth.seq)
        )  # fmt: skip
        assert entries.state[at] == SCHEDULED and entries.completed_ns[at] == NULL
        said[trace.rank] = trace.signatures[entries.signature[at]]
    assert {said[rank] for rank in (4, 5, 7)} == {said[4]}
    assert said[6] != said[4]


def test_a_swap_is_of_two_calls_of_one_group() -> None:
    job = TraceJob(TENSOR, (Fault(Kind.ORDER_MISMATCH, 6, "tp"),), steps=3)
    whole = TraceJob(TENSOR, steps=3)
    (odd,), (usual,) = job.traces([6]), whole.traces([6])
    differ = [(a, b) for a, b in zip(calls(odd), calls(usual), strict=False) if a != b]
    assert len(differ) == 2
    assert differ[0][0][2] == differ[1][1][2] and differ[0][1][2] == differ[1][0][2]


def test_a_cycle_is_of_two_groups_each_waiting_for_the_other() -> None:
    job = TraceJob(TENSOR, (Fault(Kind.CROSS_GROUP_CYCLE, 6),), steps=3)
    last = {t.rank: (t.groups[t.entries.group[-1]].desc, t.entries.retired[-1]) for t in job.traces()}
    assert last[6] == ("default_pg", 0)
    assert {last[rank] for rank in (4, 5, 7)} == {("tp", 0)}
    assert {last[rank] for rank in range(16) if rank // 4 != 1} == {("default_pg", 0)}


def test_silent_and_stale_ranks() -> None:
    silent = TraceJob(TENSOR, (Fault(Kind.NO_DUMP, 6),), steps=3)
    assert {trace.rank for trace in silent.traces()} == set(range(16)) - {6}
    stale = TraceJob(TENSOR, (Fault(Kind.STALE_DUMP, 6),), steps=3)
    newest = {trace.rank: trace.newest_ns or 0 for trace in stale.traces()}
    assert min(n for rank, n in newest.items() if rank != 6) - newest[6] > 60e9


def test_open_windows_hold_the_newest_call_of_each_group_and_what_is_open() -> None:
    whole = TraceJob(FIVE, (Fault(Kind.MISSING_RANK, 20),), steps=4)
    window = TraceJob(FIVE, (Fault(Kind.MISSING_RANK, 20),), steps=4, open_only=True)
    for all_of_it, part in zip(whole.traces(), window.traces(), strict=True):
        columns.check(part)
        kept = set(part.entries.record_id)
        entries = all_of_it.entries
        newest = dict(zip(entries.group, entries.record_id, strict=True))
        rows = zip(entries.record_id, entries.retired, entries.signature, strict=True)
        open_now = {n for n, over, what in rows if not over and " " not in all_of_it.signatures[what].op}
        assert set(newest.values()) | open_now <= kept
        assert len(kept) < len(entries) / 4
        assert part.groups == all_of_it.groups


def test_moving_ranks_differ_in_the_state_of_their_newest_call_only() -> None:
    traces = list(TraceJob(TENSOR, steps=3, moving=True).traces())
    assert len({tuple(c[1:] for c in calls(trace)) for trace in traces}) == 1
    assert Counter(trace.entries.state[-1] == COMPLETED for trace in traces).keys() == {True, False}
    assert all(state == COMPLETED for trace in traces for state in trace.entries.state[:-1])


def test_several_faults_hit_ranks_that_share_no_small_group() -> None:
    job = TraceJob(TENSOR, (Fault(Kind.MISSING_RANK), Fault(Kind.SIZE_MISMATCH)), steps=3)
    one, other = job.expected
    assert not set(TENSOR.peers("tp", one.culprit_ranks[0])) & set(other.culprit_ranks)


@pytest.mark.parametrize("kind", [Kind.P2P_UNMATCHED, Kind.CROSS_GROUP_CYCLE])
def test_a_fault_that_a_layout_cannot_have_is_refused(kind: Kind) -> None:
    with pytest.raises(ValueError, match="Layout"):
        _ = TraceJob(Layout(data=8), (Fault(kind),)).expected
