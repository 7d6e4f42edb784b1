"""Healthy jobs on real torch, every collective that gloo offers: nothing is found in what they leave."""

from __future__ import annotations

import json
import pickle
from collections.abc import Iterator

import pytest

from tests.torch.lab import FLAVOURS, Lab, Scenario

pytestmark = [pytest.mark.torch]

COLLECTIVES = (
    "all_reduce", "all_reduce_max_of_integers", "all_reduce_later", "all_reduce_coalesced",
    "all_reduce_sparse", "reduce", "broadcast", "all_gather", "all_gather_into_tensor",
    "all_gather_coalesced", "gather", "scatter", "reduce_scatter", "reduce_scatter_tensor",
    "all_to_all", "all_to_all_single", "all_to_all_uneven", "barrier", "monitored_barrier",
    "all_gather_object", "broadcast_object_list", "functional_all_reduce", "functional_all_gather",
    "functional_reduce_scatter", "coalesced_manager", "tp/all_reduce", "tp/all_to_all_uneven",
)  # fmt: skip
JOBS = (
    "pipeline", "ring_exchange", "ddp", "ddp_accumulating", "fsdp", "hybrid_fsdp", "mesh_2d", "tensors",
    "subgroups", "remade_group",
)  # fmt: skip
SCENARIOS = [
    *(Scenario(program) for program in (*COLLECTIVES, *JOBS)),
    Scenario("mesh_3d", world=8),
    Scenario("long_job", ring=50),
]
OPERATIONS = {
    "all_reduce", "sparse_all_reduce", "reduce", "broadcast", "all_gather", "gather", "scatter", "all_to_all",
    "barrier",
}  # fmt: skip
"""All that gloo records: a reduce_scatter comes as all_reduce, sends and receives not at all."""


@pytest.fixture(scope="module")
def lab(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Lab]:
    yield Lab(tmp_path_factory.mktemp("healthy"), SCENARIOS)


@pytest.mark.parametrize("flavour", FLAVOURS)
@pytest.mark.parametrize("scenario", SCENARIOS, ids=lambda scenario: scenario.program)
def test_finds_nothing_in_a_healthy_job(lab: Lab, scenario: Scenario, flavour: str) -> None:
    assert lab.ranks[scenario.name] == ["done"] * scenario.world
    verdict = lab.verdict(scenario, flavour)
    assert (verdict["verdict"], verdict["exit_code"]) == ("no_fault", 0), verdict["summary"]
    assert (verdict["culprit_ranks"], verdict["suspect_ranks"]) == ([], [])
    assert verdict["coverage"]["reported"] == scenario.world


def test_the_jobs_record_every_operation_that_gloo_has(lab: Lab) -> None:
    seen = set()
    for scenario in SCENARIOS:
        for path in lab.place(scenario, "json").iterdir():
            seen |= {entry["profiling_name"] for entry in json.loads(path.read_text()).get("entries", [])}
    assert seen == {f"gloo:{name}" for name in OPERATIONS}


def test_a_full_ring_is_really_cut(lab: Lab) -> None:
    path = lab.place(Scenario("long_job", ring=50), "pickle") / "comm_lib_trace_rank_0"
    entries = pickle.loads(path.read_bytes())["entries"]
    assert len(entries) == 50 and entries[0]["record_id"] > 0
