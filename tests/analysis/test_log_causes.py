"""Causes with advice of their own, faults told twice, and what time-outs of few ranks support."""

from __future__ import annotations

import pytest

from clusterwatch.analysis import diagnose
from clusterwatch.analysis.model import Observation, Owner
from tests.analysis.log_texts import finding, parsed, timeout, traceback

XID = "Dec  2 09:00:00 node07 kernel: NVRM: Xid (PCI:0000:3b:00): {0}, pid=4713, {1}\n"
FALLEN = XID.format(79, "GPU has fallen off the bus.")
CUDA = "RuntimeError: CUDA error: unspecified launch failure\n"


def test_a_lost_gpu_and_the_one_cuda_error_are_one_failure_of_the_infrastructure() -> None:
    one = finding(FALLEN + f"[rank2]: {CUDA}" + timeout(0) + timeout(1))
    assert (one.cause, one.owner, one.culprit_ranks) == ("xid_79", Owner.INFRA, (2,))
    assert "host" in one.recommended_action and any("launch failure" in line for line in one.why)


def test_a_lost_gpu_and_two_cuda_errors_name_no_rank() -> None:
    one = finding(FALLEN + f"[rank2]: {CUDA}[rank3]: {CUDA}")
    assert one.culprit_ranks == () and "themselves" in one.summary


def test_an_xid_of_the_program_is_not_put_on_another_ranks_error() -> None:
    one = finding(XID.format(31, "MMU fault") + f"[rank2]: {CUDA}")
    assert one.cause != "xid_31" or one.culprit_ranks == ()


def test_a_taken_port_is_the_hosts_own_fault() -> None:
    text = "torch.distributed.DistNetworkError: The server socket has failed to listen. name: EADDRINUSE"
    one = finding(traceback(text, "[rank0]: "))
    assert (one.cause, one.culprit_ranks) == ("port_in_use", (0,)) and "MASTER_PORT" in one.recommended_action
    refused = finding(traceback("torch.distributed.DistNetworkError: connection refused", "[rank0]: "))
    assert refused.cause == "peer_lost" and refused.culprit_ranks == ()


@pytest.mark.parametrize(
    ("text", "word"),
    [
        ("srun: error: node07: task 3: Out Of Memory\n", "data-loader workers"),
        (traceback("torch.OutOfMemoryError: CUDA out of memory. Tried 2 GiB", "[rank3]: "), "activation"),
    ],
)
def test_lack_of_host_memory_and_of_gpu_memory_have_advice_of_their_own(text: str, word: str) -> None:
    assert word in finding(text, 4).recommended_action


def test_all_that_logged_timed_out_says_nothing_of_ranks_that_did_not_log() -> None:
    text = "".join(timeout(rank, group="Rank {rank}") for rank in range(3))
    one = finding(text)
    assert one.verdict == "not_enough_data" and "if anybody" in one.summary
    assert finding(text, 3).verdict == "all_joined_not_finished"
    coverage = diagnose(Observation(logs=tuple(parsed(text)))).coverage
    assert (coverage.expected, coverage.reported) == (0, 3)


def test_a_rank_that_timed_out_in_an_earlier_call_is_suspected_for_that() -> None:
    one = finding("".join(timeout(rank) for rank in (0, 1, 3)) + timeout(2, seq=1233))
    assert (one.verdict, one.suspect_ranks) == ("missing_rank", (2,))
    assert "1233" in one.summary and any("SeqNum=1233" in line for line in one.why)
    assert "alone did not" not in " ".join((one.summary, *one.why))


def test_an_earlier_call_of_another_group_tells_nothing() -> None:
    other = timeout(2, seq=7, group="PG ID 3 PG GUID 9(tp) Rank 1")
    one = finding("".join(timeout(rank) for rank in (0, 1, 3)) + other)
    assert "call 7" not in one.summary


def test_a_peer_at_the_address_of_the_own_host_is_no_hint() -> None:
    text = "RuntimeError: [pair.cc:553] Connection closed by peer [{0}]:12345\n"
    home = finding("".join(f"[rank{rank}]: {text.format('127.0.0.1')}" for rank in (0, 1)))
    away = finding("".join(f"[rank{rank}]: {text.format('10.0.0.7')}" for rank in (0, 1)))
    assert not any("one address" in line for line in home.why)
    assert any("10.0.0.7" in line for line in away.why)
    assert "log ends first" in home.recommended_action
