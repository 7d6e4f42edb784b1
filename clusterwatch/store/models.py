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
