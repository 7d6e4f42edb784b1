"""Sends what is due to one receiver: claims, builds the notice of what is true now, sends, settles."""

from __future__ import annotations

import time
import uuid
from datetime import UTC, datetime
from typing import Final

from django.conf import settings

from clusterwatch.alerts import notice, secrets, services
from clusterwatch.alerts.models import Delivery, Receiver
from clusterwatch.alerts.receivers import Outcome, Target, kinds
from clusterwatch.incidents.models import Incident

BUDGET_S: Final = 15.0
"""Of one round for one receiver; what is left waits for the next."""


def to_receiver(receiver_id: int) -> int:
    """Sends until nothing is due, the time is over or a try fails; returns how many were sent."""
    receiver = Receiver.objects.filter(pk=receiver_id, enabled=True).first()
    if receiver is None:
        return 0
    until_s, sent = time.monotonic() + BUDGET_S, 0
    while time.monotonic() < until_s:
        delivery = services.claim(receiver_id, datetime.now(UTC))
        if delivery is None:
            return sent
        outcome = _send(receiver, delivery)
        services.settle(delivery, outcome, datetime.now(UTC))
        if not outcome.is_sent and not outcome.is_permanent:
            return sent
        sent += outcome.is_sent
    return sent


def test(receiver: Receiver, actor: str) -> Outcome:
    """Sends a notice that says it is a test, at once and once."""
    told = notice.of_test(receiver.name, actor, settings.PUBLIC_URL)
    return kinds()[receiver.kind]().send(_target(receiver), told, str(uuid.uuid4()))


def _send(receiver: Receiver, delivery: Delivery) -> Outcome:
    incident = Incident.objects.select_related("cluster", "job").get(pk=delivery.incident_id)
    event, was = _event(delivery, incident), delivery.change.before
    told = notice.of_incident(incident, event, was, settings.PUBLIC_URL)
    return kinds()[receiver.kind]().send(_target(receiver), told, str(delivery.key))


def _event(delivery: Delivery, incident: Incident) -> str:
    """What is true now: an incident that is over is told as over, whichever change waited."""
    if incident.state == Incident.State.RESOLVED:
        return notice.RESOLVED
    return notice.CHANGED if delivery.change.kind == "verdict" else notice.OPENED


def _target(receiver: Receiver) -> Target:
    return Target(receiver.name, receiver.address, secrets.signing_key(receiver.salt))
