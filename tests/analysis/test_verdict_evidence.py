"""What processes and stacks add to the dumps: dead ranks, causes, a world that stands outside of calls."""

from __future__ import annotations

from dataclasses import replace

import pytest

from clusterwatch.analysis.model import ProcessState, RankFacts, RankStacks, StackThread
from tests.cases.jobs import Call, Halt, Job, Sync
from tests.cases.judged import Verdict, judge, named

BUSY = {
    "data_loading": "fetch (/x/site-packages/torch/utils/data/_utils/fetch.py:54)",
    "checkpoint": "save (/x/site-packages/torch/distributed/checkpoint/state_dict_saver.py:160)",
    "compile": "compile_fx (/x/site-packages/torch/_inductor/compile_fx.py:1200)",
    "gc": "collect (/opt/train/memory.py:12)",
    "user_code": "evaluate (/opt/train/metrics.py:88)",
}
IN_CALL = "all_reduce (/x/site-packages/torch/distributed/distributed_c10d.py:2500)"


def stack(rank: int, frame: str) -> RankStacks:
    frames = ("<module> (/opt/train/job.py:5)", "step (/opt/train/job.py:9)", frame)
    return RankStacks(rank, "py-spy", (StackThread("MainThread", frames, main=True),))


def running(world: int = 4) -> dict[int, RankFacts]:
    return {r: RankFacts(r, host=f"node{r}", process=ProcessState.RUNNING) for r in range(world)}


def look(busy: dict[int, str], waits: bool = True, **known: object) -> Verdict:
    """A live look: ranks in ``busy`` are elsewhere, the others wait in call 6, or in no call at all."""
    job = Job(4)
    job.repeat(5, Call(job.default), Sync())
    for rank in busy:
        job.programs[rank].append(Halt())
    if waits:
        job.every(Call(job.default))
    stacks = tuple(stack(rank, busy.get(rank, IN_CALL)) for rank in range(4))
    what = {"live": True, "advanced": False, "stall_s": 9.0, "stacks": stacks, "facts": running(), **known}
    return judge(job.run(), known=what)


class TestCauses:
    @pytest.mark.parametrize("cause", BUSY)
    def test_the_stack_of_the_missing_rank_gives_the_cause(self, cause: str) -> None:
        found = look({2: BUSY[cause]})
        assert named(found) == ("missing_rank", [2], []) and found["cause"] == cause

    @pytest.mark.parametrize("cause", BUSY)
    def test_when_nobody_waits_the_world_is_outside_of_calls(self, cause: str) -> None:
        found = look(dict.fromkeys(range(4), BUSY[cause]), waits=False)
        assert named(found) == ("outside_collectives", [], []) and found["cause"] == cause

    def test_the_same_stacks_while_the_job_moves_are_no_fault(self) -> None:
        found = look(dict.fromkeys(range(4), BUSY["data_loading"]), waits=False, advanced=True)
        assert found["verdict"] == "no_fault"

    def test_stacks_inside_a_call_give_no_cause(self) -> None:
        assert look({2: IN_CALL})["cause"] is None


class TestDead:
    def facts(self, **change: object) -> dict[int, RankFacts]:
        known = running()
        return {**known, 2: replace(known[2], **change)}  # type: ignore[arg-type]

    @pytest.mark.parametrize("signal", [9, 11])
    def test_a_killed_process_is_a_dead_rank(self, signal: int) -> None:
        gone = self.facts(process=ProcessState.EXITED, exit_signal=signal)
        found = look({2: BUSY["user_code"]}, facts=gone, stacks=())
        assert named(found) == ("dead_rank", [2], []) and found["findings"][0]["decisive"]

    def test_a_stopped_process_is_missing_with_that_cause(self) -> None:
        found = look({2: BUSY["user_code"]}, facts=self.facts(process=ProcessState.STOPPED), stacks=())
        assert named(found) == ("missing_rank", [2], []) and found["cause"] == "stopped"

    def test_a_lost_agent_proves_nothing_of_its_rank(self) -> None:
        found = look({2: BUSY["user_code"]}, facts=self.facts(process=ProcessState.AGENT_GONE), stacks=())
        assert found["verdict"] != "dead_rank"
