"""One job log -> typed events: what a line says, who printed it, when, and where it stands.

In: the bytes of one file, in chunks of any size. Out: ``JobLog``. Everything is bounded: the length of a
line, the events kept per kind and stream (the first and the last ones), the lines of a traceback. Binary,
colour sequences, wrong encodings and lines without an end are taken as they come and cost only themselves.

Cost: one search per trigger word over the bytes (about 60 MB/s); only lines that hold one, and those that
follow a failure closely, are looked at one by one.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from itertools import islice
from typing import Final

from collectors.formats import job_log_prefix as prefix
from collectors.formats.job_log_blocks import (
    FAILURES,
    ROOT_CAUSE,
    TRACEBACK,
    FailureList,
    Traceback,
    begins_chain,
)
from collectors.formats.job_log_patterns import TRIGGERS, Fields, recognise
from collectors.formats.job_log_prefix import Label, Stamp
from collectors.formats.job_log_tone import goes_on, is_mild

LINE_MAX_BYTES: Final = 8_192
"""Longer lines are cut here: what names a failure stands near their start."""
TEXT_MAX_CHARS: Final = 400
FIRST_KEPT: Final = 32
LAST_KEPT: Final = 32
"""Events kept of one kind and stream, from each end; a storm in the middle is only counted."""
STREAMS_MAX: Final = 200_000
_WATCH_LINES: Final = 2_000
"""Lines after a failure that are looked at, to see whether its stream simply goes on."""
_NEAR_LINES: Final = 50
"""A line without a stamp takes that of a line of its stream at most so far above."""
_ABOVE_LINES: Final = 20
_SCHEDULERS: Final = ("srun:", "slurmstepd:", "salloc:", "sbatch:")

OWN_KINDS: Final = frozenset({
    "traceback", "out_of_memory", "device_assert", "cuda_error", "fatal_signal", "numeric", "nan_value",
    "raised",
})  # fmt: skip
"""Kinds after which a process may also go on: the error was caught."""


@dataclass(slots=True)
class LogEvent:
    """One thing a log says. None = not told."""

    kind: str
    line: int
    """number of its line, from 1"""
    text: str
    label: Label
    stamp: Stamp | None = None
    stamp_near: bool = False
    """the stamp is of a line shortly above: the event is not older"""
    fields: Fields = field(default_factory=dict)
    lines_after: int = 0
    """ordinary lines of the same stream within the next ``_WATCH_LINES``: a dead process prints none"""
    steps_after: int = 0
    """of these, lines that show work: a step, a rate, the end of training"""

    def number(self, name: str) -> int | None:
        value = self.fields.get(name)
        return value if isinstance(value, int) else None

    def word(self, name: str) -> str | None:
        value = self.fields.get(name)
        return value if isinstance(value, str) else None


@dataclass(frozen=True, slots=True)
class JobLog:
    """All that one file says, in the order of its lines."""

    source: str
    events: tuple[LogEvent, ...]
    lines: int
    dropped: int = 0
    """events beyond the bounds"""
    attempt: int | None = None
    """restart number, from the path (torchelastic's ``attempt_2``)"""
    scope: str = ""
    """files of equal scope were written by one launcher: local ranks count within it"""
    who: Label = prefix.NOBODY
    """what the file's name says of who wrote it"""
    last: Stamp | None = None
    """of the newest line before any word of the scheduler"""
    undated_end: bool = False
    """that line bears no stamp"""


@dataclass(frozen=True, slots=True)
class Origin:
    """What the path of a file says of the process that wrote it; prefixes in the text win."""

    who: Label = prefix.NOBODY
    attempt: int | None = None
    scope: str = ""


class LogParser:
    """Feed chunks, then ``finish``. Where chunks are cut changes nothing."""

    def __init__(self, source: str, origin: Origin = Origin()) -> None:
        self._source, self._origin, self._who = source, origin, origin.who
        self._carry = self._head = b""
        self._skipping = False
        self._line = 0
        self._kept: dict[tuple[str, Label], tuple[list[LogEvent], deque[LogEvent]]] = {}
        self._dropped = 0
        self._open: dict[Label, Traceback] = {}
        self._ended: dict[Label, int] = {}
        self._lists: dict[Label, FailureList] = {}
        self._watched: dict[Label, list[LogEvent]] = {}
        self._watch_until = 0
        self._last_stamp: dict[Label, tuple[int, Stamp]] = {}
        self._data, self._at = b"", 0
        self._before: list[bytes] = []
        self._quiet_since: tuple[Stamp | None, bool] | None = None
        self._searched: tuple[int, Stamp | None] = (-_NEAR_LINES, None)

    def feed(self, chunk: bytes) -> None:
        """The next bytes of the file."""
        data = self._carry + chunk if self._carry else chunk
        if self._skipping:
            end = data.find(b"\n")
            if end < 0:
                return
            data, self._skipping = data[end:], False
            data = self._head + data
        last = data.rfind(b"\n") + 1
        self._carry = data[last:]
        if len(self._carry) > LINE_MAX_BYTES:
            self._head, self._carry, self._skipping = self._carry[:LINE_MAX_BYTES], b"", True
        if last:
            self._lines(data[:last])

    def take(self) -> tuple[list[LogEvent], int]:
        """The events since the last call and how many were dropped: for a log that is still written."""
        events = [event for first, later in self._kept.values() for event in (*first, *later)]
        events.sort(key=lambda event: event.line)
        dropped, self._dropped = self._dropped, 0
        self._kept.clear()
        return events, dropped

    def finish(self) -> JobLog:
        """What the file says. The parser is used up."""
        rest = self._head if self._skipping else self._carry
        if rest:
            self._lines(rest + b"\n")
        events, dropped = self.take()
        origin = self._origin
        last, undated = self._newest_above() if self._quiet_since is None else self._quiet_since
        return JobLog(
            self._source,
            tuple(events),
            self._line,
            dropped,
            origin.attempt,
            origin.scope,
            origin.who,
            last,
            undated,
        )

    def _lines(self, data: bytes) -> None:
        """Complete lines: jumps from one telling line to the next, or goes line by line after a failure."""
        at, number = 0, self._line
        self._data = data
        for start in [*_telling(data), len(data)]:
            while at < start and self._hot(number + 1):
                at, number = self._one(data, at, number)
            if at < start:
                number += data.count(b"\n", at, start)
                at = start
            if start < len(data) and at == start:
                at, number = self._one(data, at, number)
        self._line, self._at = number, len(data)
        self._before = list(self._above())

    def _hot(self, line: int) -> bool:
        return bool(self._open or self._lists) or line <= self._watch_until

    def _one(self, data: bytes, at: int, number: int) -> tuple[int, int]:
        end, self._at = data.index(b"\n", at), at
        line = data[at : min(end, at + LINE_MAX_BYTES)]
        self._look(line.decode("utf-8", "replace"), number + 1)
        return end + 1, number + 1

    def _look(self, raw: str, number: int) -> None:
        known = prefix.parse(prefix.clean(raw.replace("\x00", "")))
        label, rest = _joined(self._who, known.label), known.rest
        if known.stamp is not None:
            self._remember(label, number, known.stamp)
        if self._in_block(label, rest, number):
            return
        if TRACEBACK in rest:
            self._begin(label, rest, number)
        elif FAILURES.match(rest) or (ROOT_CAUSE in rest and label not in self._lists):
            self._lists[label] = FailureList(number, root=ROOT_CAUSE in rest)
        elif (found := recognise(rest)) is not None and not is_mild(found[0], rest):
            kind, fields = found
            self._emit(
                LogEvent(kind, number, rest[:TEXT_MAX_CHARS].strip(), label, known.stamp, False, fields)
            )
        elif begins_chain(rest):
            self._ended[label] = number
        elif number <= self._watch_until and rest[:1].strip() and "NCCL INFO" not in rest:
            works = goes_on(rest)
            for event in self._watched.get(label, ()):
                event.lines_after += 1
                event.steps_after += works

    def _begin(self, label: Label, rest: str, number: int) -> None:
        """A traceback opens. One that is still open is another rank's whose lines nothing tells apart."""
        mixed = label in self._open
        chained = self._ended.pop(label, -_NEAR_LINES) >= number - _NEAR_LINES
        self._open[label] = Traceback(
            number, rest[:TEXT_MAX_CHARS], chained, mixed, self._near(label, number)
        )

    def _in_block(self, label: Label, rest: str, number: int) -> bool:
        """Whether the line belongs to an open traceback or list of its stream."""
        if TRACEBACK in rest:
            return False
        trace = self._open.get(label)
        if trace is not None:
            took = trace.take(rest)
            if trace.done is not None or trace.given_up:
                del self._open[label]
            if trace.done is not None:
                kind, message = trace.done["type"], trace.done["message"]
                text = f"{kind}: {message}" if message else str(kind)
                near = trace.near
                self._emit(LogEvent("traceback", number, text, label, near, near is not None, trace.done))
            if took:
                return True
        failures = self._lists.get(label)
        if failures is None:
            return False
        item = failures.take(rest, number)
        if item is not None:
            line, fields = item
            stamp = prefix.stamp_of(str(fields.get("noticed", "")))
            self._emit(LogEvent("elastic_item", line, _item_text(fields), label, stamp, False, fields))
        if failures.given_up:
            del self._lists[label]
        return failures.took

    def _remember(self, label: Label, number: int, stamp: Stamp) -> None:
        if len(self._last_stamp) > STREAMS_MAX:
            self._last_stamp.clear()
        self._last_stamp[label] = (number, stamp)

    def _near(self, label: Label, number: int) -> Stamp | None:
        """The stamp of a line shortly above, best of the same stream: the event is not older."""
        last = self._last_stamp.get(label)
        if last is not None and number - last[0] <= _NEAR_LINES:
            return last[1]
        other = None
        unseen = min(_ABOVE_LINES, number - self._searched[0])
        for line in islice(self._above(), unseen):
            known = prefix.parse(prefix.clean(line.decode("utf-8", "replace")))
            if known.stamp is not None:
                if _joined(self._who, known.label) == label:
                    return known.stamp
                other = other or known.stamp
        before, stamp = self._searched
        if other is None and number - before <= _NEAR_LINES:
            other = stamp
        self._searched = (number, other)
        return other

    def _newest_above(self) -> tuple[Stamp | None, bool]:
        """The stamp of the nearest line above that no scheduler printed, and whether that line has none."""
        for line in self._above():
            known = prefix.parse(prefix.clean(line.decode("utf-8", "replace")))
            if known.rest.strip() and not known.rest.startswith(_SCHEDULERS):
                return known.stamp, known.stamp is None
        return None, False

    def _above(self) -> Iterator[bytes]:
        """The lines above the one looked at, nearest first, across chunks."""
        data, end = self._data, self._at
        for count in range(_ABOVE_LINES):
            if end <= 0:
                yield from self._before[: _ABOVE_LINES - count]
                return
            start = data.rfind(b"\n", 0, end - 1) + 1
            yield data[start : min(end - 1, start + LINE_MAX_BYTES)]
            end = start

    def _emit(self, event: LogEvent) -> None:
        if event.stamp is None:
            event.stamp = self._near(event.label, event.line)
            event.stamp_near = event.stamp is not None
        if event.kind == "scheduler" and self._quiet_since is None:
            self._quiet_since = self._newest_above()
        kept = self._kept.get((event.kind, event.label))
        if kept is None:
            if len(self._kept) >= STREAMS_MAX:
                self._dropped += 1
                return
            kept = self._kept[event.kind, event.label] = ([], deque(maxlen=LAST_KEPT))
        if len(kept[0]) < FIRST_KEPT:
            kept[0].append(event)
        else:
            self._dropped += len(kept[1]) == LAST_KEPT
            kept[1].append(event)
        if event.kind in OWN_KINDS:
            self._watch(event)

    def _watch(self, event: LogEvent) -> None:
        if event.line > self._watch_until:
            self._watched.clear()
        self._watch_until = event.line + _WATCH_LINES
        watched = self._watched.setdefault(event.label, [])
        if len(watched) < FIRST_KEPT:
            watched.append(event)


def parse(source: str, chunks: Iterable[bytes], origin: Origin = Origin()) -> JobLog:
    """All chunks of one log at once."""
    parser = LogParser(source, origin)
    for chunk in chunks:
        parser.feed(chunk)
    return parser.finish()


def _telling(data: bytes) -> list[int]:
    """Offsets of lines that hold a trigger within their first ``LINE_MAX_BYTES``, rising."""
    starts: set[int] = set()
    find, rfind = data.find, data.rfind
    for word in TRIGGERS:
        at = find(word)
        while at >= 0:
            start = rfind(b"\n", 0, at) + 1
            if at + len(word) - start <= LINE_MAX_BYTES:
                starts.add(start)
            end = find(b"\n", at)
            at = find(word, end) if end >= 0 else -1
    return sorted(starts)


def _joined(name: Label, told: Label) -> Label:
    """The file's name, overruled by what the line says."""
    if name == prefix.NOBODY:
        return told
    if told == prefix.NOBODY:
        return name
    return Label(
        name.rank if told.rank is None else told.rank,
        name.local_rank if told.local_rank is None else told.local_rank,
        name.task if told.task is None else told.task,
        name.host if told.host is None else told.host,
    )


def _item_text(fields: Fields) -> str:
    who = f"rank {fields['rank']}: " if "rank" in fields else ""
    return f"{who}exitcode {fields.get('exit')} (pid {fields.get('pid')}) {fields.get('what', '')}"[
        :TEXT_MAX_CHARS
    ]
