"""Reads of accounts: tokens and the audit log."""

from __future__ import annotations

from django.db.models import QuerySet

from clusterwatch.accounts.models import AuditEntry, Token


def tokens(cluster: str = "", *, with_nodes: bool = False) -> QuerySet[Token]:
    """Tokens, newest first; nodes' credentials only on request, since a fleet has thousands."""
    found = Token.objects.select_related("user").order_by("-id")
    if not with_nodes:
        found = found.exclude(kind=Token.Kind.NODE)
    return found.filter(cluster=cluster) if cluster else found


def newest_node_credential(cluster: str, node: str) -> Token | None:
    """The credential a node was given last, revoked or not."""
    return Token.objects.filter(kind=Token.Kind.NODE, cluster=cluster, node=node).order_by("-id").first()


def audit_entries(target: str = "") -> QuerySet[AuditEntry]:
    """The audit log, newest first; callers page it."""
    entries = AuditEntry.objects.all()
    return entries.filter(target=target) if target else entries
