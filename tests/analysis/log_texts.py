"""Logs in their real forms, for tests: a name -> text, judged as ``analyze`` does."""

from __future__ import annotations

from collections.abc import Mapping

from clusterwatch.analysis.log_judge import LogVerdict, judge
from clusterwatch.analysis.model import Finding
from clusterwatch.readers.job_logs import origin
from collectors.formats.job_log import JobLog, parse


def parsed(texts: Mapping[str, str] | str) -> list[JobLog]:
    files = {"job.log": texts} if isinstance(texts, str) else texts
    return [parse(name, [text.encode()], origin(name)) for name, text in files.items()]


def verdict(texts: Mapping[str, str] | str, world_size: int | None = None) -> LogVerdict:
    return judge(parsed(texts), world_size)


def finding(texts: Mapping[str, str] | str, world_size: int | None = None) -> Finding:
    found = verdict(texts, world_size).findings
    assert len(found) == 1
    return found[0]


def traceback(error: str, prefix: str = "", path: str = "/app/train.py", line: int = 88) -> str:
    """An uncaught exception through torch's own frames, raised from the user's line."""
    lines = [
        "Traceback (most recent call last):",
        f'  File "{path}", line {line}, in main',
        "    loss = model(batch)",
        '  File "/v/lib/python3.11/site-packages/torch/nn/modules/module.py", line 1751, in _call_impl',
        "    return forward_call(*args, **kwargs)",
        *error.split("\n"),
    ]
    return "".join(f"{prefix}{text}\n" for text in lines)


def timeout(rank: int, seq: int = 1234, stamp: str = "E1202 03:12:44.123456789", **changed: object) -> str:
    """A watchdog's time-out as torch 2.6 and later print it."""
    what = {
        "op": "ALLREDUCE",
        "numel": 1048576,
        "group": "PG ID 0 PG GUID 0(default_pg) Rank {rank}",
    } | changed
    group = str(what["group"]).format(rank=rank)
    label = "" if what.get("label") is False else f"[rank{rank}]:"
    return (
        f"{label}[{stamp} ProcessGroupNCCL.cpp:682] [{group}] Watchdog caught collective operation timeout: "
        f"WorkNCCL(SeqNum={seq}, OpType={what['op']}, NumelIn={what['numel']}, NumelOut={what['numel']}, "
        "Timeout(ms)=600000) ran for 600029 milliseconds before timing out.\n"
    )


def progress(rank: int, enqueued: int, completed: int, stamp: str = "E1202 03:12:44.200000000") -> str:
    return (
        f"[rank{rank}]:[{stamp} ProcessGroupNCCL.cpp:2157] [PG ID 0 PG GUID 0(default_pg) Rank {rank}]"
        f" Received a "
        "dump signal due to a collective timeout from another rank and we will try our best to dump the"
        " debug "
        f"info. Last enqueued NCCL work: {enqueued}, last completed NCCL work: {completed}.\n"
    )


def peer_lost(rank: int, prefix: str | None = None) -> str:
    """What gloo raises when the other end has gone."""
    error = (
        "RuntimeError: [../third_party/gloo/gloo/transport/tcp/pair.cc:534] Connection closed by peer "
        "[10.1.2.3]:26021"
    )
    return traceback(error, f"[rank{rank}]: " if prefix is None else prefix)


def elastic(items: list[tuple[int, int, int, str]], time: str = "2026-12-02_03:13:02") -> str:
    """torchelastic's lists; (rank, exit code, pid, text) each, the root cause last."""

    def item(number: int, rank: int, code: int, pid: int, text: str) -> str:
        return (
            f"[{number}]:\n  time      : {time}\n  host      : node012.cluster\n  rank      : {rank}"
            f" (local_rank: "
            f"{rank % 8})\n  exitcode  : {code} (pid: {pid})\n  error_file: <N/A>\n  traceback : {text}\n"
        )

    bar, line = "=" * 60, "-" * 60
    others = "".join(item(n + 1, *one) for n, one in enumerate(items[:-1])) or "  <NO_OTHER_FAILURES>\n"
    return (
        "torch.distributed.elastic.multiprocessing.errors.ChildFailedError: \n"
        f"{bar}\ntrain.py FAILED\n{line}\nFailures:\n{others}{line}\nRoot Cause (first observed failure):\n"
        f"{item(0, *items[-1])}{bar}\n"
    )
