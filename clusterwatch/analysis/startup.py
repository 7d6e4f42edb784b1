"""How an attempt started: which part took how long over ranks, and who held the others up.

In: when each rank's process started and first stepped, and the parts of start-up that ranks told, seconds.
Out: ``Summary``: per part percentiles and the slowest ranks by place, and one sentence. A part that nobody
told has ``told_count`` 0 and no number. Pure.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np

from clusterwatch.analysis.goodput_model import Floats, Ints
from clusterwatch.analysis.sentence import duration

RULE: Final = "startup 1"
PARTS: Final = (
    "allocate",
    "container",
    "import",
    "init",
    "first_collective",
    "load",
    "compile",
    "data_loading",
    "checkpoint",
)
"""Parts a rank may tell as phases before its first step, in the order they happen."""
LAUNCH: Final = "process_start"
FIRST_STEP: Final = "first_step"
SLOW_MAX: Final = 5
LATE_MIN_S: Final = 5.0
"""Below this nobody waits long enough to be looked for."""
LATE_SPREADS: Final = 5.0
"""Late is this many times the spread (p75 to p25) beyond the median, and ``LATE_MIN_S``."""
LATE_MAX_RATIO: Final = 0.25
"""More than this share of ranks is no late few but a slow start of all."""


@dataclass(frozen=True, slots=True)
class Part:
    """One part; percentiles over the ranks that told it, None where nobody did.

    Attributes:
        slowest: (place of the rank, seconds), the longest first.
        late: places of ranks far beyond the others, and by how much the longest of them is.
    """

    name: str
    told_count: int
    p50_s: float | None = None
    p99_s: float | None = None
    longest_s: float | None = None
    slowest: tuple[tuple[int, float], ...] = ()
    late: tuple[int, ...] = ()
    late_by_s: float = 0.0


@dataclass(frozen=True, slots=True)
class Summary:
    """``first_step_s``: from the first process to the first step of the last rank that stepped."""

    rank_count: int
    stepped_count: int
    first_step_s: float | None
    parts: tuple[Part, ...]
    worst: Part | None
    """the part whose late ranks cost the others most"""


def summarise(started_ns: Ints, first_ns: Ints, told_s: Mapping[str, Floats]) -> Summary:
    """Sums up an attempt of N ranks.

    Args:
        started_ns: of each process, shape (N,), N > 0.
        first_ns: when its first told step began, 0 = not yet.
        told_s: part -> seconds by rank, NaN where a rank told none; parts that are missing nobody told.
    """
    stepped, begun_ns = first_ns > 0, int(started_ns.min())
    nobody = np.full(len(started_ns), np.nan)
    parts = [_part(LAUNCH, (started_ns - begun_ns) / 1e9)]
    parts += [_part(name, told_s.get(name, nobody)) for name in PARTS]
    worst = max((part for part in parts if part.late), key=lambda part: part.late_by_s, default=None)
    own_s = np.where(stepped, (first_ns - started_ns) / 1e9, np.nan)
    parts.append(_part(FIRST_STEP, own_s, blames=False))
    last_s = float((first_ns[stepped].max() - begun_ns) / 1e9) if stepped.any() else None
    return Summary(len(started_ns), int(stepped.sum()), last_s, tuple(parts), worst)


def _part(name: str, seconds: Floats, *, blames: bool = True) -> Part:
    """The first step is the same moment for all, since they wait for each other: it blames nobody."""
    places = np.flatnonzero(np.isfinite(seconds))
    if not len(places):
        return Part(name, 0)
    told = seconds[places]
    low, p50, high, p99, longest = np.percentile(told, (25, 50, 75, 99, 100)).tolist()
    worst = np.lexsort((places, -told))[:SLOW_MAX]
    slowest = tuple((int(places[at]), float(told[at])) for at in worst.tolist())
    bound = p50 + max(LATE_MIN_S, LATE_SPREADS * (high - low))
    late = places[told > bound] if blames else places[:0]
    if len(late) > max(1, LATE_MAX_RATIO * len(places)):
        late = places[:0]
    by_s = longest - p50 if len(late) else 0.0
    return Part(name, len(places), p50, p99, longest, slowest, tuple(late.tolist()), by_s)


WORDS: Final = {
    LAUNCH: "process start",
    "first_collective": "the first collective",
    "data_loading": "the first batch",
    "checkpoint": "a checkpoint",
    "load": "the load of a checkpoint",
    FIRST_STEP: "first step",
}
"""Parts in words, where their own name is none."""


def sentence(summary: Summary, hosts: Sequence[str]) -> str:
    """What an owner of the run wants to know. ``hosts``: by place of the rank."""
    if summary.first_step_s is None:
        return f"no rank of {summary.rank_count:,} has told a step yet"
    said = f"first step after {duration(summary.first_step_s)}"
    if summary.stepped_count < summary.rank_count:
        said += f" on {summary.stepped_count:,} of {summary.rank_count:,} ranks"
    worst = summary.worst
    if worst is None:
        return said
    where = Counter(hosts[place] for place in worst.late)
    (host, most), more = where.most_common(1)[0], len(where) - 1
    count = len(worst.late)
    of = (
        f"of {host}" if not more else f"({most} of them on {host}, {more} more host{'s' if more > 1 else ''})"
    )
    who = f"{count:,} rank{'s' if count > 1 else ''} {of}"
    verb = "were" if count > 1 else "was"
    return (
        f"{said}; {who} {verb} up to {duration(worst.late_by_s)} later at {WORDS.get(worst.name, worst.name)}"
    )
