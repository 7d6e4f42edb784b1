"""``analyze --perfetto FILE``: calls of chosen ranks as a Chrome trace, for ui.perfetto.dev or chrome://tracing.

One process per rank, one thread per group (sends and receives on one of their own). A call is a complete
event from its start, as far as known, to its end; an open call runs to the newest time in the dumps, and a
little beyond to be seen, and says so. Arrows lead from the last call of who is named to the calls that wait
for it. Times are each host's own clock: offsets between hosts are not known, and the file says that too.
Format: the Trace Event Format of Chromium.
"""

from __future__ import annotations

import gzip
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import IO, Any, Final, cast

import msgspec

from clusterwatch.analysis.model import Diagnosis, Finding, RankFacts
from clusterwatch.analysis.overview import Overview
from clusterwatch.analysis.tables import Window
from clusterwatch.cli.report import words
from clusterwatch.cli.report.perfetto_calls import Call, calls_of, laid_out
from collectors.formats.columns import TraceColumns

RANKS_MAX: Final = 64
"""Ranks of a file unless the user names them: more are slow to look at and say no more."""
_MARGIN_MIN_NS: Final = 1_000_000
_MARGIN_SHARE: Final = 50
"""Of the span of time: how far open calls are drawn beyond it."""
_TIDS_PER_RANK: Final = 1024
_NAME_MAX_CHARS: Final = 200

Event = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Plan:
    """What goes into the file."""

    source: str
    ranks: tuple[int, ...]
    base_ns: int
    """time 0 of the file"""
    end_ns: int
    """where open calls end: the newest time in all dumps and a margin, or they could not be seen"""
    facts: Mapping[int, RankFacts] = field(default_factory=dict)
    findings: tuple[Finding, ...] = ()


@dataclass(frozen=True, slots=True)
class _Anchor:
    """A slice an arrow can begin or end at."""

    pid: int
    tid: int
    at_us: float


def plan(
    source: str,
    windows: Sequence[Window],
    diagnosis: Diagnosis,
    view: Overview,
    asked: Collection[int] | None = None,
    facts: Mapping[int, RankFacts] | None = None,
) -> Plan:
    """Chooses the ranks and the span of time.

    Args:
        asked: ranks the user wants; None for who is named, whoever shares the stuck groups, then others.
    """
    by_rank = {window.rank: window for window in windows}
    order = asked if asked is not None else _worth_seeing(diagnosis, view, by_rank)
    ranks = [rank for rank in dict.fromkeys(order) if rank in by_rank]
    ranks = ranks if asked is not None else ranks[:RANKS_MAX]
    times = [oldest for rank in ranks if (oldest := by_rank[rank].oldest_ns) is not None]
    base = min(times, default=0)
    newest = base if view.newest_ns is None else view.newest_ns
    end = newest + max(_MARGIN_MIN_NS, (newest - base) // _MARGIN_SHARE)
    return Plan(source, tuple(sorted(ranks)), base, end, facts or {}, diagnosis.findings)


def _worth_seeing(diagnosis: Diagnosis, view: Overview, known: Iterable[int]) -> Iterator[int]:
    for finding in diagnosis.findings:
        yield from finding.culprit_ranks
        yield from finding.suspect_ranks
    for finding in diagnosis.findings:
        if finding.group is not None:
            yield from finding.group.ranks
    for call in view.open_calls:
        yield from call.joined
    yield from sorted(known)


def write(file: IO[bytes], traces: Iterable[TraceColumns], chosen: Plan, packed: bool = False) -> None:
    """Streams the ranks' calls to ``file``; holds one ring at a time.

    Args:
        traces: rings of the chosen ranks, in any order.
        packed: gzip the file.
    """
    if not packed:
        return _write(file, traces, chosen)
    with gzip.GzipFile(filename="", mode="wb", fileobj=file, mtime=0) as zipped:
        return _write(cast("IO[bytes]", zipped), traces, chosen)


def _write(file: IO[bytes], traces: Iterable[TraceColumns], chosen: Plan) -> None:
    left_out, first = 0, True
    anchors: dict[tuple[int, str, str, int | None], _Anchor] = {}
    file.write(b'{"displayTimeUnit":"ms","traceEvents":[')
    for trace in traces:
        events, lost = _rank_events(trace, chosen, anchors)
        left_out += lost
        for event in events:
            file.write((b"\n" if first else b",\n") + msgspec.json.encode(event))
            first = False
    for event in _arrows(chosen.findings, anchors):
        file.write(b",\n" + msgspec.json.encode(event))
    file.write(b'\n],"otherData":' + msgspec.json.encode(_about(chosen, left_out)) + b"}\n")


def _about(chosen: Plan, left_out: int) -> dict[str, str]:
    worst = chosen.findings[0].summary if chosen.findings else ""
    return {
        "source": _name(chosen.source),
        "verdict": _name(worst),
        "time_0": words.utc(chosen.base_ns),
        "clocks": "each host's own; offsets between hosts are unknown",
        "open_calls": "drawn a little beyond the newest time in all dumps; when they end is not known",
        "calls_without_start": "drawn from their creation, or from the end of the call before if later",
        "calls_without_end": "finished, but nobody recorded when: drawn 1 us long",
        "calls_left_out": str(left_out),
    }


def _rank_events(
    trace: TraceColumns, chosen: Plan, anchors: dict[tuple[int, str, str, int | None], _Anchor]
) -> tuple[list[Event], int]:
    """All events of one rank, per thread by rising time, and how many calls could not be drawn."""
    pid = trace.rank + 1  # 0 is the idle process to some viewers
    events = _process(trace.rank, pid, chosen.facts.get(trace.rank))
    drawn, lost = calls_of(trace, chosen.end_ns)
    threads, crowded = laid_out(drawn)
    for number, (label, calls) in enumerate(threads[: _TIDS_PER_RANK - 1], 1):
        tid = pid * _TIDS_PER_RANK + number
        events.append(_meta("thread_name", pid, tid, name=_name(label)))
        events.append(_meta("thread_sort_index", pid, tid, sort_index=number))
        for call in calls:
            events.append(_slice(call, pid, tid, chosen.base_ns))
            _remember(call, trace.rank, _Anchor(pid, tid, events[-1]["ts"]), anchors)
    crowded += sum(len(calls) for _, calls in threads[_TIDS_PER_RANK - 1 :])
    return events, lost + crowded


def _process(rank: int, pid: int, facts: RankFacts | None) -> list[Event]:
    places = [] if facts is None else [facts.host, None if facts.gpu is None else f"GPU {facts.gpu}"]
    known = ", ".join(place for place in places if place)
    name = f"rank {rank} ({known})" if known else f"rank {rank}"
    return [
        _meta("process_name", pid, 0, name=_name(name)),
        _meta("process_sort_index", pid, 0, sort_index=rank),
    ]


def _meta(kind: str, pid: int, tid: int, **arguments: str | int) -> Event:
    return {"name": kind, "ph": "M", "ts": 0, "pid": pid, "tid": tid, "args": arguments}


def _slice(call: Call, pid: int, tid: int, base_ns: int) -> Event:
    event: Event = {
        "name": _name(f"{call.label} (open)" if call.is_open else call.label),
        "cat": "p2p" if call.is_p2p else "collective",
        "ph": "X",
        "ts": _us(call.begin_ns - base_ns),
        "dur": _us(call.end_ns - call.begin_ns),
        "pid": pid,
        "tid": tid,
        "args": {
            key: _name(value) if isinstance(value, str) else value for key, value in call.details.items()
        },
    }
    if call.is_open:
        event["cname"] = "terrible"
    return event


def _remember(
    call: Call, rank: int, anchor: _Anchor, anchors: dict[tuple[int, str, str, int | None], _Anchor]
) -> None:
    """Open calls are where arrows end; a rank's newest call of a group is where they begin."""
    if call.is_p2p:
        return
    anchors[(rank, call.group, call.desc, None)] = anchor
    if call.is_open:
        anchors[(rank, call.group, call.desc, call.sequence)] = anchor


def _arrows(
    findings: Sequence[Finding], anchors: Mapping[tuple[int, str, str, int | None], _Anchor]
) -> Iterator[Event]:
    """From the last call of who is named to the open calls of who waits; never backwards in time."""
    number = 0
    for finding in findings:
        if finding.group is None:
            continue
        group = (finding.group.name, finding.group.desc)
        for culprit in finding.culprit_ranks:
            begin = anchors.get((culprit, *group, None))
            for rank in finding.joined_ranks:
                end = anchors.get((rank, *group, finding.seq))
                if begin is None or end is None or rank == culprit or begin.at_us > end.at_us:
                    continue
                number += 1
                for ph, at in (("s", begin), ("f", end)):
                    arrow: Event = {
                        "name": "waits for",
                        "cat": "wait",
                        "ph": ph,
                        "id": number,
                        "ts": at.at_us,
                    }
                    arrow |= {"pid": at.pid, "tid": at.tid}
                    yield arrow | {"bp": "e"} if ph == "f" else arrow


def _us(span_ns: int) -> float:
    """Microseconds, the unit of the format, exact to the nanosecond."""
    return round(span_ns / 1000, 3)


def _shown(value: object) -> object:
    return _name(value) if isinstance(value, str) else value


def _name(value: str) -> str:
    return words.printable(value[:_NAME_MAX_CHARS])
