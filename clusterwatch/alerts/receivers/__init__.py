"""One module for each kind of receiver: ``check`` an address, ``send`` a notice."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final, Protocol

from clusterwatch.alerts.notice import Notice


class BadAddress(ValueError):
    """An address that nothing can be sent to; the text says why."""


@dataclass(frozen=True, slots=True)
class Target:
    """Where a notice goes and what signs it."""

    name: str
    address: str
    signing_key: str


@dataclass(frozen=True, slots=True)
class Outcome:
    """What became of one try. ``again_s``: the other side asked to wait so long."""

    is_sent: bool
    is_permanent: bool
    said: str
    again_s: float | None = None


class Kind(Protocol):
    """A kind of receiver."""

    def check(self, address: str) -> str:
        """The address as it is stored. Raises ``BadAddress``."""
        ...

    def send(self, target: Target, notice: Notice, key: str) -> Outcome:
        """One try; never raises for what the other side does. ``key``: the same for tries of one notice."""
        ...


def kinds() -> dict[str, Callable[[], Kind]]:
    """Kind by name."""
    from clusterwatch.alerts.receivers.email import Email
    from clusterwatch.alerts.receivers.webhook import Webhook

    return {"email": Email, "webhook": Webhook}


SENT: Final = "accepted"
