"""Who failed first by the words of job logs, and when nobody may be named."""

from __future__ import annotations

import random
from string import ascii_letters

from hypothesis import given, settings
from hypothesis import strategies as st

from clusterwatch.analysis.model import Owner
from tests.analysis.log_texts import (
    elastic,
    finding,
    parsed,
    peer_lost,
    progress,
    timeout,
    traceback,
    verdict,
)

OOM = (
    "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB. GPU 3 has a total capacity of "
    "79.15 GiB of which 1.02 GiB is free."
)
NO_WORDS = st.characters(codec="utf-8", exclude_characters=ascii_letters)
"""Words of its own would be a line that tells something."""
SLURM = "slurmstepd: error: *** STEP 4711.0 ON node012 CANCELLED AT 2026-12-02T03:12:44"


def test_names_the_rank_that_ran_out_of_memory_and_not_those_that_lost_it() -> None:
    one = finding(peer_lost(0) + peer_lost(1) + traceback(OOM, "[rank3]: ") + peer_lost(2))
    assert (one.verdict, one.cause, one.culprit_ranks) == ("out_of_memory", "gpu_memory", (3,))
    assert one.fault_class == "crash" and one.downstream.ranks == 3
    assert any("job.log:" in line and "Tried to allocate" in line for line in one.why)
    assert any("main (/app/train.py:88)" in line for line in one.why)


def test_names_a_rank_by_its_own_exception_with_type_and_user_frame() -> None:
    one = finding(traceback("ValueError: shard 17 is empty", "[rank5]: ") + timeout(0) + timeout(1))
    assert (one.verdict, one.cause, one.owner) == ("rank_failed", "ValueError", Owner.USER)
    assert one.culprit_ranks == (5,)


def test_the_earlier_of_two_own_failures_is_named_by_their_clocks_not_by_rank_or_line() -> None:
    late = "2026-12-02T03:12:50.000Z stderr F "
    early = "2026-12-02T03:12:44.000Z stderr F "
    text = traceback("KeyError: 'a'", f"{late}[rank1]: ") + traceback("ValueError: b", f"{early}[rank6]: ")
    assert finding(text).culprit_ranks == (6,)


def test_two_own_failures_without_clocks_are_suspects() -> None:
    one = finding(traceback("KeyError: 'a'", "[rank1]: ") + traceback("ValueError: b", "[rank6]: "), 8)
    assert one.culprit_ranks == () and one.suspect_ranks == (1, 6)
    assert one.confidence <= 0.5


def test_stamps_closer_than_clocks_agree_make_suspects() -> None:
    a, b = "2026-12-02T03:12:44.100Z stderr F ", "2026-12-02T03:12:44.300Z stderr F "
    one = finding(
        traceback("KeyError: 'a'", f"{a}[rank1]: ") + traceback("ValueError: b", f"{b}[rank6]: "), 8
    )
    assert one.suspect_ranks == (1, 6)


def test_an_error_of_every_rank_blames_the_program() -> None:
    one = finding("".join(traceback("FileNotFoundError: config.yaml", f"[rank{r}]: ") for r in range(8)))
    assert one.culprit_ranks == () and "alike" in one.summary


def test_an_error_after_a_lost_peer_is_of_a_victim() -> None:
    text = peer_lost(2) + traceback("AssertionError: state is half written", "[rank2]: ")
    assert finding(text + traceback("ValueError: real", "[rank6]: "), 8).culprit_ranks == (6,)


def test_a_caught_exception_long_before_the_end_is_not_the_cause() -> None:
    steps = "".join(f"[rank1]: step {n} loss 2.3\n" for n in range(200))
    text = traceback("KeyError: 'caught'", "[rank1]: ") + steps + traceback(OOM, "[rank4]: ") + peer_lost(1)
    assert finding(text).culprit_ranks == (4,)


def test_a_caught_exception_alone_is_no_failure() -> None:
    steps = "".join(f"[rank1]: step {n} loss 2.3\n" for n in range(200))
    assert not verdict(traceback("KeyError: 'caught'", "[rank1]: ") + steps).findings


def test_a_log_without_rank_names_no_rank() -> None:
    one = finding(traceback("ValueError: shard 17 is empty"))
    assert one.culprit_ranks == () and one.suspect_ranks == ()
    assert one.cause == "ValueError" and one.confidence <= 0.6


def test_interrupts_and_launcher_errors_are_no_cause() -> None:
    text = traceback("KeyboardInterrupt", "[rank1]: ") + (
        'Traceback (most recent call last):\n  File "/usr/bin/torchrun", line 8, in <module>\n'
        "    sys.exit(main())\n"
        "torch.distributed.elastic.multiprocessing.api.SignalException: Process 4000 got signal: 15\n"
    )
    assert not verdict(text).findings


def test_root_cause_of_torchelastic_can_be_a_victim() -> None:
    text = peer_lost(0) + traceback(OOM, "[rank3]: ") + elastic([(3, 1, 4714, ""), (0, 1, 4711, "")])
    one = finding(text)
    assert one.culprit_ranks == (3,)
    assert one.culprits[0].pid == 4714 and one.culprits[0].host == "node012"


def test_a_killed_process_without_words_is_named_by_its_signal() -> None:
    text = (
        peer_lost(0)
        + peer_lost(1)
        + elastic([(0, 1, 4711, ""), (3, -9, 4714, "Signal 9 (SIGKILL) received")])
    )
    one = finding(text)
    assert (one.verdict, one.cause, one.culprit_ranks) == ("rank_failed", "SIGKILL", (3,))


def test_processes_that_the_launcher_ended_are_not_named() -> None:
    items = [(1, -15, 4712, "Signal 15 (SIGTERM)"), (2, -9, 4713, "Signal 9 (SIGKILL)"), (0, -11, 4711, "")]
    one = finding(elastic(items))
    assert (one.cause, one.culprit_ranks) == ("SIGSEGV", (0,))


def test_slurm_out_of_memory_names_the_one_killed_task() -> None:
    text = (
        "slurmstepd: error: Detected 1 oom_kill event in StepId=4711.0. Some of the step tasks have been OOM "
        "Killed.\nsrun: error: node012: task 3: Out Of Memory\nsrun: error: node013: tasks 0-2,4-7: Killed\n"
    )
    one = finding(text)
    assert (one.verdict, one.cause, one.culprit_ranks, one.node) == (
        "out_of_memory", "host_memory", (3,), "node012",
    )  # fmt: skip


def test_a_kernel_kill_is_put_on_the_rank_by_its_pid() -> None:
    text = (
        "Dec  2 03:12:44 node012 kernel: Out of memory: Killed process 4714 (python) total-vm:90000kB\n"
        + elastic([(3, -9, 4714, "Signal 9 (SIGKILL) received by PID 4714")])
    )
    one = finding({"messages": text.split("\n", 1)[0], "job.log": text.split("\n", 1)[1]})
    assert (one.verdict, one.cause, one.culprit_ranks) == ("out_of_memory", "host_memory", (3,))


def test_a_xid_is_put_on_the_rank_by_the_bus_that_nccl_printed() -> None:
    text = (
        "node012:4711:4711 [3] NCCL INFO comm 0x55d0 rank 11 nranks 16 cudaDev 3 nvmlDev 3 busId 5e000"
        " commId "
        "0x1 - Init COMPLETE\n"
        "Dec  2 03:12:44 node012 kernel: NVRM: Xid (PCI:0000:5e:00): 79, pid='<unknown>', name=<unknown>,"
        " GPU has "
        "fallen off the bus.\n"
    )
    one = finding(text)
    assert (one.cause, one.owner, one.culprit_ranks) == ("xid_79", Owner.INFRA, (11,))
    assert "fallen off the bus" in one.summary


def test_a_xid_of_an_unknown_process_names_the_host_only() -> None:
    one = finding(
        "Dec  2 03:12:44 node012 kernel: NVRM: Xid (PCI:0000:5e:00): 79, GPU has fallen off the bus.\n"
    )
    assert one.culprit_ranks == () and one.node == "node012"


def test_cleanup_xids_are_effects() -> None:
    text = (
        "Dec  2 03:12:44 node012 kernel: NVRM: Xid (PCI:0000:5e:00): 45, pid=4711, name=python, Ch 00000010\n"
    )
    assert not verdict(text).findings


def test_ecc_and_device_asserts_tell_their_owner() -> None:
    ecc = finding(
        traceback("torch.AcceleratorError: CUDA error: uncorrectable ECC error encountered", "[rank2]: ")
    )
    assert (ecc.cause, ecc.owner, ecc.culprit_ranks) == ("ecc_error", Owner.INFRA, (2,))
    text = (
        "[rank2]: /pytorch/aten/src/ATen/native/cuda/Loss.cu:245: nll_loss: block: [0,0,0], thread: [3,0,0] "
        "Assertion `t >= 0 && t < n_classes` failed.\n"
    ) + traceback("RuntimeError: CUDA error: device-side assert triggered", "[rank2]: ")
    one = finding(text)
    assert (one.cause, one.owner, one.culprit_ranks) == ("device_assert", Owner.USER, (2,))


def test_scheduler_words_alone_end_the_job() -> None:
    for due, cause in (
        ("TIME LIMIT", "time_limit"),
        ("PREEMPTION", "preempted"),
        ("NODE FAILURE", "node_failure"),
    ):
        one = finding(f"{SLURM} DUE TO {due} ***\n")
        assert (one.verdict, one.cause) == ("ended_by_scheduler", cause)
    assert finding(f"{SLURM} ***\n").cause == "cancelled"


def test_a_cancel_after_a_failure_is_an_effect() -> None:
    text = (
        traceback("ValueError: x", "[rank1]: ") + f"{SLURM} ***\nsrun: error: node012: task 0: Terminated\n"
    )
    assert finding(text).verdict == "rank_failed"


def test_what_a_time_limit_killed_did_not_fail() -> None:
    text = f"{SLURM} DUE TO TIME LIMIT ***\nsrun: error: node012: tasks 0-7: Killed\n" + peer_lost(3)
    assert finding(text).verdict == "ended_by_scheduler"


def test_a_lost_node_is_named_by_slurm() -> None:
    one = finding("srun: error: Node failure on node044\n" + peer_lost(0))
    assert (one.verdict, one.node) == ("dead_node", "node044")


def test_a_pod_evicted_by_kubernetes() -> None:
    one = finding("train-worker-3   0/1   Evicted   0   4h\n")
    assert (one.verdict, one.cause) == ("ended_by_scheduler", "evicted")


def test_three_attempts_with_one_end_are_a_loop() -> None:
    again = "[default0]: INFO: Rendezvous complete for workers. Result: restart_count={} master_port=29500\n"
    text = "".join(again.format(n) + traceback("ValueError: bad", "[rank3]: ") for n in range(4))
    one = finding(text)
    assert one.verdict == "restart_loop" and one.culprit_ranks == (3,)
    two = finding("".join(again.format(n) + traceback("ValueError: bad", "[rank3]: ") for n in range(2)))
    assert two.verdict == "rank_failed"


def test_attempts_in_folders_are_told_apart() -> None:
    files = {
        f"logs/run_x/attempt_{n}/{r}/stderr.log": traceback("ValueError: bad") if r == 3 else peer_lost(r, "")
        for n in range(3)
        for r in range(4)
    }
    one = finding(files)
    assert one.verdict == "restart_loop" and one.culprit_ranks == (3,)


def test_different_ends_are_no_loop_and_the_newest_counts() -> None:
    files = {
        "logs/run_x/attempt_0/1/stderr.log": traceback("ValueError: bad"),
        "logs/run_x/attempt_1/2/stderr.log": traceback(OOM),
        "logs/run_x/attempt_2/3/stderr.log": traceback("KeyError: 'x'"),
    }
    one = finding(files)
    assert (one.verdict, one.cause, one.culprit_ranks) == ("rank_failed", "KeyError", (3,))


def test_nan_is_numeric() -> None:
    one = finding(
        traceback("RuntimeError: found NaN in local grad norm. Device: 3, node: node012", "[rank3]: ")
    )
    assert (one.verdict, one.culprit_ranks) == ("numeric", (3,))
    losses = "".join(f"[rank0]: iteration {n} | loss: nan | grad norm: nan\n" for n in range(5))
    one = finding(losses)
    assert one.verdict == "numeric" and one.culprit_ranks == ()
    assert not verdict("[rank0]: iteration 1 | loss: nan | grad norm: 1.0\n").findings


def test_a_dropped_loss_scale_is_healthy() -> None:
    text = "Gradient overflow.  Skipping step, loss scaler 0 reducing loss scale to 32768.0\n" * 20
    assert not verdict(text).findings


def test_a_rank_behind_in_enqueued_work_is_missing() -> None:
    text = "".join(timeout(rank) for rank in range(8) if rank != 3) + progress(3, 1233, 1233)
    one = finding(text)
    assert (one.verdict, one.fault_class, one.culprit_ranks) == ("missing_rank", "hang", (3,))
    assert (one.seq, one.op) == (1234, "all_reduce")
    assert len(one.joined_ranks) == 7


def test_a_rank_that_is_not_behind_is_not_named() -> None:
    text = "".join(timeout(rank) for rank in range(4)) + progress(5, 1234, 1233)
    one = finding(text, 8)
    assert one.verdict == "not_enough_data" and not one.culprit_ranks and not one.suspect_ranks


def test_all_ranks_in_one_timeout_name_nobody() -> None:
    one = finding("".join(timeout(rank) for rank in range(8)), 8)
    assert one.verdict == "all_joined_not_finished" and not one.culprit_ranks


def test_one_silent_rank_is_a_suspect_only() -> None:
    one = finding("".join(timeout(rank) for rank in range(8) if rank != 3), 8)
    assert one.verdict == "missing_rank" and one.suspect_ranks == (3,) and one.confidence < 0.5


def test_another_operation_under_the_same_number_is_named_by_majority() -> None:
    text = "".join(timeout(rank) for rank in range(8) if rank != 5) + timeout(5, op="BROADCAST")
    one = finding(text)
    assert (one.verdict, one.culprit_ranks) == ("op_mismatch", (5,))
    text = "".join(timeout(rank) for rank in range(8) if rank != 5) + timeout(5, numel=1048577)
    assert finding(text).verdict == "size_mismatch"
    two = finding(timeout(0) + timeout(1, op="BROADCAST"))
    assert two.culprit_ranks == () and two.suspect_ranks == (0, 1)


def test_uneven_all_to_all_is_legal() -> None:
    text = "".join(timeout(rank, op="ALLTOALL_BASE", numel=1000 + rank) for rank in range(4))
    assert finding(text, 4).verdict == "all_joined_not_finished"


def test_the_rank_of_a_subgroup_is_not_taken_for_a_rank_of_the_job() -> None:
    group = "PG ID 3 PG GUID 8(tensor) Rank {rank}"
    one = finding("".join(timeout(rank, group=group, label=False) for rank in range(2)))
    assert one.verdict == "not_enough_data" and one.joined_ranks == ()


def test_the_oldest_wording_still_tells() -> None:
    text = "".join(
        f"[E ProcessGroupNCCL.cpp:828] [Rank {rank}] Watchdog caught collective operation timeout:"
        f" WorkNCCL(SeqNum="
        "1234, OpType=ALLREDUCE, TensorShape=[1048576], Timeout(ms)=1800000) ran for 1800123 milliseconds"
        " before "
        "timing out.\n"
        for rank in range(4)
    )
    one = finding(text, 4)
    assert one.verdict == "all_joined_not_finished" and one.joined_ranks == (0, 1, 2, 3)


def test_a_failed_transfer_suspects_its_ends() -> None:
    text = (
        "node012:4711:4890 [3] transport/net_ib.cc:1311 NCCL WARN NET/IB : Got completion from peer "
        "10.1.2.3<45678> with status=12 opcode=0 len=0 vendor err 129 (Recv) localGid fe80::1 hca mlx5_3\n"
    )
    one = finding(text)
    assert (one.cause, one.owner, one.culprit_ranks) == ("network_error", Owner.INFRA, ())
    assert one.link is not None and "mlx5_3" in one.link and "10.1.2.3" in one.link


def test_a_failed_transfer_after_a_death_is_an_effect() -> None:
    text = (
        traceback(OOM, "[rank3]: ")
        + "node013:4711:4890 [3] transport/net_ib.cc:1311 NCCL WARN NET/IB : Got completion from peer "
        "10.1.2.3<45678> with error 12, opcode 0, len 0, vendor err 129\n"
    )
    assert finding(text).verdict == "out_of_memory"


def test_only_effects_name_nobody_unless_one_rank_is_silent() -> None:
    some = finding("".join(peer_lost(rank) for rank in (0, 1, 2)), 8)
    assert some.culprit_ranks == () and some.suspect_ranks == ()
    one = finding("".join(peer_lost(rank) for rank in range(8) if rank != 6), 8)
    assert one.culprit_ranks == () and one.suspect_ranks == (6,) and one.confidence < 0.5
    assert any("10.1.2.3" in line for line in one.why)


def test_a_stuck_watchdog_is_blind() -> None:
    text = (
        "[rank2]:[F1202 03:12:44.1 ProcessGroupNCCL.cpp:1554] [PG ID 0 PG GUID 0(default_pg) Rank 2] [PG"
        " ID 0 PG "
        "GUID 0(default_pg) Rank 2] ProcessGroupNCCL's watchdog got stuck for 480 seconds without making"
        " progress\n"
    )
    one = finding(text)
    assert (one.verdict, one.fault_class, one.suspect_ranks) == ("watchdog_stuck", "blind", (2,))


def test_a_healthy_log_says_nothing() -> None:
    text = "".join(
        f"[default{n % 8}]: 2026-12-02 03:12:{n % 60:02d},123 INFO iteration {n} loss 2.3 errors 0"
        f" timeouts 0\n"
        f"node012:4711:4890 [{n % 8}] NCCL INFO NET/Socket : Using [0]eth0:10.1.2.3<0>\n"
        for n in range(200)
    )
    assert not verdict(text).findings


def test_local_ranks_of_two_nodes_are_not_taken_for_ranks() -> None:
    files = {
        "node0.log": traceback("ValueError: x", "[default3]:"),
        "node1.log": peer_lost(0, "[default3]:"),
    }
    assert finding(files).culprit_ranks == ()


def test_local_ranks_become_ranks_by_a_line_that_tells_both() -> None:
    files = {
        "node0.log": "".join(peer_lost(r, f"[default{r}]:[rank{r}]: ") for r in range(2)),
        "node1.log": traceback("ValueError: x", "[default3]:") + peer_lost(8, "[default0]:[rank8]: "),
    }
    assert finding(files).culprit_ranks == (11,)


def test_local_ranks_of_the_one_node_there_is_are_ranks_with_less_certainty() -> None:
    one = finding(traceback("ValueError: x", "[default3]:"))
    assert one.culprit_ranks == (3,) and one.confidence < 0.8
    assert any("per node" in line for line in one.why)


def test_srun_labels_are_ranks_unless_lines_say_otherwise() -> None:
    assert finding(traceback("ValueError: x", " 3: ")).culprit_ranks == (3,)
    assert finding(traceback("ValueError: x", "0: [rank5]: ")).culprit_ranks == (5,)
    text = traceback("ValueError: x", "1: ") + peer_lost(5, "1: [rank5]: ")
    assert 1 not in finding(text).culprit_ranks


def test_files_named_after_tasks_and_ranks() -> None:
    files = {f"slurm-4711_{r}.out": peer_lost(r, "") for r in range(3)}
    assert finding(files | {"slurm-4711_3.out": traceback("ValueError: x")}).culprit_ranks == (3,)
    assert finding({"rank_7.log": traceback("ValueError: x")}).culprit_ranks == (7,)


def interleaved(streams: list[list[str]], seed: int) -> str:
    """Lines of several writers in one file, each writer's in order."""
    chance, left = random.Random(seed), [list(lines) for lines in streams]
    out = []
    while any(left):
        out.append(chance.choice([lines for lines in left if lines]).pop(0))
    return "".join(out)


@given(st.integers(0, 10**6))
@settings(max_examples=60, deadline=None)
def test_interleaving_the_lines_of_ranks_changes_nothing(seed: int) -> None:
    streams = [peer_lost(r).splitlines(keepends=True) for r in range(8) if r != 5]
    streams.append(traceback(OOM, "[rank5]: ").splitlines(keepends=True))
    one = finding(interleaved(streams, seed))
    assert (one.verdict, one.culprit_ranks, one.downstream.ranks) == ("out_of_memory", (5,), 7)
    assert any("train.py:88" in line for line in one.why)


@given(
    st.lists(st.text(NO_WORDS, max_size=60), max_size=12),
    st.integers(0, 99),
)
@settings(max_examples=60, deadline=None)
def test_garbage_between_the_lines_changes_nothing(garbage: list[str], seed: int) -> None:
    noise = [f"[rank9]: ~ {' '.join(text.split())}\n" for text in garbage]
    streams = [
        traceback(OOM, "[rank5]: ").splitlines(keepends=True),
        peer_lost(1).splitlines(keepends=True),
        noise,
    ]
    one = finding(interleaved(streams, seed))
    assert (one.verdict, one.culprit_ranks) == ("out_of_memory", (5,))


def test_the_order_of_files_changes_nothing() -> None:
    from clusterwatch.analysis.log_judge import judge

    logs = parsed({f"rank_{r}.log": peer_lost(r, "") if r != 2 else traceback(OOM) for r in range(6)})
    assert judge(logs).findings == judge(logs[::-1]).findings
