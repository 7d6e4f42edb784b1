"""Nodes that should be alike, and their facts node by node: those of one class, and those of one job.

In: facts of nodes by entity (``host``, ``gpu/<uuid>``, ``job/<id>/rank/<rank>``). Out: ``Group``: per node
one text per fact, however many parts or ranks tell it, ready for ``odd_ones``. Facts of a job are compared
within that job only. Cost: linear in the facts.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Final

CLASS: Final = "class"
JOB: Final = "job"
ENVIRONMENT: Final = "env."
ENVIRONMENT_READ: Final = "env.read"
NOT_SET: Final = "not set"
HOST: Final = "host"
NODE_CLASS: Final = "node_class"
"""The fact by which a node names the class that its site gave it."""
CLASS_MAX_CHARS: Final = 120
VALUE_MAX_CHARS: Final = 240
JOBS_OF_NODE_MAX: Final = 16
PARTS_TOLD: Final = 16
FACTS_MAX: Final = 1_024
"""Of one group: a node that invents names must not cost a column for each."""
_COUNTED: Final = re.compile(r"^\d+ × ")


Facts = Mapping[str, Mapping[str, str]]
"""entity -> fact -> value, of one node"""


@dataclass(frozen=True, slots=True)
class Group:
    """``facts``: node -> fact's key -> text; a key is ``kind`` of part and name, see ``name_of``."""

    kind: str
    name: str
    facts: dict[str, dict[str, str]] = field(default_factory=dict)
    parts: dict[tuple[str, str], dict[str, str]] = field(default_factory=dict)
    """(node, key) -> part -> its value, where the parts of a node differ among themselves"""

    def take(self, node: str, parts: dict[str, dict[str, str]], text: Callable[[Iterable[str]], str]) -> None:
        """A node's facts, each told by one or many parts; ``text`` makes one of different values."""
        told = self.facts[node] = {}
        for key, values in parts.items():
            different = set(values.values())
            if len(different) == 1:
                told[key] = different.pop()[:VALUE_MAX_CHARS]
            else:
                told[key] = text(values.values())[:VALUE_MAX_CHARS]
                self.parts[node, key] = values


def class_of(kind: str, node_class: str) -> str:
    """What those that should be alike are called.

    Args:
        kind: their GPUs, in words.
        node_class: empty where none is told.
    """
    return f"{kind}, class {node_class[:CLASS_MAX_CHARS]}" if node_class else kind


class Gathering:
    """Takes node after node, then gives the groups."""

    def __init__(self) -> None:
        self._groups: dict[tuple[str, str], Group] = {}
        self._read: dict[str, set[str]] = {}
        """job -> nodes of which the environment of a rank was read"""

    def add(self, node: str, of_class: str, facts: Facts) -> None:
        """One node. ``of_class``: what it has in common with those that should be alike."""
        parts: dict[str, dict[str, str]] = {}
        jobs: dict[str, dict[str, Mapping[str, str]]] = {}
        for entity, of_entity in facts.items():
            kind, _, rest = entity.partition("/")
            if kind == JOB:
                job, _, rank = rest.partition("/")
                if job in jobs or len(jobs) < JOBS_OF_NODE_MAX:
                    jobs.setdefault(job, {})[rank.replace("/", " ")] = of_entity
            else:
                for name, value in of_entity.items():
                    parts.setdefault(key_of(kind, name), {})[entity] = value
        self._group(CLASS, of_class).take(node, parts, _counted)
        for job, ranks in jobs.items():
            self._group(JOB, job).take(node, _of_ranks(ranks), _joined)
            if any(ENVIRONMENT_READ in of_rank for of_rank in ranks.values()):
                self._read.setdefault(job, set()).add(node)

    def groups(self) -> list[Group]:
        """Classes, then jobs, by name."""
        for job, nodes in self._read.items():
            facts = self._group(JOB, job).facts
            settings = {name for told in facts.values() for name in told if name.startswith(ENVIRONMENT)}
            for node in nodes:
                facts[node].update(dict.fromkeys(settings - facts[node].keys(), NOT_SET))
        return [self._groups[key] for key in sorted(self._groups)]

    def _group(self, kind: str, name: str) -> Group:
        return self._groups.setdefault((kind, name), Group(kind, name))


def key_of(kind: str, name: str) -> str:
    return name if kind == HOST else f"{kind}\t{name}"


def name_of(key: str) -> tuple[str, str]:
    """(kind of part, fact) of a key; the kind is empty for the node itself."""
    kind, tab, name = key.partition("\t")
    return (kind, name) if tab else ("", key)


def comparable(group: Group, peers_min: int) -> dict[str, dict[str, str]]:
    """Facts by node without those that fewer than ``peers_min`` nodes tell; the best known ``FACTS_MAX``."""
    known = Counter(key for facts in group.facts.values() for key in facts)
    kept = {key for key, count in known.most_common(FACTS_MAX) if count >= peers_min}
    return {
        node: {key: value for key, value in facts.items() if key in kept}
        for node, facts in group.facts.items()
    }


def different_parts(group: Group, node: str, key: str, usual: str) -> list[str]:
    """Parts or ranks of a node whose own value no part elsewhere has; empty where all of them are alike."""
    values = group.parts.get((node, key), {})
    common = {usual, *(_COUNTED.sub("", one) for one in usual.split(", "))}
    different = [part for part, value in values.items() if (value or "empty") not in common]
    if not different or len(different) == len(values):
        return []
    return sorted(different)[:PARTS_TOLD]


def _of_ranks(ranks: Mapping[str, Mapping[str, str]]) -> dict[str, dict[str, str]]:
    """Fact -> rank -> value; where its environment was read, what only other ranks have set is not set."""
    found: dict[str, dict[str, str]] = {}
    for rank, facts in ranks.items():
        for name, value in facts.items():
            if name != ENVIRONMENT_READ:
                found.setdefault(name, {})[rank] = value
    for name, values in found.items():
        if len(values) < len(ranks) and name.startswith(ENVIRONMENT):
            values.update(
                {rank: NOT_SET for rank in ranks.keys() - values.keys() if ENVIRONMENT_READ in ranks[rank]}
            )
    return found


def _counted(values: Iterable[str]) -> str:
    """How many parts have which. Of parts that are alike the value alone is told, however many there are."""
    order = sorted(Counter(values).items(), key=lambda item: (-item[1], item[0]))
    return ", ".join(f"{count} × {value or 'empty'}" for value, count in order)


def _joined(values: Iterable[str]) -> str:
    """As a set: ranks of one node may take different ways."""
    return ", ".join(value or "empty" for value in sorted(set(values)))
