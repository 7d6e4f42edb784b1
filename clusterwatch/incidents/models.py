"""Incidents, their changes (the outbox), notes and evidence. States and words: DESIGN 4."""

from __future__ import annotations

from django.db import models

from clusterwatch.fleet.models import Cluster, Node
from clusterwatch.jobs.models import Job

LIVE_STATES = ("suspected", "open", "acknowledged", "probation")


class Incident(models.Model):
    """One fault, one incident: at most one live row per fingerprint."""

    class State(models.TextChoices):
        SUSPECTED = "suspected"
        OPEN = "open"
        ACKNOWLEDGED = "acknowledged"
        PROBATION = "probation"
        RESOLVED = "resolved"

    class Severity(models.TextChoices):
        INFO = "info"
        WARNING = "warning"
        CRITICAL = "critical"
        UNKNOWN = "unknown"

    cluster = models.ForeignKey(Cluster, on_delete=models.CASCADE, related_name="incidents")
    job = models.ForeignKey(Job, null=True, on_delete=models.SET_NULL, related_name="incidents")
    node = models.ForeignKey(Node, null=True, on_delete=models.SET_NULL, related_name="incidents")
    fingerprint = models.CharField(max_length=200)
    """cluster, job and class of stall; the verdict may sharpen without making a second incident"""
    state = models.CharField(max_length=12, choices=State.choices)
    severity = models.CharField(max_length=10, choices=Severity.choices)
    verdict = models.CharField(max_length=40)
    fault_class = models.CharField(max_length=20)
    owner = models.CharField(max_length=10, default="unknown")
    summary = models.CharField(max_length=400)
    diagnosis = models.JSONField()
    """``Diagnosis.to_dict()`` of the newest analysis"""
    since = models.DateTimeField()
    """last progress (hang) or first failure (crash)"""
    suspected_at = models.DateTimeField(null=True)
    opened_at = models.DateTimeField(null=True)
    acknowledged_at = models.DateTimeField(null=True)
    acknowledged_by = models.CharField(max_length=255, blank=True)
    assigned_to = models.CharField(max_length=255, blank=True)
    resolved_at = models.DateTimeField(null=True)
    resolution = models.CharField(max_length=255, blank=True)
    checked_at = models.DateTimeField()
    """when the verdict was last confirmed or changed"""
    threshold_s = models.FloatField(null=True)
    """the stall after which it opens, and where that number comes from"""
    threshold_source = models.CharField(max_length=200, blank=True)
    gpu_count = models.PositiveIntegerField(default=0)
    """ranks that burn time while it lasts"""

    class Meta:
        constraints = [
            models.UniqueConstraint(
                fields=["fingerprint"],
                condition=models.Q(state__in=LIVE_STATES),
                name="one_live_incident_per_fingerprint",
            ),
        ]
        indexes = [
            models.Index(fields=["state", "-since"]),
            models.Index(fields=["job", "-since"]),
        ]

    def __str__(self) -> str:
        return f"incident {self.pk}"


class IncidentChange(models.Model):
    """A state move or a changed verdict; the outbox row that ``alerts`` makes deliveries of."""

    incident = models.ForeignKey(Incident, on_delete=models.CASCADE, related_name="changes")
    at = models.DateTimeField()
    kind = models.CharField(max_length=20)
    """``state``, ``verdict``, ``evidence``"""
    before = models.CharField(max_length=40, blank=True)
    after = models.CharField(max_length=40, blank=True)
    text = models.CharField(max_length=400)
    actor = models.CharField(max_length=255, default="clusterwatch")
    queued_at = models.DateTimeField(null=True)
    """when ``alerts`` made its deliveries, or found that nobody is to be told"""

    class Meta:
        ordering = ["id"]
        indexes = [
            models.Index(
                fields=["id"], condition=models.Q(queued_at__isnull=True), name="changes_to_look_at"
            ),
        ]

    def __str__(self) -> str:
        return self.text


class Note(models.Model):
    """What a person wrote on an incident."""

    incident = models.ForeignKey(Incident, on_delete=models.CASCADE, related_name="notes")
    at = models.DateTimeField(auto_now_add=True)
    author = models.CharField(max_length=255)
    text = models.TextField(max_length=4000)

    class Meta:
        ordering = ["id"]

    def __str__(self) -> str:
        return self.text[:40]


class Evidence(models.Model):
    """A frozen piece of evidence: immutable, hashed, outlives the job and its raw data."""

    incident = models.ForeignKey(Incident, on_delete=models.CASCADE, related_name="evidence")
    at = models.DateTimeField()
    kind = models.CharField(max_length=40)
    """``collective_state``, ``stacks``, ``process``, ``progress``, ``trace``, ``exception``,
    ``nccl_ras``"""
    title = models.CharField(max_length=200)
    """the finding, not the tool"""
    source = models.CharField(max_length=200)
    weight = models.FloatField(default=0.0)
    names = models.CharField(max_length=200, blank=True)
    """whom it names, in words; empty when it names nobody"""
    payload = models.BinaryField()
    """zstd-compressed JSON"""
    sha256 = models.CharField(max_length=64)
    """of the uncompressed JSON"""

    class Meta:
        ordering = ["-weight", "id"]

    def __str__(self) -> str:
        return self.title
