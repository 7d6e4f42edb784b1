"""A trainer whose ranks tell their transfers, too: tensor pairs on hosts, data and stages between them."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from clusterwatch.detect import slow
from clusterwatch.jobs.models import Group, Rank
from clusterwatch.store import series
from collectors.wire.records import Edges, RankId
from tests.detect.fake_job import forget_rosters
from tests.detect.trainer import Trainer

DATA = {"dp0": (0, 2), "dp1": (1, 3), "dp2": (4, 6), "dp3": (5, 7)}
STAGES = {f"pp{lane}": (lane, lane + 4) for lane in range(4)}
OPS = ["all_reduce", "send", "recv"]
DATA_BYTES, STAGE_BYTES, TENSOR_BYTES = 2**26, 2**24, 2**22


class Teller(Trainer):
    """Every step is told; ``backend`` of all groups decides whose clock the times are by."""

    def __init__(self, trainer: Trainer, backend: str = "nccl") -> None:
        super().__init__(trainer.job)
        self.step, self.sequence = trainer.step, trainer.sequence
        job = self.job.job
        between = [
            Group.objects.create(
                job=job, attempt=job.attempt, name=name, desc=name[:2], members_hash=name, ranks=list(ranks)
            )
            for name, ranks in (DATA | STAGES).items()
        ]
        Group.objects.filter(job=job).update(backend=backend)
        for rank, process in self.job.ranks.items():
            mine = [group.pk for group in between if rank in group.ranks]
            tensor = self.job.tp[rank // 2].pk
            Rank.objects.filter(pk=process.row.pk).update(groups=[self.job.world.pk, None, tensor, *mine])
        slow._casts_of.clear()
        forget_rosters()

    def go(
        self, steps: int, ports: Mapping[int, float] | None = None, island: int | None = None,
        silent: tuple[int, ...] = (),
    ) -> None:  # fmt: skip
        """Trains, tells and looks. Args: factors of what leaves by a rank's port; host of slow NVLinks."""
        first = self.step + 1
        self.train(steps)
        slow_of = ports or {}
        times: dict[tuple[str, int], float] = {}
        rows = series.Rows()
        for rank in set(self.job.ranks) - set(silent):
            told: list[tuple[int, int, int, int, float]] = []
            for step in range(first, first + steps):
                tensor = 3.0 if island == rank // 2 else 1.0
                told.append((step, 2, 0, TENSOR_BYTES, 0.001 * tensor * self._noise()))
                for index, (of, size, base, ops) in enumerate(
                    ((DATA, DATA_BYTES, 0.2, (0,)), (STAGES, STAGE_BYTES, 0.02, (1, 2)))
                ):
                    name, members = next((n, m) for n, m in of.items() if rank in m)
                    slowest = max(slow_of.get(one, 1.0) for one in members)
                    time_s = times.setdefault((name, step), base * slowest * self._noise())
                    wait_s = 0.0 if rank == members[step % 2] else 0.3
                    told += [(step, 3 + index, op, size, time_s + wait_s) for op in ops]
            self._tell(rows, rank, told)
        series.PartitionCache().prepare([("edges", self.job.now_ns)])
        rows.write()
        self.look()

    def _noise(self) -> float:
        return float(np.exp(self.random.normal(0.0, 0.01)))

    def _tell(self, rows: series.Rows, rank: int, told: list[tuple[int, int, int, int, float]]) -> None:
        step, group, op, size, time_s = (list(column) for column in zip(*told, strict=True))
        record = Edges(
            t_ns=self.job.now_ns, id=RankId(self.job.job.key, rank, 0, ""), ops=OPS,
            step=step, group=group, op=op, size_bytes=size, count=[1] * len(step), sum_s=time_s, min_s=time_s,
            p10_s=time_s, p50_s=time_s,
        )  # fmt: skip
        self.sequence += 1
        node = self.job.ranks[rank].row.node_id
        rows.add_told("edges", (self.job.cluster.pk, node, "e"), self.sequence, self.job.job.pk, record)
