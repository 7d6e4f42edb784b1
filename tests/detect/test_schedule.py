from __future__ import annotations

import pytest
from django_celery_beat.models import PeriodicTask, PeriodicTasks

from clusterwatch.detect import schedule
from clusterwatch.project.celery_app import app

pytestmark = pytest.mark.django_db


def test_the_tick_runs_every_second_and_names_a_task_that_exists() -> None:
    schedule.install()
    row = PeriodicTask.objects.get(name=schedule.TICK_NAME)
    assert (row.interval.every, row.interval.period, row.enabled) == (1, "seconds", True)
    app.loader.import_default_modules()
    assert row.task in app.tasks


def test_installing_again_changes_nothing_that_beat_would_have_to_read() -> None:
    schedule.install()
    before = PeriodicTasks.last_change()
    schedule.install()
    assert PeriodicTasks.last_change() == before
    assert PeriodicTask.objects.filter(name=schedule.TICK_NAME).count() == 1


def test_a_changed_row_is_put_right() -> None:
    schedule.install()
    PeriodicTask.objects.update(enabled=False, task="gone.away")
    schedule.install()
    row = PeriodicTask.objects.get(name=schedule.TICK_NAME)
    assert (row.enabled, row.task) == (True, schedule.TICK_TASK)
