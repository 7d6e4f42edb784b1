"""What pulse needs of the database: who sits on which slot, and the processes and groups of active jobs.

Read again only where a cheap question says that something changed. While PostgreSQL is away the last answers
stay in use: live frames go on.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any, Final

import numpy as np
from django.db.models import Count, F, Max, Q
from numpy.typing import NDArray

from clusterwatch.analysis import motion
from clusterwatch.fleet.models import Cluster, Node, Slot
from clusterwatch.jobs.models import Group, Job, Rank

NO_GPU: Final = -1


@dataclass(frozen=True, slots=True)
class ClusterLayout:
    """Slots and nodes of a cluster. Columns of length S, one row per slot number."""

    id: int
    slots_version: int
    node: NDArray[np.int64]
    """``fleet.Node`` id of the open slot, -1 where the slot is closed"""
    gpu: NDArray[np.int64]
    """GPU index, ``NO_GPU`` for a node without GPUs"""
    names: Mapping[int, str]
    """every node of the cluster -> its name"""


@dataclass(frozen=True, slots=True)
class GroupLayout:
    """One process group."""

    name: str
    desc: str
    ranks: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class JobLayout:
    """A job and the processes of its newest attempt. Columns of length N, in (world, rank) order."""

    id: int
    cluster_id: int
    key: str
    name: str
    state: str
    attempt: int
    rank_id: NDArray[np.int64]
    rank: NDArray[np.int64]
    node: NDArray[np.int64]
    gpu: NDArray[np.int64]
    """``NO_GPU`` where not known"""
    exit: NDArray[np.uint8]
    """``motion.EXIT_NONE``, ``EXIT_ENDED``, ``EXIT_FAILED``"""
    stopped: NDArray[np.bool_]
    host: NDArray[np.int64]
    """index into ``hosts``"""
    hosts: tuple[str, ...]
    groups: Mapping[int, GroupLayout]


class Layouts:
    """The newest layouts of all clusters and of the jobs asked for."""

    def __init__(self) -> None:
        self.clusters: dict[int, ClusterLayout] = {}
        self.jobs: dict[int, JobLayout] = {}
        self._markers: dict[int, tuple[Any, ...]] = {}

    def refresh(self, watched_jobs: Iterable[int]) -> None:
        """Reads what changed. Active jobs always, others while they are watched.

        Cost: four queries; one or two more for each cluster and job that changed.
        Raises: ``django.db.Error``; what was known stays.
        """
        self.clusters = {
            cluster.pk: self._cluster(cluster)
            for cluster in Cluster.objects.only("id", "slots_version", "slot_count")
        }
        wanted = Job.objects.filter(Q(ended_at__isnull=True) | Q(pk__in=list(watched_jobs)))
        jobs = {job.pk: job for job in wanted}
        markers = _markers(list(jobs))
        self.jobs = {job_id: self._job(job, markers.get(job_id, ())) for job_id, job in jobs.items()}
        self._markers = markers

    def _cluster(self, cluster: Cluster) -> ClusterLayout:
        known = self.clusters.get(cluster.pk)
        if known is not None and known.slots_version == cluster.slots_version:
            return known
        return load_cluster(cluster)

    def _job(self, job: Job, marker: tuple[Any, ...]) -> JobLayout:
        known = self.jobs.get(job.pk)
        if known is None or self._markers.get(job.pk) != marker:
            return load_job(job)
        if (known.state, known.name) != (job.state, job.name):
            return replace(known, state=job.state, name=job.name)
        return known


def _markers(job_ids: list[int]) -> dict[int, tuple[Any, ...]]:
    """Per job, values that differ as soon as its processes or groups do."""
    of_attempt = Rank.objects.filter(job__in=job_ids, attempt=F("job__attempt"))
    ranks = of_attempt.values("job").annotate(
        Count("id"), Max("id"), Max("attempt"), Count("exited_at"), Max("process_state_at"), Max("started_at")
    )
    groups = Group.objects.filter(job__in=job_ids).values("job").annotate(Max("id"))
    newest_group = {row["job"]: row["id__max"] for row in groups}
    return {row["job"]: (*row.values(), newest_group.get(row["job"])) for row in ranks}


def load_cluster(cluster: Cluster) -> ClusterLayout:
    """Reads the slots and nodes of a cluster. Cost: linear in both."""
    node = np.full(cluster.slot_count, -1, np.int64)
    gpu = np.full(cluster.slot_count, NO_GPU, np.int64)
    rows = Slot.objects.filter(cluster=cluster, until__isnull=True, number__lt=cluster.slot_count)
    for number, node_id, gpu_index in rows.values_list("number", "node_id", "gpu_index"):
        node[number] = node_id
        gpu[number] = NO_GPU if gpu_index is None else gpu_index
    names = dict(Node.objects.filter(cluster=cluster).values_list("id", "name"))
    return ClusterLayout(cluster.pk, cluster.slots_version, node, gpu, names)


_RANK_FIELDS = (
    "id", "rank", "node_id", "gpu_index", "host", "process_state",
    "exited_at", "exit_code", "exit_signal", "clean_exit",
)  # fmt: skip


def load_job(job: Job) -> JobLayout:
    """Reads the processes and groups of a job's newest attempt. Cost: linear in ranks and group members."""
    ranks = list(
        Rank.objects.filter(job=job, attempt=job.attempt).order_by("world", "rank").only(*_RANK_FIELDS)
    )
    hosts = {name: place for place, name in enumerate(dict.fromkeys(rank.host for rank in ranks))}
    groups = Group.objects.filter(job=job, attempt=job.attempt).values_list("id", "name", "desc", "ranks")
    return JobLayout(
        id=job.pk,
        cluster_id=job.cluster_id,
        key=job.key,
        name=job.name,
        state=job.state,
        attempt=job.attempt,
        rank_id=np.array([rank.pk for rank in ranks], np.int64),
        rank=np.array([rank.rank for rank in ranks], np.int64),
        node=np.array([rank.node_id for rank in ranks], np.int64),
        gpu=np.array([NO_GPU if rank.gpu_index is None else rank.gpu_index for rank in ranks], np.int64),
        exit=np.array([_exit(rank) for rank in ranks], np.uint8),
        stopped=np.array([rank.process_state == "stopped" for rank in ranks], bool),
        host=np.array([hosts[rank.host] for rank in ranks], np.int64),
        hosts=tuple(hosts),
        groups={pk: GroupLayout(name, desc, tuple(members)) for pk, name, desc, members in groups},
    )


def _exit(rank: Rank) -> int:
    ended = rank.exited_at is not None
    return motion.how_it_ended(ended, signal=rank.exit_signal, code=rank.exit_code, clean=rank.clean_exit)[0]
