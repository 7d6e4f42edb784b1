"""Forms in which launchers, NCCL, Slurm and Kubernetes tell of an end; each beside one that is near it."""

from __future__ import annotations

import pytest

from clusterwatch.analysis.model import Owner
from tests.analysis.log_texts import finding, peer_lost, timeout, traceback, verdict

COLLATERAL = [
    "RuntimeError: NCCL communicator was aborted on rank {0}.",
    "torch.distributed.DistBackendError: NCCL error in: ../c10d/NCCLUtils.hpp:219, remote process exited or "
    "there was a network error, NCCL version 2.21.5",
    "ncclRemoteError: A call failed possibly due to a network error or a remote process exiting prematurely.",
    "RuntimeError: Connection reset by peer",
    "RuntimeError: [../third_party/gloo/gloo/transport/tcp/pair.cc:534] Connection closed by peer",
    "torch.distributed.DistNetworkError: The client socket has timed out after 60s while trying to connect",
]


@pytest.mark.parametrize("line", COLLATERAL)
def test_a_bare_line_of_a_peers_trouble_is_an_effect(line: str) -> None:
    woken = "".join(f"[rank{rank}]: {line.format(rank)}\n" for rank in (0, 1))
    alone = finding(woken)
    assert alone.culprit_ranks == () and alone.cause == "peer_lost"
    one = finding(woken + traceback("KeyError: 'x'", "[rank2]: "))
    assert (one.culprit_ranks, one.cause, one.downstream.ranks) == ((2,), "KeyError", 2)


def test_a_bare_exception_is_a_weaker_word_than_one_with_its_stack() -> None:
    bare = finding(
        "[rank2]: ValueError: shard 7 is empty\n" + COLLATERAL[0].format(0).join(["[rank0]: ", "\n"])
    )
    assert (bare.culprit_ranks, bare.cause) == ((2,), "ValueError") and bare.confidence <= 0.6
    both = finding("[rank2]: ValueError: y\n" + traceback("KeyError: 'x'", "[rank5]: "))
    assert both.culprit_ranks == (5,)


def test_a_bare_exception_that_the_process_outlived_is_none() -> None:
    steps = "".join(f"[rank2]: step {n} loss 2.3\n" for n in range(200))
    assert not verdict("[rank2]: ConnectionError: retrying\n" + steps).findings
    assert not verdict("[rank2]: UserWarning: slow tokenizer\n").findings


def size_line(size: int, guid: str = "0") -> str:
    return (
        f"[rank0]:[I1202 03:10:44.1 ProcessGroupNCCL.cpp:850] [PG ID 0 PG GUID {guid} Rank 0] "
        f"ProcessGroupNCCL initialization options: size: {size}, global rank: 0, TIMEOUT(ms): 600000\n"
    )


def test_the_size_of_the_default_group_is_that_of_the_world() -> None:
    text = "".join(timeout(rank) for rank in range(7))
    assert verdict(text).story.world_size == 7
    told = verdict(size_line(8) + text)
    assert told.story.world_size == 8 and told.findings[0].suspect_ranks == (7,)
    assert verdict(size_line(8) + text, 16).story.world_size == 16
    assert verdict(size_line(2, "5(tp)") + text).story.world_size == 7


def test_a_size_in_a_time_out_counts_for_its_own_group_only() -> None:
    line = timeout(0).rstrip("\n") + " (group size: 8)\n"
    assert verdict(line).story.world_size == 8
    sub = timeout(0, group="PG ID 3 PG GUID 8(tensor) Rank 0").rstrip("\n") + " (group size: 2)\n"
    assert verdict(sub).story.world_size is None


TERMINATED = "srun: error: node012: tasks 0-7: Terminated\n"
DEATH = "W1202 03:12:44.1 torch/distributed/elastic/agent/server/api.py:704] Received 15 death signal\n"


@pytest.mark.parametrize("text", [TERMINATED, DEATH, DEATH + "Sending process 4711 closing signal SIGTERM\n"])
def test_processes_that_were_only_told_to_end_did_not_fail(text: str) -> None:
    one = finding(text)
    assert (one.verdict, one.owner, one.culprit_ranks) == ("ended_by_scheduler", Owner.SCHEDULER, ())
    assert one.confidence == 0.5


def test_a_sigterm_beside_a_lost_peer_is_no_proof_of_the_scheduler() -> None:
    assert finding(TERMINATED + peer_lost(3)).verdict == "rank_failed"


def test_a_sigterm_after_a_failure_is_an_effect() -> None:
    text = "srun: error: node012: task 3: Exited with exit code 1\n" + TERMINATED
    assert finding(text).culprit_ranks == (3,)


def test_a_signal_in_the_words_of_slurm_is_no_reason() -> None:
    text = (
        "srun: error: node012: task 3: Exited with exit code 1\n"
        "slurmstepd: error: *** STEP 4711.0 ON n1 CANCELLED AT 2026-12-02T03:12:44 DUE to SIGNAL Killed ***\n"
    )
    assert (finding(text).verdict, finding(text).culprit_ranks) == ("rank_failed", (3,))


def deepspeed(local: int, code: int, host: str = "") -> str:
    return (
        f"{host}[2026-12-02 03:12:44,131] [ERROR] [launch.py:325:sigkill_handler] ['/usr/bin/python3', '-u', "
        f"'train.py', '--local_rank={local}', '--deepspeed'] exits with return code = {code}\n"
    )


@pytest.mark.parametrize(("code", "cause"), [(-9, "SIGKILL"), (-11, "SIGSEGV"), (1, "exit code 1")])
def test_deepspeeds_launcher_names_the_process_that_ended(code: int, cause: str) -> None:
    one = finding(deepspeed(3, code))
    assert (one.verdict, one.cause, one.culprit_ranks) == ("rank_failed", cause, (3,))


def test_deepspeeds_local_rank_on_one_of_two_hosts_is_no_rank() -> None:
    one = finding(deepspeed(3, -9, "worker-1: ") + deepspeed(3, -15, "worker-2: "))
    assert one.culprit_ranks == () and one.node == "worker-1"
    assert not verdict(deepspeed(3, 0)).findings


def net(what: str) -> str:
    return f"node012:4711:4890 [3] transport/net_ib.cc:1311 NCCL WARN NET/IB : {what}\n"


@pytest.mark.parametrize(
    "what",
    [
        "Got completion from peer 10.1.2.3<45678> with error 12, opcode 0, len 0, vendor err 129 (Recv)",
        "mlx5_3:1 Got completion from peer 10.1.2.3<45678> with status=IBV_WC_RETRY_EXC_ERR(12) hca mlx5_3",
        "local protection error on mlx5_3",
    ],
)
def test_failed_completions_of_every_version_are_network_errors(what: str) -> None:
    assert (finding(net(what)).cause, finding(net(what)).culprit_ranks) == ("network_error", ())


@pytest.mark.parametrize(
    ("what", "cause"),
    [
        ("mlx5_3:1 Got async event : port error", "link_down"),
        ("mlx5_3:1 Got async fatal event: local work queue catastrophic error", "nic_error"),
        ("mlx5_3:1 Got non-fatal async event: port error(10)", "link_down"),
        ("mlx5_3:1 Got async event : port active", None),
        ("mlx5_3:1 Got async event : GID table change", None),
        ("mlx5_3:1 Got non-fatal async event: LID change(11)", None),
    ],
)
def test_events_of_an_adapter_are_faults_or_news(what: str, cause: str | None) -> None:
    found = verdict(net(what)).findings
    assert [one.cause for one in found] == ([cause] if cause else [])


@pytest.mark.parametrize(
    ("line", "cause"),
    [
        ("Warning  Evicted  2m  kubelet  The node was low on resource: memory.", "evicted"),
        ("12s   Warning   Evicted   pod/train-worker-3   The node was low on resource", "evicted"),
        ("2m  Normal  Preempted  default-scheduler  Preempted by pod 1 on node n7", "preempted"),
    ],
)
def test_events_of_kubernetes_end_the_job(line: str, cause: str) -> None:
    assert (finding(line + "\n").verdict, finding(line + "\n").cause) == ("ended_by_scheduler", cause)


@pytest.mark.parametrize(
    "line", ["Evicted 3 stale shards from the cache", "2m  Normal  Pulled  kubelet  image"]
)
def test_other_evictions_end_nothing(line: str) -> None:
    assert not verdict(line + "\n").findings


def test_slurms_memory_limit_in_its_older_words() -> None:
    one = finding("slurmstepd: error: Exceeded job memory limit\nsrun: error: node012: task 5: Killed\n")
    assert (one.verdict, one.cause, one.culprit_ranks) == ("out_of_memory", "host_memory", (5,))


def test_a_xid_in_dmesg_beside_the_logs_is_put_on_its_process() -> None:
    dmesg = "[123456.7] NVRM: Xid (PCI:0000:5e:00): 79, pid=4711, name=python, GPU has fallen off the bus.\n"
    start = "node012:4711:4711 [3] NCCL INFO comm 0x55d0 rank 11 nranks 16 cudaDev 3 busId 5e000\n"
    one = finding({"dmesg": dmesg, "job.log": f"[rank11]: {start}"})
    assert (one.cause, one.culprit_ranks) == ("xid_79", (11,))
