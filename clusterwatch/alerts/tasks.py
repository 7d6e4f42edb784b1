"""Celery tasks of notices: make deliveries of the outbox, and hand each receiver to a task of its own."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Final

from celery import shared_task

from clusterwatch.alerts import deliver, schedule, services
from clusterwatch.store import hot

LEASE_S: Final = 40.0
"""Longer than a round of one receiver may take."""


@shared_task(
    name="alerts.deliver", expires=schedule.DELIVER_S, soft_time_limit=8, time_limit=12, ignore_result=True
)
def deliver_all() -> int:
    """Looks at the outbox, then starts a round for every receiver that has something due."""
    now = datetime.now(UTC)
    services.enqueue(now)
    ids = services.receivers_due(now)
    for receiver_id in ids:
        deliver_to.apply_async((receiver_id,), expires=10)
    return len(ids)


@shared_task(name="alerts.deliver_to", soft_time_limit=30, time_limit=35, ignore_result=True)
def deliver_to(receiver_id: int) -> int:
    """Sends to one receiver what is due; one round at a time."""
    with hot.leased(f"alerts:{receiver_id}", LEASE_S) as is_ours:
        return deliver.to_receiver(receiver_id) if is_ours else 0
