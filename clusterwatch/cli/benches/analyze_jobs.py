"""The jobs that ``bench analyze`` makes, and the check that a tool has named the right rank.

In: a number of ranks and entries. Out: ``TraceJob``; ``OpsError`` for a wrong answer.
"""

from __future__ import annotations

from typing import Any

from clusterwatch.ops.errors import OpsError
from clusterwatch.simulate.traces import Fault, Kind, Layout, TraceJob


def layout_of(ranks: int, *, deep: bool) -> Layout:
    """Tensor groups of 8 and replicas; ``deep``: five dimensions, eight groups a rank, as in a large job.

    Raises:
        OpsError: ``ranks`` does not divide so.
    """
    if not deep:
        if ranks % 8 or ranks < 16:
            raise OpsError(f"{ranks} ranks: it takes a multiple of 8, and at least 16.")
        return Layout(tensor=8, data=ranks // 8)
    for pipeline in (16, 8, 4, 2):
        data, rest = divmod(ranks, 8 * 2 * pipeline)
        if not rest and data % 8 == 0:
            return Layout(8, 2, pipeline, data, 8 if data > 8 else 4)
    raise OpsError(f"{ranks} ranks: five dimensions take a multiple of 256.")


def job_of(ranks: int, entries: int, frames: int, seed: int, *, deep: bool) -> TraceJob:
    """A job in which one rank, chosen by ``seed``, lacks a call of its tensor group; all rings are full."""
    fault = Fault(Kind.MISSING_RANK, role="tp")
    return TraceJob(layout_of(ranks, deep=deep), (fault,), ring=entries, frames=frames, seed=seed)


def job_from(options: dict[str, Any], open_only: bool = False) -> TraceJob:
    """The same job in another process. ``options``: ranks, entries, seed, deep."""
    made = job_of(options["world"], options["entries"], 0, options["seed"], deep=options["deep"])
    return TraceJob(made.layout, made.faults, ring=made.ring, seed=made.seed, open_only=open_only)


def check(job: TraceJob, answer: dict[str, Any] | None, tool: str) -> None:
    """Raises ``OpsError`` unless ``answer`` (verdict, culprit_ranks, seq) is the truth."""
    (truth,) = job.expected
    wanted = (truth.verdict, list(truth.culprit_ranks), truth.seq)
    got = answer and (answer.get("verdict"), answer.get("culprit_ranks"), answer.get("seq"))
    if got != wanted:
        raise OpsError(f"{tool} answers {got}, the truth is {wanted}.")
