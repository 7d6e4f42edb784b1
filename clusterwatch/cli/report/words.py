"""Phrases that the text and the page share: when, who, which groups, what is to be said of files."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Final

from clusterwatch.analysis.model import Culprit, Diagnosis, Finding, InputProblem, Owner
from clusterwatch.analysis.overview import OpenCall, Overview, Shape
from clusterwatch.analysis.sentence import count, duration, noun, number, ranks_text

_AGE_MIN_S: Final = 1.0
"""Younger than this, the newest call anywhere is part of the same stop: the age would say nothing."""

_AGE_TOLD_MIN_S: Final = 0.0005
"""Less would be told as 0 ms."""

_NO_BREAK: Final = "\N{NO-BREAK SPACE}"
_KEPT: Final = frozenset({_NO_BREAK, "\N{NARROW NO-BREAK SPACE}"})
_OWNERS: Final = {
    Owner.INFRA: "a matter of the infrastructure",
    Owner.USER: "a matter of the training code",
    Owner.SCHEDULER: "a matter of the scheduler",
    Owner.UNKNOWN: "",
}


def printable(text: str) -> str:
    """Names come from dumps: control characters and marks that turn the text around never get out."""
    return "".join(
        char if char.isprintable() or char in _KEPT else "\N{REPLACEMENT CHARACTER}" for char in text
    )


def utc(at_ns: int) -> str:
    """``2026-12-02 03:07:41 UTC``; out of range times (a broken dump) stay numbers."""
    try:
        return f"{datetime.fromtimestamp(at_ns / 1e9, UTC):%Y-%m-%d %H:%M:%S} UTC"
    except (OverflowError, ValueError, OSError):
        return f"{at_ns} ns"


def since(call: OpenCall, view: Overview) -> str:
    """When the call was issued, and how long it stood where the dumps prove it."""
    if call.since_ns is None:
        return ""
    text = utc(call.since_ns)
    age_s = 0.0 if view.newest_ns is None else (view.newest_ns - call.since_ns) / 1e9
    if age_s >= _AGE_MIN_S:
        text += f", {lasting(age_s)} before the newest call in the dumps"
    else:
        younger = f"the newest call anywhere is {lasting(age_s)} younger"
        newest = younger if age_s >= _AGE_TOLD_MIN_S else "no call is newer"
        text += f"; {newest}, so the dumps do not tell how long it stands"
    if call.timed_out:
        text += f"; the watchdog gave it up on {count(call.timed_out, 'rank')}"
    elif call.timeout_ms is not None:
        text += f"; its time-out is {lasting(call.timeout_ms / 1000)}"
    return text


def lasting(seconds: float) -> str:
    """``10 min``, ``4 min 18 s``: a duration that no line break parts."""
    text = duration(seconds).removesuffix(" 0 s").removesuffix(" 0 min")
    return text.replace(" ", _NO_BREAK)


def confidence(value: float) -> str:
    """The number with a word for people who do not know its scale."""
    word = "high" if value >= 0.8 else "medium" if value >= 0.6 else "low"
    return f"confidence {value:.2f} ({word})"


def owner(finding: Finding) -> str:
    return _OWNERS[finding.owner]


def title(verdict: str) -> str:
    """``missing_rank`` as words."""
    return verdict.replace("_", " ")


def place(culprit: Culprit) -> str:
    """``rank 5 (host-c, GPU 1, pid 4711)``, as far as known; ``process 4711 on host-c`` without a rank."""
    parts = [
        culprit.host,
        None if culprit.gpu is None else f"GPU {culprit.gpu}",
        None if culprit.pid is None else f"pid {culprit.pid}",
    ]
    known = ", ".join(part for part in parts if part)
    if culprit.rank is None and culprit.host is not None and "/" in culprit.host:
        return f"the process of {known}"  # a file stands for it, since nothing tells its rank
    if culprit.rank is None and culprit.pid is not None:
        return f"process {culprit.pid} on {culprit.host or 'an unknown host'}"
    who = "host" if culprit.rank is None else f"rank {culprit.rank}"
    return f"{who} ({known})" if known else who


_LIBRARY_PATH: Final = re.compile(r"\((?:[^()]*/)?(?:site|dist)-packages/")


def frame(text: str) -> str:
    """A stack frame with the path of an installed library cut to the library."""
    return printable(_LIBRARY_PATH.sub("(", text))


def where(finding: Finding) -> str:
    """The call and its group; who joined, where the finding says it."""
    if finding.group is None:
        return ""
    sequence = "" if finding.seq is None else f" {finding.seq}"
    name, desc = finding.group.name, finding.group.desc
    called = desc if desc and desc == name else f"{desc} (group {name!r})" if desc else f"group {name!r}"
    call = f"{finding.op}{sequence} of {called}" if finding.op else called
    return f"{call}, {noun(finding.group.ranks)}" if finding.group.ranks else call


def joined(finding: Finding) -> str:
    """Who issued the call and who did not."""
    if not finding.joined_ranks and not finding.missing_ranks:
        return ""
    if not finding.missing_ranks:
        whole = finding.group is not None and len(finding.group.ranks) == len(finding.joined_ranks)
        who = "" if whole else " that reported"
        return f"all {count(len(finding.joined_ranks), 'member')}{who} issued it"
    absent = f"{noun(finding.missing_ranks)} did not"
    return f"{noun(finding.joined_ranks)} issued it; {absent}" if finding.joined_ranks else absent


def waiting(finding: Finding) -> str:
    """How many only wait because of it."""
    down = finding.downstream
    if not down.ranks:
        return ""
    groups = f" in {count(down.groups, 'group')}" if down.groups else ""
    if finding.fault_class == "crash":
        return f"{count(down.ranks, 'rank')}{groups} failed or stopped because of it"
    verb = "waits" if down.ranks == 1 else "wait"
    return f"{count(down.ranks, 'rank')}{groups} only {verb}"


def shape_name(shape: Shape) -> str:
    """``512 tp groups of 8``, ``1 default_pg group of 16``, ``4 groups of 8 neighbours``."""
    word = "group" if shape.count == 1 else "groups"
    if shape.role.startswith("groups of "):
        return f"{number(shape.count)} {word}{shape.role.removeprefix('groups')}"
    return f"{number(shape.count)} {shape.role} {word} of {number(shape.size)}"


def shape_counts(shape: Shape) -> str:
    """``511 ok, 1 stuck (ranks 40-47)``."""
    parts = [
        f"{number(many)}{_NO_BREAK}{word}"
        for many, word in ((shape.ok, "ok"), (shape.waiting, "waiting"))
        if many
    ]
    if shape.stuck:
        members = "; ".join(noun(group.members, 3) for group in shape.named[:3])
        more = f" and {number(shape.stuck - 3)} more" if shape.stuck > 3 else ""
        parts.append(f"{number(shape.stuck)}{_NO_BREAK}stuck ({members}{more})")
    return ", ".join(parts)


def coverage(diagnosis: Diagnosis) -> str:
    cover = diagnosis.coverage
    text = f"{number(cover.reported)} of {count(cover.expected, 'rank')} reported"
    if cover.expected < max(cover.reported, 1):  # logs may not tell how many there are
        text = f"{count(cover.reported, 'rank')} reported; the size of the job is not known"
    elif not cover.size_told:
        text = f"{count(cover.reported, 'rank')} reported; the dumps do not tell how many the job has"
    if cover.stale:
        text += f"; {count(cover.stale, 'dump')} of an earlier time left out"
    if cover.only_open:
        holds = "holds" if cover.only_open == 1 else "hold"
        text += f"; {count(cover.only_open, 'dump')} {holds} open calls only, so finished ones are not told"
    if cover.truncated > cover.only_open:
        overflowed = count(cover.truncated - cover.only_open, "ring")
        text += f"; {overflowed} overflowed, so older calls are not in the dumps"
    return text


@dataclass(frozen=True, slots=True)
class FoldedProblem:
    """Inputs of which one thing is to be said: mostly why they were not used."""

    reason: str
    sources: tuple[str, ...]


_NUMBER: Final = re.compile(r"\d+")


def folded(problems: Iterable[InputProblem]) -> tuple[FoldedProblem, ...]:
    """Problems whose reasons differ in numbers only, told once; the most frequent first."""
    together: dict[str, list[InputProblem]] = defaultdict(list)
    for problem in problems:
        together[_NUMBER.sub("#", problem.reason)].append(problem)
    made = [
        FoldedProblem(same[0].reason, tuple(problem.source for problem in same)) for same in together.values()
    ]
    return tuple(sorted(made, key=lambda fold: (-len(fold.sources), fold.sources)))


def members(ranks: Sequence[int], most: int = 6) -> str:
    return ranks_text(ranks, most) if ranks else "none"
