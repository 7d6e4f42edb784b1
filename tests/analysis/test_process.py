"""What processes, nodes and stacks add to the traces."""

from __future__ import annotations

from typing import Any

import pytest

from clusterwatch.analysis.model import ProcessState
from tests.analysis.looks import LOADING, SPINNING, WAITING, facts, live, look, said, stack
from tests.data.blocking_job import World
from tests.data.recorder import Job

SILENT = {"process": ProcessState.NODE_SILENT, "process_since_s": 4.0}
GONE = {"process": ProcessState.AGENT_GONE, "process_since_s": 4.0}


def test_a_stopped_process_is_the_culprit() -> None:
    stopped = {"process": ProcessState.STOPPED, "process_since_s": 6.0, "hook_silent_s": 6.0}
    found = live(World("stopped", 5).run(), without=(5,), facts=facts({5: stopped}))
    assert said(found) == ("missing_rank", (5,), ())
    assert found.worst.cause == "stopped" and found.worst.confidence > 0.9


@pytest.mark.parametrize(
    ("state", "cause"), [(ProcessState.RUNNING, "gil_held"), (ProcessState.BLOCKED, "io")]
)
def test_a_silent_hook_in_a_living_process_is_evidence(state: ProcessState, cause: str) -> None:
    frozen = {"process": state, "hook_silent_s": 6.0}
    found = live(World("stopped", 5).run(), without=(5,), facts=facts({5: frozen}))
    assert said(found) == ("missing_rank", (5,), ()) and found.worst.cause == cause


def test_a_short_silence_proves_nothing() -> None:
    found = live(World("stopped", 5).run(), without=(5,), facts=facts({5: {"hook_silent_s": 1.0}}))
    assert said(found) == ("suspect_no_dump", (), (5,))


def test_ranks_of_a_silent_node_are_a_dead_node() -> None:
    found = live(World("killed", 4).run(), without=(4, 5), facts=facts({4: SILENT, 5: SILENT}))
    assert said(found) == ("dead_node", (4, 5), ())
    assert found.worst.node == "host2" and found.worst.decisive and len(found.findings) == 1


def test_a_dead_agent_is_never_a_dead_node() -> None:
    found = live(World("data_loader", 4).run(), without=(4, 5), facts=facts({4: GONE, 5: GONE}))
    assert said(found) == ("suspect_no_dump", (), (4, 5))
    assert found.worst.cause == "agent_gone" and not found.worst.decisive


@pytest.mark.parametrize("change", [SILENT, GONE])
def test_a_job_that_moves_is_no_fault_whatever_its_agents_do(change: dict[str, Any]) -> None:
    found = live(World().run(), without=(4, 5), facts=facts({4: change, 5: change}), advanced=True)
    assert said(found) == ("no_fault", (), ())


def test_a_dead_agent_whose_rank_stands_elsewhere_does_not_hide_the_culprit() -> None:
    job = World("data_loader", 5).run()
    found = live(job, facts=facts({0: GONE, 1: GONE}), stacks=(stack(5, LOADING),))
    assert said(found) == ("missing_rank", (5,), ())


def test_the_stack_gives_cause_and_line() -> None:
    found = live(World("data_loader", 5).run(), facts=facts(), stacks=(stack(5, LOADING), stack(4, WAITING)))
    assert said(found) == ("missing_rank", (5,), ())
    assert found.worst.cause == "data_loading"
    assert any("__getitem__ (/opt/train/data.py:33)" in line for line in found.worst.why)
    assert found.worst.culprits[0].host == "host2" and found.worst.culprits[0].gpu == 1


def test_stacks_correct_what_gloo_does_not_record() -> None:
    """Rank 0 spins between its forward pass and its send: rank 4 is behind it, but waits for it."""
    job = World("spin", 0).run()
    stacks = (stack(0, SPINNING), stack(1, WAITING), stack(4, WAITING))
    found = live(job, facts=facts(), stacks=stacks)
    assert said(found) == ("missing_rank", (0,), ()) and found.worst.cause == "user_code"


def test_all_waiting_by_their_stacks_names_suspects_only() -> None:
    job = World("extra_call", 0).run()
    stacks = tuple(stack(rank, WAITING) for rank in range(8))
    found = live(job, facts=facts(), stacks=stacks)
    assert found.worst.culprit_ranks == () and 0 in found.worst.suspect_ranks


def test_nobody_in_a_call_is_outside_collectives() -> None:
    found = live(Job(8), facts=facts(), stacks=tuple(stack(rank, LOADING) for rank in range(8)))
    assert said(found)[0] == "outside_collectives" and found.worst.cause == "data_loading"


def test_offline_recorded_stacks_are_no_evidence_of_what_a_rank_does() -> None:
    found = look(World("data_loader", 5).run(), stacks=(stack(5, WAITING, "recorder"),))
    assert said(found) == ("missing_rank", (5,), ())


def test_the_hooks_phase_gives_the_cause_where_no_stack_came() -> None:
    loading = {"phase": "data_loading", "phase_s": 9.0}
    found = live(World("data_loader", 5).run(), facts=facts({5: loading}))
    assert said(found) == ("missing_rank", (5,), ()) and found.worst.cause == "data_loading"
    assert "rank 5 has been in phase data_loading for 9 s" in found.worst.why


def test_a_stack_beats_the_phase() -> None:
    loading = {"phase": "data_loading", "phase_s": 9.0}
    found = live(World("data_loader", 5).run(), facts=facts({5: loading}), stacks=(stack(5, SPINNING),))
    assert found.worst.cause == "user_code"


def test_the_phase_of_a_rank_whose_agent_is_gone_is_old_news() -> None:
    old = {"phase": "data_loading", "phase_s": 9.0, **GONE}
    found = live(World("data_loader", 5).run(), without=(5,), facts=facts({5: old}))
    assert said(found) == ("suspect_no_dump", (), (5,))
