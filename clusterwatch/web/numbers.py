"""Numbers, ages and times as the screens write them: pure text, no HTML.

Thin-space thousands, a true minus, a unit after a space, a dash where nothing is known. Identifiers that
people copy (job, rank, sequence number) are never grouped.
"""

from __future__ import annotations

from collections.abc import Iterable
from datetime import UTC, datetime

THIN = "\u202f"
"""narrow no-break space"""
DASH = "\u2013"
MINUS = "\u2212"
RANK_RUNS_MAX = 12
"""More runs than this and the rest is a count."""


def grouped(value: float | None, digits: int = 0) -> str:
    """``16384`` as ``16 384``; None as a dash."""
    if value is None:
        return DASH
    text = f"{abs(value):,.{digits}f}".replace(",", THIN)
    return f"{MINUS}{text}" if value < 0 and float(f"{value:.{digits}f}") != 0 else text


def share(part: float, whole: float) -> str:
    """A share in per cent, rounded down so that a missing one never reads as 100."""
    if whole <= 0:
        return DASH
    percent = 100 * part / whole
    if part in (0, whole):
        return f"{100 if part else 0}{THIN}%"
    digits = 0 if percent < 99 and percent >= 10 else 1 if percent >= 1 else 2
    scale = 10**digits
    return f"{int(percent * scale) / scale:.{digits}f}{THIN}%"


def lasting(seconds: float | None) -> str:
    """A duration in the two largest units that matter: ``8 s``, ``4 min 18 s``, ``2 h 05 min``, ``3 d``."""
    if seconds is None:
        return DASH
    whole = max(0, int(seconds))
    if whole < 60:
        return f"{whole}{THIN}s"
    if whole < 3600:
        return f"{whole // 60}{THIN}min {whole % 60}{THIN}s"
    if whole < 2 * 86400:
        return f"{whole // 3600}{THIN}h {whole % 3600 // 60:02}{THIN}min"
    return f"{whole // 86400}{THIN}d"


def clock(at: datetime | None, now: datetime | None = None) -> str:
    """UTC time of day, with the date when it is not today's."""
    if at is None:
        return DASH
    utc, today = at.astimezone(UTC), (now or datetime.now(UTC)).astimezone(UTC).date()
    return utc.strftime("%H:%M:%S" if utc.date() == today else "%Y-%m-%d %H:%M:%S")


def size(count: int | None) -> str:
    """Bytes in binary steps: ``1.5 GiB``."""
    if count is None:
        return DASH
    value = float(count)
    for unit in ("B", "KiB", "MiB", "GiB", "TiB"):
        if value < 1024 or unit == "TiB":
            return f"{value:.0f}{THIN}{unit}" if unit == "B" else f"{value:.1f}{THIN}{unit}"
        value /= 1024
    raise AssertionError("the last unit always returns")


def rank_runs(ranks: Iterable[int]) -> str:
    """Ranks as runs: ``0-3, 7, 9-11``; after ``RANK_RUNS_MAX`` runs the rest is counted."""
    ordered = sorted(set(ranks))
    if not ordered:
        return DASH
    runs: list[list[int]] = []
    for rank in ordered:
        if runs and rank == runs[-1][1] + 1:
            runs[-1][1] = rank
        else:
            runs.append([rank, rank])
    shown = ", ".join(str(a) if a == b else f"{a}-{b}" for a, b in runs[:RANK_RUNS_MAX])
    rest = sum(b - a + 1 for a, b in runs[RANK_RUNS_MAX:])
    return f"{shown} and {grouped(rest)} more" if rest else shown
