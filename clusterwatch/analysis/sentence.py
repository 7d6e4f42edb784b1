"""Words for people: rank lists, durations, and the one sentence of a finding (at most 200 characters)."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

SENTENCE_MAX_CHARS: Final = 200

UNDESCRIBED: Final = frozenset({"", "undefined"})
"""Descriptions that torch gives a group nobody described."""
_CAUSE_WORDS: Final = {
    "data_loading": "data loading",
    "checkpoint": "checkpoint",
    "compile": "compilation",
    "gc": "garbage collection",
    "user_code": "user code",
    "stopped": "process stopped",
    "io": "waits for files or the network",
    "gil_held": "interpreter held",
    "extra_call": "one call too many",
    "wrong_ratio": "input and output do not fit the group",
    "two_roots": "more than one root",
    "no_root": "no root",
    "circular_wait": "each waits for the other",
    "skipped_call": "one call left out",
    "wrong_peer": "wrong peer addressed",
    "wrong_size": "sizes differ",
    "agent_gone": "agent gone, state unknown",
}


def ranks_text(ranks: Iterable[int], most: int = 6) -> str:
    """``0-3, 7``; beyond ``most`` parts their step is told (``1-121, every 8th``), or the rest counted."""
    ordered = sorted(set(ranks))
    parts: list[tuple[int, int]] = []
    for rank in ordered:
        if parts and rank == parts[-1][1] + 1:
            parts[-1] = (parts[-1][0], rank)
        else:
            parts.append((rank, rank))
    step = ordered[1] - ordered[0] if len(parts) > most else 0
    if step and ordered == list(range(ordered[0], ordered[-1] + 1, step)):
        return f"{ordered[0]}-{ordered[-1]}, every {_ordinal(step)}"
    texts = []
    for first, last in parts[:most]:
        texts.append(
            str(first) if first == last else f"{first}, {last}" if last == first + 1 else f"{first}-{last}"
        )
    left = sum(last - first + 1 for first, last in parts[most:])
    return ", ".join(texts) + (f" and {left} more" if left else "")


def _ordinal(number: int) -> str:
    ending = "th" if number % 100 in (11, 12, 13) else {1: "st", 2: "nd", 3: "rd"}.get(number % 10, "th")
    return f"{number}{ending}"


def noun(ranks: Iterable[int], most: int = 6) -> str:
    """``rank 5`` or ``ranks 0-3``."""
    ordered = sorted(set(ranks))
    return f"rank{'s' if len(ordered) != 1 else ''} {ranks_text(ordered, most)}"


def group_title(name: str, desc: str) -> str:
    """``tp``; ``group 12`` where nobody described it."""
    return desc if desc not in UNDESCRIBED else f"group {name}" if name else "its group"


def number(value: int) -> str:
    """Thousands apart: 16 384."""
    return f"{value:,}".replace(",", "\N{NO-BREAK SPACE}")


def count(value: int, word: str) -> str:
    """``1 rank``, ``16 384 ranks``."""
    return f"{number(value)} {word}{'' if value == 1 else 's'}"


def duration(seconds: float) -> str:
    """``850 ms``, ``42 s``, ``4 min 12 s``, ``2 h 5 min``."""
    if seconds < 1:
        return f"{seconds * 1000:.0f} ms"
    whole = round(seconds)
    if whole < 60:
        return f"{whole} s"
    if whole < 3600:
        return f"{whole // 60} min {whole % 60} s"
    return f"{whole // 3600} h {whole % 3600 // 60} min"


def cause_tail(cause: str | None) -> str:
    """``Cause: data loading.``, or nothing."""
    words = _CAUSE_WORDS.get(cause or "")
    return f"Cause: {words}." if words else ""


def sentence(*parts: str) -> str:
    """Joins clauses, dropping the last ones when they do not fit; a single clause that long is cut."""
    kept: list[str] = []
    for part in parts:
        if part and len(" ".join([*kept, part])) <= SENTENCE_MAX_CHARS:
            kept.append(part)
    text = " ".join(kept) or (parts[0] if parts else "")
    return (
        text
        if len(text) <= SENTENCE_MAX_CHARS
        else text[: SENTENCE_MAX_CHARS - 1] + "\N{HORIZONTAL ELLIPSIS}"
    )
