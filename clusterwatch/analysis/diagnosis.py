"""``diagnose``: from all evidence on one world of one job to a verdict. The one path, offline and live.

In: ``Observation``. Out: ``Diagnosis``: findings worst first, coverage, merged stacks. Pure: no file, socket,
clock or randomness; the order of traces, facts and stacks does not matter.
"""

from __future__ import annotations

import gc
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Final

from clusterwatch.analysis import (
    alike,
    blind,
    crash,
    groups,
    lifecycle,
    log_join,
    log_judge,
    process,
    roots,
    stacks,
    timing,
    unheard,
    unnumbered,
    unranked,
    wording,
)
from clusterwatch.analysis.groups import World
from clusterwatch.analysis.model import (
    Coverage,
    Diagnosis,
    Finding,
    InputProblem,
    Observation,
    ProcessState,
    Severity,
)
from clusterwatch.analysis.root import Evidence, Root
from clusterwatch.analysis.sentence import count, noun, sentence
from clusterwatch.analysis.slow import inspector_told, judge, tail
from clusterwatch.analysis.slow.layout import UNKNOWN
from clusterwatch.analysis.slow.log import CallLog
from clusterwatch.analysis.verdicts import CATALOGUE
from clusterwatch.analysis.waitfor import WaitGraph

_SILENT_SHARE_MAX: Final = 0.1
"""With more of the world unheard than this, "no fault" would be a guess."""

_RANK_OF_CLASS: Final = {"crash": 0, "hang": 1}
_RANK_OF_SEVERITY: Final = {Severity.CRITICAL: 0, Severity.WARNING: 1, Severity.UNKNOWN: 2, Severity.INFO: 3}


def diagnose(observation: Observation) -> Diagnosis:
    """The verdict on one look.

    Args:
        observation: traces, stacks, process facts, timing; any part may be missing.

    Returns:
        At least one finding; ``no_fault`` and ``not_enough_data`` are findings too.

    Cost: O(entries + ranks x groups).
    """
    with _no_collection():
        return _diagnose(observation)


@contextmanager
def _no_collection() -> Iterator[None]:
    """What a look makes lives to its end, without cycles: searching a large job for them takes 40 % of it."""
    collecting = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if collecting:
            gc.enable()


def _diagnose(observation: Observation) -> Diagnosis:
    windows = groups.reduced(observation)
    problems = tuple(sorted((*observation.problems, *unnumbered.told(windows)), key=_place))
    observation = replace(observation, traces=(), windows=unnumbered.usable(windows), problems=problems)
    world = groups.build(observation)
    if beyond := timing.beyond_all(world):
        observation = _without_beyond(observation, world, beyond)
        world = groups.build(observation, size=world.size)
    fresh, world, stale = _fresh(replace(observation, windows=tuple(world.windows.values())), world)
    issued_ns = {window.rank: window.newest_ns for window in fresh.windows if window.newest_ns is not None}
    told = log_judge.judge(observation.logs, world.size or None, issued_ns)
    if (foreign := log_join.of_another_job(told, world.size, len(world.windows))) is not None:
        observation = _without_logs(observation, told.every[0].first.told.source, foreign, world.size)
        fresh, told = replace(fresh, logs=(), problems=observation.problems), log_judge.judge(())
    fresh = replace(fresh, timeouts=(*observation.timeouts, *log_join.timeouts(told)))
    evidence = process.evidence(fresh, stale)
    found, graph = _faults(fresh, world, evidence)
    for root in found:
        wording.fill(fresh, root, graph)
    case = wording.Case(fresh, world, evidence, graph)
    findings = alike.together(case, found, wording.findings(case, found))
    findings = log_join.joined(findings, told)
    if observation.call_log is not None:
        findings = _with_slow(observation, findings)
    if not findings:
        findings = [_nothing(case, stale)]
    findings.sort(key=_order)
    named = {rank for f in findings for rank in f.culprit_ranks}
    suspects = {rank for f in findings for rank in f.suspect_ranks}
    diagnosis = Diagnosis(
        tuple(findings),
        _coverage_of(observation, fresh, world, stale, told),
        stacks.merge(observation.stacks, named, suspects),
        observation.problems,
        tuple(sorted(stale)),
    )
    return unranked.told(diagnosis, observation.unranked) if observation.unranked else diagnosis


def _coverage_of(
    observation: Observation,
    fresh: Observation,
    world: World,
    stale: frozenset[int],
    told: log_judge.LogVerdict,
) -> Coverage:
    if observation.call_log is not None:
        log = observation.call_log
        return Coverage(expected=log.layout.rank_count, reported=log.reported)
    return _coverage(world, stale) if fresh.windows or not observation.logs else log_judge.coverage(told)


def _with_slow(observation: Observation, findings: list[Finding]) -> list[Finding]:
    """What a collective log tells beside its end: where it stood still in steps, and who was slow before."""
    log = observation.call_log
    assert log is not None
    case = judge.case_of_log(log, observation.facts)
    if log.is_inspected:
        slow = [] if log.is_blind else judge.findings(case)
        return [*findings, *inspector_told.told(slow, log)] or [judge.nothing(log, case)]
    step = tail.stuck_step(log.calls)
    placed = [replace(one, onset_step=step, node=_node(log, one)) for one in findings]
    return [*placed, *judge.findings(case)] or [judge.nothing(log, case)]


def _node(log: CallLog, finding: Finding) -> str | int | None:
    """Index of the one host of the culprits, as collective logs have it."""
    nodes = {int(log.layout.node[rank]) for rank in finding.culprit_ranks if rank < log.layout.rank_count}
    return nodes.pop() if len(nodes) == 1 and UNKNOWN not in nodes else finding.node


def _place(problem: InputProblem) -> tuple[str, str, int]:
    return problem.source, problem.reason, -1 if problem.rank is None else problem.rank


def _fresh(observation: Observation, world: World) -> tuple[Observation, World, frozenset[int]]:
    """The observation without dumps of another time, its world, and the ranks whose dumps these are."""
    whole, count = observation, len(world.windows)
    stale = timing.stale_ranks(world) | observation.stale_ranks
    if stale:
        observation, world = _without(whole, world, stale)
    outdated = timing.outdated(world)
    if outdated and len(outdated) * 2 <= count:
        stale |= outdated
        observation, world = _without(whole, world, stale)
    return observation, world, stale


def _without_beyond(observation: Observation, world: World, beyond: frozenset[int]) -> Observation:
    """Without dumps of numbers that no rank can have reached, each named."""
    kept = tuple(window for window in observation.windows if window.rank not in beyond)
    reason = "a call's number is far beyond all its peers': the dump is not used"
    told = [InputProblem(world.windows[rank].source, reason, rank) for rank in sorted(beyond)]
    problems = tuple(sorted((*observation.problems, *told), key=_place))
    return replace(observation, windows=kept, problems=problems)


def _without_logs(observation: Observation, source: str, rank: int, size: int) -> Observation:
    """Without logs that speak of a rank which the dumps' job does not have."""
    reason = (
        f"it tells of rank {rank}, and the dumps are of a job of {size} ranks: a log of another job, not used"
    )
    problems = tuple(sorted((*observation.problems, InputProblem(source, reason)), key=_place))
    return replace(observation, logs=(), problems=problems)


def _without(observation: Observation, world: World, stale: frozenset[int]) -> tuple[Observation, World]:
    """A rank with a stale dump is still part of the world; the groups its dump tells of are not."""
    kept = tuple(window for window in observation.windows if window.rank not in stale)
    fresh = replace(observation, windows=kept)
    known = groups.build(fresh, size=max(stale, default=-1) + 1)
    return fresh, known


def _order(finding: Finding) -> tuple[int, int, float, tuple[int, ...], str]:
    return (
        _RANK_OF_SEVERITY[finding.severity],
        _RANK_OF_CLASS.get(finding.fault_class, 2),
        -finding.confidence,
        finding.culprit_ranks or finding.suspect_ranks,
        finding.verdict,
    )


def _faults(observation: Observation, world: World, evidence: Evidence) -> tuple[list[Root], WaitGraph]:
    failed = crash.judge(observation)
    if failed is None:
        if crash.all_ended_well(observation) or observation.advanced:
            return [], WaitGraph()
        found, graph = roots.find(world, evidence)
        found = found or _stalled_outside(observation, evidence, graph)
        return found or lifecycle.unmade(world) or blind.find(world), graph
    living = {rank: root for rank, root in evidence.lost.items() if root.verdict != "dead_rank"}
    found, graph = roots.find(world, replace(evidence, lost=living, failed=True))
    wrong = [root for root in found if root.verdict in wording.MISMATCHES]
    if wrong:  # a wrong size on gloo ends in an exception of an innocent neighbour: the rings know better
        for root in wrong:
            root.why += failed.why[:2]
        return wrong, graph
    if not failed.named and len(failed.suspects) < 2:
        gone = [root for root in found if root.named]
        gone = gone or list({id(r): r for r in living.values()}.values())
        if gone:
            for root in gone:
                root.why += failed.why[:1]
            return gone, graph
    return [_dead_or_failed(observation, failed, graph)], graph


def _dead_or_failed(observation: Observation, failed: Root, graph: WaitGraph) -> Root:
    """A silent death while peers live on and wait is a hang with a dead rank; all else is a crash."""
    facts = observation.facts
    quiet = all(facts[rank].exception is None for rank in failed.ranks)
    alive = [f for f in facts.values() if f.process in (ProcessState.RUNNING, ProcessState.BLOCKED)]
    others = [f for f in alive if f.exception is None and f.rank not in failed.ranks]
    if (
        failed.verdict == "rank_failed"
        and failed.named
        and quiet
        and len(others) * 2 >= len(facts) - 1
        and graph.calls
    ):
        failed.verdict = "dead_rank"
    return failed


def _stalled_outside(observation: Observation, evidence: Evidence, graph: WaitGraph) -> list[Root]:
    """Live and without an open call anywhere: known deaths and stacks are all there is."""
    if not observation.live or observation.advanced is not False:
        return []
    lost = list({id(root): root for root in evidence.lost.values()}.values())
    if lost:
        for root in lost:
            root.certainty *= 0.9
        return lost
    if graph.calls or not evidence.busy_by_stack:
        return []
    causes = Counter(cause for cause in evidence.busy_by_stack.values() if cause)
    cause = max(sorted(causes), key=causes.__getitem__, default=None)
    ranks = tuple(sorted(evidence.busy_by_stack))
    why = [f"{noun(ranks)} stand outside any collective by their stacks"]
    few = ranks if evidence.waits_by_stack and len(ranks) * 2 <= len(observation.stacks) else ()
    return [Root("outside_collectives", (), few, cause=cause, why=why, certainty=0.6)]


def _coverage(world: World, stale: frozenset[int]) -> Coverage:
    return Coverage(
        expected=world.size,
        reported=len(world.windows) + len(stale),
        stale=len(stale),
        truncated=sum(window.truncated for window in world.windows.values()),
        only_open=sum(window.only_open for window in world.windows.values()),
        size_told=world.size_told,
    )


def _nothing(case: wording.Case, stale: frozenset[int]) -> Finding:
    observation, world = case.observation, case.world
    heard = len(world.windows) / world.size if world.size else 0.0
    ended = crash.all_ended_well(observation)
    calls = any(window.entry_count for window in world.windows.values())
    whole = calls and 1 - heard <= _SILENT_SHARE_MAX and (world.size_told or not world.torn())
    whole = whole and all(call.joined and world.knows_members(call.group) for call in case.graph.calls)
    enough = ended or bool(observation.advanced) or whole
    row = CATALOGUE["no_fault" if enough else "not_enough_data"]
    why: tuple[str, ...] = ()
    if ended:
        text = "All ranks ended by themselves without an error."
    elif observation.advanced:
        text = "The job is moving: two looks show an advance."
    elif enough:
        text, why = _in_order(world)
    else:
        text, why = _too_little(case, calls), _told(observation, world, stale)
    sure = 0.9 if ended or observation.advanced else (0.8 if world.size_told else 0.6) * heard
    return Finding(
        verdict=row.word,
        fault_class=row.fault_class,
        severity=row.severity,
        summary=text,
        rule=f"none.{row.word} v1",
        confidence=sure if enough else 0.0,
        why=why,
        recommended_action=row.action,
    )


def _in_order(world: World) -> tuple[str, tuple[str, ...]]:
    heard = len(world.windows)
    who = f"all {world.size} ranks" if world.size_told and heard == world.size else f"the {heard} ranks heard"
    text = sentence(f"No fault: {who} have issued the newest call of each of their groups.")
    if world.size_told:
        return text, (f"{heard} of {world.size} ranks left a dump",)
    return text, (f"{count(heard, 'rank')} left a dump", unheard.SIZE_UNTOLD)


def _too_little(case: wording.Case, calls: bool) -> str:
    observation, world = case.observation, case.world
    if not world.windows and observation.logs:
        lines = sum(log.lines for log in observation.logs)
        text = (
            f"no failure is told in {count(lines, 'line')} of job logs" if lines else "the job logs are empty"
        )
        return f"Not enough data: {text}; there is no dump."
    if not world.windows:
        return "Not enough data: no rank left a usable dump."
    if not calls:
        return "Not enough data: no rank has recorded a call."
    of = f" of {world.size}" if world.size_told else ""
    ranks = "rank" if (world.size if world.size_told else len(world.windows)) == 1 else "ranks"
    heard = f"Not enough data: {len(world.windows)}{of} {ranks} left a dump"
    if not case.graph.calls:
        return f"{heard}, and nothing is open in {'it' if len(world.windows) == 1 else 'them'}."
    return sentence(f"{heard};", f"{wording.waits_in(case.graph)}.")


def _told(observation: Observation, world: World, stale: frozenset[int]) -> tuple[str, ...]:
    lines = [] if world.size_told or not world.windows else [unheard.SIZE_UNTOLD]
    silent = [rank for rank in world.no_dump if rank not in stale]
    if silent and world.size_told:
        lines.append(f"{noun(silent)} left no dump")
    if stale:
        lines.append(f"{noun(stale)} left a dump of an earlier time")
    lines += [f"{p.source}: {p.reason}" for p in observation.problems[:5]]
    return tuple(lines)
