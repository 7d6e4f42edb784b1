"""The verdict of the seeded hang and the facts it rests on."""

from __future__ import annotations

from typing import Any

from clusterwatch.analysis.model import (
    Coverage,
    Culprit,
    Diagnosis,
    Downstream,
    Finding,
    GroupRef,
    MergedStack,
    Owner,
    Severity,
)
from clusterwatch.jobs.models import Rank

STALL_S = 74
STUCK_RANK = 5
SEQUENCE = 4183
RINGS = {"format": "packed", "ranks": {"5": "a" * 4000, "4": "b" * 4000}, "total": 7}


def hang_diagnosis() -> Diagnosis:
    """The verdict of the hang: rank 5 sleeps in its data loader."""
    top = "main (train.py:212)"
    finding = Finding(
        verdict="missing_rank",
        fault_class="hang",
        severity=Severity.CRITICAL,
        summary=(
            f"Job example-8 (8 ranks) stands since step 421: rank {STUCK_RANK} on node-c sits in its data "
            f"loader and never issued all_reduce #{SEQUENCE} of tp; the other 7 ranks only wait."
        ),
        rule="hang.missing_rank v1",
        confidence=0.94,
        cause="data_loading",
        owner=Owner.USER,
        culprit_ranks=(STUCK_RANK,),
        culprits=(Culprit(rank=STUCK_RANK, host="node-c", pid=41205),),
        group=GroupRef("3", "tp", (4, 5)),
        seq=SEQUENCE,
        op="all_reduce",
        node="node-c",
        downstream=Downstream(groups=9, ranks=7),
        why=(
            f"Group tp [4, 5]: rank 4 issued all_reduce #{SEQUENCE}, rank 5 stopped at #{SEQUENCE - 1}.",
            "Two looks 1.0 s apart show no advance of any rank.",
            "The stack of rank 5 ends in the data loader; its process is alive (state S).",
        ),
        recommended_action=(
            "Look at the data loader of rank 5 on node-c. Its worker waits for a batch that never comes; "
            "a restart from the last checkpoint resumes the job, but the same sample may hang it again."
        ),
        joined_ranks=(4,),
        missing_ranks=(STUCK_RANK,),
    )
    wait = "wait (torch/distributed/distributed_c10d.py:2811)"
    stacks = (
        MergedStack(
            (
                top,
                "next_batch (train.py:143)",
                "__next__ (torch/utils/data/dataloader.py:733)",
                "get (queue.py:171)",
            ),
            (STUCK_RANK,),
            "hook",
            "culprit",
        ),
        MergedStack((top, "forward (model.py:88)", "all_reduce (tensor.py:41)", wait), (4,), "hook"),
        MergedStack(
            (top, "backward (train.py:160)", "reduce_gradients (train.py:171)", wait),
            (0, 1, 2, 3, 6, 7),
            "hook",
        ),
    )
    return Diagnosis((finding,), Coverage(expected=8, reported=8, stale=0, truncated=1), stacks)


def process_facts(ranks: list[Rank]) -> dict[str, Any]:
    """As ``detect.evidence`` freezes them."""
    rows = [
        {
            "rank": rank.rank,
            "host": rank.host,
            "gpu": None,
            "pid": rank.pid,
            "process": "running",
            "process_since_s": None,
            "phase": "data_loading" if rank.rank == STUCK_RANK else "train",
            "phase_s": 11.2,
            "step": 421 - (rank.rank == STUCK_RANK),
            "hook_silent_s": 0.4,
            "exit_code": None,
        }
        for rank in ranks
    ]
    return {"counts": {"running": 8}, "ranks": rows}
