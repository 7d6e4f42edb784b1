"""Scopes of tokens and roles of people, on every endpoint."""

from __future__ import annotations

from typing import Any

from rest_framework.permissions import SAFE_METHODS, BasePermission
from rest_framework.request import Request

from clusterwatch.accounts.models import Token

_WRITES = (Token.Scope.WRITE, Token.Scope.ADMIN)
_READS = (Token.Scope.READ, *_WRITES)


class ScopePermission(BasePermission):
    """Reading needs a session or a reading token; changing an operator, and by token a writing one."""

    message = "this token's scope, or your role, does not allow that"
    code = "scope"

    def has_permission(self, request: Request, view: Any) -> bool:
        user, token = request.user, request.auth
        if not user or not user.is_authenticated:
            return False
        if isinstance(token, Token) and token.scope not in (
            _READS if request.method in SAFE_METHODS else _WRITES
        ):
            return False
        if request.method in SAFE_METHODS:
            return True
        return bool(user.is_staff or user.role in ("operator", "admin"))
