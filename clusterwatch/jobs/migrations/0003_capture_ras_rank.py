"""Whose RAS of NCCL a capture asks."""

from django.db import migrations, models


class Migration(migrations.Migration):
    dependencies = [("jobs", "0002_series_views")]
    operations = [migrations.AddField("capture", "ras_rank", models.IntegerField(null=True))]
