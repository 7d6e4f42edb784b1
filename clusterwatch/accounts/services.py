"""Writes of accounts: tokens, the admin user, the audit log.

A token is ``cw_<kind letter>_<prefix>_<random>``: the prefix finds its row, the random part (256 bits) is the
secret. Only its SHA-256 is stored; a random secret needs no slow hash.
"""

from __future__ import annotations

import hashlib
import hmac
import re
import secrets
from collections.abc import Collection, Sequence
from datetime import datetime, timedelta
from typing import Any, Final

from django.db import transaction
from django.db.models import Q
from django.utils import timezone

from clusterwatch.accounts.models import AuditEntry, Token, User

ADMIN_NAME: Final = "admin"
LAST_USED_EVERY: Final = timedelta(minutes=1)
"""``last_used_at`` is no finer than this, so that a busy token costs no write per request."""

_LETTERS: Final = {Token.Kind.USER: "u", Token.Kind.ENROLMENT: "e", Token.Kind.NODE: "n"}
_SECRET: Final = re.compile(r"cw_([uen])_([0-9a-z]{12})_([A-Za-z0-9_-]{43})")
_ALPHABET: Final = "0123456789abcdefghijklmnopqrstuvwxyz"
_NO_DIGEST: Final = bytes(32)


class TokenRefused(ValueError):
    """A token that opens nothing; ``code`` is ``unknown``, ``revoked``, ``expired`` or ``wrong_kind``."""

    def __init__(self, code: str, text: str) -> None:
        super().__init__(text)
        self.code = code


def create_token(
    kind: str,
    scope: str,
    *,
    user: User | None = None,
    cluster: str = "",
    node: str = "",
    machine_id: str = "",
    name: str = "",
    expires_at: datetime | None = None,
    actor: str = "clusterwatch",
) -> tuple[Token, str]:
    """Makes a token; the returned secret is shown once and cannot be read again.

    Raises:
        ValueError: an unknown kind or scope, or an enrolment or node token without its cluster.
    """
    if kind not in Token.Kind.values or scope not in Token.Scope.values:
        raise ValueError(f"no token of kind {kind!r} with scope {scope!r}")
    if kind != Token.Kind.USER and not cluster:
        raise ValueError(f"an {kind} token belongs to a cluster: name it")
    with transaction.atomic():
        token, secret = new_token(
            kind, scope, name=name, user=user, cluster=cluster, node=node, machine_id=machine_id,
            expires_at=expires_at,
        )  # fmt: skip
        token.save(force_insert=True)
        audit(actor, "token.create", str(token), None, describe(token))
    return token, secret


def new_token(kind: str, scope: str, **fields: Any) -> tuple[Token, str]:
    """A token that is not stored yet, and its secret."""
    prefix = "".join(secrets.choice(_ALPHABET) for _ in range(12))
    secret = f"cw_{_LETTERS[Token.Kind(kind)]}_{prefix}_{secrets.token_urlsafe(32)}"
    return Token(kind=kind, scope=scope, prefix=prefix, digest=_digest(secret), **fields), secret


def verify_token(secret: str, kinds: Collection[str]) -> Token:
    """The living token that ``secret`` is, of one of ``kinds``; notes its use at most once a minute.

    Raises:
        TokenRefused: it is unknown, revoked, expired or of another kind.
    """
    prefix = prefix_of(secret)
    row = Token.objects.select_related("user").filter(prefix=prefix).first() if prefix else None
    token = check_token(secret, row, kinds)
    note_use([token])
    return token


def prefix_of(secret: str) -> str | None:
    """What finds a token's row; None for what can be no secret."""
    match = _SECRET.fullmatch(secret)
    return match[2] if match else None


def check_token(secret: str, token: Token | None, kinds: Collection[str]) -> Token:
    """The token if ``secret`` is that of the row found by its prefix. Raises ``TokenRefused``."""
    # A digest is compared even without a row, so that the time tells nothing about which prefixes exist.
    stored = bytes(token.digest) if token else _NO_DIGEST
    if not hmac.compare_digest(stored, _digest(secret)) or token is None:
        raise TokenRefused("unknown", "this token is not known here")
    if token.kind not in kinds:
        raise TokenRefused("wrong_kind", f"a {token.kind} token does not open this")
    _check_alive(token)
    return token


def revoke_token(token: Token, *, actor: str) -> bool:
    """Ends a token for good; False when it had been revoked already."""
    with transaction.atomic():
        before = describe(token)
        done = Token.objects.filter(pk=token.pk, revoked_at__isnull=True).update(revoked_at=timezone.now())
        if not done:
            return False
        token.refresh_from_db()
        audit(actor, "token.revoke", str(token), before, describe(token))
    return True


def issue_node_credential(cluster: str, node: str, machine_id: str, *, actor: str) -> str:
    """Gives a node its credential; an older one of the same node ends.

    The caller has checked that the node may have one (enrolment token, machine id). Runs in its transaction.
    """
    for old in Token.objects.filter(
        kind=Token.Kind.NODE, cluster=cluster, node=node, revoked_at__isnull=True
    ).select_for_update():
        revoke_token(old, actor=actor)
    _, secret = create_token(
        Token.Kind.NODE,
        Token.Scope.INGEST,
        cluster=cluster,
        node=node,
        machine_id=machine_id,
        name=node,
        actor=actor,
    )
    return secret


def forget_node_binding(cluster: str, node: str, *, actor: str) -> int:
    """Lets another machine take a node's name: its credentials, revoked ones too, are removed.

    An operator's act: without it a name stays bound to its machine. Returns how many were removed.
    """
    with transaction.atomic():
        removed, _ = Token.objects.filter(kind=Token.Kind.NODE, cluster=cluster, node=node).delete()
        audit(actor, "node.forget_binding", f"{cluster}/{node}"[:255], {"credentials": removed}, None)
    return removed


def ensure_admin(password: str) -> User:
    """The admin user, made with ``password`` when there is none; an existing password stays."""
    with transaction.atomic():
        user, made = User.objects.get_or_create(
            username=ADMIN_NAME,
            defaults={"is_staff": True, "is_superuser": True, "role": User.Role.ADMIN},
        )
        if made:
            user.set_password(password)
            user.save(update_fields=["password"])
            audit("clusterwatch", "user.create", ADMIN_NAME, None, {"role": User.Role.ADMIN})
    return user


def audit(actor: str, action: str, target: str, before: Any = None, after: Any = None) -> AuditEntry:
    """Writes who did what; call it inside the transaction of the act. Values are JSON, never secrets."""
    return AuditEntry.objects.create(actor=actor, action=action, target=target, before=before, after=after)


def _digest(secret: str) -> bytes:
    return hashlib.sha256(secret.encode()).digest()


def _check_alive(token: Token) -> None:
    if token.revoked_at is not None:
        raise TokenRefused("revoked", f"this token was revoked at {token.revoked_at:%Y-%m-%d %H:%M} UTC")
    if token.expires_at is not None and token.expires_at <= timezone.now():
        raise TokenRefused("expired", f"this token expired at {token.expires_at:%Y-%m-%d %H:%M} UTC")
    if token.user is not None and not token.user.is_active:
        raise TokenRefused("revoked", "the person of this token may not enter any more")


def note_use(tokens: Sequence[Token]) -> None:
    """Notes that tokens were used, each at most once a minute."""
    now = timezone.now()
    due = [t for t in tokens if t.last_used_at is None or t.last_used_at < now - LAST_USED_EVERY]
    if due:
        stale = Q(last_used_at__isnull=True) | Q(last_used_at__lt=now - LAST_USED_EVERY)
        Token.objects.filter(stale, pk__in=[token.pk for token in due]).update(last_used_at=now)
    for token in due:
        token.last_used_at = now


def describe(token: Token) -> dict[str, Any]:
    """What the audit log keeps of a token: everything but the secret."""
    return {
        "kind": token.kind,
        "scope": token.scope,
        "name": token.name,
        "cluster": token.cluster,
        "node": token.node,
        "user": token.user.username if token.user else None,
        "expires_at": token.expires_at.isoformat() if token.expires_at else None,
        "revoked_at": token.revoked_at.isoformat() if token.revoked_at else None,
    }
