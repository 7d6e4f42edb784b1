"""Jobs as NCCL Inspector logs: the late process by name, or nobody; what the logs cannot tell is said."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

import pytest

from clusterwatch.simulate.step_job import Condition, Fault, JobShape, Kind, StepJob
from tests.cases.inspector_logs import Plugin, name, pid, records, without, write
from tests.cases.judged import Verdict, analyzed

CASES = Path(__file__).parents[3] / "shared" / "cases" / "straggler-inspector"
SHAPE = JobShape(steps=30, checkpoint_steps=12)
TENSOR_AND_DATA = JobShape(tensor=4, pipeline=1, data=4, steps=30)
ALL = Plugin(least_bytes=0)
OLD = Plugin(is_old=True)
USUAL = Plugin()


def judged(folder: Path, job: StepJob, plugin: Plugin = USUAL, *arguments: str) -> Verdict:
    return analyzed(write(job, folder / "logs", plugin), *arguments)


def named(found: Verdict, job: StepJob) -> list[int]:
    """The processes named, as the ranks that they are."""
    ranks = {pid(rank): rank for rank in range(job.shape.world)}
    return sorted(ranks[one["pid"]] for one in found["culprits"])


def reasons(found: Verdict) -> str:
    return "\n".join(problem["reason"] for problem in found["problems"])


SLOW = {
    "a GPU": Fault(Kind.GPU, 1.3),
    "a GPU from the beginning": Fault(Kind.GPU, 1.1, step=0),
    "a GPU by little": Fault(Kind.GPU, 1.06, step=10),
    "a port": Fault(Kind.NIC, 0.25),
    "NVLink": Fault(Kind.NVLINK, 0.25),
    "a host": Fault(Kind.HOST, 14),
    "a loader": Fault(Kind.LOADER, 60),
}


@pytest.mark.parametrize(
    ("what", "plugin"), [*((what, USUAL) for what in SLOW), ("a GPU", ALL), ("a port", ALL), ("a host", ALL)]
)
def test_the_slow_part_is_named_without_ranks_in_the_log(what: str, plugin: Plugin, tmp_path: Path) -> None:
    job = StepJob(SHAPE, (SLOW[what],), seed=2)
    found = judged(tmp_path, job, plugin)
    assert (found["verdict"], named(found, job)) == (job.truth["kind"], job.truth["culprit_ranks"])
    assert found["class"] == job.truth["class"] and found["link"] is None
    assert found["node"] == f"node{job.truth['node']:03d}"
    assert found["culprit_ranks"] == (job.truth["culprit_ranks"] if plugin == ALL else [])
    assert plugin == ALL or not any("rank " in line for line in found["why"] if "peers'" in line)


def test_slow_storage_is_named_where_the_barrier_is_logged(tmp_path: Path) -> None:
    job = StepJob(SHAPE, (Fault(Kind.STORAGE, 8, step=11),), seed=2)
    assert named(judged(tmp_path / "all", job, ALL), job) == job.truth["culprit_ranks"]
    assert judged(tmp_path / "usual", job)["culprits"] == []


NOBODY: dict[str, tuple[tuple[Fault, ...], frozenset[Condition]]] = {
    "healthy": ((), frozenset()),
    "noisy": ((), frozenset([Condition.NOISY])),
    "a clock steps": ((), frozenset([Condition.CLOCK_STEP])),
    "evaluation": ((), frozenset([Condition.EVALUATION])),
    "another number of micro-batches": ((), frozenset([Condition.MICRO_BATCHES])),
    "repeated lines, shuffled": ((), frozenset([Condition.DUPLICATED, Condition.SHUFFLED])),
    "a process without a log": ((), frozenset([Condition.SILENT_RANK])),
    "sequences": ((Fault(Kind.SEQUENCE, 0.35),), frozenset()),
    "a longer stage": ((Fault(Kind.STAGE, 1.4),), frozenset()),
    "a longer replica": ((Fault(Kind.REPLICA, 1.3),), frozenset()),
}


@pytest.mark.parametrize("what", NOBODY)
def test_nobody_is_named_in(what: str, tmp_path: Path) -> None:
    faults, conditions = NOBODY[what]
    found = judged(tmp_path, StepJob(SHAPE, faults, conditions, seed=2))
    assert (found["culprits"], found["suspect_ranks"], found["exit_code"]) == ([], [], 0)
    assert found["class"] in ("none", "workload")


def test_hidden_small_calls_do_not_make_waiting_ports_look_like_work(tmp_path: Path) -> None:
    """While one group's gradients are late, the others wait in a call of all that is not in the logs."""
    job = StepJob(SHAPE, (Fault(Kind.NIC, 0.25),), seed=1)
    found = judged(tmp_path, job)
    assert [one["verdict"] for one in found["findings"]] == ["slow_nic"]
    assert named(found, job) == [1]


def test_a_switch_cannot_be_told_from_its_ports_without_a_topology(tmp_path: Path) -> None:
    job = StepJob(SHAPE, (Fault(Kind.SWITCH, 0.35),), seed=2)
    found = judged(tmp_path, job)
    assert (found["verdict"], found["culprits"]) == ("slow_cause_unknown", [])
    topology = tmp_path / "topology.json"
    topology.write_text(json.dumps(job.shape.topology()))
    placed = judged(tmp_path, job, Plugin(), "--topology", str(topology))
    assert (placed["verdict"], placed["culprit_ranks"]) == ("slow_switch", job.truth["culprit_ranks"])
    assert placed["switch"] == job.truth["switch"]


def test_a_topology_tells_rank_and_gpu(tmp_path: Path) -> None:
    job = StepJob(SHAPE, (Fault(Kind.GPU, 1.3),), seed=2)
    topology = tmp_path / "topology.json"
    topology.write_text(json.dumps(job.shape.topology()))
    found = judged(tmp_path, job, Plugin(), "--topology", str(topology))
    assert found["culprits"] == [{"rank": 3, "host": "node000", "gpu": 3, "gpu_uuid": None, "pid": pid(3)}]


def changed(job: StepJob, change: str) -> dict[str, Any]:
    topology = job.shape.topology()
    for place in topology["ranks"]:
        if change == "other nodes":
            place["node"] ^= place["rank"] % 2
        elif change == "other hosts":
            place["host"] = f"other{place['node']}"
        elif change == "no coordinates":
            del place["tp"]
        elif change == "twice":
            place["dp"] = 0
    return topology


@pytest.mark.parametrize("change", ["other nodes", "other hosts", "no coordinates", "twice"])
def test_a_topology_of_another_job_gives_no_rank(change: str, tmp_path: Path) -> None:
    job = StepJob(SHAPE, (Fault(Kind.GPU, 1.3),), seed=2)
    topology = tmp_path / "topology.json"
    topology.write_text(json.dumps(changed(job, change)))
    found = judged(tmp_path, job, Plugin(), "--topology", str(topology))
    assert (found["culprit_ranks"], named(found, job)) == ([], [3])
    assert "--topology is not used" in reasons(found)


def test_logs_of_one_replica_are_not_taken_for_the_world(tmp_path: Path) -> None:
    """Four processes that all sit in one group of four; their tensor partners left no logs."""
    job = StepJob(SHAPE, (Fault(Kind.GPU, 1.3, place=2),), seed=2)
    logs = write(job, tmp_path / "logs")
    for rank in set(range(16)) - {0, 2, 4, 6}:
        (logs / name(job, rank)).unlink()
    assert analyzed(logs)["culprit_ranks"] == []


def test_the_order_of_lines_and_files_changes_nothing(tmp_path: Path) -> None:
    job = StepJob(SHAPE, (Fault(Kind.GPU, 1.3),), seed=2)
    plain = judged(tmp_path, job)
    for file in (tmp_path / "logs").iterdir():
        lines = file.read_text().splitlines(keepends=True)
        random.Random(5).shuffle(lines)
        file.write_text("".join(lines + lines[::7]))
    assert analyzed(tmp_path / "logs") == plain


@pytest.mark.parametrize("plugin", [USUAL, ALL], ids=["usual sizes", "all sizes"])
def test_lost_lines_blame_nobody_and_hide_nobody(plugin: Plugin, tmp_path: Path) -> None:
    for faults, expected in (((), []), ((Fault(Kind.GPU, 1.3),), [3])):
        job = StepJob(JobShape(steps=40), faults, seed=2)
        logs = tmp_path / str(len(faults))
        logs.mkdir()
        for rank, lines in records(job, plugin).items():
            (logs / name(job, rank)).write_text("\n".join(map(json.dumps, without(lines, 0.01, rank))))
        found = analyzed(logs)
        assert named(found, job) == expected
        assert "gc_pauses" not in [one["verdict"] for one in found["findings"]]


def test_two_communicators_of_one_id_are_told_and_nobody_is_blamed_for_it(tmp_path: Path) -> None:
    job = StepJob(SHAPE, (Fault(Kind.GPU, 1.3),), seed=2)
    lines, own = records(job), {"n_ranks": 2, "nnodes": 1}
    tensor = [next(line["header"] for line in lines[rank] if own.items() <= line["header"].items())
              for rank in (0, 4)]  # fmt: skip
    logs = write(job, tmp_path / "logs")
    for file in logs.iterdir():
        file.write_text(file.read_text().replace(tensor[1]["id"], tensor[0]["id"]))
    found = analyzed(logs)
    assert named(found, job) in ([3], [])
    assert "1 id of a communicator is borne by two" in reasons(found)


def test_processes_of_another_job_are_left_out(tmp_path: Path) -> None:
    job = StepJob(SHAPE, (Fault(Kind.GPU, 1.3),), seed=2)
    small = StepJob(JobShape(tensor=2, pipeline=1, data=2, steps=30), (Fault(Kind.GPU, 1.5),), seed=1)
    logs = write(job, tmp_path / "logs")
    for rank, lines in records(small).items():
        for line in lines:
            line["metadata"]["hostname"] = "other"
            line["header"]["id"] = line["header"]["id"].replace("0x", "0xf")[:16]
        (logs / f"other-pid{pid(rank)}.log").write_text("\n".join(map(json.dumps, lines)))
    found = analyzed(logs)
    assert named(found, job) == [3] and "4 other processes share no communicator" in reasons(found)


# --- NCCL 2.28 and 2.29 ------------------------------------------------------------------------------------


def test_the_old_plugin_hides_what_a_pipeline_waits_in(tmp_path: Path) -> None:
    found = judged(tmp_path, StepJob(SHAPE, (Fault(Kind.NIC, 0.25),), seed=2), OLD)
    assert (found["verdict"], found["culprits"], found["exit_code"]) == ("not_enough_data", [], 3)
    assert "logs no send and no receive" in reasons(found)


def test_the_old_plugin_names_the_process_of_a_job_without_a_pipeline(tmp_path: Path) -> None:
    job = StepJob(TENSOR_AND_DATA, (Fault(Kind.GPU, 1.3),), seed=2)
    found = judged(tmp_path, job, OLD)
    assert (found["verdict"], found["culprit_ranks"]) == ("slow_gpu", job.truth["culprit_ranks"])


def test_only_the_last_call_of_each_dump_is_not_enough(tmp_path: Path) -> None:
    job = StepJob(TENSOR_AND_DATA, (Fault(Kind.GPU, 1.3),), seed=2)
    found = judged(tmp_path, job, Plugin(is_old=True, last_only=True))
    assert (found["verdict"], found["culprits"]) == ("not_enough_data", [])


# --- the given cases ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("case", ["gpu_30pct", "gpu_30pct_min0"])
def test_gives_the_answer_of_the_given_case(case: str) -> None:
    if not (CASES / case).is_dir():
        pytest.skip("no cases beside this checkout")
    truth = json.loads((CASES / case / "truth.json").read_text())
    found = analyzed(CASES / case / "logs")
    assert (found["verdict"], found["class"]) == (truth["kind"], truth["class"])
    assert found["culprit_ranks"] in truth["acceptable"]
    assert [f"{one['host']}-pid{one['pid']}" for one in found["culprits"]] == truth["culprit_procs"]
    assert found["node"] == f"node{truth['node']:03d}"
