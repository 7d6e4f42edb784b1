"""Users, teams, tokens, audit entries. Source: DESIGN 2 (enrolment) and 4."""

from __future__ import annotations

from django.contrib.auth.models import AbstractUser
from django.db import models


class Team(models.Model):
    """Who owns jobs and sees them; ``for_user()`` filters go through it."""

    name = models.CharField(max_length=100, unique=True)

    def __str__(self) -> str:
        return self.name


class User(AbstractUser):
    """A person. ``is_staff`` is the admin role; ``role`` the rest."""

    class Role(models.TextChoices):
        VIEWER = "viewer"
        OPERATOR = "operator"
        ADMIN = "admin"

    role = models.CharField(max_length=10, choices=Role.choices, default=Role.VIEWER)
    teams = models.ManyToManyField(Team, blank=True, related_name="members")


class Token(models.Model):
    """A secret shown once and stored as its SHA-256; ``prefix`` finds the row."""

    class Kind(models.TextChoices):
        USER = "user"
        ENROLMENT = "enrolment"
        NODE = "node"

    class Scope(models.TextChoices):
        READ = "read"
        WRITE = "write"
        ADMIN = "admin"
        INGEST = "ingest"

    kind = models.CharField(max_length=10, choices=Kind.choices)
    scope = models.CharField(max_length=10, choices=Scope.choices)
    name = models.CharField(max_length=255, blank=True)
    prefix = models.CharField(max_length=12, unique=True)
    digest = models.BinaryField(max_length=32)
    user = models.ForeignKey(User, null=True, blank=True, on_delete=models.CASCADE, related_name="tokens")
    cluster = models.CharField(max_length=255, blank=True)
    """Cluster name; empty on user tokens that see every cluster their user sees."""
    node = models.CharField(max_length=255, blank=True)
    machine_id = models.CharField(max_length=255, blank=True)
    created_at = models.DateTimeField(auto_now_add=True)
    expires_at = models.DateTimeField(null=True, blank=True)
    last_used_at = models.DateTimeField(null=True, blank=True)
    revoked_at = models.DateTimeField(null=True, blank=True)

    class Meta:
        constraints = [
            models.UniqueConstraint(
                fields=["cluster", "node"],
                condition=models.Q(kind="node", revoked_at__isnull=True),
                name="one_live_credential_per_node",
            ),
        ]

    def __str__(self) -> str:
        return f"{self.kind} {self.prefix}"


class AuditEntry(models.Model):
    """Who did what, when, with the values before and after; written in the transaction of the act."""

    at = models.DateTimeField(auto_now_add=True, db_index=True)
    actor = models.CharField(max_length=255)
    action = models.CharField(max_length=100)
    target = models.CharField(max_length=255)
    before = models.JSONField(null=True)
    after = models.JSONField(null=True)

    class Meta:
        ordering = ["-id"]

    def __str__(self) -> str:
        return f"{self.actor} {self.action} {self.target}"
