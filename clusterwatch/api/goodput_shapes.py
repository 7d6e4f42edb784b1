"""Shapes of time in REST v1: classes of GPU-time, start-ups, checkpoints, the recommended checkpoint."""

from __future__ import annotations

from typing import Any

from rest_framework import serializers

from clusterwatch.analysis.goodput_model import Kind
from clusterwatch.jobs.goodput_ledger import at
from clusterwatch.jobs.models import Checkpoint, StartUp

KINDS = [kind.value for kind in Kind]


class ClassShape(serializers.Serializer[Any]):
    """Time of one class. ``share_ratio`` null: there is no time at all."""

    kind = serializers.ChoiceField(KINDS)
    gpu_s = serializers.FloatField()
    gpu_hours = serializers.FloatField()
    share_ratio = serializers.FloatField(allow_null=True)


class TotalShape(serializers.Serializer[Any]):
    """The classes add up to ``gpu_s``. Goodput is between the two bounds: unknown time is in one of them."""

    gpu_s = serializers.FloatField()
    goodput_low_ratio = serializers.FloatField(allow_null=True)
    goodput_high_ratio = serializers.FloatField(allow_null=True)
    ettr_ratio = serializers.FloatField(allow_null=True, help_text="steps that were kept, slow ones too")
    known_ratio = serializers.FloatField(allow_null=True, help_text="coverage: time of which anybody told")
    classes = ClassShape(many=True)


class CauseShape(serializers.Serializer[Any]):
    """What an incident took; ``cause`` is its verdict."""

    kind = serializers.ChoiceField(KINDS)
    cause = serializers.CharField()
    gpu_s = serializers.FloatField()


class AttemptShape(serializers.Serializer[Any]):
    attempt = serializers.IntegerField()
    total = TotalShape()


class HourShape(serializers.Serializer[Any]):
    start_at = serializers.DateTimeField()
    total = TotalShape()


class NamingShape(serializers.Serializer[Any]):
    """Paged standstills of the job; medians are null where there is none."""

    count = serializers.IntegerField()
    named_count = serializers.IntegerField()
    to_name_s = serializers.FloatField(allow_null=True)
    to_move_s = serializers.FloatField(allow_null=True)


class RecommendedShape(serializers.Serializer[Any]):
    """The newest whole checkpoint."""

    attempt = serializers.IntegerField()
    world = serializers.CharField(allow_blank=True)
    step = serializers.IntegerField()
    end_at = serializers.DateTimeField()
    proven_by_load = serializers.BooleanField()
    confidence = serializers.FloatField()
    why = serializers.ListField(child=serializers.CharField())


class JobGoodputShape(serializers.Serializer[Any]):
    """``reason`` says why there are no numbers; null where there are."""

    job = serializers.IntegerField()
    rule = serializers.CharField()
    simulated = serializers.BooleanField()
    reason = serializers.CharField(allow_null=True)
    unit = serializers.ChoiceField(["gpu", "process"], allow_null=True)
    counted_from = serializers.DateTimeField(allow_null=True)
    counted_until = serializers.DateTimeField(allow_null=True)
    total = TotalShape(allow_null=True)
    causes = CauseShape(many=True)
    attempts = AttemptShape(many=True, help_text="newest first, at most 50")
    hours = HourShape(many=True, help_text="the newest 48")
    naming = NamingShape()
    recommended_checkpoint = RecommendedShape(allow_null=True)


class SlowRankShape(serializers.Serializer[Any]):
    rank = serializers.IntegerField()
    host = serializers.CharField()
    s = serializers.FloatField()


class StartUpPartShape(serializers.Serializer[Any]):
    """A part of start-up. ``told_count`` 0: no rank told it, and its numbers are null."""

    part = serializers.CharField()
    told_count = serializers.IntegerField()
    p50_s = serializers.FloatField(allow_null=True)
    p99_s = serializers.FloatField(allow_null=True)
    longest_s = serializers.FloatField(allow_null=True)
    late_count = serializers.IntegerField(help_text="ranks far beyond the others")
    slowest = SlowRankShape(many=True)


class StartUpShape(serializers.ModelSerializer[StartUp]):
    parts = StartUpPartShape(many=True)

    class Meta:
        model = StartUp
        fields = [
            "attempt",
            "started_at",
            "rank_count",
            "stepped_count",
            "first_step_s",
            "first_step",
            "sentence",
            "parts",
        ]
        read_only_fields = fields


class CheckpointShape(serializers.ModelSerializer[Checkpoint]):
    """A save. Hooks tell no sizes, so there is no bandwidth: ``bytes`` is null with the reason."""

    end_at = serializers.SerializerMethodField()
    cost_gpu_s = serializers.SerializerMethodField(help_text="all ranks' time beyond their usual step")
    slowest = SlowRankShape(many=True)
    bytes = serializers.SerializerMethodField(help_text="null: not told")
    bytes_reason = serializers.SerializerMethodField()

    class Meta:
        model = Checkpoint
        fields = [
            "id",
            "attempt",
            "world",
            "step",
            "end_at",
            "world_size",
            "rank_count",
            "saver_count",
            "p50_s",
            "p99_s",
            "longest_s",
            "cost_gpu_s",
            "slowest",
            "bytes",
            "bytes_reason",
        ]
        read_only_fields = fields

    def get_end_at(self, save: Checkpoint) -> str:
        return at(save.end_ns).isoformat()

    def get_cost_gpu_s(self, save: Checkpoint) -> float:
        return save.cost_gpu_ns / 1e9

    def get_bytes(self, save: Checkpoint) -> int | None:
        return None

    def get_bytes_reason(self, save: Checkpoint) -> str:
        return "hooks tell no sizes"


class MonthShape(serializers.Serializer[Any]):
    month = serializers.DateField()
    total = TotalShape()
    causes = CauseShape(many=True)


class TimeOfShape(serializers.Serializer[Any]):
    """``name`` null: the job told none."""

    name = serializers.CharField(allow_null=True)
    total = TotalShape()


class ClusterGoodputShape(serializers.Serializer[Any]):
    cluster = serializers.CharField()
    rule = serializers.CharField()
    simulated = serializers.BooleanField()
    since = serializers.DateTimeField()
    until = serializers.DateTimeField()
    job_count = serializers.IntegerField(help_text="jobs with counted time that the caller may see")
    total = TotalShape()
    months = MonthShape(many=True)
    users = TimeOfShape(many=True, help_text="most time first, at most 200")
    partitions = TimeOfShape(many=True, help_text="the same by the label `partition`")
    left_out_count = serializers.IntegerField()
