"""The rank of each dump, from the names of all files of a folder: a dump does not say its own.

In: paths below the input. Out: ``Named`` per file that may be a dump. Recorders write ``<prefix><rank>``, but
people put host names, time stamps and counters around it (public issue 140879), so the same number of a name
is read for all files of one prefix: the one that tells ranks apart. Where names leave it open, ``decide`` is
asked, which looks into a few of the files: a rank is a member of every group its dump lists.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

SAMPLES: Final = 6
"""Files that are looked into when names leave the rank open."""

_ENDINGS: Final = r"(?:\.(?:json|pickle|pkl|bin|pt|pth|dump|trace|dat))*"
_NUMBER: Final = r"(?<!\d)(0*\d{1,7})(?!\d)"
"""Longer ones are times, job ids or addresses; zeros in front may fill up any width."""
_AT_END: Final = re.compile(rf"{_NUMBER}{_ENDINGS}$", re.IGNORECASE)
_AFTER_WORD: Final = re.compile(rf"rank[_.=-]?{_NUMBER}", re.IGNORECASE)
_ANY: Final = re.compile(_NUMBER)
_RANK_WORD: Final = re.compile(r"rank[_.=-]?", re.IGNORECASE)
_RANK_FOLDER: Final = re.compile(
    r"(?:(?:(?:global|local)[_-]?)?rank|r|proc(?:ess)?|task|worker|gpu)?[_.=-]?0*(\d{1,7})", re.IGNORECASE
)
"""A folder that may stand for one process; ``node5``, ``attempt_2`` and ``run7`` do not."""
_DUMP_WORDS: Final = re.compile(r"trace|dump|rank|flight|(?<![a-z])fr(?![a-z])", re.IGNORECASE)
_OTHER_FILES: Final = re.compile(
    r"\.(log|txt|out|err|py|md|rst|ya?ml|toml|ini|cfg|csv|html?|xml|sh|pipe|tmp|part|swp|lock|jsonl|png|svg|pdf"
    r"|so|whl|pyc|npy|npz|safetensors|sha256|md5)(\.\d+)?$|^(?:torchelastic_)?error(?:[_.-]?\w{1,40})?\.json$",
    re.IGNORECASE,
)

PARTS: Final = re.compile(r"/|(?<!\d):|:(?!\d\d(?!\d))")
"""Between the parts of a path and of an archive's members; the colons of a time of day are none."""
_PLACES_MAX: Final = 12
"""Numbers of a name that are tried as its rank."""
_FOLDER_PLACES: Final = ("in folder", "one above", "two above", "three above")

Decide = Callable[[Sequence[tuple[str, int]]], int]
"""Given (name, rank it would have) of some files: how many groups of their dumps have that rank."""


@dataclass(frozen=True, slots=True)
class Named:
    """A file that may be a dump. ``sure``: its name says so; else a file that is none is nobody's problem."""

    name: str
    rank: int
    prefix: str
    """its base name up to the rank or host; the same for all dumps of a job"""
    sure: bool
    series: str = ""
    """its path up to the rank: files of one series, as of one host's folder, were numbered together"""


def is_dump_like(name: str) -> bool:
    """Whether the last part of the name holds a word that dumps have, and is no other kind of file."""
    base = _base(name)
    return bool(_DUMP_WORDS.search(base)) and not _OTHER_FILES.search(base) and not base.startswith(".")


def assign(names: Iterable[str], decide: Decide | None = None) -> list[Named]:
    """The files that may be dumps, in order of name, each with its rank. Cost: O(files)."""
    families: dict[str, list[str]] = defaultdict(list)
    for name in sorted(names):
        base = _base(name)
        if base and not base.startswith(".") and not _OTHER_FILES.search(base) and _slots(name):
            families[re.sub(r"\d+", "0", _prefix(base))].append(name)
    found = []
    for members in families.values():
        slots = {name: _slots(name) for name in members}
        if len(members) > 1 and not _told_apart(slots):
            slots = {name: slots[name] | _every_place(name) for name in members}
        order = _by_quality(slots)
        best = _looked_into(order, slots, decide) if decide is not None and len(order) > 1 else order[0]
        for name in members:
            rank = slots[name].get(best, next(iter(slots[name].values())))
            prefix = _prefix(_base(name), best)
            sure = bool(_DUMP_WORDS.search(_telling_part(name)))
            found.append(Named(name, rank, prefix, sure, _series(name, best, prefix)))
    return sorted(found, key=lambda named: named.name)


def _telling_part(name: str) -> str:
    """The part of the path that holds the rank."""
    base = _base(name)
    return base if _ANY.search(base) else name


def _series(name: str, place: str, prefix: str) -> str:
    """The path up to the rank: up to the folder that tells it, or to what stands before it in the name."""
    folders = name[: len(name) - len(_base(name))]
    if place in _FOLDER_PLACES:
        for _ in range(_FOLDER_PLACES.index(place) + 1):
            folders = folders.rstrip("/:").rpartition("/")[0] + "/"
        return folders
    return folders + prefix


def _base(name: str) -> str:
    return PARTS.split(name)[-1]


def _prefix(base: str, place: str = "end") -> str:
    """What stands before the rank, or before the host that stands before the rank."""
    word = _RANK_WORD.search(base)
    if word is not None:
        return base[: word.end()]
    numbers = [match.start() for match in _ANY.finditer(base)]
    if place == "before" and len(numbers) > 1:
        return base[: numbers[-2]]
    at_end = _AT_END.search(base)
    return base[: at_end.start()] if at_end is not None else base


def _slots(name: str) -> dict[str, int]:
    """Numbers of a name that may be its rank, by their place: the one at the end or else the last, the one
    after the word rank, the one before the last. A base name without one takes them from its folders.
    """
    base = _base(name)
    numbers = _ANY.findall(base)
    text = base
    if not numbers:
        if told := _folder_slots(name):
            return told
        text = name.rpartition("/")[0]
        numbers = _ANY.findall(text)[-1:] if _AFTER_WORD.search(text) else []
    found: dict[str, int] = {}
    if numbers and (at_end := _AT_END.search(text)) is not None:
        found["end"] = int(at_end[1])
    elif numbers:
        found["last"] = int(numbers[-1])
    if (after := _AFTER_WORD.search(text)) is not None:
        found["word"] = int(after[1])
    if len(numbers) > 1:
        found["before"] = int(numbers[-2])
    return found if numbers or "word" in found else {}


def _folder_slots(name: str) -> dict[str, int]:
    """Numbers of the folders that may each stand for one process, by how far they are above the file."""
    if not is_dump_like(name):
        return {}
    folders = PARTS.split(name)[-2::-1]
    found = {}
    for place, folder in zip(_FOLDER_PLACES, folders, strict=False):
        if (match := _RANK_FOLDER.fullmatch(folder)) is not None:
            found[place] = int(match[1])
    return found


def _told_apart(slots: Mapping[str, Mapping[str, int]]) -> bool:
    """Whether one of the usual places gives each file a number of its own."""
    places = {place for numbers in slots.values() for place in numbers}
    return any(len({numbers.get(place) for numbers in slots.values()}) == len(slots) for place in places)


def _every_place(name: str) -> dict[str, int]:
    """Each number of the base name by its position: a date and a time may stand behind the rank."""
    numbers = _ANY.findall(_base(name))[:_PLACES_MAX]
    return {f"number {place}": int(number) for place, number in enumerate(numbers)}


def _by_quality(slots: Mapping[str, Mapping[str, int]]) -> list[str]:
    """Places of the rank, most likely first; places that give every file the same number as a better one are
    dropped. Ranks are dense and differ from file to file; host numbers repeat, times are sparse.
    """
    values: dict[str, list[int]] = defaultdict(list)
    for numbers in slots.values():
        for place, number in numbers.items():
            values[place].append(number)

    def quality(place: str) -> tuple[bool, bool, int, bool, int, bool]:
        given = values[place]
        different = len(set(given))
        sparse = max(given) >= 4 * len(slots) + 4_096
        rare = len(given) * 2 < len(slots)
        return (rare, sparse, -different, place == "before", max(given), place != "end")

    order: list[str] = []
    for place in sorted(values, key=quality):
        if all(any(slots[n].get(place) != slots[n].get(o) for n in slots) for o in order):
            order.append(place)
    return order


def _looked_into(order: list[str], slots: Mapping[str, Mapping[str, int]], decide: Decide) -> str:
    """The place whose numbers are members of the groups in the dumps; the likeliest one when none says."""
    names = sorted(name for name in slots if all(place in slots[name] for place in order))
    different = [name for name in names if len({slots[name][place] for place in order}) > 1]
    step = max(1, len(different) // SAMPLES)
    sample = different[::step][:SAMPLES]
    heard = {place: decide([(name, slots[name][place]) for name in sample]) for place in order}
    return max(order, key=lambda place: (heard[place], -order.index(place)))
