"""A fault as the engine finds it, not yet in words: ``Root``; and what it may rest on: ``Evidence``."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from clusterwatch.analysis.group import Group


@dataclass(slots=True)
class Root:
    """One independent fault. ``named`` may be staked a page on; ``suspects`` cannot be told apart."""

    verdict: str
    named: tuple[int, ...] = ()
    suspects: tuple[int, ...] = ()
    group: Group | None = None
    sequence: int | None = None
    op: str | None = None
    cause: str | None = None
    why: list[str] = field(default_factory=list)
    certainty: float = 0.9
    """what the evidence is worth when the stall itself is confirmed"""
    missing: tuple[int, ...] = ()
    """members that did not issue the call"""
    node: str | None = None
    told: str = ""
    """what the sentence says instead of the verdict's own words, before the call"""

    @property
    def ranks(self) -> tuple[int, ...]:
        return self.named or self.suspects


@dataclass(frozen=True, slots=True)
class Evidence:
    """What is known beside the traces, by rank."""

    lost: Mapping[int, Root] = field(default_factory=dict)
    """ranks whose process or node is known to be gone or stopped, with the finding that gives"""
    waits_by_stack: frozenset[int] = frozenset()
    """the stack is inside a call that only peers can end"""
    busy_by_stack: Mapping[int, str] = field(default_factory=dict)
    """the stack is outside of any such call -> cause"""
    stale: frozenset[int] = frozenset()
    unreadable: frozenset[int] = frozenset()
    """ranks whose dump is there and cannot be used"""
    failed: bool = False
    """some rank has failed: calls that are over may have ended in an error"""
    hosts: Mapping[int, str | None] = field(default_factory=dict)
