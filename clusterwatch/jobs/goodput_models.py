"""What is kept of a job's time: GPU-time by class and hour, checkpoints, start-ups, how far it is counted.

Rows outlive the steps and phases they were made of. Words and definitions: docs/goodput.md.
"""

from __future__ import annotations

from django.db import models
from django.db.models import Q


class GoodputMark(models.Model):
    """Up to when a job's time is counted. Locked while it moves, so every moment is counted once."""

    job = models.OneToOneField("jobs.Job", on_delete=models.CASCADE, related_name="goodput_mark")
    attempt = models.PositiveIntegerField(default=0)
    until_ns = models.BigIntegerField()
    memory = models.BinaryField(default=b"")
    """what the newest window leaves to the next one, packed by ``jobs.goodput_memory``"""
    is_done = models.BooleanField(default=False)
    """the job ended and all of it is counted; False again when it comes back"""

    def __str__(self) -> str:
        return f"goodput of job {self.job_id}"


class GoodputHour(models.Model):
    """GPU-time of one class in one hour of an attempt; the classes of an hour add up to all of it."""

    job = models.ForeignKey("jobs.Job", on_delete=models.CASCADE, related_name="goodput_hours")
    attempt = models.PositiveIntegerField()
    start_at = models.DateTimeField()
    kind = models.CharField(max_length=12)
    """a word of ``analysis.goodput_model.Kind``"""
    cause = models.CharField(max_length=40, blank=True)
    """verdict of the incident that took the time; empty: nobody named one"""
    gpu_ns = models.BigIntegerField()
    """ranks times nanoseconds: 24,576 ranks have 8.8e16 an hour"""

    class Meta:
        constraints = [
            models.UniqueConstraint(
                fields=["job", "attempt", "start_at", "kind", "cause"], name="one_row_per_class_and_hour"
            ),
            models.CheckConstraint(condition=Q(gpu_ns__gte=0), name="gpu_time_is_not_negative"),
        ]
        indexes = [models.Index(fields=["start_at"])]

    def __str__(self) -> str:
        return f"{self.kind} of job {self.job_id}"


class Checkpoint(models.Model):
    """One save of a world of a job, as its ranks' steps told it."""

    job = models.ForeignKey("jobs.Job", on_delete=models.CASCADE, related_name="checkpoints")
    attempt = models.PositiveIntegerField()
    world = models.CharField(max_length=255, blank=True)
    step = models.BigIntegerField()
    """the newest step in it"""
    end_ns = models.BigIntegerField()
    """end of the step it fell into"""
    world_size = models.PositiveIntegerField()
    rank_count = models.PositiveIntegerField()
    """ranks that told of that step"""
    saver_count = models.PositiveIntegerField()
    """those of them that wrote"""
    p50_s = models.FloatField()
    p99_s = models.FloatField()
    longest_s = models.FloatField()
    cost_gpu_ns = models.BigIntegerField()
    """time of all ranks beyond their usual step"""
    slowest = models.JSONField(default=list)
    """[{"rank", "host", "s"}], the longest first"""

    class Meta:
        constraints = [
            models.UniqueConstraint(fields=["job", "attempt", "world", "step"], name="one_save_per_step"),
        ]
        indexes = [models.Index(fields=["job", "-end_ns"])]

    def __str__(self) -> str:
        return f"checkpoint at step {self.step}"


class StartUp(models.Model):
    """How one attempt started, as far as its ranks told."""

    job = models.ForeignKey("jobs.Job", on_delete=models.CASCADE, related_name="startups")
    attempt = models.PositiveIntegerField()
    started_at = models.DateTimeField()
    """of its first process"""
    rank_count = models.PositiveIntegerField()
    stepped_count = models.PositiveIntegerField()
    first_step_s = models.FloatField(null=True)
    """until the last rank that stepped did; None: no rank told a step"""
    first_step = models.BigIntegerField(null=True)
    """number of the first step told: above 2 where numbers go on over attempts"""
    sentence = models.CharField(max_length=400)
    parts = models.JSONField(default=list)
    """[{"part", "told_count", "p50_s", "p99_s", "longest_s", "late_count", "slowest"}], as above"""

    class Meta:
        constraints = [
            models.UniqueConstraint(fields=["job", "attempt"], name="one_start_up_per_attempt"),
        ]

    def __str__(self) -> str:
        return f"start-up of attempt {self.attempt}"
