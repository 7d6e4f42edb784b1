"""The seam between a poller of devices and whoever runs it.

A device is a thing that is asked from one place: a switch, a BMC, a rack's power, a scheduler. A poller
yields what each device told as its answer comes, so that one that hangs holds up nobody else's.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Protocol

from collectors.sources.base import OK, Reading


class ConfigError(ValueError):
    """A setting that cannot be used; the text names the key."""


@dataclass(frozen=True, slots=True)
class Device:
    """``kind``: switch, bmc, rack, scheduler, fabric or kubernetes; ``name``: as the site calls it."""

    kind: str
    name: str


@dataclass(frozen=True, slots=True)
class DeviceReading:
    """What one device told at one look.

    Attributes:
        state: ``ok``, or the reason why it gave nothing.
        node: the host that this device belongs to, if it belongs to one.
    """

    device: Device
    reading: Reading
    state: str = OK
    node: str = ""


class Poller(Protocol):
    """Asks its devices again and again, from one thread."""

    @property
    def name(self) -> str: ...

    @property
    def period_s(self) -> float:
        """Seconds between two polls."""
        ...

    @property
    def deadline_s(self) -> float:
        """A poll that takes longer is a fault of its own."""
        ...

    def poll(self, at_s: float) -> Iterable[DeviceReading]:
        """Each device as its answer comes, at most once; never raises for one device.

        Args:
            at_s: of a monotonic clock.
        """
        ...

    def close(self) -> None:
        """Lets go of connections."""
        ...
