"""``Authorization: Bearer TOKEN`` for REST v1."""

from rest_framework.authentication import BaseAuthentication
from rest_framework.request import Request


class TokenAuthentication(BaseAuthentication):
    def authenticate(self, request: Request) -> None:
        return None
