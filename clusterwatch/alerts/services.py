"""From the outbox to the receivers: what is due, who has it in hand, what became of it.

In: ``IncidentChange`` rows that nobody has looked at. Out: ``Delivery`` rows and their states. A change
becomes its deliveries in one transaction with its mark, so none is lost and none is made twice; a delivery is
claimed before it is sent and again when its claim runs out, so a killed worker costs a second try at most. Of
what waits for one receiver about one incident only the newest is sent: an open never comes after its resolve.
"""

from __future__ import annotations

import random
import uuid
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Final

from django.db import transaction
from django.db.models import Q

from clusterwatch.accounts.services import audit
from clusterwatch.alerts import secrets
from clusterwatch.alerts.models import Delivery, Receiver
from clusterwatch.alerts.receivers import BadAddress, Outcome, kinds
from clusterwatch.fleet.models import Cluster
from clusterwatch.incidents.models import IncidentChange

CHANGES_AT_ONCE: Final = 500
CLAIM: Final = timedelta(seconds=60)
"""Longer than any try takes."""
FIRST_AGAIN_S: Final = 5.0
AGAIN_MAX_S: Final = 600.0
GIVE_UP_AFTER: Final = timedelta(hours=24)
_WAITS: Final = (Delivery.State.DUE, Delivery.State.SENDING)


# --- receivers -------------------------------------------------------------------------------------------


def add_receiver(name: str, kind: str, address: str, cluster: Cluster | None, actor: str) -> Receiver:
    """Makes a receiver.

    Raises:
        BadAddress: the kind, the name or the address cannot be used, in words.
    """
    made = kinds().get(kind)
    if made is None:
        raise BadAddress(f"no kind {kind!r}; there are {', '.join(sorted(kinds()))}")
    if not name.isprintable() or not 0 < len(name) <= 64:
        raise BadAddress("a name of 1 to 64 printable characters")
    checked = made().check(address)
    with transaction.atomic():
        if Receiver.objects.filter(name=name).exists():
            raise BadAddress(f"there is a receiver {name!r} already")
        receiver = Receiver.objects.create(
            name=name, kind=kind, address=checked, cluster=cluster, salt=secrets.new_salt()
        )
        audit(actor, "receiver.add", name, {}, {"kind": kind, "address": checked})
    return receiver


def remove_receiver(receiver: Receiver, actor: str) -> None:
    """Forgets a receiver and what was sent to it."""
    with transaction.atomic():
        audit(actor, "receiver.remove", receiver.name, {"address": receiver.address}, {})
        receiver.delete()


# --- the outbox ------------------------------------------------------------------------------------------


def enqueue(now: datetime) -> int:
    """Makes deliveries of changes that nobody looked at; returns how many deliveries."""
    with transaction.atomic():
        rows = IncidentChange.objects.select_for_update(skip_locked=True, of=("self",))
        waiting = rows.filter(queued_at__isnull=True).order_by("id")
        changes = list(waiting.select_related("incident__cluster")[:CHANGES_AT_ONCE])
        if not changes:
            return 0
        receivers = list(Receiver.objects.filter(enabled=True))
        deliveries = [
            Delivery(
                receiver=receiver, incident_id=change.incident_id, change=change, key=uuid.uuid4(),
                made_at=now, due_at=now,
            )
            for change in changes
            if is_told(change)
            for receiver in receivers
            if _is_for(receiver, change)
        ]  # fmt: skip
        made = len(Delivery.objects.bulk_create(deliveries, ignore_conflicts=True))
        IncidentChange.objects.filter(pk__in=[change.pk for change in changes]).update(queued_at=now)
    return made


def is_told(change: IncidentChange) -> bool:
    """Whether receivers hear of a change: an opening, another verdict of what was opened, its end."""
    if change.kind == "state":
        was_open = change.incident.opened_at is not None
        return change.after == "open" or (change.after == "resolved" and was_open)
    return change.kind == "verdict" and change.incident.opened_at is not None


def _is_for(receiver: Receiver, change: IncidentChange) -> bool:
    """A receiver of no cluster hears of all real ones; of a simulated one only a receiver of its own."""
    cluster = change.incident.cluster
    if cluster.observe_only:
        return False
    return receiver.cluster_id == cluster.pk or (receiver.cluster_id is None and not cluster.simulated)


def receivers_due(now: datetime) -> list[int]:
    """Receivers with something to send now that are not left alone after failures."""
    free = Receiver.objects.filter(Q(resume_at__isnull=True) | Q(resume_at__lte=now), enabled=True)
    due = Q(deliveries__state=Delivery.State.DUE, deliveries__due_at__lte=now)
    lost = Q(deliveries__state=Delivery.State.SENDING, deliveries__claimed_until__lte=now)
    return list(free.filter(due | lost).order_by("pk").values_list("pk", flat=True).distinct())


def claim(receiver_id: int, now: datetime) -> Delivery | None:
    """Takes the delivery that is due first for a receiver; what is older of its incident is superseded.

    A notice that is refused again and again waits by its own count, so it holds up no other incident.

    None while nothing is due, or another worker has a delivery of the same incident in hand.
    """
    with transaction.atomic():
        waiting = Delivery.objects.select_for_update().filter(receiver_id=receiver_id, state__in=_WAITS)
        rows = list(waiting.order_by("change_id")[:CHANGES_AT_ONCE])
        held = {row.incident_id for row in rows if _is_in_hand(row, now)}
        free = [row for row in rows if row.incident_id not in held]
        due = [row for row in free if row.state == Delivery.State.SENDING or row.due_at <= now]
        due.sort(key=lambda row: (row.due_at, row.change_id))
        if not due:
            return None
        mine = [row for row in free if row.incident_id == due[0].incident_id]
        newest, older = mine[-1], [row.pk for row in mine[:-1]]
        Delivery.objects.filter(pk__in=older).update(
            state=Delivery.State.SUPERSEDED, done_at=now, said="a newer notice of the same incident was sent"
        )
        newest.state, newest.claimed_until = Delivery.State.SENDING, now + CLAIM
        newest.attempts += 1
        newest.made_at = min(row.made_at for row in mine)
        newest.save(update_fields=["state", "claimed_until", "attempts", "made_at"])
    return newest


def _is_in_hand(row: Delivery, now: datetime) -> bool:
    until = row.claimed_until
    return row.state == Delivery.State.SENDING and until is not None and until > now


def settle(delivery: Delivery, outcome: Outcome, now: datetime) -> None:
    """Writes what became of a claimed delivery; nothing where its claim was lost meanwhile."""
    with transaction.atomic():
        mine = Delivery.objects.select_for_update().filter(
            pk=delivery.pk, state=Delivery.State.SENDING, attempts=delivery.attempts
        )
        if not mine.exists():
            return
        said = outcome.said[:255]
        if outcome.is_sent:
            mine.update(state=Delivery.State.SENT, done_at=now, said=said)
            Receiver.objects.filter(pk=delivery.receiver_id).update(
                failures=0, failing_since=None, resume_at=None
            )
            return
        receiver = Receiver.objects.select_for_update().get(pk=delivery.receiver_id)
        again = now + timedelta(seconds=outcome.again_s or _again_s(delivery.attempts))
        pause_s = outcome.again_s or _again_s(receiver.failures + 1)
        if outcome.is_permanent or now - delivery.made_at >= GIVE_UP_AFTER:
            mine.update(state=Delivery.State.FAILED, done_at=now, said=said)
        else:
            mine.update(state=Delivery.State.DUE, due_at=again, said=said)
        receiver.failures += 1
        receiver.failing_since = receiver.failing_since or now
        receiver.resume_at = None if outcome.is_permanent else now + timedelta(seconds=pause_s)
        receiver.save(update_fields=["failures", "failing_since", "resume_at"])


def _again_s(attempts: int) -> float:
    """Doubles with each try, with a spread, so that many do not come back at once."""
    base_s = min(AGAIN_MAX_S, FIRST_AGAIN_S * 2.0 ** min(attempts - 1, 10))
    return base_s * random.uniform(0.8, 1.2)  # noqa: S311 - a spread, no secret


# --- reads -----------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class ReceiverView:
    """A receiver with how it does."""

    receiver: Receiver
    waiting: int
    last: Delivery | None


def receivers() -> list[ReceiverView]:
    """All receivers by name, with what waits and the last that was done."""
    found = []
    for receiver in Receiver.objects.select_related("cluster").order_by("name"):
        mine = Delivery.objects.filter(receiver=receiver)
        waiting = mine.filter(state__in=_WAITS).count()
        found.append(ReceiverView(receiver, waiting, mine.exclude(done_at=None).order_by("-done_at").first()))
    return found


def newest_deliveries(count: int) -> Sequence[Delivery]:
    """The last deliveries that were made, the newest first."""
    return list(Delivery.objects.select_related("receiver", "incident", "change").order_by("-pk")[:count])


def of_incident(incident_id: int) -> Sequence[Delivery]:
    """Who was told of an incident, the newest first."""
    rows = Delivery.objects.filter(incident_id=incident_id).exclude(state=Delivery.State.SUPERSEDED)
    return list(rows.select_related("receiver", "change").order_by("-pk")[:50])
