"""Jobs and what they are made of. A rank is (job, attempt, world, rank) with a role (DESIGN 4)."""

from __future__ import annotations

from django.contrib.postgres.fields import ArrayField
from django.db import models

from clusterwatch.accounts.models import Team
from clusterwatch.fleet.models import Cluster, Node
from clusterwatch.jobs.goodput_models import Checkpoint, GoodputHour, GoodputMark, StartUp

__all__ = [
    "Capture",
    "Checkpoint",
    "DriftFinding",
    "DriftGroup",
    "DriftRun",
    "GoodputHour",
    "GoodputMark",
    "Group",
    "Job",
    "Rank",
    "StartUp",
]


class Job(models.Model):
    """A training job. ``key`` is the scheduler's id; ids in URLs are ours."""

    class State(models.TextChoices):
        RUNNING = "running"
        ENDED = "ended"
        FAILED = "failed"
        UNKNOWN = "unknown"

    cluster = models.ForeignKey(Cluster, on_delete=models.CASCADE, related_name="jobs")
    key = models.CharField(max_length=255)
    name = models.CharField(max_length=255, blank=True)
    user = models.CharField(max_length=255, blank=True)
    team = models.ForeignKey(Team, null=True, blank=True, on_delete=models.SET_NULL, related_name="jobs")
    state = models.CharField(max_length=10, choices=State.choices, default=State.RUNNING)
    attempt = models.PositiveIntegerField(default=0)
    """Newest attempt seen."""
    started_at = models.DateTimeField()
    ended_at = models.DateTimeField(null=True)
    labels = models.JSONField(default=dict)

    class Meta:
        constraints = [
            models.UniqueConstraint(
                fields=["cluster", "key"],
                condition=models.Q(ended_at__isnull=True),
                name="one_living_job_per_key",
            ),
        ]
        indexes = [models.Index(fields=["cluster", "state", "-started_at"])]

    def __str__(self) -> str:
        return self.key


class Rank(models.Model):
    """One process of a job."""

    job = models.ForeignKey(Job, on_delete=models.CASCADE, related_name="ranks")
    attempt = models.PositiveIntegerField()
    world = models.CharField(max_length=255, blank=True)
    rank = models.PositiveIntegerField()
    role = models.CharField(max_length=255, blank=True)
    world_size = models.PositiveIntegerField()
    node = models.ForeignKey(Node, on_delete=models.CASCADE, related_name="ranks")
    host = models.CharField(max_length=255)
    ref = models.PositiveBigIntegerField()
    """The agent's number of this process, as in its hot frames."""
    epoch = models.CharField(max_length=255)
    pid = models.PositiveIntegerField()
    local_rank = models.PositiveIntegerField(null=True)
    gpu_index = models.PositiveSmallIntegerField(null=True)
    gpu_uuid = models.CharField(max_length=255, blank=True)
    torch_version = models.CharField(max_length=255, blank=True)
    backend = models.CharField(max_length=255, blank=True)
    blind = models.JSONField(default=list)
    groups = models.JSONField(default=list)
    """[group id of ``Group``] in the order of the rank's own indices, as HotProgress.group_index counts."""
    started_at = models.DateTimeField()
    process_state = models.CharField(max_length=20, default="running")
    process_state_at = models.DateTimeField(null=True)
    exited_at = models.DateTimeField(null=True)
    exit_ns = models.BigIntegerField(null=True)
    exit_code = models.IntegerField(null=True)
    exit_signal = models.IntegerField(null=True)
    clean_exit = models.BooleanField(null=True)
    exception = models.JSONField(null=True)

    class Meta:
        constraints = [
            models.UniqueConstraint(fields=["job", "attempt", "world", "rank"], name="one_process_per_rank"),
        ]
        indexes = [models.Index(fields=["node", "ref"])]

    def __str__(self) -> str:
        return f"rank {self.rank}"


class Group(models.Model):
    """A process group of a job: (name, description, members), never a process-local id (DESIGN 5.1)."""

    job = models.ForeignKey(Job, on_delete=models.CASCADE, related_name="groups")
    attempt = models.PositiveIntegerField()
    world = models.CharField(max_length=255, blank=True)
    name = models.CharField(max_length=255)
    desc = models.CharField(max_length=255, blank=True)
    backend = models.CharField(max_length=255, blank=True)
    members_hash = models.CharField(max_length=32)
    ranks = ArrayField(models.PositiveIntegerField())

    class Meta:
        constraints = [
            models.UniqueConstraint(
                fields=["job", "attempt", "world", "name", "desc", "members_hash"],
                name="one_group_per_key",
            ),
        ]

    def __str__(self) -> str:
        return f"{self.desc or 'group'} {self.name}"


class Capture(models.Model):
    """A request for rings and stacks. Gateways watch for new rows by a Valkey notice."""

    class State(models.TextChoices):
        REQUESTED = "requested"
        DONE = "done"
        EXPIRED = "expired"

    job = models.ForeignKey(Job, on_delete=models.CASCADE, related_name="captures")
    requested_at = models.DateTimeField(auto_now_add=True)
    requested_by = models.CharField(max_length=255)
    reason = models.CharField(max_length=255, blank=True)
    want = models.JSONField(default=list)
    ranks = models.JSONField(null=True)
    deadline_s = models.FloatField(default=10.0)
    ras_rank = models.IntegerField(null=True)
    """the node of this global rank also asks NCCL's RAS"""
    state = models.CharField(max_length=10, choices=State.choices, default=State.REQUESTED)
    done_at = models.DateTimeField(null=True)
    expected_nodes = models.JSONField(default=list)
    """node ids that were asked"""
    answered_nodes = models.JSONField(default=list)
    silent_ranks = models.JSONField(default=dict)
    """rank -> why it gave nothing"""

    def __str__(self) -> str:
        return f"capture {self.pk} of job {self.job_id}"


class DriftRun(models.Model):
    """The newest comparison of a cluster's nodes with their peers; each run replaces the one before."""

    cluster = models.OneToOneField(Cluster, on_delete=models.CASCADE, related_name="drift")
    ran_at = models.DateTimeField()
    took_s = models.FloatField()
    node_count = models.PositiveIntegerField()
    """nodes the cluster has; each is one of those counted below"""
    compared_count = models.PositiveIntegerField()
    stale_count = models.PositiveIntegerField()
    """their agent was not heard within the window"""
    silent_count = models.PositiveIntegerField()
    """never told any fact, or none lately"""
    damaged_count = models.PositiveIntegerField()
    window_s = models.FloatField()
    """what nodes said longer ago was not compared"""
    left_out_count = models.PositiveIntegerField()
    """findings beyond those kept"""

    def __str__(self) -> str:
        return f"drift of {self.cluster_id}"


class DriftGroup(models.Model):
    """Nodes that should be alike: of one class, or of one job."""

    run = models.ForeignKey(DriftRun, on_delete=models.CASCADE, related_name="groups")
    kind = models.CharField(max_length=10)
    """class or job"""
    name = models.CharField(max_length=255)
    """of the class, or the scheduler's id of the job"""
    job = models.ForeignKey(Job, null=True, on_delete=models.CASCADE, related_name="+")
    """None: a class, or a job that is known by its agents' readings only"""
    node_count = models.PositiveIntegerField()
    fact_count = models.PositiveIntegerField()
    """facts that enough nodes told"""

    def __str__(self) -> str:
        return f"{self.kind} {self.name}"


class DriftFinding(models.Model):
    """One node that differs in one fact, or (``node`` None) a fact of which there are camps."""

    group = models.ForeignKey(DriftGroup, on_delete=models.CASCADE, related_name="findings")
    node = models.ForeignKey(Node, null=True, on_delete=models.CASCADE, related_name="drift")
    part = models.CharField(max_length=128, blank=True)
    """kind of part the fact is of; empty: the node itself"""
    fact = models.CharField(max_length=128)
    value = models.CharField(max_length=255, blank=True)
    usual = models.CharField(max_length=255, blank=True)
    same_count = models.PositiveIntegerField(default=0)
    """nodes with this value, this one too"""
    usual_count = models.PositiveIntegerField(default=0)
    known_count = models.PositiveIntegerField()
    """nodes of the group of which the fact is known"""
    confidence = models.FloatField(null=True)
    parts = models.JSONField(default=list)
    """which parts of the node differ, where not all do"""
    camps = models.JSONField(default=list)
    """[value, nodes], largest first"""
    since = models.DateTimeField()
    """of the first run that found it"""

    def __str__(self) -> str:
        return f"{self.fact} {self.value}"
