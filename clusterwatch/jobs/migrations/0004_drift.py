"""Nodes that differ from their peers: the newest comparison of each cluster."""

import django.db.models.deletion
from django.db import migrations, models

_ID = models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name="ID")


def _count(**more: object) -> models.PositiveIntegerField:
    return models.PositiveIntegerField(**more)


def _of(model: str, **more: object) -> models.ForeignKey:
    return models.ForeignKey(on_delete=django.db.models.deletion.CASCADE, to=model, **more)


class Migration(migrations.Migration):
    dependencies = [("fleet", "0001_initial"), ("jobs", "0003_capture_ras_rank")]

    operations = [
        migrations.CreateModel(
            name="DriftRun",
            fields=[
                ("id", _ID),
                ("ran_at", models.DateTimeField()),
                ("took_s", models.FloatField()),
                ("node_count", _count()),
                ("compared_count", _count()),
                ("stale_count", _count()),
                ("silent_count", _count()),
                ("damaged_count", _count()),
                ("window_s", models.FloatField()),
                ("left_out_count", _count()),
                (
                    "cluster",
                    models.OneToOneField(
                        on_delete=django.db.models.deletion.CASCADE, related_name="drift", to="fleet.cluster"
                    ),
                ),
            ],
        ),
        migrations.CreateModel(
            name="DriftGroup",
            fields=[
                ("id", _ID),
                ("kind", models.CharField(max_length=10)),
                ("name", models.CharField(max_length=255)),
                ("node_count", _count()),
                ("fact_count", _count()),
                ("job", _of("jobs.job", null=True, related_name="+")),
                ("run", _of("jobs.driftrun", related_name="groups")),
            ],
        ),
        migrations.CreateModel(
            name="DriftFinding",
            fields=[
                ("id", _ID),
                ("part", models.CharField(blank=True, max_length=128)),
                ("fact", models.CharField(max_length=128)),
                ("value", models.CharField(blank=True, max_length=255)),
                ("usual", models.CharField(blank=True, max_length=255)),
                ("same_count", _count(default=0)),
                ("usual_count", _count(default=0)),
                ("known_count", _count()),
                ("confidence", models.FloatField(null=True)),
                ("parts", models.JSONField(default=list)),
                ("camps", models.JSONField(default=list)),
                ("since", models.DateTimeField()),
                ("node", _of("fleet.node", null=True, related_name="drift")),
                ("group", _of("jobs.driftgroup", related_name="findings")),
            ],
        ),
    ]
