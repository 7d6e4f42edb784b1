"""Causes by stack, and merging."""

from __future__ import annotations

import pytest

from clusterwatch.analysis.model import RankStacks, StackThread
from clusterwatch.analysis.stacks import doing, main_frames, merge, user_frame
from tests.analysis.looks import LOADING, SPINNING, WAITING, stack

LIB = "/venv/lib/python3.11/site-packages"


@pytest.mark.parametrize(
    ("frames", "cause"),
    [
        (LOADING, "data_loading"),
        (SPINNING, "user_code"),
        (("main (job.py:1)", f"save ({LIB}/torch/serialization.py:900)"), "checkpoint"),
        (
            ("main (job.py:1)", f"save ({LIB}/torch/distributed/checkpoint/s.py:9)"),
            "checkpoint",
        ),
        (("main (job.py:1)", f"compile_inner ({LIB}/torch/_dynamo/convert_frame.py:9)"), "compile"),
        (("main (job.py:1)", "urlopen (/usr/lib/python3.11/urllib/request.py:216)"), "io"),
        (
            ("main (job.py:1)", f"_fn ({LIB}/torch/_dynamo/eval_frame.py:9)", "forward (model.py:3)"),
            "user_code",
        ),
    ],
)
def test_reads_the_cause_from_the_inside_out(frames: tuple[str, ...], cause: str) -> None:
    what = doing(stack(0, frames))
    assert what is not None and what.cause == cause and not what.waits


@pytest.mark.parametrize("call", ["all_reduce", "recv", "batch_isend_irecv", "barrier", "all_gather_object"])
def test_a_call_of_torch_distributed_waits(call: str) -> None:
    what = doing(stack(0, ("main (job.py:1)", f"{call} ({LIB}/torch/distributed/distributed_c10d.py:9)")))
    assert what is not None and what.waits


def test_a_native_wait_under_user_code_waits() -> None:
    frames = ("main (job.py:1)", "c10d::ProcessGroupGloo::SendWork::wait (libtorch_cpu.so)")
    what = doing(stack(0, frames))
    assert what is not None and what.waits


def test_backward_alone_says_nothing() -> None:
    assert (
        doing(stack(0, ("main (job.py:1)", f"_engine_run_backward ({LIB}/torch/autograd/graph.py:9)")))
        is None
    )


def test_names_the_innermost_line_of_the_users_own_code() -> None:
    assert user_frame(LOADING) == "__getitem__ (/opt/train/data.py:33)"
    assert user_frame((f"f ({LIB}/torch/nn.py:1)",)) == ""


def test_identical_stacks_are_merged_culprit_first_then_the_fewest() -> None:
    stacks = [stack(r, WAITING) for r in range(6)] + [stack(6, SPINNING), stack(7, LOADING)]
    merged = merge(stacks, culprits={7})
    assert [(m.role, m.ranks) for m in merged] == [
        ("culprit", (7,)),
        ("waiting", (6,)),
        ("waiting", (0, 1, 2, 3, 4, 5)),
    ]


def test_addresses_and_native_frames_do_not_part_equal_stacks() -> None:
    one = stack(0, ("main (job.py:1)", "f at 0x7f12 (x.py:2)", "gloo::wait (libgloo.so)"))
    two = stack(1, ("main (job.py:1)", "f at 0x9aaa (x.py:2)", "epoll_wait (libc.so)"))
    assert [m.ranks for m in merge([one, two])] == [(0, 1)]


def test_only_the_main_thread_speaks() -> None:
    threads = (StackThread("pin_memory", LOADING), StackThread("MainThread", SPINNING, main=True))
    assert main_frames(RankStacks(0, "hook", threads)) == SPINNING
    assert main_frames(RankStacks(0, "hook", (threads[0], threads[0]))) == ()
