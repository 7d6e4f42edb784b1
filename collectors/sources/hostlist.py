"""Host lists as Slurm writes them: ``gtn-[0101-0116,0120],login1``.

Source: scontrol(1), "show hostnames"; numbers keep the width they are written with.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from itertools import islice
from typing import Final

HOSTS_MAX: Final = 65_536
TEXT_MAX_CHARS: Final = 1_048_576
_GROUPS_MAX: Final = 8
_DIGITS_MAX: Final = 9
_RANGE: Final = re.compile(r"(\d{1,9})(?:-(\d{1,9}))?")


def expand(text: str) -> list[str]:
    """The names, in the order of the list; at most ``HOSTS_MAX``. What cannot be read is left out."""
    words = _words(text[:TEXT_MAX_CHARS])
    return list(islice((name for word in words for name in _names(word)), HOSTS_MAX))


def holds(text: str, host: str) -> bool:
    """Whether a host is in a list, which is not expanded for it; either may have the domain with it."""
    words = [word.strip() for word in _words(text[:TEXT_MAX_CHARS])]
    return any(_matches(word, host) or _matches(short(word), short(host)) for word in words)


def short(name: str) -> str:
    """A host's name without its domain."""
    return name.partition(".")[0]


def position(names: list[str], host: str) -> int | None:
    """Place of a host in a list of names; the list or the host may have the domain with it."""
    if host in names:
        return names.index(host)
    return next((place for place, name in enumerate(names) if short(name) == short(host)), None)


def _matches(word: str, name: str) -> bool:
    """Whether one word stands for the name, among others. Cost: linear in both."""
    pieces = word.split("[")
    if not name or len(pieces) > _GROUPS_MAX + 1 or "]" in pieces[0]:
        return False
    # how much of the name may be used up by the pieces so far
    reached = {len(pieces[0])} if name.startswith(pieces[0]) else set()
    for piece in pieces[1:]:
        inner, closed, literal = piece.partition("]")
        if not closed or "]" in literal:
            return False
        numbers = [match for part in inner.split(",") if (match := _RANGE.fullmatch(part.strip()))]
        ends = {
            at + width
            for at in reached
            for width in range(1, _DIGITS_MAX + 1)
            if _is_number_of(numbers, name[at : at + width], width)
        }
        reached = {at + len(literal) for at in ends if name.startswith(literal, at)}
    return len(name) in reached


def _is_number_of(ranges: list[re.Match[str]], text: str, width: int) -> bool:
    if len(text) != width or not (text.isascii() and text.isdigit()):
        return False
    number = int(text)
    return any(
        int(match[1]) <= number <= int(match[2] or match[1]) and text == f"{number:0{len(match[1])}d}"
        for match in ranges
    )


def _words(text: str) -> Iterator[str]:
    """The parts between commas that are in no bracket."""
    word: list[str] = []
    depth = 0
    for char in text:
        depth = max(depth + (char == "[") - (char == "]"), 0)
        if char == "," and depth == 0:
            yield "".join(word)
            word = []
        else:
            word.append(char)
    yield "".join(word)


def _names(word: str, groups: int = 0) -> Iterator[str]:
    word = word.strip()
    head, bracket, rest = word.partition("[")
    if not bracket:
        if word and "]" not in word:
            yield word
        return
    inner, closed, tail = rest.partition("]")
    if not closed or groups >= _GROUPS_MAX:
        return
    ends = list(islice(_names(tail, groups + 1), HOSTS_MAX)) if tail else [""]
    for number in _numbers(inner) if ends else ():
        for end in ends:
            yield head + number + end


def _numbers(inner: str) -> Iterator[str]:
    for part in inner.split(","):
        match = _RANGE.fullmatch(part.strip())
        if match is None:
            continue
        first, last = match[1], match[2] or match[1]
        for number in range(int(first), int(last) + 1):
            yield f"{number:0{len(first)}d}"
