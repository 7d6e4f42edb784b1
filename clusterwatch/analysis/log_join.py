"""Logs and dumps put together: one fault is one finding, whichever of the two told more of it.

In: findings of the dumps, ``LogVerdict``. Out: findings. A failure in the logs of the rank that the dumps
miss is the cause of the hang: the finding is the crash, with the call its peers wait in. A mismatch in the
rings stays: the exception it ends in may be of an innocent rank. What the logs only infer never beats what
the rings show.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Final

from clusterwatch.analysis.log_judge import LogVerdict
from clusterwatch.analysis.log_wording import UNORDERED, quote
from clusterwatch.analysis.model import CallTimeout, Culprit, Downstream, Finding
from clusterwatch.analysis.sentence import SENTENCE_MAX_CHARS, count, group_title, noun, sentence
from clusterwatch.analysis.verdicts import CATALOGUE

_MISMATCHES: Final = frozenset({"op_mismatch", "order_mismatch", "size_mismatch", "dtype_mismatch"})
_INFERRED: Final = frozenset({"peer_lost", "network_error", None})
"""Causes that name an effect: who is behind it the rings may know."""
_AGREEMENT: Final = 0.05
"""Added when logs and dumps name the same rank by different evidence."""
_SURE_MAX: Final = 0.97
_BY_ELIMINATION: Final = 0.7
"""A failure whose process the log does not tell, put on the one rank the dumps miss."""


def timeouts(verdict: LogVerdict) -> tuple[CallTimeout, ...]:
    """Calls that a watchdog gave up on: proof of a stall (DESIGN 5.7)."""
    stall = verdict.stall
    if stall is None:
        return ()
    return (CallTimeout(stall.seq, stall.op, stall.desc, quote(stall.lines[0])),)


def of_another_job(verdict: LogVerdict, size: int, heard: int) -> int | None:
    """A rank in the logs that a job of ``size`` ranks does not have, whose dumps are all here."""
    named = {f.actor.rank for f in verdict.every if f.actor.rank is not None}
    beyond = sorted(rank for rank in named if rank >= size)
    return beyond[0] if beyond and len(beyond) == len(named) and heard >= size > 1 else None


def joined(findings: Sequence[Finding], verdict: LogVerdict) -> list[Finding]:
    """The findings of both. Cost: O(findings x ranks)."""
    if not verdict.findings:
        return list(findings)
    log = verdict.findings[0]
    if not findings:
        return [log]
    if any(finding.verdict in _MISMATCHES for finding in findings):
        return [_with_line(finding, log) for finding in findings]
    if log.fault_class == "crash" and log.cause not in _INFERRED and log.verdict != "ended_by_scheduler":
        return _crash(findings, log)
    if log.cause == "network_error":
        return [_by_network(finding, log) for finding in findings]
    if log.verdict == "dead_node":
        return [log, *(_with_line(finding, log) for finding in findings)]
    return [_agreed(finding, log) for finding in findings]


def _with_line(finding: Finding, log: Finding) -> Finding:
    return replace(finding, why=(*finding.why, *(f"log: {line}" for line in log.why[:1])))


def _agreed(finding: Finding, log: Finding) -> Finding:
    """The logs add a line, and certainty where they name the same rank."""
    same = bool(log.culprit_ranks) and set(log.culprit_ranks) == set(finding.culprit_ranks)
    if same and log.verdict == finding.verdict:
        sure = min(_SURE_MAX, max(finding.confidence, log.confidence) + _AGREEMENT)
        return replace(_with_line(finding, log), confidence=sure)
    return _with_line(finding, log)


def _ranks(finding: Finding) -> set[int]:
    return {*finding.culprit_ranks, *finding.suspect_ranks, *finding.missing_ranks}


def _crash(findings: Sequence[Finding], log: Finding) -> list[Finding]:
    """The crash with the call that waits for it; a hang that blames others stays beside it."""
    mine = [finding for finding in findings if _about(finding, log)]
    if not mine:
        return [log, *findings]
    hang = max(mine, key=lambda finding: (finding.downstream.ranks, finding.confidence))
    others = [finding for finding in findings if finding not in mine]
    return [_one(log, hang), *others]


def _about(finding: Finding, log: Finding) -> bool:
    """Whether a hang can be the effect of the crash: it lacks the same rank, or names nobody for sure."""
    if _ranks(log) & _ranks(finding):
        return True
    if _ranks(log):
        return not finding.culprit_ranks and finding.fault_class in ("hang", "none")
    return len(finding.culprit_ranks) == 1 or not finding.culprit_ranks


def _one(log: Finding, hang: Finding) -> Finding:
    """The log's words with the dumps' call, and the rank that both leave."""
    named, suspects, places, sure = log.culprit_ranks, log.suspect_ranks, log.culprits, log.confidence
    summary = log.summary
    if named and set(named) <= _ranks(hang):
        sure = min(_SURE_MAX, sure + _AGREEMENT)
    elif not named and (left := _left(log, hang)) is not None:
        named, suspects = (left,), ()
        places = tuple(replace(c, pid=c.pid or _pid(log)) for c in hang.culprits if c.rank == left)
        places = places or (Culprit(left),)
        sure = _BY_ELIMINATION
        who = noun(named).capitalize()
        summary = sentence(f"{who} {_did(log)} first: it alone is missing in its peers' call.")
    waiting = max(log.downstream.ranks, hang.downstream.ranks)
    summary = _with_call(summary, hang, waiting)
    return replace(
        log,
        summary=summary,
        culprit_ranks=named,
        suspect_ranks=suspects,
        culprits=_placed(places, hang),
        confidence=sure,
        group=hang.group,
        seq=hang.seq,
        op=hang.op,
        onset_step=hang.onset_step,
        downstream=Downstream(max(log.downstream.groups, hang.downstream.groups), waiting),
        joined_ranks=hang.joined_ranks,
        missing_ranks=hang.missing_ranks,
        decisive=CATALOGUE[log.verdict].decisive and bool(named),
        why=tuple(dict.fromkeys([*log.why, *(f"dumps: {line}" for line in _told_by(hang))])),
    )


def _with_call(summary: str, hang: Finding, waiting: int) -> str:
    """The log's sentence with the call that is waited in, where both fit."""
    if hang.group is None or hang.op is None or not waiting:
        return summary
    where = f"{hang.op} {hang.seq if hang.seq is not None else ''}".strip()
    of = f" of {group_title(hang.group.name, hang.group.desc)}"
    longer = f"{summary} {count(waiting, 'rank')} wait{'s' if waiting == 1 else ''} in {where}{of}."
    return longer if len(longer) <= SENTENCE_MAX_CHARS else summary


def _told_by(hang: Finding) -> list[str]:
    """What the dumps say, without their doubts about the stall, which the crash explains."""
    return [line for line in hang.why if "presumed" not in line][:3]


def _placed(places: tuple[Culprit, ...], hang: Finding) -> tuple[Culprit, ...]:
    """GPU and host from a topology, where the log tells none."""
    known = {one.rank: one for one in hang.culprits}
    return tuple(
        one
        if (other := known.get(one.rank)) is None or one.rank is None
        else Culprit(
            one.rank,
            one.host or other.host,
            other.gpu if one.gpu is None else one.gpu,
            one.gpu_uuid or other.gpu_uuid,
            one.pid or other.pid,
        )
        for one in places
    )


def _left(log: Finding, hang: Finding) -> int | None:
    """The one rank that the logs allow and the dumps miss."""
    missing = set(hang.culprit_ranks) or set(hang.suspect_ranks)
    both = missing & set(log.suspect_ranks) if log.suspect_ranks else missing
    return both.pop() if len(both) == 1 else None


def _pid(log: Finding) -> int | None:
    return log.culprits[0].pid if len(log.culprits) == 1 else None


def _did(log: Finding) -> str:
    return "ran out of memory" if log.verdict == "out_of_memory" else f"failed ({log.cause})"


def _by_network(finding: Finding, log: Finding) -> Finding:
    """All joined, none finished, and a transfer failed: its two ends are suspects."""
    if finding.verdict != "all_joined_not_finished":
        return _with_line(finding, log)
    return replace(
        finding,
        cause="network_error",
        owner=log.owner,
        suspect_ranks=log.suspect_ranks,
        link=log.link,
        node=log.node,
        confidence=max(finding.confidence, UNORDERED),
        why=(*log.why[:3], *finding.why),
    )
