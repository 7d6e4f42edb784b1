"""Tables of the store room that Django knows. Series tables are partitioned and made in SQL by migrations."""

from __future__ import annotations

from django.db import models


class IngestCursor(models.Model):
    """Exactly-once key of the wire: one row per (cluster, node, epoch, lane), locked by each commit.

    ``sequence`` is the highest committed one; a record at or below it has been stored (or rejected and
    counted) already. Source: DESIGN 2.
    """

    cluster = models.CharField(max_length=255)
    node = models.CharField(max_length=255)
    epoch = models.CharField(max_length=255)
    lane = models.CharField(max_length=10)
    sequence = models.BigIntegerField(default=0)
    stored_count = models.BigIntegerField(default=0)
    rejected_count = models.BigIntegerField(default=0)
    expired_count = models.BigIntegerField(default=0)
    dropped_count = models.BigIntegerField(default=0)
    """what the node itself reported as dropped"""
    updated_at = models.DateTimeField(auto_now=True)

    class Meta:
        constraints = [
            models.UniqueConstraint(fields=["cluster", "node", "epoch", "lane"], name="one_cursor_per_lane"),
        ]

    def __str__(self) -> str:
        return f"{self.node} {self.lane} {self.sequence}"


class Device(models.Model):
    """A switch, a BMC, a rack's power: the newest that a poller told of it, replaced by each newer one.

    Ids of clusters and nodes are plain numbers: this room knows neither. ``data`` is what
    ``collectors.wire.readings`` packed; ``node_name`` is the host that the device belongs to, ``node_id`` the
    node that asked it.
    """

    cluster_id = models.BigIntegerField()
    kind = models.CharField(max_length=255)
    name = models.CharField(max_length=255)
    node_id = models.BigIntegerField()
    poller = models.CharField(max_length=255)
    state = models.TextField()
    node_name = models.CharField(max_length=255, blank=True)
    node_host = models.CharField(max_length=255, blank=True)
    """its short name in lower case"""
    period_s = models.FloatField()
    t_ns = models.BigIntegerField()
    """of the asking node's clock"""
    received_ns = models.BigIntegerField()
    epoch = models.CharField(max_length=255)
    sequence = models.BigIntegerField()
    neighbours_digest = models.BinaryField(default=b"")
    """of the rows in ``DeviceNeighbour``"""
    data = models.BinaryField()

    class Meta:
        constraints = [
            models.UniqueConstraint(fields=["cluster_id", "kind", "name"], name="one_device_per_name")
        ]
        indexes = [
            models.Index(
                fields=["cluster_id", "node_host"],
                condition=~models.Q(node_host=""),
                name="device_of_host",
            )
        ]

    def __str__(self) -> str:
        return f"{self.kind}/{self.name}"


class DeviceNeighbour(models.Model):
    """Who a device says is at the far end of one of its ports."""

    device = models.ForeignKey(Device, on_delete=models.CASCADE, related_name="neighbours")
    cluster_id = models.BigIntegerField()
    port = models.CharField(max_length=255)
    """entity of the port"""
    peer = models.CharField(max_length=255)
    peer_host = models.CharField(max_length=255)
    """short name in lower case"""
    peer_port = models.CharField(max_length=255, blank=True)
    peer_mac = models.CharField(max_length=255, blank=True)

    class Meta:
        indexes = [
            models.Index(fields=["cluster_id", "peer_host"], name="neighbour_by_host"),
            models.Index(fields=["cluster_id", "peer_mac"], name="neighbour_by_mac"),
        ]

    def __str__(self) -> str:
        return f"{self.port} {self.peer}"
