"""Reads of accounts: tokens."""

from __future__ import annotations

from django.db.models import QuerySet

from clusterwatch.accounts.models import Token


def tokens(cluster: str = "", *, with_nodes: bool = False) -> QuerySet[Token]:
    """Tokens, newest first; nodes' credentials only on request, since a fleet has thousands."""
    found = Token.objects.select_related("user").order_by("-id")
    if not with_nodes:
        found = found.exclude(kind=Token.Kind.NODE)
    return found.filter(cluster=cluster) if cluster else found
