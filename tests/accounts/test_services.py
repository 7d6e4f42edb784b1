"""Tokens, credentials, the admin and the audit log."""

from __future__ import annotations

from datetime import timedelta

import pytest
from django.db import IntegrityError, transaction
from django.utils import timezone

from clusterwatch.accounts.models import AuditEntry, Token, User
from clusterwatch.accounts.services import (
    TokenRefused,
    create_token,
    ensure_admin,
    forget_node_binding,
    issue_node_credential,
    revoke_token,
    verify_token,
)

pytestmark = pytest.mark.django_db


def refused(secret: str, kind: str = "user") -> str:
    with pytest.raises(TokenRefused) as caught:
        verify_token(secret, [kind])
    return caught.value.code


def test_a_token_opens_with_its_secret_and_only_a_hash_is_kept() -> None:
    token, secret = create_token("user", "read", name="mine")
    assert secret.startswith(f"cw_u_{token.prefix}_")
    assert verify_token(secret, ["user"]) == token
    assert secret.rsplit("_", 1)[1].encode() not in bytes(Token.objects.get().digest)


@pytest.mark.parametrize("bad", ["", "cw_u_x", "Bearer", "cw_u_000000000000_" + "a" * 43, "\x00", "é" * 60])
def test_what_is_no_token_is_unknown(bad: str) -> None:
    assert refused(bad) == "unknown"


def test_a_changed_secret_of_a_known_prefix_is_unknown() -> None:
    _, secret = create_token("user", "read")
    changed = secret[:-1] + ("A" if secret[-1] != "A" else "B")
    assert refused(changed) == "unknown"


def test_a_token_of_another_kind_does_not_open() -> None:
    _, secret = create_token("enrolment", "ingest", cluster="tiny")
    assert refused(secret, "node") == "wrong_kind"


def test_revoked_and_expired_tokens_and_those_of_people_who_left_do_not_open() -> None:
    token, secret = create_token("user", "read")
    assert revoke_token(token, actor="ada") and not revoke_token(token, actor="ada")
    assert refused(secret) == "revoked"
    _, old = create_token("user", "read", expires_at=timezone.now() - timedelta(seconds=1))
    assert refused(old) == "expired"
    _, left = create_token("user", "read", user=User.objects.create(username="bob", is_active=False))
    assert refused(left) == "revoked"


def test_the_use_of_a_token_is_noted_at_most_once_a_minute() -> None:
    _, secret = create_token("user", "read")
    first = verify_token(secret, ["user"]).last_used_at
    assert first is not None
    assert verify_token(secret, ["user"]).last_used_at == first
    Token.objects.update(last_used_at=first - timedelta(minutes=2))
    again = verify_token(secret, ["user"]).last_used_at
    assert again is not None and again >= first


def test_a_node_has_one_live_credential() -> None:
    first = issue_node_credential("tiny", "n1", "m1", actor="test")
    second = issue_node_credential("tiny", "n1", "m1", actor="test")
    assert refused(first, "node") == "revoked"
    assert verify_token(second, ["node"]).machine_id == "m1"
    with pytest.raises(IntegrityError), transaction.atomic():
        create_token("node", "ingest", cluster="tiny", node="n1")
    assert forget_node_binding("tiny", "n1", actor="ada") == 2
    assert refused(second, "node") == "unknown"


def test_impossible_tokens_are_not_made() -> None:
    with pytest.raises(ValueError, match="scope"):
        create_token("user", "everything")
    with pytest.raises(ValueError, match="cluster"):
        create_token("enrolment", "ingest")


def test_the_admin_keeps_a_changed_password() -> None:
    admin = ensure_admin("first-password")
    assert admin.check_password("first-password") and admin.is_superuser
    assert ensure_admin("second-password").check_password("first-password")


def test_every_act_is_in_the_audit_log_without_the_secret() -> None:
    token, secret = create_token("user", "read", actor="ada")
    revoke_token(token, actor="bob")
    entries = list(AuditEntry.objects.order_by("id"))
    assert [(e.actor, e.action) for e in entries] == [("ada", "token.create"), ("bob", "token.revoke")]
    assert all(secret not in f"{e.before}{e.after}" for e in entries)
    before, after = entries[1].before, entries[1].after
    assert before is not None and after is not None
    assert before["revoked_at"] is None and after["revoked_at"] is not None
