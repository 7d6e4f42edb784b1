"""What each device told last, and who is at the far end of its ports."""

import django.db.models.deletion
from django.db import migrations, models


class Migration(migrations.Migration):
    dependencies = [
        ("store", "0005_node_readings"),
    ]

    operations = [
        migrations.CreateModel(
            name="Device",
            fields=[
                (
                    "id",
                    models.BigAutoField(
                        auto_created=True, primary_key=True, serialize=False, verbose_name="ID"
                    ),
                ),
                ("cluster_id", models.BigIntegerField()),
                ("kind", models.CharField(max_length=255)),
                ("name", models.CharField(max_length=255)),
                ("node_id", models.BigIntegerField()),
                ("poller", models.CharField(max_length=255)),
                ("state", models.TextField()),
                ("node_name", models.CharField(blank=True, max_length=255)),
                ("node_host", models.CharField(blank=True, max_length=255)),
                ("period_s", models.FloatField()),
                ("t_ns", models.BigIntegerField()),
                ("received_ns", models.BigIntegerField()),
                ("epoch", models.CharField(max_length=255)),
                ("sequence", models.BigIntegerField()),
                ("neighbours_digest", models.BinaryField(default=b"")),
                ("data", models.BinaryField()),
            ],
            options={
                "indexes": [
                    models.Index(
                        condition=models.Q(("node_host", ""), _negated=True),
                        fields=["cluster_id", "node_host"],
                        name="device_of_host",
                    )
                ],
                "constraints": [
                    models.UniqueConstraint(fields=("cluster_id", "kind", "name"), name="one_device_per_name")
                ],
            },
        ),
        migrations.CreateModel(
            name="DeviceNeighbour",
            fields=[
                (
                    "id",
                    models.BigAutoField(
                        auto_created=True, primary_key=True, serialize=False, verbose_name="ID"
                    ),
                ),
                ("cluster_id", models.BigIntegerField()),
                ("port", models.CharField(max_length=255)),
                ("peer", models.CharField(max_length=255)),
                ("peer_host", models.CharField(max_length=255)),
                ("peer_port", models.CharField(blank=True, max_length=255)),
                ("peer_mac", models.CharField(blank=True, max_length=255)),
                (
                    "device",
                    models.ForeignKey(
                        on_delete=django.db.models.deletion.CASCADE,
                        related_name="neighbours",
                        to="store.device",
                    ),
                ),
            ],
            options={
                "indexes": [
                    models.Index(fields=["cluster_id", "peer_host"], name="neighbour_by_host"),
                    models.Index(fields=["cluster_id", "peer_mac"], name="neighbour_by_mac"),
                ],
            },
        ),
        migrations.RunSQL(
            # Replaced each minute and compressed already.
            "ALTER TABLE store_device SET (fillfactor = 50);"
            "ALTER TABLE store_device ALTER COLUMN data SET STORAGE EXTERNAL",
            migrations.RunSQL.noop,
        ),
    ]
