"""The beat schedule of detection, as rows of django-celery-beat.

``install`` runs after each migration and at each start of beat's process; running it again changes nothing.
"""

from __future__ import annotations

from typing import Any, Final

from clusterwatch.store import beat

TICK_S: Final = 1
TICK_EXPIRES_S: Final = 1.5
JOB_EXPIRES_S: Final = 1.5
TICK_KEEP_S: Final = 2
"""The same for beat's row, which holds whole seconds."""
TICK_NAME: Final = "detection, every second"
TICK_TASK: Final = "detect.tick"
SLOW_EVERY_S: Final = 10
"""As often as agents send steps."""
SLOW_NAME: Final = "steps of all jobs, every ten seconds"
SLOW_TASK: Final = "detect.slow"
DRIFT_EVERY_S: Final = 60
"""As often as nodes send all they know."""
DRIFT_NAME: Final = "nodes against their peers, every minute"
DRIFT_TASK: Final = "detect.drift"
HEALTH_EVERY_S: Final = 5
HEALTH_NAME: Final = "faults of parts, every five seconds"
HEALTH_TASK: Final = "detect.health"
PARTS_EVERY_S: Final = 300
"""Parts change places by hand."""
PARTS_NAME: Final = "parts by serial, every five minutes"
PARTS_TASK: Final = "detect.parts"
GOODPUT_EVERY_S: Final = 60
GOODPUT_NAME: Final = "time of all jobs, every minute"
GOODPUT_TASK: Final = "detect.goodput"


def install(**_signal: Any) -> None:
    """Writes the schedule; running it again changes nothing."""
    beat.install(TICK_NAME, TICK_TASK, TICK_S, TICK_KEEP_S)
    beat.install(SLOW_NAME, SLOW_TASK, SLOW_EVERY_S, SLOW_EVERY_S)
    beat.install(DRIFT_NAME, DRIFT_TASK, DRIFT_EVERY_S, DRIFT_EVERY_S)
    beat.install(HEALTH_NAME, HEALTH_TASK, HEALTH_EVERY_S, HEALTH_EVERY_S)
    beat.install(PARTS_NAME, PARTS_TASK, PARTS_EVERY_S, PARTS_EVERY_S)
    beat.install(GOODPUT_NAME, GOODPUT_TASK, GOODPUT_EVERY_S, GOODPUT_EVERY_S)
