"""The shapes of series resources, for the OpenAPI description. Answers are made of arrays directly."""

from __future__ import annotations

from typing import Any

from rest_framework import serializers

from clusterwatch.store.answers import Reason

_REASONS = [reason.value for reason in Reason]


def _values(text: str) -> serializers.ListField:
    return serializers.ListField(child=serializers.FloatField(allow_null=True), help_text=text)


class AwayShape(serializers.Serializer[Any]):
    """Hot state does not answer."""

    detail = serializers.CharField()
    code = serializers.CharField()


class CoverageShape(serializers.Serializer[Any]):
    expected = serializers.IntegerField()
    reported = serializers.IntegerField()


class GapShape(serializers.Serializer[Any]):
    """A stretch without numbers. A field named `from` cannot be written as an attribute."""

    to = serializers.CharField()
    reason = serializers.ChoiceField(_REASONS)

    def get_fields(self) -> dict[str, serializers.Field[Any, Any, Any, Any]]:
        return {"from": serializers.CharField(), **super().get_fields()}


class _Gapped(serializers.Serializer[Any]):
    gaps = GapShape(many=True, help_text="oldest first")
    gaps_left_out = serializers.IntegerField(help_text="gaps beyond those told")


class _Described(serializers.Serializer[Any]):
    metric = serializers.CharField()
    unit = serializers.CharField(allow_null=True, allow_blank=True)
    kind = serializers.ChoiceField(["gauge", "counter", "flags"], allow_null=True)


class _Spanned(serializers.Serializer[Any]):
    to = serializers.CharField()

    def get_fields(self) -> dict[str, serializers.Field[Any, Any, Any, Any]]:
        return {"from": serializers.CharField(), **super().get_fields()}


class _Gridded(_Spanned):
    """Bucket i covers ``resolution_s`` seconds from ``from`` + i * ``resolution_s``."""

    resolution_s = serializers.IntegerField()
    count = serializers.IntegerField()


class MetricShape(_Described):
    resolution = serializers.FloatField(help_text="what is kept of a value, in its unit")
    part = serializers.ChoiceField(["gpu", "nic", "host"], help_text="what a value belongs to")
    highest = serializers.FloatField(allow_null=True, help_text="the largest value that makes sense")
    text = serializers.CharField()


class SeriesShape(_Described, _Gapped):
    of_node = serializers.BooleanField(help_text="the node has one number for all its GPUs")
    coverage = CoverageShape(help_text="buckets with a number, of those that could have one by now")
    mean = _values("one per bucket; the sample itself where a bucket holds one")
    low = serializers.ListField(child=serializers.FloatField(allow_null=True), allow_null=True)
    high = serializers.ListField(child=serializers.FloatField(allow_null=True), allow_null=True)


class NodeSeriesShape(_Gridded):
    node = serializers.IntegerField()
    gpu = serializers.IntegerField()
    source = serializers.ChoiceField(["raw_block", "node_minute"])  # type: ignore[assignment]
    damaged_blocks = serializers.IntegerField()
    series = SeriesShape(many=True)


class LatestShape(_Described):
    cluster = serializers.IntegerField()
    slots_version = serializers.IntegerField()
    max_age_s = serializers.IntegerField()
    coverage = CoverageShape()
    slots = serializers.ListField(child=serializers.IntegerField())
    values = _values("one per slot")
    age_s = _values("seconds since each value was heard; null: never")
    missing = serializers.DictField(child=serializers.IntegerField(), help_text="reason -> slots without one")


class PercentilesShape(_Gridded, _Described, _Gapped):
    scope = serializers.CharField()
    source = serializers.ChoiceField(["fleet_percentile", "raw_block", "fleet_minute"])  # type: ignore[assignment]
    coverage = CoverageShape()
    values = serializers.ListField(child=serializers.IntegerField(), help_text="values in each bucket")
    mean = _values("")
    low = _values("")
    high = _values("")
    p1 = _values("")
    p25 = _values("")
    p50 = _values("")
    p75 = _values("")
    p99 = _values("")


class PlaceShape(serializers.Serializer[Any]):
    slot = serializers.IntegerField()
    node = serializers.IntegerField(allow_null=True)
    node_name = serializers.CharField(allow_null=True)
    gpu = serializers.IntegerField(allow_null=True)


class RankedShape(PlaceShape):
    value = serializers.FloatField()


class TopShape(_Spanned, _Described, _Gapped):
    by = serializers.ChoiceField(["mean", "growth"])
    coverage = CoverageShape(help_text="slots with a number")
    minutes = CoverageShape(help_text="minutes that are stored")
    results = RankedShape(many=True)


class HeatRowShape(serializers.Serializer[Any]):
    slots = serializers.ListField(child=serializers.IntegerField())
    values = _values("one per bucket")


class HeatMapShape(_Gridded, _Described, _Gapped):
    reduce = serializers.ChoiceField(["mean", "low", "high", "last"])
    ranks = serializers.IntegerField(help_text="ranks of the job; those without a GPU have no row")
    coverage = CoverageShape(help_text="cells with a number")
    rows = HeatRowShape(many=True, help_text="in rank order")


class MapShape(serializers.Serializer[Any]):
    cluster = serializers.IntegerField()
    mode = serializers.CharField()
    at = serializers.CharField(allow_null=True, help_text="time of the frame; null: none")
    reason = serializers.ChoiceField(_REASONS, allow_null=True)
    slots_version = serializers.IntegerField(allow_null=True)
    slots = serializers.ListField(
        child=serializers.IntegerField(),
        allow_null=True,
        help_text="a byte per slot, as live frames have it",
    )


class SecondMetricShape(serializers.Serializer[Any]):
    metric = serializers.CharField()
    unit = serializers.CharField(allow_blank=True)
    values = _values("one per GPU or port; one for a host")


class SecondShape(serializers.Serializer[Any]):
    node = serializers.IntegerField()
    reason = serializers.ChoiceField(_REASONS, allow_null=True, help_text="why there is nothing")
    metrics = SecondMetricShape(many=True)


class SecondsShape(serializers.Serializer[Any]):
    at = serializers.CharField()
    nodes = SecondShape(many=True)


class SlotsShape(serializers.Serializer[Any]):
    slots_version = serializers.IntegerField()
    places = PlaceShape(many=True)
