"""One injected fault each, in real torch jobs over gloo: the rank at fault, or honest suspects.

What a fault does to the other ranks is gloo's affair: a wrong size can abort an innocent neighbour, which
then leaves no dump, and a dead rank makes some peers raise while others wait on.
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.torch.lab import FLAVOURS, Lab, Scenario

pytestmark = [pytest.mark.torch]

COLLECTIVES = (
    "all_reduce", "all_reduce_later", "all_reduce_coalesced", "all_reduce_sparse", "reduce", "broadcast",
    "all_gather", "all_gather_into_tensor", "all_gather_coalesced", "gather", "scatter", "reduce_scatter",
    "reduce_scatter_tensor", "all_to_all", "all_to_all_uneven", "barrier", "all_gather_object",
    "broadcast_object_list", "functional_all_gather", "coalesced_manager",
)  # fmt: skip
HANG_ON_A_WRONG_SIZE = (
    "all_reduce", "all_reduce_coalesced", "reduce", "all_gather", "all_gather_into_tensor",
    "all_gather_coalesced", "reduce_scatter", "reduce_scatter_tensor", "coalesced_manager",
)  # fmt: skip
"""The others end all the same on gloo, or abort every rank that could have told."""
TRAINING = ("ddp", "fsdp", "hybrid_fsdp", "mesh_2d", "mesh_2d_data")


def scenarios(fault: str, *programs: str) -> list[Scenario]:
    return [Scenario(program, fault) for program in programs]


NAMED = {
    ("missing_rank",): [
        *scenarios("absent", *COLLECTIVES, "tp/all_reduce", *TRAINING),
        *scenarios("absent", "ddp_accumulating", "tensors", "remade_group", "subgroups"),
        Scenario("mesh_3d", "absent", world=8),
        Scenario("long_job", "absent", ring=50),
    ],
    ("size_mismatch",): scenarios("wrong_size", *HANG_ON_A_WRONG_SIZE, "all_reduce_sparse", "gather"),
    ("op_mismatch",): [
        *scenarios(
            "wrong_op",
            *COLLECTIVES[:-1],
            "tp/all_reduce", "mesh_2d", "mesh_2d_data", "subgroups",
        ),
        Scenario("mesh_3d", "wrong_op", world=8),
        *scenarios("skipped", "all_reduce", "broadcast", "reduce_scatter", "ddp", "fsdp"),
        *scenarios("extra", "all_reduce", "all_gather", "reduce_scatter", "ddp", "fsdp", "mesh_2d"),
        Scenario("mesh_3d", "extra", world=8),
    ],
    ("cross_group_cycle", "missing_rank", "op_mismatch"): [
        *scenarios("extra", "tp/all_reduce", "tp/broadcast", "hybrid_fsdp", "subgroups", "remade_group"),
        *scenarios("skipped", "subgroups", "remade_group", "tp/all_reduce", "tp/broadcast", "mesh_2d_data"),
        Scenario("long_job", "skipped", ring=50),
        Scenario("mesh_3d", "skipped", world=8),
        Scenario("long_job", "extra", ring=50),
    ],
}  # fmt: skip
"""Verdicts that are right -> jobs whose faulty rank must be named."""

SUSPECTED = {
    # a rank that came last and may wait unseen is a suspect beside the one without a dump
    ("suspect_no_dump", "missing_rank"): scenarios("killed", "pipeline"),
    ("suspect_no_dump",): [
        *scenarios("killed", "all_reduce", "all_gather", "broadcast", "tp/all_reduce", *TRAINING[:4]),
        *scenarios("raised", "all_reduce", "reduce_scatter", "tp/broadcast", "ddp", "fsdp", "mesh_2d"),
        # gloo aborts the rank that makes this wrong call
        *scenarios("wrong_op", "coalesced_manager"),
        *scenarios("killed", "remade_group"),
        Scenario("mesh_3d", "killed", world=8),
        Scenario("long_job", "killed", ring=50),
    ],
    # gloo records no send and no receive: a rank that waits in one looks like a rank that does nothing
    ("missing_rank", "op_mismatch"): scenarios("absent", "pipeline", "ring_exchange")
    + scenarios("skipped", "pipeline", "ring_exchange")
    + scenarios("wrong_op", "monitored_barrier"),
    ("cross_group_cycle",): scenarios("skipped", "hybrid_fsdp"),
}
"""Verdicts that are right -> jobs whose faulty rank must be among the suspects, and nobody be named."""

MUTE = [
    *scenarios("absent", "monitored_barrier"),
    *scenarios("wrong_size", "all_to_all", "all_to_all_uneven", "tp/broadcast"),
    # every rank that was left raised out of a call that it shares with the dead one
    *scenarios("killed", "subgroups"),
]
"""Jobs that leave nothing to judge by: no call is recorded, or every rank that waited was aborted, unless one
has dumped just before that."""

RIGHT_NAMES = [(scenario, words) for words, found in NAMED.items() for scenario in found]
RIGHT_SUSPECTS = [(scenario, words) for words, found in SUSPECTED.items() for scenario in found]


@pytest.fixture(scope="module")
def lab(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Lab]:
    every = [scenario for scenario, _ in (*RIGHT_NAMES, *RIGHT_SUSPECTS)] + MUTE
    yield Lab(tmp_path_factory.mktemp("faults"), every)


def label(value: object) -> str | None:
    return (
        value.name
        if isinstance(value, Scenario)
        else " or ".join(value)
        if isinstance(value, tuple)
        else None
    )


@pytest.mark.parametrize("flavour", FLAVOURS)
@pytest.mark.parametrize(("scenario", "words"), RIGHT_NAMES, ids=label)
def test_names_the_rank_at_fault(lab: Lab, scenario: Scenario, words: tuple[str, ...], flavour: str) -> None:
    assert set(lab.ranks[scenario.name]) != {"done"}, "the fault did nothing"
    verdict = lab.verdict(scenario, flavour)
    assert verdict["verdict"] in words, verdict["summary"]
    assert verdict["culprit_ranks"] == [scenario.rank], verdict["summary"]
    assert verdict["exit_code"] == 2


@pytest.mark.parametrize("flavour", FLAVOURS)
@pytest.mark.parametrize(("scenario", "words"), RIGHT_SUSPECTS, ids=label)
def test_suspects_the_rank_at_fault_and_names_nobody(
    lab: Lab, scenario: Scenario, words: tuple[str, ...], flavour: str
) -> None:
    verdict = lab.verdict(scenario, flavour)
    assert verdict["verdict"] in words, verdict["summary"]
    assert verdict["culprit_ranks"] == [], verdict["summary"]
    assert scenario.rank in verdict["suspect_ranks"], verdict["summary"]
    assert verdict["exit_code"] == 2


@pytest.mark.parametrize("scenario", MUTE, ids=label)
def test_says_that_it_cannot_tell_where_nothing_was_left(lab: Lab, scenario: Scenario) -> None:
    verdict = lab.verdict(scenario, "pickle")
    if verdict["verdict"] == "suspect_no_dump":
        # gloo aborts the rank at fault or the neighbour that met its call, whichever comes first
        dumps = {path.name for path in lab.place(scenario, "pickle").iterdir()}
        mute = [rank for rank in range(scenario.world) if f"comm_lib_trace_rank_{rank}" not in dumps]
        assert (verdict["suspect_ranks"], verdict["culprit_ranks"]) == (mute, []), verdict["summary"]
        assert scenario.rank in mute or scenario.fault == "wrong_size", verdict["summary"]
    else:
        assert (verdict["verdict"], verdict["exit_code"]) == ("not_enough_data", 3), verdict["summary"]
