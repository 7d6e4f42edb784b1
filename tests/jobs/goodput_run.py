"""A job whose ranks' steps, phases and ends are stored as their agents would have sent them."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime, timedelta
from itertools import groupby

from django.utils import timezone

from clusterwatch.fleet.models import Cluster, Node
from clusterwatch.incidents.models import Incident
from clusterwatch.jobs.models import Job, Rank
from clusterwatch.store import series
from collectors.wire.records import RankId, Steps

S = 10**9


class Run:
    """``ranks`` processes, two on a host; seconds count from a full hour some hours ago."""

    def __init__(self, ranks: int = 4, key: str = "run-7", hours_ago: int = 3) -> None:
        now = datetime.now(UTC).replace(minute=0, second=0, microsecond=0)
        self.began = now - timedelta(hours=hours_ago)
        self.t0_ns = int(self.began.timestamp()) * S
        self.cluster, _ = Cluster.objects.get_or_create(name="lab-goodput")
        self.nodes = [
            Node.objects.get_or_create(
                cluster=self.cluster, name=f"host-{n}", defaults={"machine_id": f"h{n}"}
            )[0]
            for n in range((ranks + 1) // 2)
        ]
        self.job = Job.objects.create(cluster=self.cluster, key=key, started_at=self.began, user="sam")
        self.count, self._sequence = ranks, 0

    def at(self, seconds: float) -> datetime:
        return self.began + timedelta(seconds=seconds)

    def ns(self, seconds: float) -> int:
        return self.t0_ns + int(seconds * S)

    def start(self, attempt: int = 0, at_s: float = 0.0, late: Mapping[int, float] | None = None) -> None:
        """Processes of an attempt begin."""
        Rank.objects.bulk_create(
            Rank(
                job=self.job, attempt=attempt, rank=rank, world_size=self.count, node=self.nodes[rank // 2],
                host=self.nodes[rank // 2].name, ref=rank, epoch="e", pid=100 * attempt + rank + 1,
                gpu_index=rank % 2, started_at=self.at(at_s + (late or {}).get(rank, 0.0)),
            )
            for rank in range(self.count)
        )  # fmt: skip
        Job.objects.filter(pk=self.job.pk).update(attempt=attempt, ended_at=None, state="running")

    def end(self, at_s: float, attempt: int = 0, ranks: Sequence[int] | None = None) -> None:
        """Processes exit; the job ends where none is left."""
        gone = range(self.count) if ranks is None else ranks
        mine = Rank.objects.filter(job=self.job, attempt=attempt)
        mine.filter(rank__in=gone).update(exit_ns=self.ns(at_s), exited_at=self.at(at_s))
        if not mine.filter(exit_ns__isnull=True).exists():
            Job.objects.filter(pk=self.job.pk).update(ended_at=self.at(at_s), state="ended")

    def train(
        self,
        from_s: float,
        steps: int,
        *,
        first: int = 2,
        step_s: float = 1.0,
        attempt: int = 0,
        silent: Sequence[int] = (),
        saves: Mapping[int, Mapping[int, float]] | None = None,
    ) -> float:
        """Steps from ``from_s`` on; returns when they end. ``saves``: step -> rank -> seconds; all wait."""
        saves, ends, now = saves or {}, [], from_s
        numbers = list(range(first, first + steps))
        lengths = [step_s + max(saves.get(number, {0: 0.0}).values()) for number in numbers]
        for length in lengths:
            now += length
            ends.append(self.ns(now))
        self._tell(attempt, set(range(self.count)) - set(silent), numbers, ends, lengths, saves)
        return now

    def _tell(
        self,
        attempt: int,
        ranks: set[int],
        numbers: list[int],
        ends: list[int],
        lengths: list[float],
        saves: Mapping[int, Mapping[int, float]],
    ) -> None:
        """As agents do: a record of each rank about every ten seconds."""
        series.PartitionCache().prepare([("steps", end) for end in ends])
        for _, of_part in groupby(range(len(numbers)), key=lambda at: ends[at] // (10 * S)):
            part, rows = list(of_part), series.Rows()
            nothing: list[float | None] = [0.0] * len(part)
            for rank in sorted(ranks):
                record = Steps(
                    t_ns=ends[part[-1]], id=RankId(self.job.key, rank, attempt, ""),
                    step=[numbers[at] for at in part], end_ns=[ends[at] for at in part],
                    duration_s=[lengths[at] for at in part], data_wait_s=nothing,
                    checkpoint_s=[saves.get(numbers[at], {}).get(rank, 0.0) for at in part],
                    gc_s=nothing, cpu_s=nothing, wait_s=[], late_launch=[],
                )  # fmt: skip
                self._sequence += 1
                origin = (self.cluster.pk, self.nodes[rank // 2].pk, self.job.key)
                rows.add_told("steps", origin, self._sequence, self.job.pk, record)
            rows.write()

    def phase(
        self,
        at_s: float,
        phase: str,
        before: str,
        before_s: float,
        *,
        attempt: int = 0,
        ranks: Sequence[int] = (),
    ) -> None:
        """Ranks (none: all) change their phase."""
        series.PartitionCache().prepare([("phase", self.ns(at_s))])
        rows = series.Rows()
        for rank in ranks or range(self.count):
            self._sequence += 1
            rows.add(
                "phase",
                (
                    self.cluster.pk, self.nodes[rank // 2].pk, self.ns(at_s), self.job.key, self._sequence,
                    self.job.pk, attempt, "", rank, phase, before, before_s, "",
                ),
            )  # fmt: skip
        rows.write()

    def incident(
        self, from_s: float, until_s: float | None, verdict: str = "missing_rank", fault_class: str = "hang"
    ) -> Incident:
        return Incident.objects.create(
            cluster=self.cluster, job=self.job, fingerprint=f"{self.job.pk}:{verdict}:{from_s}",
            state="open" if until_s is None else "resolved", severity="critical", verdict=verdict,
            fault_class=fault_class, summary="rank 1 does not join the collective its peers wait in",
            diagnosis={"culprit_ranks": [1], "culprits": []}, since=self.at(from_s),
            suspected_at=self.at(from_s + 4), opened_at=self.at(from_s + 12),
            resolved_at=None if until_s is None else self.at(until_s), checked_at=timezone.now(),
        )  # fmt: skip

    @property
    def now_ns(self) -> int:
        return time.time_ns()
