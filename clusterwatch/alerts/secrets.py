"""Keys that sign notices: made of the installation's secret key and a receiver's salt, stored nowhere."""

from __future__ import annotations

import hashlib
import hmac
import secrets

from django.conf import settings


def new_salt() -> str:
    """A salt; another one makes another key."""
    return secrets.token_hex(16)


def signing_key(salt: str) -> str:
    """The key of a receiver, 64 hex digits."""
    return hmac.new(settings.SECRET_KEY.encode(), f"receiver:{salt}".encode(), hashlib.sha256).hexdigest()
