"""A made training job is one that can have happened, and its truth is what was done to it."""

from __future__ import annotations

import gzip
import json
from collections import defaultdict
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from clusterwatch.simulate.step_job import SHAPES, Condition, Fault, JobShape, Kind, Noise, StepJob, When
from clusterwatch.simulate.step_job_faults import CLASSES, POINTS, RAMP_STEPS, Planned
from clusterwatch.simulate.step_job_matrix import cells
from clusterwatch.simulate.step_job_records import NONE, SCHEDULED, STARTED, StepColumns
from clusterwatch.simulate.step_job_truth import COST_RATIO_MIN

SMALL = JobShape(steps=24)
DEEP = JobShape(2, 4, 4, 5, 6, 8)
KEYS = (
    "rank", "node", "gpu", "pg", "op", "seq", "step", "mb", "peer", "bytes", "enqueue_ns", "start_ns",
    "end_ns", "state",
)  # fmt: skip
Record = dict[str, Any]


def records(made: StepColumns) -> list[Record]:
    """The columns as the objects of the format."""
    found = []
    for place in range(len(made)):
        values: Record = {key: int(getattr(made, key)[place]) for key in KEYS}
        values |= {"pg": made.pg_names[values["pg"]], "op": made.op_names[values["op"]]}
        found.append({key: None if value == NONE else value for key, value in values.items()})
    return found


def groups(found: list[Record]) -> Iterator[list[Record]]:
    """The records of each call of a collective."""
    by_call = defaultdict(list)
    for one in found:
        if one["peer"] is None:
            by_call[one["pg"], one["seq"]].append(one)
    yield from by_call.values()


def true_ends(job: StepJob) -> Iterator[tuple[str, np.ndarray, int]]:
    axes = {"tp": (1,), "dp": (1,), "world": (0, 1, 2)}
    for call in job.calls:
        if call.role in axes:
            yield call.role, np.ptp(call.end, axis=axes[call.role]), call.step


def test_all_members_of_a_collective_end_together_after_the_last_has_come() -> None:
    job = StepJob(DEEP, seed=1)
    for role, spread, _ in true_ends(job):
        assert spread.max() < 30e3, role  # ns
    for call in job.calls:
        axis = {"tp": 1, "dp": 1, "world": None}.get(call.role, -1)
        if axis != -1:
            assert (call.end.min(axis=axis) > call.start.max(axis=axis)).all()


def test_every_receive_has_its_send_and_none_is_left() -> None:
    found = records(StepJob(DEEP, seed=2).columns)
    sent = {(r["pg"], r["op"][5], r["rank"], r["peer"], r["seq"]): r for r in found if r["op"][:4] == "send"}
    received = [r for r in found if r["op"][:4] == "recv"]
    assert len(sent) == len(received) > 0
    for one in received:
        way, stage = one["op"][5], int(one["op"][6:])
        other = sent.pop((one["pg"], way, one["peer"], one["rank"], one["seq"]))
        assert other["op"] == f"send_{way}{stage - 1 if way == 'f' else stage + 1}"
        assert other["mb"] == one["mb"] and other["step"] == one["step"] and other["bytes"] == one["bytes"]
    assert not sent


def test_a_message_ends_on_both_sides_after_both_have_come() -> None:
    calls = [call for call in StepJob(DEEP, seed=2).calls if call.peer_stage is not None]
    sent = {(c.op[5], c.stage, c.step, c.micro_batch): c for c in calls if c.op.startswith("send")}
    for call in calls:
        if call.op.startswith("recv"):
            other = sent[call.op[5], call.peer_stage, call.step, call.micro_batch]
            assert (np.minimum(call.end, other.end) > np.maximum(call.start, other.start)).all()
            assert np.abs(call.end - other.end).max() < 40e3  # ns


def test_stages_work_in_1f1b_order() -> None:
    assert [(h.forward, h.micro_batch) for h in JobShape().schedule(0, 4)] == [
        (True, 0), (True, 1), (False, 0), (True, 2), (False, 1), (True, 3), (False, 2), (False, 3),
    ]  # fmt: skip
    assert [(h.forward, h.micro_batch) for h in JobShape().schedule(1, 2)] == [
        (True, 0), (False, 0), (True, 1), (False, 1),
    ]  # fmt: skip
    assert [h.micro_batch for h in JobShape(2, 4, 4).schedule(0, 1)] == [0, 0]


def test_sequence_numbers_count_from_zero_and_members_agree() -> None:
    found = records(StepJob(DEEP, seed=3).columns)
    by_rank: dict[tuple[Any, ...], list[int]] = defaultdict(list)
    for one in sorted(found, key=lambda r: (r["rank"], r["enqueue_ns"])):
        by_rank[one["rank"], one["pg"], one["op"] if one["peer"] is not None else ""].append(one["seq"])
    for numbers in by_rank.values():
        assert numbers == list(range(len(numbers)))
    for members in groups(found):
        assert len({(r["op"], r["step"], r["mb"], r["bytes"]) for r in members}) == 1


def test_a_stream_runs_one_blocking_call_at_a_time_and_nothing_before_it_is_called() -> None:
    found = records(StepJob(DEEP, seed=4).columns)
    for rank in range(DEEP.world):
        end = 0
        for one in sorted((r for r in found if r["rank"] == rank), key=lambda r: r["enqueue_ns"]):
            assert one["enqueue_ns"] <= one["start_ns"] <= one["end_ns"]
            assert one["start_ns"] >= end
            end = end if one["op"].startswith("send") else one["end_ns"]


def test_the_same_seed_gives_the_same_files_and_another_one_others(tmp_path: Path) -> None:
    made = [StepJob(SMALL, (Fault(Kind.GPU, 1.3),), seed=seed) for seed in (5, 5, 6)]
    texts = [(job.write(tmp_path / str(n)) / "records.jsonl.gz").read_bytes() for n, job in enumerate(made)]
    assert texts[0] == texts[1] != texts[2]
    assert made[0].truth == made[1].truth


def test_files_are_a_collective_log(tmp_path: Path) -> None:
    job = StepJob(SMALL, (Fault(Kind.ABSENT, step=20),), seed=7, name="a hang")
    job.write(tmp_path)
    with gzip.open(tmp_path / "records.jsonl.gz", "rt", encoding="utf-8") as file:
        found = [json.loads(line) for line in file]
    assert [tuple(one) for one in found] == [KEYS] * len(found)
    names = ("completed", "started", "scheduled")
    assert found == [one | {"state": names[one["state"]]} for one in records(job.columns)]
    order = [(one["step"], one["enqueue_ns"]) for one in found]
    assert order == sorted(order)
    topology = json.loads((tmp_path / "topology.json").read_text())
    assert topology["tp"] * topology["pp"] * topology["dp"] == len(topology["ranks"]) == 16
    assert topology["ranks"][9] == {
        "rank": 9, "node": 2, "gpu": 1, "tp": 1, "dp": 0, "pp": 1, "nic": "nic:n2:g1", "leaf": "leaf-p1-r1",
    }  # fmt: skip
    truth = json.loads((tmp_path / "truth.json").read_text())
    assert truth == job.truth and truth["scenario"] == "a hang" and truth["kind"] == "missing_rank"


def test_members_of_a_group_are_those_of_its_name() -> None:
    job = StepJob(DEEP, seed=8)
    for members in groups(records(job.columns)):
        name, places = members[0]["pg"], [DEEP.place(one["rank"]) for one in members]
        stage, replica, place = places[0]
        expected = {
            "tp": f"tp:pp{stage}:dp{replica}", "dp": f"dp:pp{stage}:tp{place}", "wo": "world",
        }  # fmt: skip
        assert name == expected[name[:2]]
        assert len(members) == {"tp": DEEP.tensor, "dp": DEEP.data, "wo": DEEP.world}[name[:2]]


@pytest.mark.parametrize("point", POINTS)
def test_of_a_rank_that_never_calls_there_is_no_record_and_its_peers_wait(point: str) -> None:
    job = StepJob(SMALL, (Fault(Kind.ABSENT, place=9, step=19, point=point),), seed=9)
    made = job.columns
    mine = made.take(made.rank == 9)
    assert (mine.state == 0).all() and mine.step.max() == 19
    waiting = made.take((made.state == STARTED) & (made.rank != 9))
    assert len(waiting) and set(made.rank[made.state != 0]) >= set(waiting.rank)
    assert made.step.max() == 19
    last_of = {rank: made.state[(made.rank == rank) & (made.state != SCHEDULED)][-1] for rank in range(16)}
    assert all(state == STARTED for rank, state in last_of.items() if rank != 9)
    assert job.truth["acceptable"] == [[9]] and job.truth["start_step"] == 19


@pytest.mark.parametrize("point", POINTS)
def test_a_stopped_gpu_leaves_its_calls_scheduled(point: str) -> None:
    made = StepJob(SMALL, (Fault(Kind.QUEUED, place=9, step=19, point=point),), seed=10).columns
    mine = made.take((made.rank == 9) & (made.state != 0))
    assert len(mine) and (mine.state == SCHEDULED).all()
    first = mine.take(np.array([int(np.argmin(mine.enqueue_ns))]))
    peers = (made.pg == first.pg) & (made.rank != 9) & (made.state == STARTED)
    assert peers.any()


@pytest.mark.parametrize("point", POINTS)
def test_a_kernel_that_hangs_holds_all_members_and_names_nobody(point: str) -> None:
    job = StepJob(SMALL, (Fault(Kind.INSIDE, place=9, step=19, point=point),), seed=11)
    made = job.columns
    assert STARTED in made.state[made.rank == 9]
    assert job.truth["class"] == "hang" and job.truth["acceptable"] == [[]]


def test_calls_in_the_wrong_order_hold_the_rank_in_the_later_one() -> None:
    made = StepJob(SMALL, (Fault(Kind.ORDER, place=9, step=19),), seed=12).columns
    mine = made.take((made.rank == 9) & (made.state != 0))
    told = [(mine.op_names[op], int(state)) for op, state in zip(mine.op, mine.state, strict=True)]
    assert told == [("all_reduce", STARTED), ("reduce_scatter", SCHEDULED)]
    assert (mine.enqueue_ns[0] < mine.enqueue_ns[1]) and mine.step[0] == 19


def gaps_ms(job: StepJob, rank: int, step: int) -> float:
    """Time of a rank between its blocking calls in a step."""
    made = job.columns
    mine = made.take((made.rank == rank) & (made.step == step))
    blocking = np.array([not mine.op_names[op].startswith("send") for op in mine.op])
    start, end = mine.start_ns[blocking], mine.end_ns[blocking]
    return float((start[1:] - end[:-1]).sum()) / 1e6


def test_a_slow_gpu_works_longer_and_its_peers_wait() -> None:
    job = StepJob(SMALL, (Fault(Kind.GPU, 1.3, place=6, step=10),), seed=13)
    assert gaps_ms(job, 6, 12) > 1.25 * gaps_ms(job, 6, 5)
    assert gaps_ms(job, 4, 12) < 1.05 * gaps_ms(job, 4, 5)
    assert job.truth["node"] == 1 and job.truth["blame_hardware"]


def transfer_ms(job: StepJob, op: str, pg: str, step: int) -> float:
    """The shortest stay in a call: what the bytes took."""
    made = job.columns
    mine = (made.op == made.op_names.index(op)) & (made.pg == made.pg_names.index(pg)) & (made.step == step)
    return float((made.end_ns[mine] - made.start_ns[mine]).min()) / 1e6


@pytest.mark.parametrize(
    ("kind", "slow", "healthy"),
    [
        (Kind.NIC, ("reduce_scatter", "dp:pp1:tp0"), ("reduce_scatter", "dp:pp0:tp0")),
        (Kind.NIC, ("recv_f1", "pp:dp0:tp0"), ("recv_f1", "pp:dp1:tp0")),
        (Kind.SWITCH, ("reduce_scatter", "dp:pp1:tp0"), ("reduce_scatter", "dp:pp1:tp1")),
        (Kind.SWITCH, ("recv_f1", "pp:dp2:tp0"), ("recv_f1", "pp:dp1:tp0")),
        (Kind.NVLINK, ("all_reduce", "tp:pp1:dp0"), ("all_reduce", "tp:pp1:dp1")),
    ],
)
def test_a_slow_link_lengthens_what_passes_it(
    kind: Kind, slow: tuple[str, str], healthy: tuple[str, str]
) -> None:
    job = StepJob(SMALL, (Fault(kind, 0.25, place=8, step=10),), seed=14)
    assert transfer_ms(job, *slow, 12) > 3.5 * transfer_ms(job, *slow, 5)
    assert transfer_ms(job, *healthy, 12) < 1.2 * transfer_ms(job, *healthy, 5)


def test_a_slow_host_that_costs_nothing_need_not_be_named() -> None:
    weak, strong = (StepJob(SMALL, (Fault(Kind.HOST, size, place=5, step=8),), seed=15) for size in (2, 14))
    assert weak.cost_ratio is not None and strong.cost_ratio is not None
    assert abs(weak.cost_ratio) < COST_RATIO_MIN < strong.cost_ratio
    assert weak.truth["acceptable"] == [[4, 5, 6, 7], []]
    assert strong.truth["acceptable"] == [[4, 5, 6, 7]]
    assert strong.truth["class"] == "host" and not strong.truth["blame_hardware"]


def test_truth_names_what_cannot_be_told_apart() -> None:
    assert StepJob(faults=(Fault(Kind.NVLINK, 0.5, place=9),)).truth["acceptable"] == [[8, 9], [9]]
    switch = StepJob(faults=(Fault(Kind.SWITCH, 0.5, place=9),)).truth
    assert switch["switch"] == "leaf-p1-r1" and switch["culprit_ranks"] == [9, 13] and switch["node"] is None
    flat = JobShape(2, 1, 8, steps=30)
    assert StepJob(flat, (Fault(Kind.NIC, 0.5, place=3),)).truth["acceptable"] == [[3], [*range(1, 16, 2)]]
    storage = StepJob(faults=(Fault(Kind.STORAGE, 8),), seed=3).truth
    assert storage["start_step"] % 20 == 19 and len(storage["culprit_ranks"]) == 4


def test_two_faults_are_on_two_nodes_and_both_are_to_be_named() -> None:
    for seed in range(20):
        truth = StepJob(faults=(Fault(Kind.LOADER, 60), Fault(Kind.GPU, 1.3)), seed=seed).truth
        (both,) = truth["acceptable"]
        assert len({rank // 4 for rank in both}) == 2 and truth["kind"] == "slow_gpu"


def test_a_fault_in_an_uneven_job_is_the_truth_and_the_unevenness_alone_is_nobodys() -> None:
    uneven = Fault(Kind.STAGE, 1.3)
    assert StepJob(faults=(uneven, Fault(Kind.GPU, 1.1))).truth["class"] == "hardware"
    alone = StepJob(faults=(uneven,)).truth
    assert (alone["class"], alone["acceptable"], alone["start_step"]) == ("workload", [[]], 0)
    assert StepJob().truth["kind"] == "no_fault" and StepJob().truth["start_step"] is None


def test_shapes_in_time_are_what_their_names_say() -> None:
    def amounts(when: When) -> list[float]:
        fault = Planned(Kind.GPU, 2.0, when, 0, (0,), 10, "")
        return [fault.amount(step) for step in range(60)]

    assert amounts(When.ONSET) == [0.0] * 10 + [1.0] * 50
    assert amounts(When.INTERMITTENT)[10:35] == [1.0] * 12 + [0.0] * 13
    ramp = amounts(When.RAMP)
    assert ramp[9] == 0 and 0 < ramp[10] < ramp[20] < ramp[10 + RAMP_STEPS] == 1.0
    assert StepJob(faults=(Fault(Kind.GPU, 1.3, When.START),)).truth["start_step"] == 0


def spread_ns(conditions: frozenset[Condition]) -> list[int]:
    """How far the hosts' clocks are apart, step by step: a norm ends for all at one true time."""
    made = StepJob(SMALL, (), conditions, 16, noise=Noise(jitter_ns=0.0)).columns
    norms = made.take((made.pg == made.pg_names.index("world")) & (made.bytes == 4))
    return [int(np.ptp(norms.end_ns[norms.step == step])) for step in range(SMALL.steps)]


def test_hosts_never_agree_on_the_time_and_one_clock_jumps() -> None:
    usual, jumped = spread_ns(frozenset()), spread_ns(frozenset([Condition.CLOCK_STEP]))
    assert min(usual) > 0 and max(usual) < 5e6
    assert jumped[0] < 5e6 and jumped[-1] > 25e6
    assert sum(abs(after - before) > 20e6 for before, after in pairwise(jumped)) == 1


def test_lines_are_lost_told_twice_or_mixed_as_asked() -> None:
    whole = StepJob(SMALL, seed=17).columns

    def of(condition: Condition) -> StepColumns:
        return StepJob(SMALL, (), frozenset([condition]), 17).columns

    assert 0.96 < len(of(Condition.DROPPED)) / len(whole) < 0.99
    assert 1.01 < len(of(Condition.DUPLICATED)) / len(whole) < 1.04
    assert sorted(of(Condition.SHUFFLED).enqueue_ns) == sorted(whole.enqueue_ns)
    assert (of(Condition.SHUFFLED).enqueue_ns != whole.enqueue_ns).any()
    assert len(set(of(Condition.SILENT_RANK).rank)) == 15


def test_an_evaluation_has_no_backward_and_a_larger_step_more_micro_batches() -> None:
    made = StepJob(SMALL, (), frozenset([Condition.EVALUATION]), 18).columns
    backward = made.take(made.op == made.op_names.index("send_b1"))
    assert len(set(made.step) - set(backward.step)) == 5
    more = StepJob(SMALL, (), frozenset([Condition.MICRO_BATCHES]), 18).columns
    assert more.mb[more.step == 0].max() == 3 and more.mb[more.step == 23].max() == 5


@pytest.mark.parametrize(
    "shape",
    [
        JobShape(1, 1, 8, 2, 3, 8),
        JobShape(8, 1, 1, 1, 2, 8),
        JobShape(1, 4, 1, 1, 2, 4),
        JobShape(4, 2, 2, 1, 2, 8),
    ],
)
def test_any_split_makes_a_job_that_ends(shape: JobShape) -> None:
    made = StepJob(shape, seed=19).columns
    assert len(made) and (made.state == 0).all() and made.step.max() == shape.steps - 1


def test_sizes_and_places_that_are_none_are_refused() -> None:
    with pytest.raises(ValueError, match="at least 1"):
        JobShape(tensor=0)
    with pytest.raises(ValueError, match="whole nodes"):
        JobShape(2, 1, 1, gpus_per_node=4)
    with pytest.raises(ValueError, match="no place 16"):
        _ = StepJob(faults=(Fault(Kind.GPU, 1.3, place=16),)).truth
    with pytest.raises(ValueError, match="order of calls"):
        _ = StepJob(JobShape(4, 2, 1, steps=5), (Fault(Kind.ORDER),)).truth


def test_the_matrix_has_every_kind_and_condition_once_each_by_name() -> None:
    names = [cell.name for cell in cells()]
    assert len(names) == len(set(names)) > 90
    assert {fault.kind for cell in cells() for fault in cell.faults} == set(Kind)
    assert frozenset(Condition) == frozenset().union(*(cell.conditions for cell in cells()))
    for ranks, shape in SHAPES.items():
        assert shape.world == ranks
    for cell in cells():
        truth = cell.job(16, 3).planned
        assert {CLASSES[one.kind] for one in truth} == {CLASSES[fault.kind] for fault in cell.faults}
    with pytest.raises(ValueError, match="17 ranks"):
        cells()[0].job(17, 1)
