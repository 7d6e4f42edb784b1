"""A fake job that trains: its ranks' steps are stored as their agents would have sent them."""

from __future__ import annotations

from typing import Any

import numpy as np

from clusterwatch.detect import slow
from clusterwatch.detect.scene import is_blind
from clusterwatch.jobs.models import Rank
from clusterwatch.store import series
from collectors.wire.records import RankId, Steps
from tests.detect.fake_job import SECOND, FakeJob, forget_rosters

STEP_S = 2


class Trainer:
    """Steps of a fake job's ranks, written as their agents would have sent them."""

    def __init__(self, job: FakeJob) -> None:
        self.job = job
        self.step = 0
        self.sequence = 0
        self.random = np.random.default_rng(5)
        slow._casts_of.clear()
        for rank, process in job.ranks.items():
            Rank.objects.filter(pk=process.row.pk).update(gpu_index=rank % 2)
        forget_rosters()

    def train(self, steps: int, silent: tuple[int, ...] = (), **excess: dict[int, float]) -> None:
        """``excess``: column -> rank -> seconds more than the others."""
        count = len(self.job.ranks)
        numbers = list(range(self.step + 1, self.step + steps + 1))
        self.job.now_ns += steps * STEP_S * SECOND
        ends = [self.job.now_ns - (numbers[-1] - number) * STEP_S * SECOND for number in numbers]
        work = self.random.normal(1.0, 0.003, (steps, count))
        rows = series.Rows()
        for rank in set(range(count)) - set(silent):
            own = work[:, rank] + excess.get("work", {}).get(rank, 0.0)
            data = np.full(steps, 0.05) + excess.get("data", {}).get(rank, 0.0)
            columns: dict[str, Any] = {
                "duration_s": [float(STEP_S)] * steps, "data_wait_s": data.tolist(),
                "checkpoint_s": [0.0] * steps, "gc_s": [0.0] * steps, "cpu_s": [None] * steps,
                "wait_s": (STEP_S - own - data).tolist(), "late_launch": [None] * steps,
            }  # fmt: skip
            record = Steps(
                t_ns=ends[-1], id=RankId(self.job.job.key, rank, 0, ""), step=numbers, end_ns=ends, **columns
            )
            self.sequence += 1
            node = self.job.ranks[rank].row.node_id
            rows.add_told("steps", (self.job.cluster.pk, node, "e"), self.sequence, self.job.job.pk, record)
        series.PartitionCache().prepare([("steps", ends[-1])])
        rows.write()
        self.step += steps
        self.job.write()

    def look(self) -> int:
        assert not is_blind(self.job.now_ns)
        return slow.look(self.job.job.pk, self.job.now_ns)
