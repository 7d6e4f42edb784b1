"""What the thin wrappers write and the hook's thread reads: plain numbers, one writer, no lock.

Wrappers run in the job's own threads, so each does no more than read a clock and set an attribute.
Times are ``time.perf_counter_ns`` (monotonic) unless the name says UTC.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple


class Span:
    """A thing the training thread may be inside of: since when, and the sum of all finished visits."""

    __slots__ = ("depth", "since_ns", "total_ns")

    def __init__(self) -> None:
        self.since_ns: int | None = None
        self.total_ns = 0
        self.depth = 0

    def enter(self, now_ns: int) -> None:
        self.depth += 1
        if self.depth == 1:
            self.since_ns = now_ns

    def leave(self, now_ns: int) -> None:
        self.depth -= 1
        if self.depth == 0 and self.since_ns is not None:
            self.total_ns += now_ns - self.since_ns
            self.since_ns = None


class Operations(NamedTuple):
    """Calls of the first groups of this process so far."""

    made: int
    """by torch's own count"""
    seen: int | None
    """of those, made where their waiting is timed; None where it cannot be"""


def unseen(before: Operations, after: Operations) -> int | None:
    """Calls made in between whose waiting nobody timed; None where it cannot be known."""
    if before.seen is None or after.seen is None:
        return None
    return (after.made - before.made) - (after.seen - before.seen)


class _Depth(threading.local):
    """How many blocking sends or receives this thread is inside of."""

    depth = 0


class Watch:
    """State of one training process. ``active`` False turns every wrapper into a plain call."""

    def __init__(self) -> None:
        self.active = False
        self.training_thread = threading.get_ident()
        self.wrapper_ns = 0
        """CPU time of the job's threads in wrappers so far: being preempted there is not the hook's doing"""
        self.loader = Span()
        self.checkpoint = Span()
        self.compiling = Span()
        self.gc = Span()
        self.waiting = Span()
        """inside collectives and receives, but for those of the loader and of a checkpoint"""
        self.in_collective = False
        self.calls: dict[str, int] = {}
        """group name -> collectives whose waiting is timed; as in ``p2p_count``"""
        self.unwaited: dict[int, tuple[str, Any]] = {}
        """id of a work -> group name and weak reference: to be counted when somebody waits for it"""
        self.covered = 0
        """calls of C++ whose waiting is timed all the same"""
        self.has_unseen = True
        """the last step held calls whose waiting nobody timed, or there was none yet"""
        self.operations: Callable[[], Operations] | None = None
        """set where waiting can be told"""
        self.wait_calls = self.wait_call_ns = 0
        """how often a wrapper of ``waits`` ran, and what it costs each time"""
        self.marks: Any = None
        """``Marks`` while a step is being marked on the GPU's stream"""
        self.on_stream = False
        """a GPU is in use: the host's clock tells nothing of waiting"""
        self.edges: Any = None
        """``EdgeStep`` while the calls of a step are told by the host's clock"""
        self.p2p_key: tuple[str, str, int] | None = None
        """of the blocking send or receive that the training thread is in, where it is to be told"""
        self.p2p_waits: dict[int, tuple[tuple[str, str, int], Any]] = {}
        """id of a work -> key and weak reference: a send or receive to be told when somebody waits for it"""
        self.coalesced: Mapping[Any, Any] = {}
        """torch's own table of groups whose calls are being made into one; that one is not seen"""
        self.capturing = self.replays = 0
        """CUDA graphs being captured now, and replays so far"""
        self.edge_calls = self.edge_call_ns = 0
        """how often a call was told by the host's clock, and what that costs beyond ``wait_call_ns``"""
        self.batches = 0
        self.steps_by_batch = True
        """no optimizer was seen yet, so batches may have to count as steps"""
        self.backwards = 0
        self.evaluating: int | None = None
        """since when, None while training"""
        self.evaluated_module = 0
        self.false_evaluations: set[int] = set()
        """ids of modules whose ``eval()`` turned out to be part of training"""
        self.false_evaluation_at: tuple[int, int] = (0, -1)
        """module and step of the last ``eval()`` that an optimizer step ended"""
        self.torn_down: int | None = None
        self.p2p_count: dict[str, int] = {}
        """group name -> calls made; the default group, when none was given, is ``""``"""
        self.p2p_blocking = _Depth()
        self.p2p_open: dict[int, tuple[str, int | None, str, int, Any]] = {}
        """ticket -> (op, peer rank, group name, UTC ns, weak reference to its work or None)"""

    def restart(self) -> None:
        """Begins anew in this thread: the first world of a process, or of a forked child."""
        self.training_thread = threading.get_ident()
        for span in (self.loader, self.checkpoint, self.compiling, self.gc, self.waiting):
            span.depth, span.since_ns, span.total_ns = 0, None, 0
        self.evaluating = self.torn_down = None
        self.p2p_open.clear()
        self.p2p_count.clear()
        self.calls.clear()
        self.unwaited.clear()
        self.p2p_waits.clear()
        self.marks = self.edges = self.p2p_key = None
        self.capturing = 0
        self.batches = self.backwards = self.wrapper_ns = self.covered = self.wait_calls = self.edge_calls = 0
        self.steps_by_batch = self.has_unseen = True
        self.active = True

    def is_timed(self) -> bool:
        """Waiting counts where no other part of the step does."""
        return not (self.loader.depth or self.checkpoint.depth)

    def tells_calls(self) -> bool:
        """Calls of this step are to be told."""
        marks = self.marks
        return self.edges is not None if marks is None else bool(marks.tells)

    def is_training_thread(self) -> bool:
        return self.active and threading.get_ident() == self.training_thread


def now_ns() -> int:
    return time.perf_counter_ns()


def utc_of(moment_ns: int) -> int:
    """ns UTC of a ``perf_counter_ns`` moment in the near past."""
    return time.time_ns() - (time.perf_counter_ns() - moment_ns)
