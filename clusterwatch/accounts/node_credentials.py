"""Tokens of nodes, many at once: a gateway restart brings thousands of hellos within seconds.

What a token may do is decided as in ``accounts.services``; here it costs a few statements for all.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass

from django.db import transaction
from django.utils import timezone

from clusterwatch.accounts import services
from clusterwatch.accounts.models import AuditEntry, Token
from clusterwatch.accounts.services import TokenRefused


def verify_tokens(secrets: Iterable[str], kinds: Collection[str]) -> dict[str, Token | TokenRefused]:
    """What ``services.verify_token`` answers or raises for each secret. Cost: two statements."""
    wanted = set(secrets)
    prefixes = [prefix for secret in wanted if (prefix := services.prefix_of(secret)) is not None]
    rows = {row.prefix: row for row in Token.objects.select_related("user").filter(prefix__in=prefixes)}
    found: dict[str, Token | TokenRefused] = {}
    for secret in wanted:
        try:
            found[secret] = services.check_token(secret, rows.get(services.prefix_of(secret) or ""), kinds)
        except TokenRefused as refusal:
            found[secret] = refusal
    services.note_use([token for token in found.values() if isinstance(token, Token)])
    return found


def newest_of_nodes(cluster: str, nodes: Collection[str]) -> Mapping[str, Token]:
    """The credential each node was given last, revoked or not."""
    rows = Token.objects.filter(kind=Token.Kind.NODE, cluster=cluster, node__in=nodes).order_by("pk")
    return {row.node: row for row in rows}


@dataclass(frozen=True, slots=True)
class Wish:
    """A node that may have a credential; the caller has checked that (enrolment token, machine id)."""

    node: str
    machine_id: str
    actor: str


def issue(cluster: str, wishes: Sequence[Wish]) -> dict[str, str]:
    """Gives each node its credential; an older one of the same node ends. Returns secrets by node.

    Cost: five statements. Each credential has its line in the audit log, as one by one.
    """
    with transaction.atomic():
        _end_older(cluster, wishes)
        made = {wish.node: _credential(cluster, wish) for wish in wishes}
        Token.objects.bulk_create([token for token, _ in made.values()])
        AuditEntry.objects.bulk_create(
            AuditEntry(
                actor=wish.actor,
                action="token.create",
                target=str(made[wish.node][0]),
                after=services.describe(made[wish.node][0]),
            )
            for wish in wishes
        )
    return {node: secret for node, (_, secret) in made.items()}


def _end_older(cluster: str, wishes: Sequence[Wish]) -> None:
    actors = {wish.node: wish.actor for wish in wishes}
    living = list(
        Token.objects.filter(
            kind=Token.Kind.NODE, cluster=cluster, node__in=list(actors), revoked_at__isnull=True
        )
        .order_by("pk")
        .select_for_update()
    )
    if not living:
        return
    entries = []
    for token in living:
        before = services.describe(token)
        token.revoked_at = timezone.now()
        entries.append(
            AuditEntry(
                actor=actors[token.node], action="token.revoke", target=str(token), before=before,
                after=services.describe(token),
            )
        )  # fmt: skip
    Token.objects.bulk_update(living, ["revoked_at"])
    AuditEntry.objects.bulk_create(entries)


def _credential(cluster: str, wish: Wish) -> tuple[Token, str]:
    return services.new_token(
        Token.Kind.NODE,
        Token.Scope.INGEST,
        cluster=cluster,
        node=wish.node,
        machine_id=wish.machine_id,
        name=wish.node,
    )
