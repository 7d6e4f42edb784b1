"""The shapes of values, their sources and events in REST v1, of nodes and of devices."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

from rest_framework import serializers


class ExactNumber(serializers.FloatField):
    """A counter of 64 bits is told as it was read."""

    def to_representation(self, value: float | int) -> Any:
        return value


class SourceShape(serializers.Serializer[Any]):
    """A source of the node's agent; ``age_s`` null: it gave nothing since the agent started."""

    name = serializers.CharField()
    state = serializers.CharField(help_text="ok, or what keeps it from giving values")
    age_s = serializers.FloatField(allow_null=True)
    stale = serializers.BooleanField()


class ReadingShape(serializers.Serializer[Any]):
    """A value; null is "not known", and ``quality`` says why."""

    metric = serializers.CharField()
    value = ExactNumber(allow_null=True)
    unit = serializers.CharField(allow_null=True)
    quality = serializers.CharField(help_text="ok, or why the value is not known or in doubt")
    age_s = serializers.FloatField(help_text="since its source looked")
    stale = serializers.BooleanField()
    source = serializers.CharField()  # type: ignore[assignment]
    labels = serializers.DictField(child=serializers.CharField())


class NodeEventShape(serializers.Serializer[Any]):
    at = serializers.SerializerMethodField()
    source = serializers.CharField()  # type: ignore[assignment]
    kind = serializers.CharField()
    severity = serializers.CharField()
    text = serializers.CharField(allow_blank=True)
    fields = serializers.DictField(child=serializers.CharField(allow_blank=True))  # type: ignore[assignment]
    job = serializers.IntegerField(source="job_id", allow_null=True)
    rank = serializers.IntegerField(allow_null=True)

    def get_at(self, event: Any) -> datetime:
        return datetime.fromtimestamp(event.t_ns / 1e9, UTC)
