"""A verdict on processes whose ranks nobody knows: what holds under any numbering of them, and no rank.

In: the diagnosis of dumps that bear made-up numbers, and the file of each. Out: the diagnosis with files in
the place of ranks. Only for jobs whose groups all hold every process, or whose dumps name no members: there a
verdict does not depend on who has which number.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import replace
from typing import Final

from clusterwatch.analysis.model import Culprit, Diagnosis, Finding, GroupRef
from clusterwatch.analysis.sentence import count, group_title, sentence

NO_RANKS: Final = "file names number the processes of each host, so no rank can be named, but the files can"
_FILES_SHOWN: Final = 8


def told(diagnosis: Diagnosis, sources: Mapping[int, str]) -> Diagnosis:
    """``diagnosis`` without the numbers.

    Args:
        sources: file of each number.
    """
    findings = tuple(_told(finding, sources) for finding in diagnosis.findings)
    return replace(diagnosis, findings=findings, stacks=(), stale_ranks=())


def _told(finding: Finding, sources: Mapping[int, str]) -> Finding:
    named, maybe = finding.culprit_ranks, finding.suspect_ranks
    if not finding.joined_ranks and not named and not maybe and finding.group is None:
        return finding
    why = [f"{_files(ranks, sources)}: {what}" for ranks, what in _roles(finding) if ranks]
    return replace(
        finding,
        summary=_summary(finding, sources),
        culprit_ranks=(),
        suspect_ranks=(),
        culprits=tuple(Culprit(None, sources.get(rank)) for rank in named),
        node=None,
        group=_whole(finding.group, len(sources)),
        why=(*why, NO_RANKS),
        joined_ranks=(),
        missing_ranks=(),
    )


def _whole(group: GroupRef | None, size: int) -> GroupRef | None:
    """A group of every process has true members; those of others are made-up numbers."""
    return group if group is None or len(group.ranks) >= size else replace(group, ranks=())


def _roles(finding: Finding) -> tuple[tuple[Collection[int], str], ...]:
    suspects = set(finding.suspect_ranks)
    return (
        (finding.culprit_ranks, "named by the calls in the dumps"),
        (suspects, "suspected by the calls in the dumps"),
        (set(finding.missing_ranks) - suspects - set(finding.culprit_ranks), "the call is not in it"),
    )


def _summary(finding: Finding, sources: Mapping[int, str]) -> str:
    what = finding.verdict.replace("_", " ").capitalize()
    call = f"{finding.op or ''} {'' if finding.seq is None else finding.seq}".strip()
    where = (
        f" in {call} of {group_title(finding.group.name, finding.group.desc)}"
        if finding.group and call
        else ""
    )
    ranks = finding.culprit_ranks or finding.suspect_ranks
    whose = "the process of" if finding.culprit_ranks else "suspected is"
    who = f": {whose} {_files(ranks, sources, 2)}" if ranks else ""
    return sentence(f"{what}{where}{who}.", "Which ranks these are the files do not tell.")


def _files(ranks: Collection[int], sources: Mapping[int, str], most: int = _FILES_SHOWN) -> str:
    ordered = sorted({sources.get(rank, "a process that left no dump") for rank in ranks})
    left = len(ordered) - most
    return ", ".join(ordered[:most]) + (f" and {count(left, 'more file')}" if left > 0 else "")
