from __future__ import annotations

import pytest

from clusterwatch.analysis.model import (
    Coverage,
    ExceptionFact,
    Finding,
    KnownGroup,
    ProcessState,
    RankFacts,
    Severity,
)
from clusterwatch.analysis.preliminary import diagnose_failure, diagnose_stall
from clusterwatch.analysis.progress import GroupState, Motion, Reason, WorldState

ALL_SEEN = Coverage(8, 8, 0, 0)
GROUPS = {7: KnownGroup("0", "default_pg", tuple(range(8)), "gloo")}
FACTS = {rank: RankFacts(rank, host=f"host-{rank // 2}", pid=1000 + rank) for rank in range(8)}


def stalled(
    *suspects: tuple[int, Reason], waiting: tuple[int, ...] = (0, 1, 2), all_joined: bool = False
) -> WorldState:
    return WorldState(
        world=0,
        motion=Motion.STALLED,
        since_ns=0,
        phase="train",
        waiting=waiting,
        suspects=tuple(rank for rank, _ in suspects),
        reasons=tuple(reason for _, reason in suspects),
        groups=(GroupState(7, 42, waiting, tuple(rank for rank, _ in suspects)),) if waiting else (),
        all_joined=all_joined,
        rank_count=8,
    )


def worst(world: WorldState) -> Finding:
    return diagnose_stall("run-1", world, 4.0, FACTS, GROUPS, ALL_SEEN).worst


@pytest.mark.parametrize(
    ("reason", "verdict"),
    [(Reason.DIED, "dead_rank"), (Reason.NODE_SILENT, "dead_node"), (Reason.STOPPED, "missing_rank")],
)
def test_process_evidence_names_a_culprit(reason: Reason, verdict: str) -> None:
    found = worst(stalled((3, reason)))
    assert (found.verdict, found.culprit_ranks, found.suspect_ranks) == (verdict, (3,), ())
    assert found.culprits[0].host == "host-1"
    assert found.node == "host-1"


@pytest.mark.parametrize(
    "reason", [Reason.BEHIND, Reason.OUTSIDE, Reason.HOOK_SILENT, Reason.UNOBSERVED, Reason.FINISHED]
)
def test_numbers_alone_give_suspects_with_little_confidence(reason: Reason) -> None:
    found = worst(stalled((3, reason)))
    assert (found.culprit_ranks, found.suspect_ranks) == ((), (3,))
    assert found.confidence <= 0.5
    assert not found.decisive


def test_only_a_death_that_somebody_waits_for_is_decisive() -> None:
    assert worst(stalled((3, Reason.DIED))).decisive
    assert not worst(stalled((3, Reason.DIED), waiting=())).decisive


def test_the_call_and_who_has_not_joined_it_are_told() -> None:
    found = worst(stalled((3, Reason.BEHIND)))
    assert found.group is not None
    assert (found.group.desc, found.seq, found.missing_ranks) == ("default_pg", 42, (3,))
    assert found.downstream.ranks == 3


def test_half_of_the_job_as_suspects_is_no_name() -> None:
    found = worst(stalled(*((rank, Reason.OUTSIDE) for rank in range(3, 8))))
    assert found.verdict == "not_enough_data"
    assert (found.culprit_ranks, found.suspect_ranks) == ((), ())
    assert found.severity is Severity.UNKNOWN


def test_all_in_the_call_is_said_and_names_nobody() -> None:
    found = worst(stalled(all_joined=True))
    assert (found.verdict, found.culprit_ranks, found.suspect_ranks) == ("all_joined_not_finished", (), ())


def test_nobody_in_a_call_is_outside_collectives() -> None:
    assert worst(stalled(waiting=())).verdict == "outside_collectives"


def test_the_sentence_is_short_and_names_job_rank_and_host() -> None:
    text = worst(stalled((3, Reason.BEHIND))).summary
    assert text.startswith("Job run-1 stands still: rank 3 on host-1 fell behind")
    assert len(text) <= 200


def exited(rank: int, at_s: float, **fate: object) -> RankFacts:
    return RankFacts(
        rank,
        host=f"host-{rank // 2}",
        process=ProcessState.EXITED,
        exit_ns=int(at_s * 1e9),
        **fate,  # type: ignore[arg-type]
    )


def test_the_first_to_fail_is_named_apart_from_its_cascade() -> None:
    facts = {
        3: exited(3, 10.0, exit_signal=9),
        0: exited(0, 10.9, exit_code=1),
        1: exited(1, 10.8, exit_code=1),
    }
    found = diagnose_failure("run-1", facts, ALL_SEEN).worst
    assert (found.verdict, found.culprit_ranks) == ("rank_failed", (3,))
    assert found.decisive


def test_failures_on_two_hosts_within_clock_error_are_not_told_apart() -> None:
    facts = {
        3: exited(3, 10.0, exit_code=1),
        6: exited(6, 10.2, exit_code=1),
        0: exited(0, 12.0, exit_code=1),
    }
    found = diagnose_failure("run-1", facts, ALL_SEEN).worst
    assert (found.culprit_ranks, found.suspect_ranks) == ((), (3, 6))


def test_one_host_has_one_clock() -> None:
    facts = {2: exited(2, 10.1, exit_code=1), 3: exited(3, 10.0, exit_code=1)}
    assert diagnose_failure("run-1", facts, ALL_SEEN).worst.culprit_ranks == (3,)


def test_an_exception_dates_a_failure_before_its_exit() -> None:
    raised = ExceptionFact("ValueError", "bad batch", at_ns=int(9.0 * 1e9))
    facts = {0: exited(0, 10.0, exit_code=1), 6: exited(6, 11.0, exit_code=1, exception=raised)}
    found = diagnose_failure("run-1", facts, ALL_SEEN).worst
    assert found.culprit_ranks == (6,)
    assert "ValueError: bad batch" in found.summary


def test_ranks_that_ended_normally_did_not_fail() -> None:
    facts = {0: exited(0, 9.0, clean_exit=True), 3: exited(3, 10.0, exit_signal=11)}
    assert diagnose_failure("run-1", facts, ALL_SEEN).worst.culprit_ranks == (3,)
