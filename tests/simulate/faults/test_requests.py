"""How faults are asked for, and what is said of those that cannot be."""

from __future__ import annotations

import pytest

from clusterwatch.simulate.faults.catalogue import FAULTS
from clusterwatch.simulate.faults.requests import FaultError, Request, parse
from clusterwatch.simulate.topology import Shape
from tests.simulate.faults.lived import Lived, at


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("slow_gpu", Request("slow_gpu", None, 60.0, None)),
        ("slow_gpu@5", Request("slow_gpu", None, 5.0, None)),
        ("link_flap:gpu-r001-n01/3@60+4", Request("link_flap", "gpu-r001-n01/3", 60.0, 4.0)),
        ("rank_stuck:88213/17@1.5+2.5", Request("rank_stuck", "88213/17", 1.5, 2.5)),
    ],
)
def test_a_request_has_a_name_a_target_and_times(text: str, expected: Request):
    assert parse(text) == expected


@pytest.mark.parametrize("text", ["", "Slow", "slow_gpu@", "slow_gpu@x", "slow_gpu+5", "slow_gpu:@5", "a b"])
def test_what_is_no_request_is_refused_with_its_form(text: str):
    with pytest.raises(FaultError, match="NAME"):
        parse(text)


@pytest.mark.parametrize(
    ("fault", "words"),
    [
        ("melted", "--list-faults"),
        ("slow_gpu:gpu-r999-n01/0", "no"),
        ("slow_gpu:88213/99999", "no"),
        ("slow_gpu:gpu-r001-n01/8", "no"),
        ("cpu_hog:gpu-r999-n01", "no node"),
        ("leaf_slow:rsw-r999", "no leaf"),
        ("power_brake:r999", "no rack"),
        ("rank_killed:nojob", "no job"),
    ],
)
def test_a_fault_that_has_no_place_says_so(fault: str, words: str):
    with pytest.raises(FaultError, match=words):
        Lived(fault)


def test_a_target_may_be_a_node_and_gpu_a_rank_a_job_or_a_role():
    assert Lived("slow_gpu:gpu-r001-n02/3").truth.culprit_ranks == (11,)
    assert Lived("slow_gpu:88213/9").truth.node == "gpu-r001-n02"
    assert Lived("rank_stuck:code-model").truth.job == Lived().scene.jobs[5].key
    actor = Lived("rank_stuck:policy-rl/actor").world
    assert actor.plan.role == "actor"
    assert Lived("rank_killed:policy-rl/actor/2").truth.culprit_ranks == (2,)


def test_the_seed_chooses_a_target_and_another_seed_another():
    chosen = {Lived("slow_gpu", seed=seed).truth.gpu_uuid for seed in range(6)}
    assert len(chosen) > 3 and Lived("slow_gpu").truth == Lived("slow_gpu").truth


@pytest.mark.parametrize("fault", FAULTS)
@pytest.mark.parametrize("shape", [Shape(), Shape(4, 72, "infiniband")])
def test_every_fault_has_a_place_in_a_cluster_of_512_and_a_truth_of_its_time(fault: str, shape: Shape):
    lived = Lived(f"{fault}@30+120", shape=shape)
    row = lived.truth.as_dict()
    assert row["fault"] == fault and row["kind"] in row["acceptable_kinds"]
    assert lived.truth.start_ns >= at(30) and row["start"].endswith("+00:00")
    assert list(lived.truth.culprit_ranks) == row["acceptable"][0]


def test_faults_may_be_combined_and_stalls_take_different_jobs():
    lived = Lived("rank_stuck@30", "op_mismatch@30", "slow_gpu@20", "psu_lost@10", "rank_killed@40")
    assert [truth.fault for truth in lived.truths] == [
        "psu_lost", "slow_gpu", "rank_stuck", "op_mismatch", "rank_killed",
    ]  # fmt: skip
    stalled = [truth.job for truth in lived.truths if truth.step is not None]
    assert len(set(stalled)) == 3
