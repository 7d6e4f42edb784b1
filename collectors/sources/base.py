"""The seam between a source and whoever runs it (the agent, ``once``, a test)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, Protocol, runtime_checkable

import msgspec

from collectors.minute import MetricSpec
from collectors.sources.tree import Tree
from collectors.wire.records import Severity

HOST: Final = "host"
OK: Final = "ok"
FIRST_SAMPLE: Final = "first_sample"
RESET: Final = "reset"


class Sample(msgspec.Struct, frozen=True, gc=False):
    """One value. None has its reason in ``quality``; a value that is there may have one, too.

    A struct, since thousands are made a second: a frozen dataclass costs six times as much.
    """

    entity: str
    metric: str
    value: float | None
    quality: str = OK
    labels: dict[str, str] = {}
    """what tells samples of one entity and metric apart, such as a MIG instance"""


Attribute = str | int | float | bool | None | list[str] | list[int]
"""What an event may say of itself: JSON, so that ``once`` prints numbers as numbers."""


@dataclass(frozen=True, slots=True)
class SourceEvent:
    """Something a source saw happen, or a fault that stands. ``t_ns`` None: now.

    Attributes:
        standing: the fault is there at this look, as it may have been before; ``News`` tells what is new.
    """

    entity: str
    kind: str
    message: str
    severity: Severity = "warning"
    code: int | None = None
    t_ns: int | None = None
    attributes: Mapping[str, Attribute] = field(default_factory=dict)
    standing: bool = False


@dataclass(frozen=True, slots=True)
class Reading:
    """What one look gave."""

    samples: Sequence[Sample] = ()
    events: Sequence[SourceEvent] = ()


class Source(Protocol):
    """One thing that is watched. ``read`` runs in the source's own thread, never twice at once."""

    @property
    def name(self) -> str: ...

    @property
    def period_s(self) -> float:
        """Seconds between two looks."""
        ...

    @property
    def deadline_s(self) -> float:
        """A look that takes longer is a fault of its own."""
        ...

    @property
    def metrics(self) -> Sequence[MetricSpec]: ...

    def read(self, tree: Tree, at_s: float) -> Reading:
        """One look at ``at_s`` of a monotonic clock. May raise: that is a ``source_failed`` event."""
        ...


@runtime_checkable
class Resuming(Protocol):
    """A source that goes on where it was when the agent starts again."""

    def keep_in(self, folder: Path) -> None:
        """``folder`` is the agent's own and exists."""
        ...


class Rate:
    """Change per second of a counter that wraps or is reset."""

    def __init__(self, wrap_bits: int | None = None) -> None:
        """``wrap_bits``: the counter's width where it is known to wrap."""
        self._wrap_bits = wrap_bits
        self._last: tuple[float, float] | None = None

    def update(self, value: float, at_s: float) -> tuple[float | None, str]:
        """(per second, quality). No rate from a first look, a reset or no time between two looks."""
        last, self._last = self._last, (value, at_s)
        if last is None or at_s <= last[1]:
            return None, FIRST_SAMPLE
        change = value - last[0]
        if change < 0 and self._wrap_bits is not None:
            wrapped = change + 2**self._wrap_bits
            # A wrap passes just over the top of the range; anything else that falls was set back.
            change = wrapped if wrapped < 2 ** (self._wrap_bits - 4) else change
        if change < 0:
            return None, RESET
        return change / (at_s - last[1]), OK
