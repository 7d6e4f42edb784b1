"""The verdict of job logs alone: who failed first, or what the time-outs say, or that nothing can be told.

In: ``JobLog`` of every file. Out: ``LogVerdict``: findings, and what the join with dumps needs.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Final

from clusterwatch.analysis import (
    log_end_wording,
    log_failures,
    log_stall_wording,
    log_timeouts,
    log_wording,
    log_xids,
)
from clusterwatch.analysis.log_actors import Story, Told, gather
from clusterwatch.analysis.log_failures import Failure, Sign
from clusterwatch.analysis.log_timeouts import Stall
from clusterwatch.analysis.model import Coverage, Finding
from collectors.formats.job_log import JobLog

LOOP_ATTEMPTS: Final = 3
"""So many attempts that end alike are a loop: two may be one bad node and its replacement."""
_ALIKE_SHARE: Final = 0.5
"""When more of the ranks than this raise one and the same error, it is the program's or its input's."""
_NAN_LINES: Final = 3


@dataclass(slots=True)
class LogVerdict:
    """What the logs say."""

    story: Story
    findings: list[Finding] = field(default_factory=list)
    """worst first; empty when no line tells of a failure"""
    failed: tuple[Failure, ...] = ()
    """first own failures of the newest attempt; several when their order cannot be told"""
    every: tuple[Failure, ...] = ()
    """all own failures of that attempt"""
    effects: tuple[Sign, ...] = ()
    stall: Stall | None = None


def judge(
    logs: Iterable[JobLog],
    world_size: int | None = None,
    issued_ns: Mapping[int, int] = MappingProxyType({}),
) -> LogVerdict:
    """The verdict on all logs of one job. Cost: O(events).

    Args:
        logs: parsed files, in any order.
        world_size: ranks the job has, when known from elsewhere.
        issued_ns: time of the newest call of each rank, where dumps tell it.
    """
    story = gather(logs, world_size)
    attempts = _attempts(story.told)
    verdict = LogVerdict(story)
    if not attempts:
        return verdict
    newest = attempts[max(attempts)]
    found = log_failures.signs(newest, issued_ns)
    verdict.every = tuple(log_xids.joined(log_failures.own(found)))
    verdict.failed = tuple(log_failures.first(verdict.every))
    verdict.effects = tuple(sign for sign in found if not sign.strength)
    verdict.stall = log_timeouts.stall(newest)
    finding = _of_attempt(verdict, newest)
    if finding is not None:
        loop = _loop(attempts, verdict)
        if loop:
            finding = log_wording.restart_loop(finding, loop)
        verdict.findings.append(finding)
    return verdict


def coverage(verdict: LogVerdict) -> Coverage:
    """Ranks of which any line was read, where there are no dumps."""
    story = verdict.story
    size, heard = story.world_size or 0, len(story.ranks)
    return Coverage(expected=size if story.size_told or size > heard else 0, reported=heard)


def _attempts(told: Sequence[Told]) -> dict[int, list[Told]]:
    """Events by attempt, those alone that tell of a failure: a start that ended in nothing known is none."""
    attempts: dict[int, list[Told]] = defaultdict(list)
    for one in told:
        if one.event.kind not in ("restart", "comm_init", "group_size"):
            attempts[one.attempt].append(one)
    return attempts


def _of_attempt(verdict: LogVerdict, told: Sequence[Told]) -> Finding | None:
    """The strongest thing an attempt's logs say."""
    words = [failure for failure in verdict.failed if failure.strength == 2]
    memory = [one for one in told if one.event.kind in ("slurm_oom", "kubernetes_oom")]
    ends = _ends(told)
    stall = verdict.stall
    if words and not _only_numeric(words):
        return _failed(verdict, memory)
    if memory:
        return log_wording.host_memory(verdict.failed, memory, verdict)
    node = next((one for one in told if one.event.kind == "node_failure"), None)
    if node is not None:
        return log_wording.node_failure(node, verdict)
    if words or sum(one.event.kind == "nan_value" for one in told) >= _NAN_LINES:
        return log_wording.numeric(words, told, verdict)
    if stall is not None:
        return log_stall_wording.stalled(stall, verdict)
    due = [one for one in ends if log_end_wording.reason(one) is not None]
    if due:
        return log_end_wording.ended(due[0], verdict)
    return _weak(verdict, told, ends)


def _weak(verdict: LogVerdict, told: Sequence[Told], ends: Sequence[Told]) -> Finding | None:
    """Only effects, bare exits, or a cancel without a reason."""
    network = [one for one in told if one.event.kind == "net_error"]
    if network:
        return log_wording.network(network, verdict)
    if verdict.failed:
        return _failed(verdict, [])
    stuck = [one for one in told if one.event.kind == "watchdog_stuck"]
    if stuck:
        return log_wording.watchdog_stuck(stuck, verdict)
    if verdict.effects:
        if all(sign.cause == "told_to_end" for sign in verdict.effects):
            stopped = [sign.told for sign in verdict.effects]
            return (
                log_end_wording.ended(ends[0], verdict) if ends else log_end_wording.stopped(stopped, verdict)
            )
        return log_wording.only_effects(verdict)
    if ends:
        return log_end_wording.ended(ends[0], verdict)
    return None


def _ends(told: Sequence[Told]) -> list[Told]:
    """Words of the scheduler that end the job, in order."""
    return [one for one in told if one.event.kind == "scheduler"]


def _only_numeric(failures: Sequence[Failure]) -> bool:
    return all(failure.told_best.verdict == "numeric" for failure in failures)


def _failed(verdict: LogVerdict, memory: Sequence[Told]) -> Finding:
    """The first to fail, or those that may be."""
    first = verdict.failed
    killed = [failure for failure in first if failure.told_best.cause == "SIGKILL"]
    if memory and killed and len(killed) == len(first):
        return log_wording.host_memory(first, memory, verdict)
    signatures = {failure.signature for failure in first}
    size = verdict.story.world_size or len(verdict.story.ranks)
    alike = len(signatures) == 1 and len(first) > 1 and len(first) > _ALIKE_SHARE * size
    return log_wording.failed(first, verdict, alike=alike)


def _loop(attempts: dict[int, list[Told]], verdict: LogVerdict) -> list[tuple[int, Failure]]:
    """The newest attempts that ended in the same way, oldest first; empty when they are too few."""
    if not verdict.failed:
        return []
    signature, ranks = verdict.failed[0].signature, {f.actor.rank for f in verdict.failed}
    alike: list[tuple[int, Failure]] = []
    for attempt in sorted(attempts, reverse=True):
        first = log_failures.first(log_xids.joined(log_failures.own(log_failures.signs(attempts[attempt]))))
        same = [f for f in first if f.signature == signature and (f.actor.rank in ranks)]
        if not same:
            break
        alike.append((attempt, same[0]))
    return alike[::-1] if len(alike) >= LOOP_ATTEMPTS else []
