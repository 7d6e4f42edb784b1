"""Versions of NCCL, PyTorch, drivers and firmware in one order, however their texts are written.

In: texts as tools, logs and file names tell them (``2.21.5-1``, ``libnccl.so.2.21.5``, ``550.54.15``,
``2.4.0a0+git3beb9d8``, ``28.39.1002``). Out: ``Version``s that compare, and whether one lies in a ``Range``.
Source: PEP 440 for stages before a release; Debian's policy for the revision after a hyphen, which counts
packages and not code.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final

TEXT_MAX_CHARS: Final = 200
NUMBERS_MAX: Final = 6
_FILE: Final = re.compile(r"\.so\.(\d{1,6}(?:\.\d{1,6}){2,5})(?![\d.])")
_TEXT: Final = re.compile(
    r"(?:^|(?<=[\s,=:]))[vV]?(\d{1,6}(?:\.\d{1,8}){1,5})"
    r"(?:[._-]?(dev|alpha|beta|rc|a|b|c)[._-]?(\d{0,10}))?(?![\d.])"
)
_STAGES: Final = {"dev": 0, "a": 1, "alpha": 1, "b": 2, "beta": 2, "c": 3, "rc": 3}
_FINAL: Final = 4


@dataclass(frozen=True, slots=True, order=True)
class Version:
    """``stage`` is below 4 before the release; ``numbers`` have no zeros at their end."""

    numbers: tuple[int, ...]
    stage: int = _FINAL
    stage_number: int = 0

    @property
    def is_before_release(self) -> bool:
        return self.stage < _FINAL

    def __str__(self) -> str:
        return ".".join(map(str, self.numbers))


def parse(text: str) -> Version | None:
    """The version a text tells; None where it tells none, or a major number alone."""
    text = text[:TEXT_MAX_CHARS]
    if ".so" in text:
        file = _FILE.search(text)
        return _version(file[1], None, "") if file else None
    match = _TEXT.search(text.strip())
    return _version(match[1], match[2], match[3] or "") if match else None


def _version(numbers: str, stage: str | None, stage_number: str) -> Version:
    parts = [int(part) for part in numbers.split(".")][:NUMBERS_MAX]
    while len(parts) > 1 and parts[-1] == 0:
        parts.pop()
    if stage is None:
        return Version(tuple(parts))
    return Version(tuple(parts), _STAGES[stage], int(stage_number or 0))


@dataclass(frozen=True, slots=True)
class Range:
    """From ``first`` on, until before ``fixed``; None: it is not known to begin, or to end."""

    first: str | None = None
    fixed: str | None = None

    def holds(self, version: Version) -> bool | None:
        """Whether a version has the bug; None where that cannot be told.

        A development build of the release that has the fix may have been made before or after it.
        """
        first, fixed = _bound(self.first), _bound(self.fixed)
        for bound in (first, fixed):
            if bound is not None and version.is_before_release and version.numbers == bound.numbers:
                return None
        return (first is None or version >= first) and (fixed is None or version < fixed)

    def __str__(self) -> str:
        if self.first is None and self.fixed is None:
            return "versions not told"
        begin = f"from {self.first}" if self.first else ""
        end = f"before {self.fixed}" if self.fixed else "no fixed version known"
        return ", ".join(part for part in (begin, end) if part)


def _bound(text: str | None) -> Version | None:
    if text is None:
        return None
    found = parse(text)
    return Version((int(text),)) if found is None else found
