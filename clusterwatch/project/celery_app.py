"""The Celery application. Tasks live in ``detect.tasks``, the beat schedule in ``detect.schedule``."""

import os

from celery import Celery

os.environ.setdefault("DJANGO_SETTINGS_MODULE", "clusterwatch.project.settings")

app = Celery("clusterwatch")
app.config_from_object("django.conf:settings", namespace="CELERY")
app.autodiscover_tasks(["clusterwatch.detect"])
