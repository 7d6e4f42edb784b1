"""The beat schedule of ingest, as rows of django-celery-beat; ``install`` runs after each migration."""

from __future__ import annotations

from typing import Any, Final

from clusterwatch.store import beat

FLEET_EVERY_S: Final = 15
"""A minute is built 60 to 75 s after its end; a run with nothing due costs one query per cluster."""
FLEET_NAME: Final = "minutes of the fleets, every 15 seconds"
FLEET_TASK: Final = "ingest.fleet_minutes"


def install(**_signal: Any) -> None:
    """Writes the schedule; running it again changes nothing."""
    beat.install(FLEET_NAME, FLEET_TASK, FLEET_EVERY_S, FLEET_EVERY_S)
