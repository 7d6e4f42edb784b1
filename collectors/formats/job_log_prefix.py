"""What stands before the message of a log line: who printed it, and when.

In: one line as text. Out: ``Prefix``. Layers are taken off one by one, since launchers wrap each other: a
container's runtime, ``kubectl``, ``srun --label``, torchrun, the rank's own exception hook, a logger's stamp.

Sources: torchrun ``[role3]:`` (torch.distributed.elastic.multiprocessing.tail_log), ``[rank3]:`` (exception
hook of torch.distributed and c10's logger), Slurm srun(1) ``--label``, Open MPI ``--tag-output``, the CRI log
format of Kubernetes, ``kubectl logs --prefix``.
"""

from __future__ import annotations

import calendar
import json
import re
from dataclasses import dataclass
from typing import Final, NamedTuple

LAYERS_MAX: Final = 6
_STAMP_WITHIN_CHARS: Final = 120
"""A logger's stamp stands near the start; one further on is part of the message."""
_UNDATED_YEAR: Final = 1972
"""Year given to stamps without one: a leap year, so that 29 February exists."""

UTC: Final = "utc"
LOCAL: Final = "local"
UNDATED: Final = "undated"

_ANSI: Final = re.compile(r"\x1b\[[0-9;?]{0,20}[ -/]?[@-~]|\x1b\][^\x07\x1b]{0,200}\x07")
_CRI: Final = re.compile(r"(\d{4}-\d\d-\d\dT[\d:.]{8,18}(?:Z|[+-]\d\d:\d\d)) ?(?:(?:stdout|stderr) [FP] ?)?")
_KUBECTL: Final = re.compile(r"\[(?:pod/)?([a-z0-9][a-z0-9.-]{0,252})/[a-z0-9][a-z0-9.-]{0,62}\] ?")
_WORD: Final = re.compile(r"\[([A-Za-z_][\w.-]{0,63}?)(\d{1,7})\]: ?")
_HOST: Final = re.compile(r"\[([A-Za-z][\w.-]{0,254}):(?:(\d{1,7})\]: ?|(\d{1,3})\] (?!\*))")
"""Without the second colon a larger number is a process id, as Open MPI prints it."""
_MPI: Final = re.compile(r"\[\d{1,10},(\d{1,7})\]<std(?:out|err|diag)>: ?")
_SRUN: Final = re.compile(r" {0,6}(\d{1,6}): ")
_ISO: Final = re.compile(
    r"(\d{4})-(\d\d)-(\d\d)[T _](\d\d):(\d\d):(\d\d)(?:[.,](\d{1,9}))?(Z|[+-]\d\d:?\d\d)?"
)
_GLOG: Final = re.compile(r"(?:^|\[)[EWIFVC](\d{1,2})(\d\d) (\d\d):(\d\d):(\d\d)(?:\.(\d{1,9}))?")
_SYSLOG: Final = re.compile(
    r"^\[?(?:[A-Z][a-z]{2} )?(Jan|Feb|Mar|Apr|May|Jun|Jul|Aug|Sep|Oct|Nov|Dec) {1,2}(\d{1,2})"
    r" (\d\d):(\d\d):(\d\d)(?: (\d{4})\])?"
)
_SYSLOG_HOST: Final = re.compile(r" ([\w.-]{1,255}) kernel:")
_MONTHS: Final = ("Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec")


class Stamp(NamedTuple):
    """A moment by one of three clocks; only stamps of one clock can be put in order."""

    ns: int
    clock: str
    """``utc``; ``local`` (no zone told); ``undated`` (no year either)"""


class Label(NamedTuple):
    """Who printed a line, as its prefixes say. Equal labels in one file are one stream."""

    rank: int | None = None
    """global rank: said so"""
    local_rank: int | None = None
    """torchrun's number of a process on its node, or a number beside a host"""
    task: int | None = None
    """number of an srun task: a rank, or a node's launcher"""
    host: str | None = None


NOBODY: Final = Label()


@dataclass(frozen=True, slots=True)
class Prefix:
    label: Label
    stamp: Stamp | None
    rest: str
    """the line after its labels; a stamp stays in it"""


def parse(line: str) -> Prefix:
    """Takes all labels off a line. Cost: O(length)."""
    label, rest, stamp = _labelled(line)
    return Prefix(label, stamp or _stamp(rest), rest)


def clean(text: str) -> str:
    """Without colour sequences, and only what a terminal would show after the last carriage return."""
    if "\x1b" in text:
        text = _ANSI.sub("", text)
    return text.rstrip("\r").rpartition("\r")[2] if "\r" in text else text


def _labelled(line: str) -> tuple[Label, str, Stamp | None]:
    label, rest, stamp = NOBODY, line, None
    for _ in range(LAYERS_MAX):
        first = rest[:1]
        if first == "{" and rest.startswith('{"log":'):
            rest, stamp = _docker(rest)
        elif first == "[" and (found := _bracketed(rest, label)) is not None:
            label, rest = found
        elif first.isdigit() and (match := _CRI.match(rest)) is not None:
            stamp, rest = _stamp(match[1]), rest[match.end() :]
        elif (first == " " or first.isdigit()) and label.task is None and (match := _SRUN.match(rest)):
            label, rest = label._replace(task=int(match[1])), rest[match.end() :]
        else:
            break
    return label, rest, stamp


def _docker(line: str) -> tuple[str, Stamp | None]:
    """One line of Docker's json-file driver. A line that is none, or was cut, is only text."""
    try:
        found = json.loads(line)
        text, time = found["log"], found.get("time")
    except (ValueError, KeyError, RecursionError):
        return line[7:].lstrip('"'), None
    if not isinstance(text, str):
        return "", None
    return text.rstrip("\n"), _stamp(time) if isinstance(time, str) else None


def _bracketed(rest: str, label: Label) -> tuple[Label, str] | None:
    if (match := _WORD.match(rest)) is not None:
        number = int(match[2])
        known = label._replace(rank=number) if match[1] == "rank" else label._replace(local_rank=number)
    elif (match := _KUBECTL.match(rest)) is not None:
        known = label._replace(host=match[1])
    elif (match := _MPI.match(rest)) is not None:
        known = label._replace(rank=int(match[1]))
    elif (match := _HOST.match(rest)) is not None:
        known = label._replace(host=match[1], local_rank=int(match[2] or match[3]))
    else:
        return None
    return known, rest[match.end() :]


def _stamp(text: str) -> Stamp | None:
    """The first stamp near the start of ``text``."""
    head = text[:_STAMP_WITHIN_CHARS]
    if (match := _ISO.search(head)) is not None:
        year, month, day, hour, minute, second = map(int, match.groups()[:6])
        zone = match[8]
        ns = _ns(year, month, day, hour, minute, second, match[7])
        if ns is None:
            return None
        return Stamp(ns - _offset_ns(zone), UTC) if zone else Stamp(ns, LOCAL)
    if (match := _GLOG.search(head)) is not None:
        month, day, hour, minute, second = map(int, match.groups()[:5])
        ns = _ns(_UNDATED_YEAR, month, day, hour, minute, second, match[6])
        return None if ns is None else Stamp(ns, UNDATED)
    if (match := _SYSLOG.match(head)) is not None:
        year = int(match[6] or _UNDATED_YEAR)
        day, hour, minute, second = map(int, match.groups()[1:5])
        ns = _ns(year, _MONTHS.index(match[1]) + 1, day, hour, minute, second, None)
        return None if ns is None else Stamp(ns, LOCAL if match[6] else UNDATED)
    return None


def stamp_of(text: str) -> Stamp | None:
    """The stamp at or near the start of ``text``, or None."""
    return _stamp(text)


def kernel_host(text: str) -> str | None:
    """Host of a syslog line of the kernel."""
    match = _SYSLOG_HOST.search(text[:400])
    return match[1] if match is not None else None


def _ns(
    year: int, month: int, day: int, hour: int, minute: int, second: int, fraction: str | None
) -> int | None:
    if not (1970 <= year <= 2200 and 1 <= month <= 12 and 1 <= day <= 31 and hour < 24 and minute < 60):
        return None
    if day > calendar.monthrange(year, month)[1] or second > 60:
        return None
    whole = calendar.timegm((year, month, day, hour, minute, second))
    return whole * 1_000_000_000 + (int(fraction.ljust(9, "0")) if fraction else 0)


def _offset_ns(zone: str) -> int:
    if zone == "Z":
        return 0
    minutes = int(zone[1:3]) * 60 + int(zone[-2:])
    return (minutes if zone[0] == "+" else -minutes) * 60_000_000_000


def in_year(stamp: Stamp, year: int) -> Stamp:
    """An undated stamp put into ``year``, by the clock of the place."""
    if stamp.clock != UNDATED:
        return stamp
    moved = calendar.timegm((year, 1, 1, 0, 0, 0)) - calendar.timegm((_UNDATED_YEAR, 1, 1, 0, 0, 0))
    leap = calendar.isleap(year)
    march = calendar.timegm((_UNDATED_YEAR, 3, 1, 0, 0, 0)) * 1_000_000_000
    lost = 0 if leap or stamp.ns < march else 86_400
    return Stamp(stamp.ns + (moved - lost) * 1_000_000_000, LOCAL)
