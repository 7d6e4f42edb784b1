"""The beat schedule of deliveries, as a row of django-celery-beat."""

from __future__ import annotations

from typing import Any, Final

from clusterwatch.store import beat

DELIVER_S: Final = 2
DELIVER_NAME: Final = "notices of incidents, every two seconds"
DELIVER_TASK: Final = "alerts.deliver"


def install(**_signal: Any) -> None:
    """Writes the schedule; running it again changes nothing."""
    beat.install(DELIVER_NAME, DELIVER_TASK, DELIVER_S, DELIVER_S)
