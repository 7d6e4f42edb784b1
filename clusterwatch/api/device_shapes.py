"""The shapes of devices in REST v1: switches, BMCs, racks and what else pollers ask."""

from __future__ import annotations

from typing import Any

from drf_spectacular.utils import extend_schema_field
from rest_framework import serializers

from clusterwatch.api.reading_shapes import NodeEventShape, ReadingShape
from clusterwatch.jobs.device_view import DeviceView, FarEnd


class DeviceShape(serializers.Serializer[Any]):
    """A device and how it was reached."""

    id = serializers.IntegerField()
    cluster = serializers.CharField(source="cluster.name")
    kind = serializers.CharField()
    name = serializers.CharField()
    node = serializers.CharField(source="node_name", help_text="the host it belongs to; empty: none")
    poller = serializers.CharField()
    polled_from = serializers.CharField(
        source="polled_from.name", default=None, allow_null=True, help_text="the node that asks it"
    )
    state = serializers.CharField(help_text="ok, or why it gave nothing at the last look")
    age_s = serializers.FloatField(help_text="since its poller spoke of it")
    stale = serializers.BooleanField()


class DeviceNameShape(serializers.Serializer[Any]):
    kind = serializers.CharField()
    name = serializers.CharField()


class NeighbourShape(serializers.Serializer[Any]):
    """Who a port says is at its far end; ``node`` and ``device`` null: none of ours, or see ``doubt``."""

    port = serializers.CharField()
    peer = serializers.CharField()
    peer_port = serializers.CharField()
    peer_mac = serializers.CharField()
    node = serializers.CharField(source="peer_node.name", default=None, allow_null=True)
    device = DeviceNameShape(source="peer_device", allow_null=True)
    doubt = serializers.CharField()


class SeenFromShape(serializers.Serializer[Any]):
    """Another device that says this one is at the far end of its ``port``."""

    device = DeviceNameShape()
    port = serializers.CharField()
    own_port = serializers.CharField(help_text="this device's port in the other's words")


class DeviceDetailShape(serializers.Serializer[Any]):
    """A device with everything it told last, by entity."""

    device = DeviceShape(source="line")
    readings_left_out = serializers.IntegerField(
        source="readings.left_out", help_text="values that were read and not sent"
    )
    readings = serializers.SerializerMethodField()
    neighbours = NeighbourShape(many=True)
    seen_from = SeenFromShape(many=True)
    events = NodeEventShape(many=True, help_text="of the last week, newest first")

    @extend_schema_field(serializers.DictField(child=ReadingShape(many=True)))
    def get_readings(self, view: DeviceView) -> Any:
        return readings_of(view)


class NodeDeviceShape(serializers.Serializer[Any]):
    """A node's BMC or its rack's power, with what it told last."""

    device = DeviceShape(source="line")
    readings = serializers.SerializerMethodField()

    @extend_schema_field(serializers.DictField(child=ReadingShape(many=True)))
    def get_readings(self, view: DeviceView) -> Any:
        return readings_of(view)


class LinkShape(serializers.Serializer[Any]):
    """The switch port at the other end of a node's port; ``port`` null: ``doubt`` says why."""

    port = serializers.SerializerMethodField(help_text="entity of the node's own port")
    device = DeviceNameShape()
    device_port = serializers.CharField(help_text="entity of the device's port")
    values = ReadingShape(many=True)
    doubt = serializers.CharField()

    def get_port(self, link: FarEnd) -> str | None:
        return link.port or None


def readings_of(view: DeviceView) -> dict[str, Any]:
    return {entity: ReadingShape(values, many=True).data for entity, values in view.readings.entities.items()}
