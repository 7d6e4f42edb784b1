"""Several faults that are one story: ranks of the same verdict and cause, told in one sentence.

In: a ``Case`` and its roots, put into words one by one. Out: the same findings; of faults that are alike the
first one's sentence tells of all, since it stands on top of the verdict. A host whose eight ranks write a
checkpoint is missed by eight groups, and is still one host.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import replace
from typing import Final

from clusterwatch.analysis import waitfor, wording
from clusterwatch.analysis.model import Finding, Observation
from clusterwatch.analysis.root import Root
from clusterwatch.analysis.sentence import cause_tail, count, group_title, noun, ranks_text, sentence
from clusterwatch.analysis.wording import Case

_TOLD: Final = {"missing_rank": "never joined", "dead_rank": "died; their peers wait in"}
"""Verdicts of which several ranks can be told at once; a mismatch is of one call."""


def together(case: Case, roots: Sequence[Root], findings: Sequence[Finding]) -> list[Finding]:
    """``findings`` in the same order. Cost: O(roots), and one walk of the wait graph where some are alike."""
    told = list(findings)
    for places in _alike(roots, findings):
        first = min(places, key=lambda place: (-findings[place].confidence, findings[place].culprit_ranks))
        told[first] = replace(findings[first], summary=_summary(case, [roots[place] for place in places]))
    return told


def _alike(roots: Sequence[Root], findings: Sequence[Finding]) -> list[list[int]]:
    """Places of roots of one verdict and cause, where there are several and each names its ranks."""
    by_kind: dict[tuple[str, str | None, str | None], list[int]] = defaultdict(list)
    for place, (root, found) in enumerate(zip(roots, findings, strict=True)):
        if root.verdict in _TOLD and root.named and not root.told:
            by_kind[root.verdict, found.cause, _desc(root)].append(place)
    return [places for places in by_kind.values() if len(places) > 1]


def _desc(root: Root) -> str | None:
    return None if root.group is None else group_title("", root.group.ref.desc)


def _summary(case: Case, roots: Sequence[Root]) -> str:
    named = sorted({rank for root in roots for rank in root.named})
    waiting = len(waitfor.upstream(case.graph, named))
    body = f"{_who(case.observation, named)} {_TOLD[roots[0].verdict]} {_where(roots)}"
    waits = f"; {count(waiting, 'rank')} wait{'s' if waiting == 1 else ''}" if waiting else ""
    opening = wording.opening(case.observation, roots[0])
    if not opening:
        body = body[:1].upper() + body[1:]
    full = sentence(opening, f"{body}{waits}.", cause_tail(roots[0].cause))
    return full if body in full else sentence(opening, body + ".")


def _who(observation: Observation, named: Sequence[int]) -> str:
    """``ranks 8-15 (gpu-r019-n02, GPUs 0-7)``; without a place where they are on several hosts."""
    facts = [observation.facts.get(rank) for rank in named]
    hosts = {None if fact is None else fact.host for fact in facts}
    if len(hosts) != 1 or None in hosts:
        return noun(named, 4)
    gpus = [fact.gpu for fact in facts if fact is not None and fact.gpu is not None]
    place = f"{hosts.pop()}, GPU{'s' if len(gpus) > 1 else ''} {ranks_text(gpus, 4)}" if gpus else hosts.pop()
    return f"{noun(named, 4)} ({place})"


def _where(roots: Sequence[Root]) -> str:
    """The one call, or the calls of several groups of one kind."""
    groups = {root.group.number for root in roots if root.group is not None}
    ops = {root.op for root in roots}
    op = ops.pop() if len(ops) == 1 else None
    desc = _desc(roots[0])
    kind = f" {desc}" if desc is not None and desc != "its group" else ""
    if len(groups) > 1:
        return f"{op or 'the calls'} of {len(groups)}{kind} groups"
    return f"{op or 'the calls'} of{kind or ' its group'}"
