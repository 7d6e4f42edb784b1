"""``Authorization: Bearer TOKEN`` for REST v1."""

from __future__ import annotations

from typing import Any

from drf_spectacular.extensions import OpenApiAuthenticationExtension
from rest_framework.authentication import BaseAuthentication
from rest_framework.exceptions import AuthenticationFailed
from rest_framework.request import Request

from clusterwatch.accounts.models import Token, User
from clusterwatch.accounts.services import TokenRefused, verify_token


class TokenAuthentication(BaseAuthentication):
    """Opens with a user token; ``request.auth`` is the ``accounts.Token``."""

    def authenticate(self, request: Request) -> tuple[User, Token] | None:
        header = str(request.headers.get("Authorization", ""))
        word, _, secret = header.partition(" ")
        if word.lower() != "bearer":
            return None
        try:
            token = verify_token(secret.strip(), [Token.Kind.USER])
        except TokenRefused as refused:
            raise AuthenticationFailed(str(refused), code=f"token_{refused.code}") from refused
        if token.user is None:
            raise AuthenticationFailed("this token belongs to nobody", code="token_unknown")
        return token.user, token

    def authenticate_header(self, request: Request) -> str:
        return "Bearer"


class TokenScheme(OpenApiAuthenticationExtension):  # type: ignore[no-untyped-call]
    """How the token stands in the OpenAPI description."""

    target_class = TokenAuthentication
    name = "token"

    def get_security_definition(self, auto_schema: Any) -> dict[str, str]:
        return {"type": "http", "scheme": "bearer"}
