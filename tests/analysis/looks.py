"""Short ways for tests to look at a job: all dumps of a ``Job`` as an observation, with facts and stacks."""

from __future__ import annotations

from collections.abc import Container
from dataclasses import replace
from typing import Any

from clusterwatch.analysis import Diagnosis, Observation, diagnose
from clusterwatch.analysis.model import ExceptionFact, ProcessState, RankFacts, RankStacks, StackThread
from collectors.formats.columns import TraceColumns
from collectors.formats.flight_recorder import decode
from tests.data.recorder import Job

WAITING = ("<module> (job.py:5)", "step (job.py:9)", "recv (/x/torch/distributed/distributed_c10d.py:100)")
LOADING = (
    "<module> (job.py:5)",
    "__next__ (/x/site-packages/torch/utils/data/dataloader.py:1)",
    "fetch (/x/site-packages/torch/utils/data/_utils/fetch.py:3)",
    "__getitem__ (/opt/train/data.py:33)",
)
SPINNING = ("<module> (job.py:5)", "spin (/opt/train/job.py:88)")


def traces(job: Job, without: Container[int] = (), keep: int | None = None) -> tuple[TraceColumns, ...]:
    return tuple(decode(job.pickled(r, keep), r, f"rank_{r}") for r in range(job.world) if r not in without)


def look(ran: Job, without: Container[int] = (), **what: Any) -> Diagnosis:
    return diagnose(Observation(traces=traces(ran, without), **what))


def live(ran: Job, without: Container[int] = (), **what: Any) -> Diagnosis:
    """As the live system asks: two looks without an advance, seven seconds apart from the last progress."""
    settings: dict[str, Any] = {"live": True, "advanced": False, "stall_s": 7.0, "job": "77"}
    return look(ran, without, **{**settings, "world_size": ran.world, **what})


def facts(changes: dict[int, dict[str, Any]] | None = None, world: int = 8) -> dict[int, RankFacts]:
    """Running ranks, two a host, with changes by rank."""
    running = {
        r: RankFacts(r, host=f"host{r // 2}", gpu=r % 2, pid=100 + r, process=ProcessState.RUNNING, step=6)
        for r in range(world)
    }
    return running | {rank: replace(running[rank], **change) for rank, change in (changes or {}).items()}


def raised(message: str, at_ms: int, kind: str = "RuntimeError") -> dict[str, Any]:
    at_ns = 1_790_000_000_000_000_000 + at_ms * 1_000_000
    return {
        "process": ProcessState.EXITED,
        "exit_code": 1,
        "exit_ns": at_ns + 10_000_000,
        "exception": ExceptionFact(kind, message, at_ns=at_ns),
    }


def killed(at_ms: int, signal: int = 9) -> dict[str, Any]:
    at_ns = 1_790_000_000_000_000_000 + at_ms * 1_000_000
    return {"process": ProcessState.EXITED, "exit_signal": signal, "exit_ns": at_ns}


PEER_CLOSED = "[gloo/transport/tcp/pair.cc:534] Connection closed by peer [127.0.0.1]:4711"


def stack(rank: int, frames: tuple[str, ...], source: str = "hook") -> RankStacks:
    return RankStacks(rank, source, (StackThread("MainThread", frames, main=True),))


def said(diagnosis: Diagnosis) -> tuple[str, tuple[int, ...], tuple[int, ...]]:
    """Verdict, culprits and suspects of the worst finding."""
    worst = diagnosis.worst
    return worst.verdict, worst.culprit_ranks, worst.suspect_ranks
