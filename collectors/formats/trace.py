"""What every part of the trace formats names: the error for bytes without a trace, and a process group.

Field meanings: PyTorch's FlightRecorder.hpp and FlightRecorderDetail.hpp.
"""

from __future__ import annotations

from dataclasses import dataclass


class TraceError(ValueError):
    """Bytes that hold no usable trace; the text says what is wrong with them."""


@dataclass(frozen=True, slots=True)
class TraceGroup:
    """A process group as one dump tells it: ``ranks`` is empty when the dump does not say (gloo)."""

    name: str
    desc: str
    ranks: tuple[int, ...]
    recorder_id: int | None = None
    """pg_id in that process; joins entries and status of one dump, never two dumps"""
    last_enqueued: int | None = None
    last_started: int | None = None
    """None where the recorder says -1: timing was off"""
    last_completed: int | None = None
