"""The first to fail apart from its cascade."""

from __future__ import annotations

from typing import Any

import pytest

from clusterwatch.analysis import Diagnosis, Observation, diagnose
from clusterwatch.analysis.model import ProcessState, RankFacts
from tests.analysis.looks import PEER_CLOSED, facts, killed, live, raised, said
from tests.data.blocking_job import World


def ended(changes: dict[int, dict[str, Any]]) -> Diagnosis:
    return diagnose(Observation(job="77", world_size=8, facts=facts(changes)))


VICTIMS = {rank: raised(PEER_CLOSED, 900 + 50 * rank) for rank in range(8) if rank != 5}


@pytest.mark.parametrize(
    ("own", "verdict"),
    [
        (raised("bad batch", 0, "ValueError"), "rank_failed"),
        (raised("CUDA error: an illegal memory access was encountered", 0), "rank_failed"),
        (killed(0, 9), "rank_failed"),
        (killed(0, 11), "rank_failed"),
        (killed(0, 7), "rank_failed"),
        (raised("CUDA out of memory. Tried to allocate 2 GiB", 0, "torch.OutOfMemoryError"), "out_of_memory"),
        (raised("DefaultCPUAllocator: can't allocate memory", 0), "out_of_memory"),
        ({"process": ProcessState.EXITED, "exit_code": 137, "exit_ns": 5}, "rank_failed"),
    ],
)
def test_names_the_first_failure_and_not_its_cascade(own: dict[str, Any], verdict: str) -> None:
    found = ended({5: own, **VICTIMS})
    assert said(found) == (verdict, (5,), ())
    assert found.worst.fault_class == "crash" and found.worst.decisive
    assert found.worst.culprits[0].host == "host2" and found.worst.culprits[0].pid == 105


@pytest.mark.parametrize(
    "message",
    [
        PEER_CLOSED,
        "Connection reset by peer",
        "[Errno 32] Broken pipe",
        "Timed out waiting 1800000ms for recv operation to complete",
        "[Rank 3] Watchdog caught collective operation timeout",
        "NCCL communicator was aborted on rank 3.",
        "[enforce fail at pair.cc:446] op.preamble.length <= op.nbytes. 8 vs 4",
    ],
)
def test_an_error_that_peers_cause_is_never_the_first_failure(message: str) -> None:
    found = ended({2: raised(message, 0), 5: raised("boom", 800, "KeyError")})
    assert said(found) == ("rank_failed", (5,), ())


def test_only_effects_name_nobody() -> None:
    found = ended(VICTIMS)
    assert said(found) == ("rank_failed", (), (0,)) and found.worst.confidence <= 0.3


def test_two_failures_within_the_clock_error_are_suspects() -> None:
    found = ended({5: raised("x", 0, "ValueError"), 3: raised("y", 100, "KeyError")})
    assert said(found) == ("rank_failed", (), (3, 5))


def test_on_one_host_the_clock_decides() -> None:
    found = ended({5: raised("x", 0, "ValueError"), 4: raised("y", 100, "KeyError")})
    assert said(found) == ("rank_failed", (5,), ())


def test_a_later_failure_elsewhere_is_cascade() -> None:
    found = ended({5: raised("x", 0, "ValueError"), 3: raised("y", 900, "KeyError")})
    assert said(found) == ("rank_failed", (5,), ())


def test_a_launchers_sigterm_is_an_effect() -> None:
    found = ended({1: killed(0, 15), 5: raised("x", 400, "ValueError")})
    assert said(found) == ("rank_failed", (5,), ())


def test_an_exception_beats_a_kill_at_the_same_time() -> None:
    found = ended({1: killed(10, 9), 5: raised("x", 0, "ValueError")})
    assert said(found) == ("rank_failed", (5,), ())


def test_a_watchdog_that_aborts_everybody_names_nobody() -> None:
    found = ended({rank: killed(rank, 6) for rank in range(8)})
    assert found.worst.culprit_ranks == ()


def test_a_clean_end_is_no_fault() -> None:
    over = {r: RankFacts(r, process=ProcessState.EXITED, exit_code=0, clean_exit=True) for r in range(8)}
    assert said(diagnose(Observation(facts=over))) == ("no_fault", (), ())


def test_a_rank_killed_while_its_peers_wait_is_a_dead_rank() -> None:
    found = live(World("killed", 5).run(), without=(5,), facts=facts({5: killed(0)}))
    assert said(found) == ("dead_rank", (5,), ())
    assert found.worst.fault_class == "hang" and found.worst.decisive and found.worst.cause == "SIGKILL"
    assert found.worst.group is not None and found.worst.group.ranks == (4, 5)


def test_the_same_kill_is_a_crash_once_the_peers_have_raised() -> None:
    found = live(World("killed", 5).run(), without=(5,), facts=facts({5: killed(0), **VICTIMS}))
    assert said(found) == ("rank_failed", (5,), ())


def test_an_own_exception_is_a_crash_even_while_peers_wait() -> None:
    found = live(World("raise", 5).run(), facts=facts({5: raised("bad batch", 0, "ValueError")}))
    assert said(found) == ("rank_failed", (5,), ())
    assert "ValueError" in found.worst.summary


def test_a_wrong_size_in_the_rings_beats_the_exception_of_its_neighbour() -> None:
    message = "[enforce fail at pair.cc:446] op.preamble.length <= op.nbytes. 8 vs 4"
    found = live(World("wrong_size", 5).run(), facts=facts({4: raised(message, 0)}))
    assert said(found) == ("size_mismatch", (5,), ())


def test_a_wrong_size_that_ended_on_both_ranks_is_still_found() -> None:
    job = World("wrong_size", 5).run()
    for ring in job.rings:
        for entry in ring.entries:
            entry["retired"] = True
    found = live(job, facts=facts({4: raised("Connection closed by peer", 0)}))
    assert said(found) == ("size_mismatch", (5,), ())


def test_a_timeout_of_everybody_leaves_the_name_to_the_trace() -> None:
    timeouts = {rank: raised("Timed out waiting 1800000ms", 100 * rank) for rank in range(5)}
    found = live(World("data_loader", 5).run(), facts=facts(timeouts))
    assert said(found) == ("missing_rank", (5,), ())
