"""The OpenAPI description: every operation that asks for a token also names its errors."""

from __future__ import annotations

from typing import Any

from drf_spectacular.openapi import AutoSchema

from clusterwatch.api.serializers import ErrorSerializer

_TEXTS = {
    "400": "a value is not allowed",
    "401": "no token, or one that opens nothing",
    "403": "the token's scope or the person's role does not allow it",
    "404": "there is no such thing, or not for this token",
}


class Schema(AutoSchema):
    """Adds the error shape of ``api.errors`` to what the views declare."""

    def _get_response_bodies(self, direction: Any = "response") -> dict[str, Any]:
        bodies: dict[str, Any] = super()._get_response_bodies(direction)
        if not self.get_auth():
            return bodies
        for status, text in _TEXTS.items():
            body = self._get_response_for_code(ErrorSerializer, status, direction=direction)  # type: ignore[no-untyped-call]
            bodies[status] = {**body, "description": text}
        return bodies
