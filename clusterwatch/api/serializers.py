"""The shapes of REST v1. Declared once: they make the answers and the OpenAPI description."""

from __future__ import annotations

import time
from typing import Any

from drf_spectacular.utils import extend_schema_field
from rest_framework import serializers

from clusterwatch.api.known_bug_shapes import KnownBugsSerializer
from clusterwatch.detect import known_bugs
from clusterwatch.fleet.links import NOT_HEARD, NodeLink
from clusterwatch.fleet.models import Cluster, Node
from clusterwatch.incidents.models import Evidence, Incident, IncidentChange, Note
from clusterwatch.jobs.models import Job


class ErrorSerializer(serializers.Serializer[Any]):
    """``fields`` is there when a value was wrong: its name, and what is allowed."""

    detail = serializers.CharField()
    code = serializers.CharField()
    fields = serializers.JSONField(required=False)  # type: ignore[assignment]


class ClusterSerializer(serializers.ModelSerializer[Cluster]):
    class Meta:
        model = Cluster
        fields = ["id", "name", "simulated", "slot_count", "slots_version", "created_at"]
        read_only_fields = fields


class NodeSerializer(serializers.ModelSerializer[Node]):
    cluster = serializers.CharField(source="cluster.name", read_only=True)
    state = serializers.SerializerMethodField(
        help_text="ok, silent, closed, stopped, gateway_silent or unknown"
    )
    seen_at = serializers.SerializerMethodField()

    class Meta:
        model = Node
        fields = [
            "id",
            "cluster",
            "name",
            "state",
            "seen_at",
            "agent_version",
            "rack",
            "leaf",
            "cpu_count",
            "memory_bytes",
            "last_hello_at",
        ]
        read_only_fields = fields

    def get_state(self, node: Node) -> str:
        return self._link(node).state

    def get_seen_at(self, node: Node) -> str | None:
        seen_at = self._link(node).seen_at
        return seen_at.isoformat() if seen_at is not None else None

    def _link(self, node: Node) -> NodeLink:
        link: NodeLink = self.context["links"].get(node.pk, NOT_HEARD)
        return link


class JobSerializer(serializers.ModelSerializer[Job]):
    cluster = serializers.CharField(source="cluster.name", read_only=True)
    team = serializers.CharField(source="team.name", read_only=True, default=None, allow_null=True)
    step = serializers.SerializerMethodField(help_text="newest step of any rank, null when none was seen")
    last_progress_at = serializers.SerializerMethodField()
    ranks_reported = serializers.SerializerMethodField()

    class Meta:
        model = Job
        fields = [
            "id",
            "cluster",
            "key",
            "name",
            "user",
            "team",
            "state",
            "attempt",
            "started_at",
            "ended_at",
            "labels",
            "step",
            "last_progress_at",
            "ranks_reported",
        ]
        read_only_fields = fields

    def get_step(self, job: Job) -> int | None:
        live = self.context["live"].get(job.pk)
        return live.step if live else None

    def get_last_progress_at(self, job: Job) -> str | None:
        live = self.context["live"].get(job.pk)
        return live.last_progress_at.isoformat() if live and live.last_progress_at else None

    def get_ranks_reported(self, job: Job) -> int | None:
        live = self.context["live"].get(job.pk)
        return live.reported if live else None


class RankSerializer(serializers.Serializer[Any]):
    """A process with its newest word; ``null`` is "not known"."""

    rank = serializers.IntegerField()
    world = serializers.CharField(allow_blank=True)
    role = serializers.CharField(allow_blank=True)
    attempt = serializers.IntegerField()
    world_size = serializers.IntegerField()
    host = serializers.CharField()
    node_id = serializers.IntegerField()
    pid = serializers.IntegerField()
    local_rank = serializers.IntegerField(allow_null=True)
    gpu_index = serializers.IntegerField(allow_null=True)
    gpu_uuid = serializers.CharField(allow_blank=True)
    backend = serializers.CharField(allow_blank=True)
    state = serializers.ChoiceField(
        ["moving", "waiting", "behind", "still", "ended", "failed", "stopped", "unknown"]
    )
    why = serializers.CharField(allow_blank=True, help_text="what the state rests on")
    step = serializers.IntegerField(allow_null=True)
    phase = serializers.CharField(allow_null=True)
    last_progress_at = serializers.DateTimeField(allow_null=True)
    heard_at = serializers.DateTimeField(allow_null=True)
    exited_at = serializers.DateTimeField(allow_null=True)
    exit_code = serializers.IntegerField(allow_null=True)
    exit_signal = serializers.IntegerField(allow_null=True)
    exception = serializers.JSONField(allow_null=True)
    blind = serializers.ListField(child=serializers.CharField())


class GroupSerializer(serializers.Serializer[Any]):
    """A process group; ``sequence`` is the newest call any member issued."""

    id = serializers.IntegerField()
    name = serializers.CharField()
    desc = serializers.CharField(allow_blank=True)
    backend = serializers.CharField(allow_blank=True)
    world = serializers.CharField(allow_blank=True)
    ranks = serializers.ListField(child=serializers.IntegerField())
    state = serializers.ChoiceField(["ok", "stuck", "unknown"])
    sequence = serializers.IntegerField(allow_null=True)
    joined = serializers.ListField(child=serializers.IntegerField())
    missing = serializers.ListField(child=serializers.IntegerField())
    unreported = serializers.ListField(child=serializers.IntegerField())
    moved_at = serializers.DateTimeField(allow_null=True)


class IncidentSerializer(serializers.ModelSerializer[Incident]):
    """``diagnosis`` is the verdict as ``clusterwatch analyze --json`` writes it."""

    cluster = serializers.CharField(source="cluster.name", read_only=True)
    job = serializers.IntegerField(source="job_id", read_only=True, allow_null=True)
    job_key = serializers.CharField(source="job.key", read_only=True, default=None, allow_null=True)
    node = serializers.CharField(source="node.name", read_only=True, default=None, allow_null=True)
    diagnosis = serializers.JSONField(read_only=True)

    class Meta:
        model = Incident
        fields = [
            "id",
            "cluster",
            "job",
            "job_key",
            "node",
            "state",
            "severity",
            "verdict",
            "fault_class",
            "owner",
            "summary",
            "since",
            "suspected_at",
            "opened_at",
            "acknowledged_at",
            "acknowledged_by",
            "assigned_to",
            "resolved_at",
            "resolution",
            "checked_at",
            "threshold_s",
            "threshold_source",
            "gpu_count",
            "diagnosis",
        ]
        read_only_fields = fields


class ChangeSerializer(serializers.ModelSerializer[IncidentChange]):
    class Meta:
        model = IncidentChange
        fields = ["id", "at", "kind", "before", "after", "text", "actor"]
        read_only_fields = fields


class NoteSerializer(serializers.ModelSerializer[Note]):
    class Meta:
        model = Note
        fields = ["id", "at", "author", "text"]
        read_only_fields = ["id", "at", "author"]


class EvidenceSerializer(serializers.ModelSerializer[Evidence]):
    """A frozen piece without its payload; ``sha256`` is of the payload's JSON."""

    class Meta:
        model = Evidence
        fields = ["id", "at", "kind", "title", "source", "weight", "names", "sha256"]
        read_only_fields = fields


class IncidentDetailSerializer(IncidentSerializer):
    changes = ChangeSerializer(many=True, read_only=True)
    notes = NoteSerializer(many=True, read_only=True)
    evidence = EvidenceSerializer(many=True, read_only=True)
    known_bugs = serializers.SerializerMethodField()

    class Meta(IncidentSerializer.Meta):
        fields = [*IncidentSerializer.Meta.fields, "changes", "notes", "evidence", "known_bugs"]
        read_only_fields = fields

    @extend_schema_field(KnownBugsSerializer)
    def get_known_bugs(self, incident: Incident) -> dict[str, Any]:
        return known_bugs.of_incident(incident, time.time_ns()).to_dict()


class ResolveSerializer(serializers.Serializer[Any]):
    reason = serializers.CharField(max_length=255)


class ActedSerializer(serializers.Serializer[Any]):
    changed = serializers.BooleanField(help_text="false: somebody else was first, nothing was changed")
    state = serializers.CharField()


class HealthSerializer(serializers.Serializer[Any]):
    status = serializers.ChoiceField(["ok", "stale"])
    reasons = serializers.ListField(child=serializers.CharField())
    version = serializers.CharField()
