"""What can go wrong while the product is started, each said in one line a person can act on."""

from __future__ import annotations


class OpsError(Exception):
    """A start, stop or check that cannot go on; its text is one line: what is wrong and what to do."""


class ServerFailed(OpsError):
    """An embedded server did not start or stopped by itself."""
