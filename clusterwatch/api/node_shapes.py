"""The shape of one node in REST v1."""

from __future__ import annotations

from typing import Any

from drf_spectacular.utils import extend_schema_field
from rest_framework import serializers

from clusterwatch.api.device_shapes import LinkShape, NodeDeviceShape
from clusterwatch.api.drift_shapes import NodeDriftShape
from clusterwatch.api.reading_shapes import NodeEventShape, ReadingShape, SourceShape
from clusterwatch.api.serializers import NodeSerializer
from clusterwatch.fleet.models import Node, Slot
from clusterwatch.jobs.models import Job
from clusterwatch.jobs.node_view import NodeView


class GpuShape(serializers.ModelSerializer[Slot]):
    """A GPU as the node named it at its last hello."""

    class Meta:
        model = Slot
        fields = ["gpu_index", "gpu_uuid", "gpu_serial", "gpu_model"]
        read_only_fields = fields


class NodeJobShape(serializers.ModelSerializer[Job]):
    class Meta:
        model = Job
        fields = ["id", "key", "name", "state", "started_at", "ended_at"]
        read_only_fields = fields


class CountsShape(serializers.Serializer[Any]):
    """What became of the records the node sent."""

    stored = serializers.IntegerField()
    rejected = serializers.IntegerField()
    expired = serializers.IntegerField()
    dropped = serializers.IntegerField()


class NodeDetailShape(NodeSerializer):
    """A node with what it knows of its parts now; ``readings`` by entity, empty where it never sent any."""

    kernel = serializers.SerializerMethodField()
    os = serializers.SerializerMethodField()
    cpu_model = serializers.SerializerMethodField()
    gpus = serializers.SerializerMethodField()
    records = serializers.SerializerMethodField()
    sources = serializers.SerializerMethodField()
    readings_age_s = serializers.SerializerMethodField(help_text="since the node sent its newest values")
    readings_left_out = serializers.SerializerMethodField(help_text="values it read and did not send")
    readings = serializers.SerializerMethodField()
    events = serializers.SerializerMethodField(help_text="of the last week, newest first")
    jobs = serializers.SerializerMethodField(help_text="that ran here, newest first")
    devices = serializers.SerializerMethodField(help_text="its BMC and its rack's power")
    links = serializers.SerializerMethodField(help_text="the far end of each port")
    differs = serializers.SerializerMethodField(help_text="from nodes that should be like it")

    class Meta(NodeSerializer.Meta):
        fields = [
            *NodeSerializer.Meta.fields, "kernel", "os", "cpu_model", "gpus", "records", "sources",
            "readings_age_s", "readings_left_out", "readings", "events", "jobs", "devices", "links",
            "differs",
        ]  # fmt: skip
        read_only_fields = fields

    @property
    def _view(self) -> NodeView:
        view: NodeView = self.context["view"]
        return view

    def _fact(self, node: Node, name: str) -> str | None:
        return (node.inventory or {}).get(name) or None

    def get_kernel(self, node: Node) -> str | None:
        return self._fact(node, "kernel")

    def get_os(self, node: Node) -> str | None:
        return self._fact(node, "os")

    def get_cpu_model(self, node: Node) -> str | None:
        return self._fact(node, "cpu_model")

    @extend_schema_field(GpuShape(many=True))
    def get_gpus(self, node: Node) -> Any:
        return GpuShape([slot for slot in self._view.slots if slot.gpu_index is not None], many=True).data

    @extend_schema_field(CountsShape(allow_null=True))
    def get_records(self, node: Node) -> Any:
        return self._view.counts or None

    @extend_schema_field(SourceShape(many=True))
    def get_sources(self, node: Node) -> Any:
        found = self._view.readings
        return SourceShape(found.sources if found is not None else (), many=True).data

    def get_readings_age_s(self, node: Node) -> float | None:
        found = self._view.readings
        return found.age_s if found is not None else None

    def get_readings_left_out(self, node: Node) -> int:
        found = self._view.readings
        return found.left_out if found is not None else 0

    @extend_schema_field(serializers.DictField(child=ReadingShape(many=True)))
    def get_readings(self, node: Node) -> Any:
        found = self._view.readings
        entities = found.entities if found is not None else {}
        return {entity: ReadingShape(values, many=True).data for entity, values in entities.items()}

    @extend_schema_field(NodeEventShape(many=True))
    def get_events(self, node: Node) -> Any:
        return NodeEventShape(self._view.events, many=True).data

    @extend_schema_field(NodeJobShape(many=True))
    def get_jobs(self, node: Node) -> Any:
        return NodeJobShape(self._view.jobs, many=True).data

    @extend_schema_field(NodeDeviceShape(many=True))
    def get_devices(self, node: Node) -> Any:
        return NodeDeviceShape(self._view.around.own, many=True).data

    @extend_schema_field(LinkShape(many=True))
    def get_links(self, node: Node) -> Any:
        return LinkShape(self._view.around.far_ends, many=True).data

    @extend_schema_field(NodeDriftShape())
    def get_differs(self, node: Node) -> Any:
        return NodeDriftShape(self._view.differs).data
