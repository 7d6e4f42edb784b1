"""Lines of job logs in their real forms -> events; and what must not be taken for one."""

from __future__ import annotations

import time
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from collectors.formats.job_log import (
    FIRST_KEPT,
    LAST_KEPT,
    LINE_MAX_BYTES,
    JobLog,
    LogEvent,
    LogParser,
    parse,
)
from collectors.formats.job_log_prefix import UNDATED, UTC, Label, in_year
from collectors.formats.job_log_prefix import parse as prefix

TRACE = (
    'Traceback (most recent call last):\n  File "/app/train.py", line 12, in <module>\n    main()\n'
    "ValueError: shard is empty\n"
)


def events(text: str) -> tuple[LogEvent, ...]:
    return parse("job.log", [text.encode()]).events


def one(text: str) -> LogEvent:
    (event,) = events(text)
    return event


@pytest.mark.parametrize(
    ("line", "label", "rest"),
    [
        ("[rank3]: hello", Label(rank=3), "hello"),
        ("[rank3]:[E1202 03:12:44.1 a.cpp:1] x", Label(rank=3), "[E1202 03:12:44.1 a.cpp:1] x"),
        ("[default3]:hello", Label(local_rank=3), "hello"),
        ("[trainer12]: hello", Label(local_rank=12), "hello"),
        ("[default3]:[rank11]: hello", Label(rank=11, local_rank=3), "hello"),
        ("0: [default3]:hello", Label(local_rank=3, task=0), "hello"),
        (" 3: hello", Label(task=3), "hello"),
        ("[node012:3]: hello", Label(local_rank=3, host="node012"), "hello"),
        ("[1,3]<stderr>:hello", Label(rank=3), "hello"),
        ("[pod/train-worker-3/pytorch] hello", Label(host="train-worker-3"), "hello"),
        ("2026-12-02T03:12:44.123456789Z stderr F [rank3]: hello", Label(rank=3), "hello"),
        ("hello", Label(), "hello"),
        ("[2026-12-02 03:12:44,123] [ERROR] hello", Label(), "[2026-12-02 03:12:44,123] [ERROR] hello"),
        ("[node012:04711] *** Process received signal ***", Label(), None),
        ("[3]: hello", Label(), None),
        ("12:30 hello", Label(), None),
    ],
)  # fmt: skip
def test_labels_of_every_launcher_are_taken_off(line: str, label: Label, rest: str | None) -> None:
    found = prefix(line)
    assert found.label == label
    assert found.rest == (line if rest is None else rest)


@pytest.mark.parametrize(
    ("line", "seconds", "clock"),
    [
        ("2026-12-02T03:12:44.5Z x", 1796181164.5, UTC),
        ("2026-12-02T04:12:44.5+01:00 x", 1796181164.5, UTC),
        ("2026-12-02 03:12:44,500 INFO x", 1796181164.5, "local"),
        ("INFO:2026-12-02 03:12:44 x", 1796181164.0, "local"),
        ("[Wed Dec  2 03:12:44 2026] x", 1796181164.0, "local"),
        ("E1202 03:12:44.500000 4711 a.py:1] x", None, UNDATED),
        ("[E903 12:05:48.5 a.cpp:1] x", None, UNDATED),
        ("Dec  2 03:12:44 node012 kernel: x", None, UNDATED),
    ],
)
def test_stamps_of_every_logger_are_read(line: str, seconds: float | None, clock: str) -> None:
    stamp = prefix(line).stamp
    assert stamp is not None and stamp.clock == clock
    if seconds is not None:
        assert stamp.ns == round(seconds * 1e9)
    elif "1202" in line or "Dec" in line:
        assert in_year(stamp, 2026).ns // 10**9 == 1796181164


@pytest.mark.parametrize(
    "line", ["2026-13-02 03:12:44 x", "E1302 25:12:44.1 x", "2026-02-30T00:00:00Z x", "step 12"]
)
def test_what_is_no_time_is_no_stamp(line: str) -> None:
    assert prefix(line).stamp is None


def test_docker_lines_are_opened() -> None:
    found = prefix('{"log":"[rank2]: boom\\n","stream":"stderr","time":"2026-12-02T03:12:44.5Z"}')
    assert (found.label, found.rest) == (Label(rank=2), "boom")
    assert found.stamp is not None and found.stamp.ns == 1796181164500000000
    assert prefix('{"log":"cut in the mid').rest == "cut in the mid"


def test_the_leap_day_is_kept() -> None:
    stamp = prefix("[E229 00:00:01 a.cpp:1] x").stamp
    assert stamp is not None
    assert in_year(stamp, 2028).ns // 10**9 == 1835395201


IB = "node012:4711:4890 [3] transport/net_ib.cc:1311 NCCL WARN NET/IB : "
DOG = "[PG ID 3 PG GUID 8(tensor) Rank 3] "
KINDS: list[tuple[str, str, dict[str, Any]]] = [
    (DOG + "Watchdog caught collective operation timeout: WorkNCCL(SeqNum=1234, OpType=ALLREDUCE,"
           " NumelIn=1048576, "
     "NumelOut=1048576, Timeout(ms)=600000) ran for 600029 milliseconds before timing out.", "watchdog_t"
                                                                                             "imeout",
     {"seq": 1234, "op": "ALLREDUCE", "numel_in": 1048576, "ran_ms": 600029, "rank": 3, "pg": "3",
     "guid": "8(tensor)"}),
    ("[PG 0 Rank 3] Timeout at NCCL work: 1234, last enqueued NCCL work: 1235, last completed NCCL work:"
     " 1233.",
     "progress", {"enqueued": 1235, "completed": 1233, "at_seq": 1234, "rank": 3, "pg": "0"}),
    (DOG + "failure detected by watchdog at work sequence id: 12, last enqueued work: 1235, last"
           " completed work: -1",
     "progress", {"enqueued": 1235, "completed": -1}),
    (DOG + "ProcessGroupNCCL's watchdog got stuck for 480 seconds without making progress", "watchdog_stuck",
     {"stuck_s": 480}),
    ("Exception raised from checkTimeout at ../torch/csrc/distributed/c10d/ProcessGroupNCCL.cpp:565",
    "abort", {}),
    (IB + "Got completion from peer 10.1.2.3<45678> with status=12 opcode=0 len=0 vendor err 129 (Recv)"
          " hca mlx5_3",
     "net_error", {"peer": "10.1.2.3", "status": 12, "vendor": 129, "nic": "mlx5_3", "pid": 4711,
     "host": "node012"}),
    (IB + "Got completion from peer 10.1.2.3<45678> with error 12, opcode 0, len 0, vendor err 129",
    "net_error",
     {"status": 12}),
    ("n1:1:2 [0] misc/ibvwrap.cc:190 NCCL WARN Call to ibv_modify_qp failed with error Connection timed out",
     "net_error", {"call": "ibv_modify_qp"}),
    (IB + "mlx5_3:1 Got async event : port error", "port_event", {"nic": "mlx5_3:1", "what": "port error"}),
    ("n1:1:2 [0] misc/socket.cc:49 NCCL WARN socketProgress: Connection closed by remote peer node013<45678>",
     "peer_closed", {"peer": "node013"}),
    ("n1:1:2 [0] enqueue.cc:402 NCCL WARN Cuda failure 700 'an illegal memory access was encountered'",
     "cuda_error", {"what": "an illegal memory access was encountered"}),
    ("RuntimeError: ... Connection closed by peer [10.1.2.3]:26021", "peer_closed", {"peer": "10.1.2.3"}),
    ("RuntimeError: ... Timed out waiting 1800000ms for recv operation to complete", "peer_timeout",
     {"ran_ms": 1800000}),
    ("/a/Loss.cu:245: nll_loss: block: [0,0,0], thread: [3,0,0] Assertion `t >= 0` failed.", "device_assert",
     {"what": "t >= 0"}),
    ("ERROR: CUDA out of memory. Tried to allocate 2.00 GiB", "out_of_memory", {}),
    ("  what():  CUDA error: uncorrectable ECC error encountered", "cuda_error",
     {"what": "uncorrectable ECC error encountered"}),
    ("NVRM: Xid (PCI:0000:5e:00): 79, pid=4711, name=python, GPU has fallen off the bus.", "xid",
     {"xid": 79, "pid": 4711, "pci": "0000:5e:00"}),
    ("NVRM: Xid (PCI:0000:5e:00): 119, pid='<unknown>', name=<unknown>, Timeout", "xid", {"xid": 119}),
    ("E1202 03:12:44.1 4000 api.py:869] failed (exitcode: -9) local_rank: 3 (pid: 4711) of binary:"
     " /usr/bin/python",
     "elastic_exit", {"exit": -9, "local": 3, "pid": 4711}),
    ("W1202 03:12:44.1 4000 api.py:897] Sending process 4712 closing signal SIGTERM", "told_to_end",
    {"pid": 4712}),
    ("slurmstepd: error: Detected 1 oom_kill event in StepId=4711.0.", "slurm_oom", {"count": 1}),
    ("slurmstepd: error: Detected 2 oom-kill event(s) in step 4711.0 cgroup.", "slurm_oom", {"count": 2}),
    ("kernel: Out of memory: Killed process 4711 (python) total-vm:1kB", "kernel_oom", {"pid": 4711}),
    ("kernel: Memory cgroup out of memory: Killed process 4711 (python)", "kernel_oom", {"pid": 4711}),
    ("srun: error: node012: task 3: Killed", "task_exit", {"host": "node012", "tasks": "3",
    "what": "Killed"}),
    ("srun: error: node012: tasks 0-2,7: Exited with exit code 1", "task_exit", {"tasks": "0-2,7"}),
    ("slurmstepd: error: *** JOB 4711 ON node012 CANCELLED AT 2026-12-02T03:12:44 DUE TO TIME LIMIT ***",
    "scheduler",
     {"what": "TIME LIMIT", "host": "node012"}),
    ("slurmstepd: error: *** STEP 4711.0 ON node012 CANCELLED AT 2026-12-02T03:12:44 ***", "scheduler", {}),
    ("srun: error: Node failure on node044", "node_failure", {"host": "node044"}),
    ("    Reason:       OOMKilled", "kubernetes_oom", {}),
    ("  reason: Evicted", "scheduler", {"what": "Evicted"}),
    ("Fatal Python error: Segmentation fault", "fatal_signal", {"what": "Segmentation fault"}),
    ("[node012:4711:0:4711] Caught signal 11 (Segmentation fault: address not mapped to object)",
    "fatal_signal",
     {"signal": 11}),
    ("[node012:04711] Signal: Segmentation fault (11)", "fatal_signal", {"signal": 11, "host": "node012",
    "pid": 4711}),
    ("n1:1:1 [3] NCCL INFO comm 0x55 rank 11 nranks 16 cudaDev 3 nvmlDev 3 busId 5e000 commId 0x1 - Init"
     " COMPLETE",
     "comm_init", {"rank": 11, "nranks": 16, "gpu": 3, "bus": "5e000"}),
    ("Current loss scale already at minimum - cannot decrease scale anymore.", "numeric", {}),
    ("Result: restart_count=2 master_addr=node012", "restart", {"count": 2}),
]  # fmt: skip


@pytest.mark.parametrize(
    ("line", "kind", "fields"), KINDS, ids=[f"{k}-{n}" for n, (_, k, _) in enumerate(KINDS)]
)
def test_a_line_tells_its_kind_and_fields(line: str, kind: str, fields: dict[str, Any]) -> None:
    event = one(line + "\n")
    assert event.kind == kind
    assert {key: event.fields.get(key) for key in fields} == fields


@pytest.mark.parametrize(
    "line",
    [
        "INFO watchdog enabled, timeout=600000 ms",
        "n1:1:2 [0] NCCL INFO NET/IB : Using [0]mlx5_0:1/RoCE [RO]; OOB eth0:10.1.2.3<0>",
        "n1:1:2 [0] NCCL INFO NET/Socket : Using [0]eth0:10.1.2.3<0>",
        "step 12: val_error 0.3, errors: 0, nan_count=0",
        "financial_nan_filter: Connection pool opened",
        "Gradient overflow.  Skipping step, loss scaler 0 reducing loss scale to 32768.0",
        "memory: cuda max 71 GiB of memory",
        "ASSERTION_LEVEL=2 Assertion checks are off",
        "NVRM: Xid table loaded",
        "the job may be CANCELLED at any time",
        "exitcode 0",
        "args: oom_kill_disable=True",
    ],
)
def test_a_line_that_only_resembles_one_is_none(line: str) -> None:
    assert not events(line + "\n")


def test_a_traceback_gives_type_message_and_the_users_frame() -> None:
    event = one(TRACE)
    assert event.kind == "traceback" and event.line == 4
    assert (event.word("type"), event.word("message")) == ("ValueError", "shard is empty")
    assert event.word("frame") == "<module> (/app/train.py:12)"


def test_frames_of_libraries_are_not_the_users() -> None:
    text = TRACE.replace(
        "    main()\n", '    main()\n  File "/v/lib/python3.11/site-packages/x/y.py", line 3, in y\n'
    )
    assert one(text).word("frame") == "<module> (/app/train.py:12)"


def test_chained_tracebacks_are_told_in_order() -> None:
    link = "\nDuring handling of the above exception, another exception occurred:\n\n"
    first, second = events(TRACE + link + TRACE.replace("ValueError", "my.pkg.LoaderError"))
    assert (first.word("type"), second.word("type")) == ("ValueError", "LoaderError")
    assert second.number("chained") == 1 and first.number("chained") is None


def test_interleaved_tracebacks_are_put_together_by_label() -> None:
    lines = TRACE.splitlines()
    text = "".join(f"[rank0]: {line}\n[rank1]: {line.replace('shard', 'other')}\n" for line in lines)
    first, second = events(text)
    assert (first.label.rank, first.word("message")) == (0, "shard is empty")
    assert (second.label.rank, second.word("message")) == (1, "other is empty")


def test_a_log_line_inside_a_traceback_does_not_end_it() -> None:
    text = TRACE.replace("    main()\n", "    main()\nINFO: still here\ntrain.py: 12\n")
    assert one(text).word("type") == "ValueError"


def test_a_progress_bar_before_a_traceback_is_passed_over() -> None:
    assert one(
        " 50%|#####     | 1/2 [00:00<00:00]\rTraceback (most recent call last):\n" + TRACE.split("\n", 1)[1]
    )


def test_an_event_without_stamp_takes_one_from_shortly_above() -> None:
    event = one("2026-12-02T03:12:44Z INFO step 7\n" + TRACE)
    assert event.stamp is not None and event.stamp_near
    assert event.stamp.ns == 1796181164 * 10**9
    assert one("2026-12-02T03:12:44Z INFO step 7\n" + "x\n" * 100 + TRACE).stamp is None


def test_ordinary_lines_after_an_error_are_counted() -> None:
    assert one(TRACE + "step 8 of 100\n" * 70).lines_after == 70
    assert one(TRACE + "    indented\n\n" * 70).lines_after == 0


def test_colours_are_taken_off() -> None:
    assert one("\x1b[31m[rank3]: CUDA out of memory.\x1b[0m\n").label.rank == 3


def chunks(data: bytes, cuts: list[int]) -> list[bytes]:
    places = sorted({cut % (len(data) + 1) for cut in cuts})
    return [data[a:b] for a, b in zip([0, *places], [*places, len(data)], strict=True)]


MIXED = (
    "2026-12-02T03:12:44Z step 1\n"
    + "".join(f"{line}\n" for line, _, _ in KINDS)
    + "".join(f"[rank{r}]: {line}\n" for line in TRACE.splitlines() for r in range(3))
    + "x" * (2 * LINE_MAX_BYTES)
    + "\nstep\n" * 60
    + "CUDA out of memory"
).encode()


def comparable(log: JobLog) -> list[tuple[Any, ...]]:
    return [(e.kind, e.line, e.text, e.label, e.stamp, e.fields, e.lines_after) for e in log.events]


@given(st.lists(st.integers(0, 10**6), max_size=40))
@settings(max_examples=150, deadline=None)
def test_where_chunks_are_cut_changes_nothing(cuts: list[int]) -> None:
    whole, cut = parse("a", [MIXED]), parse("a", chunks(MIXED, cuts))
    assert comparable(cut) == comparable(whole)
    assert cut.lines == whole.lines


@given(st.binary(max_size=3_000))
@settings(max_examples=200, deadline=None)
def test_any_bytes_are_taken(data: bytes) -> None:
    log = parse("a", [data, b"\n" + TRACE.encode()])
    assert log.events[-1].kind == "traceback" or b"Traceback" in data


def test_events_are_bounded_and_keep_both_ends() -> None:
    lines = "".join(f"[rank3]: CUDA out of memory. number {n}\n" for n in range(10_000))
    log = parse("a", [lines.encode()])
    assert len(log.events) == FIRST_KEPT + LAST_KEPT
    assert log.dropped == 10_000 - len(log.events)
    assert log.events[0].line == 1 and log.events[-1].line == 10_000


HOSTILE = {
    "a line of 20 MB": b"Traceback NCCL WARN " + b"a" * 20_000_000,
    "hosts": (b"a." * 4_000 + b":NCCL WARN\n") * 500,
    "brackets": (b"[" * 8_000 + b"CUDA error\n") * 500,
    "spaces": (b" " * 8_000 + b"CUDA error: \n") * 500,
    "digits": (b"1" * 8_000 + b" nranks exitcode\n") * 500,
    "nan": (b"loss " * 1_600 + b"nan\n") * 500,
    "docker": (b'{"log":' * 1_000 + b"rror\n") * 500,
    "open tracebacks": b"".join(b"[rank%d]: Traceback (most recent call last):\n" % n for n in range(50_000)),
    "escapes": (b"\x1b[" * 4_000 + b"rror\n") * 500,
}


@pytest.mark.parametrize("name", HOSTILE)
def test_hostile_text_costs_its_length(name: str) -> None:
    data = HOSTILE[name]
    begun = time.process_time()
    parse("a", [data])
    assert time.process_time() - begun < 10


def test_a_log_that_is_still_written_gives_each_event_once() -> None:
    parser = LogParser("job.log")
    parser.feed(TRACE[:60].encode())
    assert parser.take() == ([], 0)
    parser.feed(TRACE[60:].encode() + b"NCCL WARN x\n" * (FIRST_KEPT + LAST_KEPT + 5))
    told, dropped = parser.take()
    assert [event.kind for event in told] == ["traceback"] + ["nccl_warn"] * (FIRST_KEPT + LAST_KEPT)
    assert dropped == 5
    assert parser.take() == ([], 0) and parser.finish().events == ()
