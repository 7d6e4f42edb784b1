"""Which steps are marked on the GPU's stream, and when their marks are read.

In: a ``StreamClock`` once CUDA is up, begin and end of what the training thread does, ends of steps. Out:
``Marked`` steps with figures, calls of those steps to tell, and words for what stays unknown.

Only each n-th step is marked, chosen by its number alone, so that the cost stays within ``SHARE`` of wall
time. The GPU is never waited for: marks are read at the ends of later steps by the job's own thread (see
``stream``), a bounded number each time, and given up where the GPU has not passed them by then. Nothing
raises into the job.
"""

from __future__ import annotations

import sys
from collections import deque
from collections.abc import Callable
from time import perf_counter_ns

from .edges import EdgeStep, Key
from .marked import Interval, Marked
from .rhythm import Rhythm
from .stream import Mark, StreamClock
from .watch import Operations, Watch

SHARE = 0.0003
"""Of wall time, for all marks; the whole hook may take 0.001."""
FIRST_POWER, POWER_MAX = 3, 10
"""Each 8th step until the cost is known; where each 1,024th were too dear, none is marked."""
READ_MAX = 256
"""Intervals read at the end of one step: about 1 ms."""
UNREAD_STEPS_MAX = 64
"""So many further steps may end before the GPU has passed the marks."""
CLOSED_MAX = 4
"""Steps that wait to be read; while there are as many, no further one is marked."""
ERRORS_MAX = 3
SAME_REASON = 4
"""So many marked steps in a row without figures, all for one reason, make it the reason that is told."""

SOME_STEPS = "told of some steps only"
BY_SKIP = "steps were skipped"
BY_GRAPH = "CUDA graphs"
BY_AGE = "the GPU is too far behind"
BY_ERROR = "the GPU's stream cannot be marked"
BY_COST = "marks would cost the job too much"

Begun = tuple[Marked, Mark]


class Marks:
    """The marked steps of one process; methods are for the training thread."""

    def __init__(
        self,
        watch: Watch,
        make_clock: Callable[[], StreamClock | None],
        operations: Callable[[], Operations],
        tell: Callable[[int, EdgeStep], None],
        is_told: Callable[[int], bool],
    ) -> None:
        """Args: ``make_clock`` gives a clock once there is one; ``operations`` the calls of all groups so
        far; ``tell`` takes the calls of a step whose number ``is_told`` takes."""
        self._watch = watch
        self._make_clock = make_clock
        self.operations = operations
        self._tell = tell
        self._is_told = is_told
        self._clock: StreamClock | None = None
        self._open: Marked | None = None
        self._closed: deque[tuple[int, Marked]] = deque()
        self._rhythm = Rhythm(FIRST_POWER, POWER_MAX)
        self._spent_ns = self._marked_count = self._errors = 0
        self._is_off = False
        self._reasons: deque[str] = deque(maxlen=SAME_REASON)
        self.tells = False
        """the calls of the step that is being marked are to be told"""
        self.words = ""
        """why waiting is unknown, in part or whole; empty while no GPU is in use"""

    # --- in the job's calls ----------------------------------------------------------------------------

    def begin(self) -> Begun | None:
        """Marks the begin of a call or a part; None where it cannot be."""
        began_ns = perf_counter_ns()
        marked = self._open
        mark = self._mark(marked) if marked is not None else None
        self._charge(began_ns)
        return None if marked is None or mark is None else (marked, mark)

    def end(self, begun: Begun, part: int, key: Key | None = None) -> None:
        """Marks its end. Args: ``key`` of a call that is to be told."""
        marked = self._open
        if marked is None or begun[0] is not marked:
            return  # the step ended in between
        began_ns = perf_counter_ns()
        mark = self._mark(marked)
        if mark is not None:
            marked.add(Interval(part, begun[1], mark, key))
        self._charge(began_ns)

    def drop(self, begun: Begun) -> None:
        """The call turned out to wait for nobody yet."""
        if self._clock is not None:
            self._clock.free(begun[1])

    def _mark(self, marked: Marked | None) -> Mark | None:
        """A mark, None where none can be made; the step is broken then."""
        clock = self._clock
        if clock is None or (marked is not None and marked.broken):
            return None
        try:
            if not self._is_capturing(clock):
                return clock.mark()
        except Exception as error:  # noqa: BLE001 - torch raises its own types; the job hears them by itself
            self._fail(marked, error)
            return None
        if marked is not None:
            marked.broken = BY_GRAPH
        return None

    def _is_capturing(self, clock: StreamClock) -> bool:
        return self._watch.capturing > 0 or clock.is_capturing()

    def _charge(self, began_ns: int) -> None:
        spent_ns = perf_counter_ns() - began_ns
        self._spent_ns += spent_ns
        self._watch.wrapper_ns += spent_ns

    def _fail(self, marked: Marked | None, error: Exception) -> None:
        if marked is not None:
            marked.broken = BY_ERROR
        self._errors += 1
        if self._errors >= ERRORS_MAX:
            sys.stderr.write(f"clusterwatch: waiting on the GPU stays unknown: {error!r}\n")
            self._stop(BY_ERROR)

    def _stop(self, reason: str) -> None:
        """No further step is marked, and what is not read by now stays unknown."""
        self._is_off, self.words = True, reason
        self._open = self._watch.marks = None
        while self._closed:
            self._closed.popleft()[1].is_settled = True
        self._reasons.clear()

    # --- at the end of a step --------------------------------------------------------------------------

    def turn(self, step: int, count: int) -> Marked | None:
        """A step is over. Returns it where it was marked; its figures come later.

        Args: ``count`` steps that ended here, more than 1 after skipped ones.
        """
        if self._is_off or not self._has_clock():
            return None
        began_ns = perf_counter_ns()
        closed = self._close(count)
        if closed is not None:
            self._closed.append((step, closed))
        self._read()
        if not self._is_off and self._rhythm.holds(step + 1) and len(self._closed) < CLOSED_MAX:
            self._begin_step(step + 1)
        self._spent_ns += perf_counter_ns() - began_ns
        return closed

    def _has_clock(self) -> bool:
        if self._clock is None:
            self._clock = self._make_clock()
            if self._clock is not None:
                self.words, self._watch.on_stream = SOME_STEPS, True
        return self._clock is not None

    def _close(self, count: int) -> Marked | None:
        marked, watch = self._open, self._watch
        if marked is None:
            return None
        last = self._mark(marked)
        marked.close(last, self.operations(), watch.covered)
        if count != 1:
            marked.broken = marked.broken or BY_SKIP
        if watch.replays != marked.replays:
            marked.broken = marked.broken or BY_GRAPH
        self._open = watch.marks = None
        return marked

    def _begin_step(self, step: int) -> None:
        first, watch = self._mark(None), self._watch
        if first is None:
            return
        self.tells = self._is_told(step)
        self._open = Marked(first, self.operations(), watch.covered, watch.replays)
        self._marked_count += 1
        watch.marks = self

    def settle(self, duration_s: float) -> None:
        """Settles how many steps lie between two marked ones. Args: length of a step by the host's clock."""
        if self._is_off or not self._marked_count:
            return
        cost_s = self._spent_ns / 1e9 / self._marked_count
        self._spent_ns = self._marked_count = 0
        if not self._rhythm.settle(cost_s / SHARE / duration_s):
            self._stop(BY_COST)

    # --- reading ---------------------------------------------------------------------------------------

    def _read(self) -> None:
        """Reads what the GPU has passed, the oldest step first."""
        budget, clock = READ_MAX, self._clock
        while self._closed and clock is not None and budget > 0:
            step, marked = self._closed[0]
            if not (marked.broken or self._is_off):
                budget -= self._read_some(clock, marked, budget)
            if not (marked.broken or marked.is_read or self._is_off):
                return
            if self._closed:
                self._closed.popleft()
            self._finish(step, marked)

    def _read_some(self, clock: StreamClock, marked: Marked, budget: int) -> int:
        count = 0
        try:
            if not self._is_capturing(clock):
                count = marked.read(clock, budget)
        except Exception as error:  # noqa: BLE001 - torch raises its own types; the job hears them by itself
            self._fail(marked, error)
        if not count and not marked.is_read:
            marked.turns += 1
            if marked.turns > UNREAD_STEPS_MAX:
                marked.broken = marked.broken or BY_AGE
        return count

    def _finish(self, step: int, marked: Marked) -> None:
        if marked.is_read and not marked.broken and self._clock is not None:
            edges = marked.settle(self._clock)
            if edges.samples:
                self._tell(step, edges)
        marked.is_settled = True
        reason = marked.broken or marked.partial
        self._reasons.append(reason)
        if self._is_off:
            return
        if not reason:
            self.words = SOME_STEPS
        elif len(self._reasons) == SAME_REASON and set(self._reasons) == {reason}:
            self.words = reason
