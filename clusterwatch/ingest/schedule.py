"""The beat schedule of ingest, as rows of django-celery-beat; ``install`` runs after each migration."""

from __future__ import annotations

from typing import Any, Final

from django_celery_beat.models import IntervalSchedule, PeriodicTask

FLEET_EVERY_S: Final = 15
"""A minute is built 60 to 75 s after its end; a run with nothing due costs one query per cluster."""
FLEET_NAME: Final = "minutes of the fleets, every 15 seconds"
FLEET_TASK: Final = "ingest.fleet_minutes"


def install(**_signal: Any) -> None:
    """Writes the schedule; only what differs is written, since each write makes beat read it all again."""
    every, _ = IntervalSchedule.objects.get_or_create(every=FLEET_EVERY_S, period=IntervalSchedule.SECONDS)
    wanted = {"task": FLEET_TASK, "interval": every, "enabled": True, "expire_seconds": FLEET_EVERY_S}
    row, made = PeriodicTask.objects.get_or_create(name=FLEET_NAME, defaults=wanted)
    changed = {name: value for name, value in wanted.items() if getattr(row, name) != value}
    if made or not changed:
        return
    for name, value in changed.items():
        setattr(row, name, value)
    row.save()
