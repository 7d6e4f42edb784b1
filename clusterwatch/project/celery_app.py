"""The Celery application. Tasks and their beat schedules live in ``detect``, ``ingest`` and ``alerts``."""

import os

from celery import Celery

os.environ.setdefault("DJANGO_SETTINGS_MODULE", "clusterwatch.project.settings")

app = Celery("clusterwatch")
app.config_from_object("django.conf:settings", namespace="CELERY")
app.autodiscover_tasks(["clusterwatch.alerts", "clusterwatch.detect", "clusterwatch.ingest"])
