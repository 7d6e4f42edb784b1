"""Receivers and what was sent to them."""

from __future__ import annotations

from django.db import models

from clusterwatch.fleet.models import Cluster
from clusterwatch.incidents.models import Incident, IncidentChange


class Receiver(models.Model):
    """Somebody or something that is told of incidents. No secret is stored: ``secrets.signing_key``."""

    class Kind(models.TextChoices):
        EMAIL = "email"
        WEBHOOK = "webhook"

    name = models.CharField(max_length=64, unique=True)
    kind = models.CharField(max_length=10, choices=Kind.choices)
    address = models.CharField(max_length=2_000)
    """mail addresses, separated by commas, or the URL of a webhook"""
    cluster = models.ForeignKey(Cluster, null=True, on_delete=models.CASCADE, related_name="+")
    """None: of every cluster that is not simulated"""
    enabled = models.BooleanField(default=True)
    salt = models.CharField(max_length=32)
    """of the signing key; another one makes another key"""
    created_at = models.DateTimeField(auto_now_add=True)
    failing_since = models.DateTimeField(null=True)
    """first of the failures in a row"""
    resume_at = models.DateTimeField(null=True)
    """nothing is tried before: a receiver that is down holds up nobody else"""
    failures = models.PositiveIntegerField(default=0)
    """in a row"""

    def __str__(self) -> str:
        return self.name


class Delivery(models.Model):
    """One change of an incident for one receiver. Sent at least once; ``key`` tells doubles apart."""

    class State(models.TextChoices):
        DUE = "due"
        SENDING = "sending"
        SENT = "sent"
        SUPERSEDED = "superseded"
        FAILED = "failed"

    receiver = models.ForeignKey(Receiver, on_delete=models.CASCADE, related_name="deliveries")
    incident = models.ForeignKey(Incident, on_delete=models.CASCADE, related_name="deliveries")
    change = models.ForeignKey(IncidentChange, on_delete=models.CASCADE, related_name="deliveries")
    key = models.UUIDField(unique=True)
    state = models.CharField(max_length=10, choices=State.choices, default=State.DUE)
    made_at = models.DateTimeField()
    due_at = models.DateTimeField()
    claimed_until = models.DateTimeField(null=True)
    attempts = models.PositiveIntegerField(default=0)
    done_at = models.DateTimeField(null=True)
    said = models.CharField(max_length=255, blank=True)
    """what the other side answered last, or why it could not be reached"""

    class Meta:
        constraints = [
            models.UniqueConstraint(fields=["receiver", "change"], name="one_delivery_per_change"),
        ]
        indexes = [
            models.Index(
                fields=["receiver", "due_at"],
                condition=models.Q(state__in=("due", "sending")),
                name="deliveries_that_wait",
            ),
        ]

    def __str__(self) -> str:
        return f"{self.receiver} {self.incident_id} {self.state}"
