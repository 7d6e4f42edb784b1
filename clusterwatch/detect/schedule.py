"""The beat schedule of detection, as rows of django-celery-beat.

``install`` runs after each migration and at each start of beat's process; running it again changes nothing.
"""

from __future__ import annotations

from typing import Any, Final

from django_celery_beat.models import IntervalSchedule, PeriodicTask

TICK_S: Final = 1
TICK_EXPIRES_S: Final = 1.5
JOB_EXPIRES_S: Final = 1.5
TICK_KEEP_S: Final = 2
"""The same for beat's row, which holds whole seconds."""
TICK_NAME: Final = "detection, every second"
TICK_TASK: Final = "detect.tick"


def install(**_signal: Any) -> None:
    """Writes the schedule; only what differs is written, since each write makes beat read it all again."""
    every, _ = IntervalSchedule.objects.get_or_create(every=TICK_S, period=IntervalSchedule.SECONDS)
    wanted = {"task": TICK_TASK, "interval": every, "enabled": True, "expire_seconds": TICK_KEEP_S}
    row, made = PeriodicTask.objects.get_or_create(name=TICK_NAME, defaults=wanted)
    changed = {name: value for name, value in wanted.items() if getattr(row, name) != value}
    if made or not changed:
        return
    for name, value in changed.items():
        setattr(row, name, value)
    row.save()
