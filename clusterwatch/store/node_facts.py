"""What many nodes say of how they are set up, out of their packed rows, without unpacking every value.

In: ids of nodes, whose rows ``node_readings`` keeps. Out: ``NodeFacts`` per node that has a row: facts as
short texts by entity, of sources that looked lately. Facts are the samples ``fact_count`` (labels ``fact``
and ``value``), and what sources of GPUs tell anyway of power limits and locked clocks.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from clusterwatch.store import binary_reads, node_readings, packed_rows

FACT: Final = "fact_count"
POWER_LIMIT: Final = "power_limit_w"
CLOCK_REASONS: Final = "throttle_reasons_mask"
ROW_STALE_AFTER_S: Final = 180.0
"""An agent sends at least once a minute; one that missed two is gone, or its link is."""
METRICS: Final = frozenset({FACT, POWER_LIMIT, CLOCK_REASONS})
BATCH: Final = 256
FACTS_MAX: Final = 2_048
"""of one node"""
_LOCKED: Final = 0x2
"""nvmlClocksEventReasonApplicationsClocksSetting"""


Facts = dict[str, dict[str, str]]
"""entity as the agent names it (``host``, ``gpu/<uuid>``, ``job/<id>/rank/<rank>``) -> fact -> value"""


@dataclass(frozen=True, slots=True)
class NodeFacts:
    """``is_stale``: its agent is not heard lately, and ``facts`` is empty."""

    node_id: int
    age_s: float
    is_stale: bool
    is_damaged: bool = False
    facts: Facts = field(default_factory=dict)


_SQL: Final = "SELECT node_id, t_ns, received_ns, data FROM node_readings WHERE node_id = ANY(%s)"


def of_nodes(node_ids: Sequence[int], now_ns: int) -> Iterator[NodeFacts]:
    """Facts of those nodes that ever sent any reading; one query for ``BATCH`` nodes.

    Cost: about 0.5 ms a node with 5,000 values.
    """
    words: dict[str, str] = {}
    for start in range(0, len(node_ids), BATCH):
        for node_id, t_ns, received_ns, data in binary_reads.fetch(
            _SQL, [list(node_ids[start : start + BATCH])]
        ):
            age_s = node_readings.age_s(t_ns, received_ns, now_ns)
            if age_s > ROW_STALE_AFTER_S:
                yield NodeFacts(node_id, age_s, is_stale=True)
                continue
            try:
                facts = facts_of(data, age_s, words)
            except packed_rows.DAMAGED:
                yield NodeFacts(node_id, age_s, is_stale=False, is_damaged=True)
            else:
                yield NodeFacts(node_id, age_s, is_stale=False, facts=facts)


def facts_of(data: bytes, age_s: float, words: dict[str, str]) -> Facts:
    """Facts of one packed row; ``words`` keeps each text once, however many nodes say it."""
    keep, found, left = words.setdefault, Facts(), FACTS_MAX
    for metric, entity, value, labels in packed_rows.told(data, METRICS, age_s):
        fact = _told(metric, value, labels) if left else None
        if fact is not None:
            found.setdefault(entity, {})[keep(fact[0], fact[0])] = keep(fact[1], fact[1])
            left -= 1
    return found


def _told(metric: str, value: float | None, labels: Mapping[str, str]) -> tuple[str, str] | None:
    """(fact, value) of one sample; None: it tells none."""
    if metric == FACT:
        fact = labels.get("fact", "")
        return (fact, labels.get("value", "")) if fact and value else None
    if value is None or labels:
        return None
    if metric == POWER_LIMIT:
        return "gpu.power_limit_w", f"{value:.0f}"
    return _clock_lock(int(value))


def _clock_lock(mask: int) -> tuple[str, str] | None:
    """Seen only while a GPU works and nothing else holds its clocks down."""
    if mask & _LOCKED:
        return "gpu.clock_lock", "held by application clocks"
    return None if mask else ("gpu.clock_lock", "free")
