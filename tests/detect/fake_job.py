"""A small training job as hot state and the database know it, driven by a clock that only tests move."""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from datetime import UTC, datetime

import numpy as np

from clusterwatch.detect.jobs import detect_job
from clusterwatch.detect.scene import _rosters
from clusterwatch.fleet.models import Cluster, Node
from clusterwatch.incidents.models import Incident
from clusterwatch.jobs.models import Capture, Group, Job, Rank
from clusterwatch.store import hot, hot_writes
from collectors.wire.records import PHASES

GATEWAY = "gateway-of-tests"
SECOND = 1_000_000_000


def at(t_ns: int) -> datetime:
    return datetime.fromtimestamp(t_ns / 1e9, UTC)


@dataclass
class Process:
    """One rank as its hook tells of it."""

    row: Rank
    step: int = 5
    phase: str = "train"
    moved_ns: int = 0
    heard_ns: int = 0
    seen_ns: int = 0
    calls: dict[int, list[int]] = field(default_factory=dict)
    """group id -> [enqueued, completed, sequence]"""
    reports: bool = True
    speaks: bool = True


class FakeJob:
    """``hosts`` hosts of two ranks: a world group and one tensor-parallel group per host."""

    def __init__(self, *, hosts: int = 4, name: str = "run-1", attempt: int = 0) -> None:
        self.now_ns = time.time_ns()
        self.cluster, _ = Cluster.objects.get_or_create(name="tiny")
        self.nodes = [
            Node.objects.get_or_create(
                cluster=self.cluster, name=f"host-{i}", defaults={"machine_id": f"m{i}"}
            )[0]
            for i in range(hosts)
        ]
        self.link = {node.pk: hot.OPEN for node in self.nodes}
        self.node_seen = {node.pk: self.now_ns for node in self.nodes}
        self.node_alive = {node.pk: True for node in self.nodes}
        self.gateway_alive = True
        self.gateway_of = {node.pk: GATEWAY for node in self.nodes}
        self.dead_gateways: set[str] = set()
        self.job, _ = Job.objects.get_or_create(
            cluster=self.cluster, key=name, ended_at=None, defaults={"started_at": at(self.now_ns)}
        )
        self.start_attempt(attempt)

    def start_attempt(self, attempt: int) -> None:
        """Registers every process of an attempt, as its inventory does."""
        count = 2 * len(self.nodes)
        Job.objects.filter(pk=self.job.pk).update(attempt=attempt, state="running", ended_at=None)
        self.job.refresh_from_db()
        self.world = self._group("0", "default_pg", list(range(count)), attempt)
        self.tp = [self._group(f"tp{i}", "tp", [2 * i, 2 * i + 1], attempt) for i in range(len(self.nodes))]
        self.ranks = {r: self._process(r, attempt, count) for r in range(count)}

    def _group(self, name: str, desc: str, ranks: list[int], attempt: int) -> Group:
        return Group.objects.create(
            job=self.job,
            attempt=attempt,
            name=name,
            desc=desc,
            members_hash=name,
            ranks=ranks,
            backend="gloo",
        )

    def _process(self, rank: int, attempt: int, count: int) -> Process:
        node = self.nodes[rank // 2]
        row = Rank.objects.create(
            job=self.job, attempt=attempt, rank=rank, world_size=count, node=node, host=node.name,
            ref=100 * attempt + rank, epoch="e", pid=1000 + 100 * attempt + rank, started_at=at(self.now_ns),
        )  # fmt: skip
        calls = {self.world.pk: [10, 10, 10], self.tp[rank // 2].pk: [20, 20, 20]}
        return Process(row, moved_ns=self.now_ns, calls=calls)

    # --- what happens in the job ---------------------------------------------------------------------

    def train(self, seconds: int, *, every: int = 1) -> None:
        """Steps go on; detection looks once a second."""
        for second in range(seconds):
            if second % every == 0:
                self.do_step()
            self.tick()

    def do_step(self) -> None:
        """Everybody joins what was open and finishes one call more of each group."""
        living = [p for p in self.ranks.values() if p.row.exited_at is None and p.reports]
        front: dict[int, int] = {}
        for process in living:
            for group, call in process.calls.items():
                front[group] = max(front.get(group, 0), *call)
        for process in living:
            process.step += 1
            process.moved_ns = self.now_ns
            for group, call in process.calls.items():
                call[:] = [front[group] + 1] * 3

    def wait_for(self, *missing: int) -> None:
        """Every rank but ``missing`` issues the next call of the world group and waits in it."""
        for number, process in self.ranks.items():
            if number in missing or process.row.exited_at is not None:
                continue
            call = process.calls[self.world.pk]
            call[0] += 1
            call[2] += 1
            process.moved_ns = self.now_ns

    def end(self, rank: int, *, after_s: float = 0.0, **fate: object) -> None:
        """A process is gone, as its agent tells it. ``fate``: columns of ``Rank``."""
        exit_ns = self.now_ns + int(after_s * 1e9)
        row = self.ranks[rank].row
        columns = {"exited_at": at(exit_ns), "exit_ns": exit_ns, "process_state": "exited"} | fate
        Rank.objects.filter(pk=row.pk).update(**columns)
        row.refresh_from_db()
        self.ranks[rank].reports = False

    def end_job(self, state: str = "ended") -> None:
        Job.objects.filter(pk=self.job.pk).update(state=state, ended_at=at(self.now_ns))

    def stop(self, rank: int) -> None:
        """SIGSTOP, as the agent tells it."""
        row = self.ranks[rank].row
        Rank.objects.filter(pk=row.pk).update(process_state="stopped", process_state_at=at(self.now_ns))
        self.ranks[rank].speaks = False

    def block(self, rank: int) -> None:
        """The process stands in the kernel while its hook speaks on, as the agent tells it."""
        row = self.ranks[rank].row
        Rank.objects.filter(pk=row.pk).update(process_state="blocked", process_state_at=at(self.now_ns))

    def move_hosts(self, gateway: str, *indices: int) -> None:
        """These hosts connect to another gateway."""
        self.gateway_of |= {self.nodes[index].pk: gateway for index in indices}

    def freeze_host(self, index: int) -> None:
        """Agent and ranks of a host go silent without a close."""
        self.node_alive[self.nodes[index].pk] = False

    def lose_agent(self, index: int) -> None:
        """The agent's connection closes; its ranks go on unseen."""
        self.freeze_host(index)
        self.link[self.nodes[index].pk] = hot.CLOSED

    def regain_agent(self, index: int) -> None:
        self.node_alive[self.nodes[index].pk] = True
        self.link[self.nodes[index].pk] = hot.OPEN

    def settle_captures(self) -> None:
        """Open captures are as old as the test's clock says, and have run out."""
        Capture.objects.filter(job=self.job, state=Capture.State.REQUESTED).update(
            state=Capture.State.EXPIRED, requested_at=at(self.now_ns - 3600 * SECOND)
        )

    # --- time --------------------------------------------------------------------------------------------

    def tick(self, seconds: float = 1.0) -> None:
        """Time passes, a frame of each node arrives, detection looks once."""
        self.now_ns += int(seconds * SECOND)
        self.write()
        detect_job(self.job.pk, self.now_ns)

    def ticks(self, count: int) -> None:
        for _ in range(count):
            self.tick()

    def write(self) -> None:
        if not self.gateway_alive:
            return
        for node in self.nodes:
            if self._is_heard(node.pk):
                self.node_seen[node.pk] = self.now_ns - SECOND // 5
        for process in self.ranks.values():
            if process.reports and self._is_heard(process.row.node_id):
                process.seen_ns = self.now_ns - SECOND // 5
                process.heard_ns = process.seen_ns if process.speaks else process.heard_ns
        for name in set(self.gateway_of.values()) - self.dead_gateways:
            progress = {self.job.pk: self._progress(name)}
            hot_writes.write_gateway(name, self.now_ns, self._nodes(name), progress, {})

    def _is_heard(self, node_id: int) -> bool:
        return self.node_alive[node_id] and self.gateway_of[node_id] not in self.dead_gateways

    def _nodes(self, gateway: str) -> hot.NodeStates:
        ids = [node.pk for node in self.nodes if self.gateway_of[node.pk] == gateway]
        return hot.NodeStates(
            node_id=np.array(ids, np.int64),
            cluster_id=np.full(len(ids), self.cluster.pk, np.int64),
            seen_ns=np.array([self.node_seen[i] for i in ids], np.int64),
            link=np.array([self.link[i] for i in ids], np.uint8),
            link_since_ns=np.array([self.node_seen[i] for i in ids], np.int64),
        )

    def _progress(self, gateway: str) -> hot.JobProgress:
        mine = [p for p in self.ranks.values() if self.gateway_of[p.row.node_id] == gateway]
        shown = [p for p in mine if p.seen_ns]
        calls = [(i, g, *numbers) for i, p in enumerate(shown) for g, numbers in p.calls.items()]
        rows = np.array(calls, np.int64).reshape(-1, 5)

        def column(name: str) -> np.ndarray:
            return np.array([getattr(p, name) for p in shown], np.int64)

        return hot.JobProgress(
            rank_id=np.array([p.row.pk for p in shown], np.int64),
            node_id=np.array([p.row.node_id for p in shown], np.int64),
            seen_ns=column("seen_ns"),
            step=column("step"),
            phase=np.array([PHASES.index(p.phase) for p in shown], np.uint8),
            phase_since_ns=column("moved_ns"),
            moved_ns=column("moved_ns"),
            heard_ns=column("heard_ns"),
            row=rows[:, 0],
            group_id=rows[:, 1],
            enqueued=rows[:, 2],
            completed=rows[:, 3],
            sequence=rows[:, 4],
        )

    # --- what detection made of it -----------------------------------------------------------------------

    def state(self) -> str:
        """Of the job, as the database has it."""
        return Job.objects.get(pk=self.job.pk).state

    def incident(self) -> Incident:
        return Incident.objects.get(job=self.job)

    def incidents(self) -> list[Incident]:
        return list(Incident.objects.filter(job=self.job).order_by("id"))

    def seconds_until(self, state: str, within: int) -> int:
        """Ticks until an incident of the job is in ``state``; fails when it takes longer than ``within``."""
        for second in range(1, within + 1):
            self.tick()
            if any(i.state == state for i in self.incidents()):
                return second
        raise AssertionError(
            f"no {state} incident within {within} s: {[str(i.summary) for i in self.incidents()]}"
        )


def forget_rosters() -> None:
    _rosters.clear()
