"""Findings beside the catalogue of known bugs: fits, may be, or is not said."""

from __future__ import annotations

import re
from typing import Any

import pytest

from clusterwatch.analysis.known_bugs import Case, Component, Known, Setup, case_of, matches, setup_of
from clusterwatch.analysis.known_bugs_model import Sure
from clusterwatch.analysis.known_bugs_table import CATALOGUE, VERSION
from clusterwatch.analysis.verdicts import CATALOGUE as VERDICTS


def setup(**facts: str | tuple[str, ...]) -> Setup:
    """``nccl_version`` is the fact ``nccl.version``; ``env_X`` the variable X."""
    told = {name.replace("_", ".", 1): value for name, value in facts.items()}
    return Setup({name: frozenset([one] if isinstance(one, str) else one) for name, one in told.items()})


def stall(verdict: str = "all_joined_not_finished", op: str = "all_to_all", *lines: str) -> Case:
    return case_of({"verdict": verdict, "op": op, "summary": "", "why": list(lines)})


def found(known: Known) -> dict[str, bool]:
    return {one.bug.id: one.fits for one in known.rows}


def test_a_row_fits_when_version_call_and_setting_are_known() -> None:
    told = setup(nccl_version="2.19.3+cuda12.2", env_read="yes")
    known = matches(stall(), told)
    assert found(known) == {"nccl-alltoall-cumem-deadlock": True, "nccl-alltoall-80-ranks": False}
    assert known.rows[0].why == (
        "the verdict is all_joined_not_finished",
        "the call is alltoall",
        "NCCL 2.19.3+cuda12.2 has it",
        "NCCL_CUMEM_ENABLE is not set",
    )


@pytest.mark.parametrize(
    "told",
    [
        setup(nccl_version="2.20.3-1", env_read="yes"),
        setup(nccl_version="2.18.6", env_read="yes"),
        setup(nccl_version="2.19.3", env_NCCL_CUMEM_ENABLE="0"),
    ],
)
def test_what_is_known_to_be_otherwise_takes_a_row_off(told: Setup) -> None:
    assert "nccl-alltoall-cumem-deadlock" not in found(matches(stall(), told))


def test_an_unknown_setting_or_version_is_said() -> None:
    (one,) = matches(stall(), setup(nccl_version="2.19.3", gpu_model="NVIDIA H100 80GB HBM3")).rows
    assert not one.fits and one.unknown == ("NCCL_CUMEM_ENABLE is not known",)
    rows = {row.bug.id: row for row in matches(stall(), Setup()).rows}
    assert rows["nccl-alltoall-cumem-deadlock"].unknown == (
        "the version of NCCL is not known", "NCCL_CUMEM_ENABLE is not known",
    )  # fmt: skip


def test_a_kind_of_verdict_alone_tells_no_row_but_how_many_were_not_checked() -> None:
    known = matches(stall(op="all_reduce"), Setup())
    assert known.rows == ()
    assert known.unchecked == {Component.NCCL: 5, Component.TORCH: 1}
    told = setup(nccl_version="2.29.7", torch_version="2.6.0")
    assert matches(stall(op="all_reduce"), told).unchecked == {}


def test_the_processes_own_word_on_its_version_beats_the_name_of_a_file() -> None:
    told = setup(nccl_version="2.28.7", nccl_library="libnccl.so.2.19.3")
    assert found(matches(stall(op="all_reduce"), told)) == {"nccl-proxy-order-hang": True}
    told = setup(nccl_version="odd", nccl_library="libnccl.so.2.28.7, libnccl.so.2.29.7")
    (one,) = matches(stall(op="all_reduce"), told).rows
    assert "NCCL libnccl.so.2.28.7 has it, others do not" in one.why


def test_a_development_build_of_the_release_with_the_fix_may_be() -> None:
    told = setup(torch_version="2.8.0a0+git3beb9d8", nccl_version="2.29.7")
    case = stall("watchdog_stuck", "all_reduce", "frame #4: ncclCommAbort at init.cc")
    assert found(matches(case, told)) == {"torch-abort-one-by-one": False}


def test_an_xid_and_a_driver_are_enough_and_another_xid_is_not() -> None:
    case = case_of({"verdict": "gpu_fault", "why": ["GPU 3 of n1, Xid 119 at 12:03:04"]})
    assert found(matches(case, setup(nvidia_driver="525.85.12"))) == {"driver-525-gsp-timeout": True}
    assert found(matches(case, Setup())) == {"driver-525-gsp-timeout": False}
    assert found(matches(case, setup(nvidia_driver="535.104.05"))) == {}
    other = case_of({"verdict": "gpu_fault", "cause": "xid_79"})
    assert found(matches(other, setup(nvidia_driver="525.85.12"))) == {}
    by_cause = case_of({"verdict": "gpu_fault", "cause": "xid_119"})
    assert found(matches(by_cause, setup(nvidia_driver="525.85.12"))) == {"driver-525-gsp-timeout": True}


def test_a_line_of_a_log_is_a_sign_whatever_the_version() -> None:
    case = case_of({"verdict": "rank_failed"}, ["NET/IB : mlx5_1:1 Got async event : GID table change"])
    assert found(matches(case, Setup())) == {"nccl-gid-changes": True}
    assert found(matches(case_of({"verdict": "rank_failed"}), setup(nccl_version="2.21.5"))) == {}


def test_other_gpus_and_equal_nodes_take_a_row_off() -> None:
    told = setup(nccl_version="2.26.2", gpu_model="NVIDIA H100 80GB HBM3", cpu_model="Xeon 8480")
    assert found(matches(stall(), told)) == {}
    told = setup(nccl_version="2.21.5", gpu_model="NVIDIA GB200", cpu_model=("EPYC 9654", "Xeon 8480"))
    assert found(matches(stall(), told)) == {
        "nccl-alltoall-80-ranks": True, "nccl-arm-atomic-hang": True, "nccl-mixed-processors-hang": True,
    }  # fmt: skip


def test_facts_of_other_jobs_and_of_what_no_row_asks_for_do_not_count() -> None:
    nodes = [
        {"host": {"nvidia.driver": "550.54.15", "bios": "1"}, "job/7/rank/0": {"nccl.version": "2.21.5"}},
        {"gpu/G": {"gpu.model": "NVIDIA H100"}, "job/71": {"nccl.library": "libnccl.so.2.19.3"}, "job/7": {}},
    ]
    assert setup_of(nodes, "7").facts == {
        "nvidia.driver": {"550.54.15"}, "nccl.version": {"2.21.5"}, "gpu.model": {"NVIDIA H100"},
    }  # fmt: skip
    assert "nccl.version" not in setup_of(nodes).facts


def test_a_hostile_case_is_capped() -> None:
    deep: dict[str, Any] = {"verdict": "rank_failed", "why": ["x" * 5_000] * 3, "findings": [7, None]}
    case = case_of(deep, (f"line {n}: wrong magic {n}" for n in range(10_000)))
    assert case.lines == ("x" * 1_000,)
    case = case_of(deep, (f"{n}: wrong magic 0a != 1b" + "y" * 5_000 for n in range(10_000)))
    assert len(case.lines) == 201 and max(map(len, case.lines)) == 1_000
    many = setup_of([{f"port/{n}": {"rdma.firmware": f"28.47.{n}"}} for n in range(200)])
    assert len(many.facts["rdma.firmware"]) == 64


def test_rows_have_sources_words_that_exist_and_an_order_of_sureness() -> None:
    assert len({bug.id for bug in CATALOGUE}) == len(CATALOGUE) >= 15
    for bug in CATALOGUE:
        assert bug.sign.verdicts <= VERDICTS.keys(), bug.id
        assert re.search(r"issue|pull request|release|commit", bug.source), bug.id
        assert not re.search(r"https?:", bug.source + bug.action) and bug.ranges, bug.id
        assert bug.sign.verdicts or bug.sign.xids or bug.sign.line, bug.id
    case = case_of({"verdict": "numeric"})
    sure = [one.bug.sure for one in matches(case, setup(nccl_version="2.27.5", env_read="yes")).rows]
    assert sure == [Sure.CONFIRMED, Sure.LIKELY]
    assert matches(case, Setup()).to_dict()["catalogue_version"] == VERSION
