"""Rows of django-celery-beat: what runs every so many seconds."""

from __future__ import annotations

from django_celery_beat.models import IntervalSchedule, PeriodicTask


def install(name: str, task: str, every_s: int, expire_s: int) -> None:
    """Writes one periodic task, and only where it differs: each write makes beat read all of them again."""
    every, _ = IntervalSchedule.objects.get_or_create(every=every_s, period=IntervalSchedule.SECONDS)
    wanted = {"task": task, "interval": every, "enabled": True, "expire_seconds": expire_s}
    row, made = PeriodicTask.objects.get_or_create(name=name, defaults=wanted)
    changed = {field: value for field, value in wanted.items() if getattr(row, field) != value}
    if made or not changed:
        return
    for field, value in changed.items():
        setattr(row, field, value)
    row.save()
