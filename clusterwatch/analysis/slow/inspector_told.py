"""Findings on NCCL Inspector logs as they can be told: hosts by name, processes where nobody knows the ranks.

In: findings on a call log made of such logs. Out: the same findings; a step counted from the beginning of the
logs is no step of the job, and a cause that only the shape of a step tells is not named where steps are not
known.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from typing import Final

from clusterwatch.analysis.model import Finding
from clusterwatch.analysis.sentence import count
from clusterwatch.analysis.slow.layout import UNKNOWN
from clusterwatch.analysis.slow.log import CallLog
from clusterwatch.analysis.slow.wording import processes_text
from clusterwatch.analysis.verdicts import CATALOGUE

NO_RANKS: Final = (
    "no communicator of all processes is in the logs, so ranks are not known; --topology, or "
    "NCCL_INSPECTOR_DUMP_MIN_SIZE_BYTES=0 in the next run, tells them"
)
_NEEDS_STEPS: Final = frozenset({"slow_gpu", "slow_host", "slow_dataloader", "slow_storage"})


def told(findings: Iterable[Finding], log: CallLog) -> list[Finding]:
    """The findings in the words of such logs."""
    findings = [one for one in findings if not (log.is_lossy and one.verdict == "gc_pauses")]
    found = [_with_host(_of_unknown_cause(one) if not log.has_steps else one, log) for one in findings]
    if not log.layout.parts_told:
        found = _shared_part(found)
    return [_without_ranks(one, log) for one in found] if log.names else found


def _with_host(finding: Finding, log: CallLog) -> Finding:
    nodes = {int(log.layout.node[rank]) for rank in finding.culprit_ranks}
    sole = nodes.pop() if len(nodes) == 1 else UNKNOWN
    host = next((log.layout.host(rank) for rank in finding.culprit_ranks), None) if sole != UNKNOWN else None
    return replace(finding, node=host, onset_step=None)


def _of_unknown_cause(finding: Finding) -> Finding:
    if finding.verdict not in _NEEDS_STEPS:
        return finding
    row = CATALOGUE["slow_cause_unknown"]
    why = "without steps a slow GPU, host, input and storage cannot be told apart"
    return replace(
        finding, verdict=row.word, fault_class=row.fault_class, severity=row.severity, owner=row.owner,
        rule=finding.rule.replace(finding.verdict, row.word), recommended_action=row.action,
        why=(*finding.why, why),
    )  # fmt: skip


def _shared_part(findings: list[Finding]) -> list[Finding]:
    """Ports of several hosts that are slow at once may share a switch, which these logs do not show."""
    ports = [one for one in findings if one.verdict == "slow_nic"]
    if len({one.node for one in ports}) < 2:
        return findings
    row, first = CATALOGUE["slow_cause_unknown"], ports[0]
    ranks = tuple(sorted({rank for one in ports for rank in one.culprit_ranks}))
    joined = replace(
        first, verdict=row.word, fault_class=row.fault_class, severity=row.severity, owner=row.owner,
        summary=f"Ports of {count(len(ranks), 'process').replace('processs', 'processes')} on several hosts "
        "are slow at once: a switch that they share, or each of them.",
        rule=first.rule.replace(first.verdict, row.word), recommended_action=row.action,
        confidence=min(one.confidence for one in ports), culprit_ranks=(), culprits=(), node=None, link=None,
        suspect_ranks=ranks, why=(*(line for one in ports for line in one.why[:1]),
                                  "--topology with the leaf of each port would tell a switch"),
    )  # fmt: skip
    return [joined, *(one for one in findings if one.verdict != "slow_nic")]


def _without_ranks(finding: Finding, log: CallLog) -> Finding:
    """Numbers of processes are no ranks: hosts and process ids stand for them."""
    named, maybe = finding.culprit_ranks, finding.suspect_ranks
    why = list(finding.why)
    if maybe:
        why.append(f"suspected: {processes_text(maybe, log.names, log.layout)}")
    if named or maybe:
        why.append(NO_RANKS)
    return replace(
        finding,
        culprit_ranks=(),
        suspect_ranks=(),
        culprits=tuple(replace(one, rank=None) for one in finding.culprits),
        group=None if finding.group is None else replace(finding.group, ranks=()),
        why=tuple(why),
    )
