"""Facts of a node as they are compared with its peers: short texts that are the same on equal nodes.

In: texts of files and tools. Out: samples ``fact_count`` of value 1 with the labels ``fact`` and ``value``.
Never a serial number, an address, a process or a time: what differs on every node says nothing about any.
"""

from __future__ import annotations

import hashlib
import re
from collections import Counter
from collections.abc import Callable, Iterable
from typing import Final

from collectors.sources.base import HOST, Sample
from collectors.sources.tree import Tree, printable, reason

FACT: Final = "fact_count"
VALUE_MAX_CHARS: Final = 120
FILE_MAX_BYTES: Final = 65_536
NAME: Final = re.compile(r"[A-Za-z0-9_.:@-]{1,64}")
"""What a device may be called."""
_HASH_CHARS: Final = 12
_SPACE: Final = re.compile(r"\s+")
_OF_ONE_NODE: Final = re.compile(
    r"(?<![0-9A-Za-z])(?:[0-9a-fA-F]{8}(?:-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}"
    r"|[0-9a-fA-F]{2}(?::[0-9a-fA-F]{2}){5}"
    r"|\d{1,3}(?:\.\d{1,3}){3})(?![0-9A-Za-z.])"
)
"""UUIDs, MAC addresses and IPv4 addresses."""


def tidy(text: str) -> str:
    """One line of bounded length; what is cut off still counts, by its hash."""
    text = printable(_SPACE.sub(" ", text).strip())
    if len(text) <= VALUE_MAX_CHARS:
        return text
    return f"{text[: VALUE_MAX_CHARS - _HASH_CHARS - 1]}#{digest(text)}"


def digest(text: str) -> str:
    return hashlib.sha256(text.encode("utf-8", "replace")).hexdigest()[:_HASH_CHARS]


def without_addresses(text: str) -> str:
    """The text without what names one machine or part."""
    return _OF_ONE_NODE.sub("*", text)


def counted(words: Iterable[str]) -> str:
    """The one word, or each with how often it is there: ``performance``, ``performance 220, powersave 4``."""
    counts = Counter(words)
    if len(counts) == 1:
        return next(iter(counts))
    return ", ".join(f"{word} {count}" for word, count in sorted(counts.items()))


def field(text: str, name: str) -> str | None:
    """The value of the first line ``name : value``."""
    for line in text.splitlines()[:256]:
        left, colon, right = line.partition(":")
        if colon and left.strip() == name:
            return right
    return None


class Facts:
    """Takes facts one by one; of one fact of an entity the first is kept."""

    def __init__(self) -> None:
        self._found: dict[tuple[str, str], Sample] = {}

    @property
    def samples(self) -> list[Sample]:
        return list(self._found.values())

    def tell(self, fact: str, value: str | None, entity: str = HOST) -> None:
        """A fact; one that is None or empty is not told."""
        text = tidy(value) if value else ""
        if text and (entity, fact) not in self._found:
            self._found[entity, fact] = Sample(entity, FACT, 1, labels={"fact": fact, "value": text})

    def unknown(self, fact: str, why: str, entity: str = HOST) -> None:
        if (entity, fact) not in self._found:
            self._found[entity, fact] = Sample(entity, FACT, None, why, {"fact": fact, "value": ""})

    def file(
        self, tree: Tree, fact: str, name: str,
        read: Callable[[str], str | None] | None = None, entity: str = HOST,
    ) -> str | None:  # fmt: skip
        """A fact out of a file; one that is not there tells nothing, one that cannot be read has its reason.

        Args:
            read: makes the value of the file's text; None: the text itself.

        Returns:
            The file's text, None where it cannot be read.
        """
        try:
            text = tree.read_text(name, FILE_MAX_BYTES)
        except FileNotFoundError:
            return None
        except OSError as error:
            self.unknown(fact, reason(error), entity)
            return None
        self.tell(fact, text if read is None else read(text), entity)
        return text
