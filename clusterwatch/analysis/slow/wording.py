"""Findings on slowness in words: the part, its cost, who waits for whom, how sure it is.

In: a ``Case`` and what a detector found. Out: ``Finding`` and texts.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Final

import numpy as np

from clusterwatch.analysis.model import Culprit, Downstream, Finding, RankFacts
from clusterwatch.analysis.sentence import count, duration, noun, ranks_text, sentence
from clusterwatch.analysis.slow import quantiles
from clusterwatch.analysis.slow.layout import UNKNOWN, Layout
from clusterwatch.analysis.slow.ranks import SlowRanks
from clusterwatch.analysis.slow.steps import StepTable
from clusterwatch.analysis.slow.work import Model
from clusterwatch.analysis.verdicts import CATALOGUE

RULE: Final = "slow.{word} v1"
"""Rule and version of a finding."""


@dataclass(frozen=True, slots=True)
class Case:
    """Everything the detectors work on."""

    table: StepTable
    model: Model
    slow: SlowRanks
    facts: Mapping[int, RankFacts]
    coverage: float
    """share of the ranks that told anything, 0 to 1"""
    names: Mapping[int, str] = field(default_factory=dict)
    """process id by number, where nobody knows the ranks"""
    of_log: str = ""
    """behind the number of a step, where it is counted from the beginning of the logs"""

    def who(self, ranks: Iterable[int]) -> str:
        """``ranks 0-3``; ``processes 17, 18 on node002`` where ranks are not known."""
        return processes_text(ranks, self.names, self.table.layout) if self.names else noun(ranks)

    def since(self, row: int) -> str:
        return f"step {step_at(self, row)}{self.of_log}"


_PROCESSES_SHOWN: Final = 8


def processes_text(ranks: Iterable[int], names: Mapping[int, str], layout: Layout) -> str:
    """``process 4242 on node002``; of several the ids by host."""
    ordered = sorted(set(ranks))
    by_host: dict[str, list[str]] = {}
    for rank in ordered[:_PROCESSES_SHOWN]:
        by_host.setdefault(layout.host(rank), []).append(names.get(rank, "of an unknown id"))
    parts = [f"{', '.join(ids)} on {host}" for host, ids in by_host.items()]
    left = len(ordered) - _PROCESSES_SHOWN
    more = f" and {left} more" if left > 0 else ""
    return f"process{'es' if len(ordered) != 1 else ''} {'; '.join(parts)}{more}"


def seconds_text(seconds: float) -> str:
    """``23 ms``, ``3.75 s``, ``2 min 5 s``: what steps are made of differs in hundredths."""
    return f"{seconds:.3g} s" if 1 <= seconds < 60 else duration(seconds)


def excess_text(log_ratio: float) -> str:
    """A logarithmic excess as per cent."""
    percent = 100 * float(np.expm1(log_ratio))
    return f"{percent:.0f} %" if percent >= 10 else f"{percent:.1f} %"


def step_at(case: Case, row: int) -> int:
    return int(case.table.steps[min(row, len(case.table.steps) - 1)])


def part_text(case: Case, culprits: tuple[int, ...], is_host: bool = False) -> str:
    layout = case.table.layout
    if case.names:
        text = case.who(culprits)
        return text[0].upper() + text[1:]
    if len(culprits) == 1:
        rank = culprits[0]
        knows_gpu = layout.gpu[rank] != UNKNOWN and layout.parts_told and not is_host
        gpu = f", GPU {layout.gpu[rank]}" if knows_gpu else ""
        return f"{noun(culprits).capitalize()} ({layout.host(rank)}{gpu})"
    hosts = {layout.host(rank) for rank in culprits}
    return f"{noun(culprits).capitalize()} ({hosts.pop() if len(hosts) == 1 else count(len(hosts), 'host')})"


def finding(
    case: Case, word: str, what: str, culprits: tuple[int, ...], onset: int, lost_s: float, excess: float,
    score: float, why: list[str], per: str = "step",
) -> Finding:  # fmt: skip
    """A finding with its cost. ``onset`` is a row of the table; each step loses at most ``lost_s``."""
    row, layout = CATALOGUE[word], case.table.layout
    blames = row.fault_class in ("hardware", "host", "storage", "unknown")
    nodes = set(layout.node[list(culprits)].tolist())
    since = step_at(case, onset)
    cost = f"{seconds_text(lost_s)} a {per} since {case.since(onset)}." if blames else ""
    step_s = float(np.nan_to_num(quantiles.median(case.table.step_s)))
    told = list(why)
    if blames and per == "step" and step_s > 0:
        hours = lost_s * (len(case.table.steps) - onset) * layout.rank_count / 3600
        part = f"at most {seconds_text(lost_s)} of a step of {seconds_text(step_s)}"
        told.append(f"cost: {part}, {hours:.2g} GPU-hours in these steps")
    if case.coverage < 1:
        told.append(f"{case.coverage:.0%} of the ranks told their calls")
    waiting = layout.rank_count - len(culprits) if blames and culprits else 0
    if waiting:
        told.append(f"the other {count(waiting, 'rank')} wait: {_chain(case, culprits)}")
    text = sentence(what.rstrip(":") + ("," if cost else "."), cost)
    return Finding(
        verdict=word,
        fault_class=row.fault_class,
        severity=row.severity,
        summary=text,
        rule=RULE.format(word=word),
        confidence=_confidence(score, excess, case.coverage),
        owner=row.owner,
        culprit_ranks=culprits,
        culprits=tuple(_culprit(case, rank) for rank in culprits),
        node=nodes.pop() if len(nodes) == 1 and UNKNOWN not in nodes else None,
        onset_step=since if blames else None,
        downstream=Downstream(groups=_groups_of(case, culprits), ranks=waiting),
        why=tuple(told),
        recommended_action=row.action,
        lost_s=lost_s if blames else None,
        lost_ratio=min(1.0, lost_s / step_s) if blames and per == "step" and step_s > 0 else None,
    )


def _confidence(score: float, excess: float, heard: float) -> float:
    """0.6 just opened, towards 0.98 for a clear excess; less where ranks are not heard."""
    sure = 0.6 + 0.38 * (1 - float(np.exp(-4 * max(0.0, score - 1) - 3 * max(0.0, excess - 0.02))))
    return round(sure * (0.5 + 0.5 * heard), 3)


def _chain(case: Case, culprits: tuple[int, ...]) -> str:
    """Who waits for whom, from the nearest groups outwards."""
    paths, own = case.table.paths, set(culprits)
    reached, texts = set(own), []
    sizes = paths.sizes()
    for group in sorted(range(len(paths.start) - 1), key=lambda g: (int(sizes[g]), g)):
        ranks_of = set(paths.of_group(group).tolist())
        if not ranks_of & own or ranks_of <= reached:
            continue
        reached |= ranks_of
        texts.append(f"{case.table.path_names[group]} ({len(ranks_of)})")
        if len(texts) == 4:
            break
    first = case.who(culprits) if case.names else ranks_text(culprits)
    return f"{first} -> {' -> '.join(texts)}" if texts else first


def _groups_of(case: Case, culprits: tuple[int, ...]) -> int:
    if not culprits:
        return 0
    paths = case.table.paths
    member = np.isin(paths.ranks, culprits).astype(np.int64)
    sums = np.concatenate(([0], np.cumsum(member)))
    return int(np.sum(sums[paths.start[1:]] > sums[paths.start[:-1]]))


def _culprit(case: Case, rank: int) -> Culprit:
    fact = case.facts.get(rank)
    if fact is None:
        return Culprit(rank)
    return Culprit(rank, fact.host, fact.gpu, fact.gpu_uuid, fact.pid)
