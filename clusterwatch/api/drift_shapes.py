"""The shapes of nodes that differ from their peers in REST v1."""

from __future__ import annotations

from typing import Any

from drf_spectacular.utils import extend_schema_field
from rest_framework import serializers

from clusterwatch.jobs import drift

STATES = [drift.ODD, drift.CAMPS, drift.FINE, drift.NOT_ENOUGH]


class CampShape(serializers.Serializer[Any]):
    value = serializers.CharField(allow_blank=True)
    nodes = serializers.IntegerField()


class OddOneShape(serializers.Serializer[Any]):
    """One node that differs in one fact from nearly all that should be like it."""

    node = serializers.CharField(source="node.name")
    fact = serializers.CharField(source="row.fact")
    part = serializers.CharField(
        source="row.part", allow_blank=True, help_text="kind of part it is a fact of; empty: the node itself"
    )
    value = serializers.CharField(source="row.value", allow_blank=True)
    usual = serializers.CharField(source="row.usual", allow_blank=True)
    parts = serializers.ListField(
        source="row.parts", child=serializers.CharField(), help_text="that differ, where not all of them do"
    )
    same_count = serializers.IntegerField(source="row.same_count", help_text="nodes with this value")
    usual_count = serializers.IntegerField(source="row.usual_count")
    known_count = serializers.IntegerField(source="row.known_count", help_text="nodes that tell the fact")
    peer_count = serializers.IntegerField(source="node_count", help_text="nodes compared in this group")
    confidence = serializers.FloatField(
        source="row.confidence", help_text="lower end of the 95 % interval of the usual value's share"
    )
    coverage = serializers.FloatField(help_text="share of the group that tells the fact")
    since = serializers.DateTimeField(source="row.since")
    sentence = serializers.CharField()


class CampsShape(serializers.Serializer[Any]):
    """A fact that large groups of nodes have differently, as in a rollout: nobody is odd."""

    fact = serializers.CharField(source="row.fact")
    part = serializers.CharField(source="row.part", allow_blank=True)
    known_count = serializers.IntegerField(source="row.known_count")
    camps = serializers.SerializerMethodField(help_text="largest first")
    since = serializers.DateTimeField(source="row.since")
    sentence = serializers.CharField()

    @extend_schema_field(CampShape(many=True))
    def get_camps(self, finding: drift.Finding) -> Any:
        return [{"value": value, "nodes": count} for value, count in finding.row.camps]


class DriftGroupShape(serializers.Serializer[Any]):
    """Nodes of one class or of one job; ``job`` null: a class, or a job known by its agents only."""

    kind = serializers.ChoiceField(["class", "job"], source="row.kind")
    name = serializers.CharField(source="row.name", allow_blank=True)
    job = serializers.IntegerField(source="row.job_id", allow_null=True)
    state = serializers.ChoiceField(STATES)
    node_count = serializers.IntegerField(source="row.node_count")
    fact_count = serializers.IntegerField(source="row.fact_count", help_text="facts that enough nodes told")
    odd = OddOneShape(many=True, help_text="the surest first")
    camps = CampsShape(many=True)


class DriftCoverageShape(serializers.Serializer[Any]):
    """Every node of the cluster is one of compared, stale, silent, damaged."""

    expected = serializers.IntegerField(source="node_count")
    compared = serializers.IntegerField(source="compared_count")
    stale = serializers.IntegerField(source="stale_count", help_text="not heard within window_s")
    silent = serializers.IntegerField(source="silent_count", help_text="tells no facts")
    damaged = serializers.IntegerField(source="damaged_count", help_text="what it sent cannot be read")


class DriftShape(serializers.Serializer[Any]):
    """The newest comparison of a cluster's nodes; ``ran_at`` null: there was none yet."""

    cluster = serializers.CharField()
    state = serializers.ChoiceField(STATES, help_text="the worst of the groups")
    ran_at = serializers.DateTimeField(allow_null=True)
    stale = serializers.BooleanField(help_text="it ran too long ago to say anything of now")
    took_s = serializers.FloatField(allow_null=True)
    window_s = serializers.FloatField(allow_null=True)
    coverage = DriftCoverageShape(allow_null=True)
    left_out = serializers.IntegerField(help_text="findings beyond those kept")
    groups = DriftGroupShape(many=True)


class NodeDriftShape(serializers.Serializer[Any]):
    """One node against its peers."""

    state = serializers.ChoiceField([drift.ODD, drift.FINE, drift.NOT_ENOUGH])
    ran_at = serializers.DateTimeField(source="run.ran_at", default=None, allow_null=True)
    stale = serializers.BooleanField(source="is_old")
    odd = OddOneShape(source="findings", many=True)
