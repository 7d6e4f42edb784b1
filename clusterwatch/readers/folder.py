"""Flight-recorder dumps as they lie on a cluster -> ``RankTrace`` per rank, and what could not be used.

In: a file, a folder (nested, one per node), an archive. Out: ``Folder``. A dump does not say its rank: it
comes from the file name, whatever the prefix and with host names in between. Of several dumps of one rank the
newest counts; the older ones are named.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Final

from clusterwatch.analysis.model import InputProblem
from clusterwatch.readers.archives import Blob, UnreadableError, blobs
from collectors.formats.flight_recorder import DUMP_MAX_BYTES, decode
from collectors.formats.trace import RankTrace, TraceError

_ENDING: Final = re.compile(r"(?<!\d)(\d{1,7})(?:\.(?:json|pickle|pkl|bin|pt|dump|trace))?$")
_AFTER_RANK: Final = re.compile(r"rank[_-]?(\d{1,7})(?=[_-]|\.(?:json|pickle|pkl|bin|pt|dump|trace)$|$)")
_DUMP_WORDS: Final = re.compile(r"trace|dump|rank|flight", re.IGNORECASE)
_OTHER_FILES: Final = re.compile(
    r"\.(log|txt|out|err|py|md|ya?ml|toml|csv|html?|sh|pipe|tmp|lock|jsonl|png|svg)(\.\d+)?$", re.IGNORECASE
)
_PROBLEMS_MAX: Final = 1_000

Progress = Callable[[int, int], None]


@dataclass(frozen=True, slots=True)
class Folder:
    """What was found. ``traces`` sorted by rank; ``problems`` by source."""

    traces: tuple[RankTrace, ...]
    problems: tuple[InputProblem, ...]
    files: int
    """dumps read, usable or not"""


def read(path: Path, progress: Progress | None = None) -> Folder:
    """All dumps at or below ``path``. Listed once for the names, which tell the ranks, then read once.

    Args:
        progress: called with the number of dumps read and of dumps there are.

    Raises:
        FileNotFoundError: there is nothing at ``path``.
    """
    problems: list[InputProblem] = []
    names: list[str] = []
    for item in blobs(path):
        if isinstance(item, Blob):
            names += [item.name] if _may_be_dump(item.name) else []
        elif _DUMP_WORDS.search(item[0]) or ":" not in item[0]:
            _note_unopened(item, problems)
    ranks = ranks_by_name(names)
    chosen: dict[int, RankTrace] = {}
    done = 0
    for item in blobs(path):
        rank = ranks.get(item.name) if isinstance(item, Blob) else None
        if rank is None or not isinstance(item, Blob):
            continue
        trace = _load(item, rank, problems)
        if trace is not None:
            _choose(chosen, trace, problems)
        done += 1
        if progress is not None:
            progress(done, len(ranks))
    ordered = tuple(chosen[rank] for rank in sorted(chosen))
    named = sorted(problems, key=lambda p: (p.source, p.reason))[:_PROBLEMS_MAX]
    return Folder(ordered, tuple(named), done)


def _may_be_dump(name: str) -> bool:
    base = PurePosixPath(name).name
    return not base.startswith(".") and not _OTHER_FILES.search(base) and bool(_candidates(base))


def _candidates(base: str) -> tuple[int, ...]:
    """Numbers of a file name that may be the rank: the one at its end, and the one after the word rank."""
    found = [match[1] for match in (_ENDING.search(base), _AFTER_RANK.search(base)) if match is not None]
    return tuple(int(text) for text in found)


def ranks_by_name(names: Iterable[str]) -> dict[str, int]:
    """Rank of each file name. Where a name holds two numbers (host names, time stamps), the place that tells
    the files of one folder apart best is taken for the whole folder; the end of the name on a tie.
    """
    folders: dict[str, list[str]] = defaultdict(list)
    for name in sorted(names):
        folders[str(PurePosixPath(name).parent)].append(name)
    ranks: dict[str, int] = {}
    for folder in folders.values():
        at_end = {name: _candidates(PurePosixPath(name).name)[0] for name in folder}
        after_word = {name: _candidates(PurePosixPath(name).name)[-1] for name in folder}
        better = len(set(after_word.values())) > len(set(at_end.values()))
        ranks |= after_word if better else at_end
    return ranks


def _note_unopened(item: tuple[str, str], problems: list[InputProblem]) -> None:
    name, reason = item
    if not name.endswith(".pipe"):  # the recorder's own leftovers: one per rank, always empty
        problems.append(InputProblem(name, reason))


def _load(blob: Blob, rank: int, problems: list[InputProblem]) -> RankTrace | None:
    """The dump, or None for a file that is none; a dump that cannot be used is named."""
    try:
        return decode(blob.read(DUMP_MAX_BYTES), rank, blob.name)
    except (TraceError, UnreadableError) as error:
        problems.append(InputProblem(blob.name, str(error)[:300], rank))
        return None


def _choose(chosen: dict[int, RankTrace], trace: RankTrace, problems: list[InputProblem]) -> None:
    kept = chosen.get(trace.rank)
    if kept is None:
        chosen[trace.rank] = trace
        return
    older, newer = sorted((kept, trace), key=lambda t: (t.newest_ns or 0, len(t.entries), t.source))
    chosen[trace.rank] = newer
    reason = f"stale: an older dump of rank {older.rank}; {newer.source} is newer"
    problems.append(InputProblem(older.source, reason, older.rank))
