"""Known bugs that a verdict of ``analyze`` may come from, for its JSON and for the terminal.

In: an observation and its diagnosis. Out: ``Known``, or None where no version is told; lines of text.
"""

from __future__ import annotations

import textwrap
from typing import Final

from clusterwatch.analysis.known_bugs import Known, Match, Setup, case_of, matches
from clusterwatch.analysis.model import Diagnosis, Observation

SHOWN_MAX: Final = 3
_INDENT: Final = "  "


def of(observation: Observation, diagnosis: Diagnosis) -> Known | None:
    """Rows for the whole diagnosis; None where neither dumps nor logs tell a version."""
    if not observation.versions:
        return None
    lines = (event.text for log in observation.logs for event in log.events)
    return matches(case_of(diagnosis.to_dict(), lines), Setup(observation.versions))


def lines(known: Known | None, width: int) -> list[str]:
    """A few lines for the terminal; none where nothing fits."""
    if known is None or not known.rows:
        return []
    told = ["", "Known bugs it may be (the verdict does not rest on them):"]
    for one in known.rows[:SHOWN_MAX]:
        told += textwrap.wrap(_sentence(one), width, initial_indent=_INDENT, subsequent_indent=_INDENT * 2)
    if len(known.rows) > SHOWN_MAX:
        told.append(f"{_INDENT}{len(known.rows) - SHOWN_MAX} more with --json")
    return told


def _sentence(one: Match) -> str:
    fit = "fits" if one.fits else f"may be ({'; '.join(one.unknown)})"
    return f"{one.bug.id}, {fit}, {one.bug.sure}: {one.bug.title} {one.bug.action} Source: {one.bug.source}."
