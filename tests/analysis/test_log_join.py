"""One fault, told by dumps and by logs, is one finding."""

from __future__ import annotations

from dataclasses import replace

import pytest

from clusterwatch.analysis import diagnose
from clusterwatch.analysis.log_join import joined
from clusterwatch.analysis.log_judge import LogVerdict
from clusterwatch.analysis.model import Diagnosis, Finding, Observation, Severity
from tests.analysis.log_texts import parsed, peer_lost, timeout, traceback, verdict

OOM = "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB."
SLURM = "slurmstepd: error: *** JOB 4711 ON node012 CANCELLED AT 2026-12-02T03:12:44 DUE TO TIME LIMIT ***\n"


def hang(word: str = "missing_rank", *, named: tuple[int, ...] = (2,), **more: object) -> Finding:
    base = Finding(
        word, "hang", Severity.CRITICAL, f"The dumps say {word}.", f"hang.{word} v1", 0.5,
        culprit_ranks=named, missing_ranks=named, seq=6, op="all_reduce", why=("never issued it",),
    )  # fmt: skip
    return replace(base, **more)  # type: ignore[arg-type]


def both(findings: list[Finding], text: str) -> list[Finding]:
    return joined(findings, verdict(text, 4))


def test_an_exception_of_the_missing_rank_is_the_cause_in_one_finding() -> None:
    (one,) = both([hang()], traceback("ValueError: x", "[rank2]: ") + timeout(0, seq=6))
    assert (one.verdict, one.cause, one.culprit_ranks) == ("rank_failed", "ValueError", (2,))
    assert (one.seq, one.op) == (6, "all_reduce")
    assert one.confidence > 0.9 and "dumps: never issued it" in one.why


def test_a_failure_of_another_rank_stays_beside_the_hang() -> None:
    found = both([hang()], traceback(OOM, "[rank3]: "))
    assert [(f.verdict, f.culprit_ranks) for f in found] == [("out_of_memory", (3,)), ("missing_rank", (2,))]


def test_a_failure_without_rank_is_put_on_the_one_missing_rank_with_less_certainty() -> None:
    (one,) = both([hang()], traceback(OOM))
    assert (one.verdict, one.culprit_ranks) == ("out_of_memory", (2,))
    assert one.confidence == pytest.approx(0.7)


def test_a_failure_without_rank_is_put_on_nobody_when_two_are_missing() -> None:
    found = both([hang(named=(1, 2))], traceback(OOM))
    assert all(f.culprit_ranks != (1,) for f in found)
    assert any(f.verdict == "out_of_memory" and not f.culprit_ranks for f in found)


def test_of_two_suspects_of_the_logs_the_dumps_choose() -> None:
    text = traceback("KeyError: 1", "[rank2]: ") + traceback("ValueError: 2", "[rank3]: ")
    (one,) = joined([hang()], verdict(text, 16))
    assert one.culprit_ranks == (2,) and one.suspect_ranks == ()


def test_a_mismatch_in_the_rings_beats_the_exception_it_ends_in() -> None:
    (one,) = both([hang("size_mismatch", named=(1,))], traceback("ValueError: x", "[rank3]: "))
    assert (one.verdict, one.culprit_ranks) == ("size_mismatch", (1,))
    assert any("ValueError" in line for line in one.why)


def test_a_time_limit_after_a_hang_is_only_a_line() -> None:
    (one,) = both([hang()], SLURM)
    assert one.verdict == "missing_rank" and any("TIME LIMIT" in line for line in one.why)


def test_effects_only_add_a_line() -> None:
    (one,) = both([hang()], peer_lost(0) + peer_lost(1))
    assert (one.verdict, one.confidence) == ("missing_rank", 0.5)


def test_a_failed_transfer_gives_all_joined_its_cause() -> None:
    text = (
        "[rank1]: n1:4711:4890 [3] transport/net_ib.cc:1311 NCCL WARN NET/IB : Got completion from peer "
        "10.1.2.3<45678> with status=12 opcode=0 len=0 vendor err 129 (Recv) hca mlx5_3\n"
    )
    (one,) = both([hang("all_joined_not_finished", named=())], text)
    assert (one.verdict, one.cause, one.suspect_ranks) == ("all_joined_not_finished", "network_error", (1,))
    assert one.link is not None and "mlx5_3" in one.link


def test_logs_that_say_nothing_change_nothing() -> None:
    assert both([hang()], "step 1\n") == [hang()]
    assert joined([hang()], LogVerdict(verdict("").story)) == [hang()]


def judged(observation: Observation, text: str) -> Diagnosis:
    return diagnose(replace(observation, logs=tuple(parsed(text))))


def test_logs_alone_give_coverage_of_their_own() -> None:
    found = judged(Observation(), peer_lost(0) + traceback(OOM, "[rank3]: "))
    assert found.worst.verdict == "out_of_memory"
    assert (found.coverage.expected, found.coverage.reported) == (4, 2)


def test_logs_without_a_failure_are_not_enough() -> None:
    found = judged(Observation(), "step 1\nstep 2\n")
    assert found.worst.verdict == "not_enough_data" and "2 lines" in found.worst.summary.replace("\xa0", " ")
