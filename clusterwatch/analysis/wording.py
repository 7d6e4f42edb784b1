"""Puts a ``Root`` into words: ``Finding`` with its sentence, evidence lines, culprits and confidence."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from clusterwatch.analysis import downstream, p2p, timing, unheard
from clusterwatch.analysis.downstream import Waiting
from clusterwatch.analysis.groups import World
from clusterwatch.analysis.model import (
    Culprit,
    Downstream,
    Finding,
    GroupRef,
    Observation,
    Owner,
    ProcessState,
    RankFacts,
)
from clusterwatch.analysis.process import agent_gone
from clusterwatch.analysis.root import Evidence, Root
from clusterwatch.analysis.sentence import (
    cause_tail,
    count,
    duration,
    group_title,
    noun,
    ranks_text,
    sentence,
)
from clusterwatch.analysis.stacks import doing
from clusterwatch.analysis.verdicts import CATALOGUE
from clusterwatch.analysis.waitfor import WaitGraph

UNPROVEN_MAX: Final = 0.5
"""Confidence of a hang read from one look whose stall nothing else proves (DESIGN 5.7)."""

MISMATCHES: Final = frozenset({"op_mismatch", "order_mismatch", "size_mismatch", "dtype_mismatch"})
_SELF_PROVEN: Final = MISMATCHES | {"dead_rank", "dead_node", "rank_failed", "out_of_memory"}
"""Verdicts that one look proves: no passing of time is part of the evidence."""

_PROCESS_PROVEN: Final = frozenset({"dead_rank", "dead_node", "rank_failed", "out_of_memory"})

_OWNERS: Final = {
    "data_loading": Owner.USER,
    "user_code": Owner.USER,
    "gc": Owner.USER,
    "compile": Owner.USER,
    "checkpoint": Owner.INFRA,
    "io": Owner.INFRA,
}
_VERBS: Final = {
    "missing_rank": "never joined",
    "dead_rank": "died; its peers wait in",
    "queued_not_started": "issued but never finished",
    "op_mismatch": "issued another operation than its peers in",
    "order_mismatch": "swapped the order of calls at",
    "size_mismatch": "passed another size than its peers in",
    "dtype_mismatch": "passed another type than its peers in",
    "p2p_unmatched": "never matched",
    "stuck_in_init": "never made the group for",
    "destroyed_on_one_side": "destroyed the group while its peers wait in",
    "cross_group_cycle": "deviates from its peers' order and closes a circle of waiting at",
}


_FIXED: Final = {
    "outside_collectives": "no rank waits in a collective, yet none makes progress",
    "recorder_blind": "the recorder left out calls between others: whether the job moves is unknown",
}


def fill(observation: Observation, root: Root, graph: WaitGraph) -> None:
    """Where a process is known to be gone, the call its peers wait in tells group and sequence."""
    if root.group is None and root.ranks:
        calls = [call for rank in root.ranks for call in graph.lacking.get(rank, ())]
        if calls:
            first = min(calls, key=lambda call: call.key)
            root.group, root.sequence, root.op = first.group, first.sequence, first.op
            root.missing = tuple(r for r in (*first.absent, *first.silent) if r in root.ranks)
    gone = set(agent_gone(observation))
    if root.verdict == "suspect_no_dump" and root.suspects and set(root.suspects) <= gone:
        root.cause = "agent_gone"


@dataclass(frozen=True, slots=True)
class Case:
    """What findings are worded from."""

    observation: Observation
    world: World
    evidence: Evidence
    graph: WaitGraph


def waits_in(graph: WaitGraph) -> str:
    """The first call that ranks wait in, and for whom, where no rule says who holds it up."""
    call = min(graph.calls, key=lambda call: (bool(call.held_up), call.key))
    lacking = call.absent + call.silent
    whom = f"for {noun(lacking, 4)}" if lacking else "and the dumps do not tell for whom"
    verb = "waits" if len(call.waiting) == 1 else "wait"
    return f"{noun(call.waiting, 4)} {verb} in {call.op} {call.sequence} of {call.group.title}, {whom}"


def findings(case: Case, roots: Sequence[Root]) -> list[Finding]:
    """All faults in words, in the order of ``roots``."""
    standing = {number for number, root in enumerate(roots) if root.verdict in MISMATCHES}
    waiting = downstream.of_all(case.graph, roots, _waits_by_stack(case.observation), standing)
    return [_finding(case, root, behind) for root, behind in zip(roots, waiting, strict=True)]


def _finding(case: Case, root: Root, waiting: Waiting) -> Finding:
    row, observation = CATALOGUE[root.verdict], case.observation
    confidence, proof = _confidence(case, root)
    stack_lines = _stack_lines(observation, case.evidence, root)
    group = root.group.ref if root.group is not None else None
    return Finding(
        verdict=root.verdict,
        fault_class=row.fault_class,
        severity=row.severity,
        summary=_summary(case, root, group, waiting.ranks),
        rule=f"{row.fault_class}.{root.verdict} v1",
        confidence=confidence,
        cause=root.cause,
        owner=_OWNERS.get(root.cause or "", row.owner) if row.owner is Owner.UNKNOWN else row.owner,
        culprit_ranks=root.named,
        suspect_ranks=root.suspects,
        culprits=tuple(_culprit(observation.facts.get(rank), rank) for rank in root.named),
        group=group,
        seq=root.sequence,
        op=root.op,
        node=root.node or _common_host(observation, root),
        onset_step=_step(observation, root),
        downstream=Downstream(waiting.groups, waiting.ranks),
        why=tuple(dict.fromkeys([*root.why, *proof, *stack_lines])),
        recommended_action=row.action,
        decisive=row.decisive and bool(root.named),
        joined_ranks=_joined(root),
        missing_ranks=root.missing or _not_issued(root),
    )


def _waits_by_stack(observation: Observation) -> set[int]:
    """Ranks whose stack shows them in a call that only peers can end, the unrecorded p2p of gloo included."""
    return {one.rank for one in observation.stacks if (what := doing(one)) is not None and what.waits}


def _confidence(case: Case, root: Root) -> tuple[float, list[str]]:
    """How sure, 0 to 1, and the line that says what proves the stall.

    ``certainty`` of the rule that found it; at most ``UNPROVEN_MAX`` while nothing proves that the job stands
    still and no process evidence is against the named; a tenth more when stacks show the named outside of any
    collective; times 0.5 + 0.5 x the share of the world that was heard, since a rank that left no dump may
    hold another explanation.
    """
    confidence, proof = root.certainty, []
    if root.verdict not in _SELF_PROVEN:
        proven, line = timing.stall(case.observation, case.world, root, case.graph)
        proof.append(line)
        if not proven and not any(rank in case.evidence.lost for rank in root.ranks):
            confidence = min(confidence, UNPROVEN_MAX)
        busy = case.evidence.busy_by_stack
        if root.named and all(busy.get(rank) is not None for rank in root.named):
            confidence = min(0.97, confidence + 0.1)
    return confidence * (0.5 + 0.5 * _heard(case, root)), proof


def _heard(case: Case, root: Root) -> float:
    """Share of the world that has spoken: by a dump, or where processes tell the fault by their state."""
    if not case.world.size:
        return 1.0
    heard = {*case.world.windows, *root.ranks}
    if root.verdict in _PROCESS_PROVEN:
        facts = case.observation.facts
        heard |= {rank for rank, fact in facts.items() if fact.process is not ProcessState.UNKNOWN}
    return min(1.0, len(heard) / case.world.size)


def _stack_lines(observation: Observation, evidence: Evidence, root: Root) -> list[str]:
    """What the culprit does by its stack; lets it give the cause."""
    lines = []
    for one in sorted(observation.stacks, key=lambda s: s.rank):
        if one.rank not in root.ranks:
            continue
        what = doing(one)
        if what is None or what.waits:
            continue
        if root.cause is None and root.verdict in ("missing_rank", "outside_collectives", "p2p_unmatched"):
            root.cause = what.cause
        if what.place:
            lines.append(f"rank {one.rank} is in {what.place}")
    return lines + _phase_lines(observation, evidence, root)


def _phase_lines(observation: Observation, evidence: Evidence, root: Root) -> list[str]:
    """Where no stack tells, the phase that the hook reported does."""
    lines = []
    for rank in root.named:
        fact, busy = observation.facts.get(rank), evidence.busy_by_stack.get(rank)
        if fact is None or not busy or fact.phase != busy:
            continue
        if root.cause is None and root.verdict in ("missing_rank", "p2p_unmatched"):
            root.cause = busy
        if fact.phase_s is not None:
            lines.append(f"rank {rank} has been in phase {busy} for {duration(fact.phase_s)}")
    return lines


def _culprit(fact: RankFacts | None, rank: int) -> Culprit:
    if fact is None:
        return Culprit(rank)
    return Culprit(rank, fact.host, fact.gpu, fact.gpu_uuid, fact.pid)


def _common_host(observation: Observation, root: Root) -> str | None:
    hosts = {fact.host for rank in root.named if (fact := observation.facts.get(rank)) is not None}
    return hosts.pop() if len(hosts) == 1 else None


def _step(observation: Observation, root: Root) -> int | None:
    steps = [f.step for rank in root.named if (f := observation.facts.get(rank)) and f.step is not None]
    return min(steps, default=None)


def _joined(root: Root) -> tuple[int, ...]:
    if root.group is None or root.sequence is None or root.verdict == "p2p_unmatched":
        return ()
    return root.group.issued(root.sequence)


def _not_issued(root: Root) -> tuple[int, ...]:
    """Members that had not come to a call whose members passed different things."""
    if root.group is None or root.sequence is None or root.verdict not in MISMATCHES:
        return ()
    return root.group.unissued(root.sequence)


def _where(root: Root, group: GroupRef | None) -> str:
    if group is None or root.op is None:
        return "its peers' call"
    number = (
        "" if root.sequence is None else f" (p2p {root.sequence})" if "-" in root.op else f" {root.sequence}"
    )
    members = ranks_text(group.ranks, 4)
    op = root.op if root.group is None else p2p.globally(root.op, root.group.members)
    return f"{op}{number} of {group_title(group.name, group.desc)} ({members})"


def _who(observation: Observation, ranks: tuple[int, ...]) -> str:
    text = noun(ranks, 4)
    fact = observation.facts.get(ranks[0]) if len(ranks) == 1 else None
    places = (
        [] if fact is None else [p for p in (fact.host, None if fact.gpu is None else f"GPU {fact.gpu}") if p]
    )
    return f"{text} ({', '.join(places)})" if places else text


def opening(observation: Observation, root: Root) -> str:
    """How the sentence begins where the job is known: ``Job 7 has stood still for 42 s at step 9:``."""
    if observation.job is None:
        return ""
    job = f"Job {observation.job[:40]}"
    if CATALOGUE[root.verdict].fault_class == "crash":
        return f"{job} failed{_at_step(observation)}:"
    if not observation.stall_s:
        return f"{job} stands still{_at_step(observation)}:"
    return f"{job} has stood still for {duration(observation.stall_s)}{_at_step(observation)}:"


def _at_step(observation: Observation) -> str:
    """The newest step any rank has reached, where the hook counts steps."""
    step = max((fact.step for fact in observation.facts.values() if fact.step is not None), default=None)
    return "" if step is None else f" at step {step}"


def _summary(case: Case, root: Root, group: GroupRef | None, waiting: int) -> str:
    begin = opening(case.observation, root)
    body = _body(case, root, group)
    if not begin:
        body = body[:1].upper() + body[1:]
    waits = f"; {count(waiting, 'rank')} wait{'s' if waiting == 1 else ''}" if waiting else ""
    full = sentence(begin, body + waits + ".", cause_tail(root.cause))
    return full if body in full else sentence(begin, body + ".")


def _body(case: Case, root: Root, group: GroupRef | None) -> str:
    observation, evidence = case.observation, case.evidence
    where = _where(root, group)
    if root.told:
        return f"{root.told}: {where}"
    if root.verdict in ("rank_failed", "out_of_memory"):
        return _failed(observation, root)
    if root.verdict == "all_joined_not_finished":
        who = "its only member" if group is not None and len(group.ranks) == 1 else "all members"
        return f"{who} joined {where} and none finished: no rank can be named from the trace"
    if root.verdict in ("suspect_no_dump", "suspect_stale_dump"):
        what = unheard.left(root.verdict, root.suspects, evidence)
        verb = "is" if len(root.suspects) == 1 else "are"
        return f"{_who(observation, root.suspects)} {what} and {verb} suspected: peers wait in {where}"
    if root.verdict == "dead_node":
        if root.group is None:
            return f"host {root.node} is silent; the peers of its {noun(root.named, 4)} wait"
        return f"host {root.node} is silent; peers of its {noun(root.named, 4)} wait in {where}"
    if root.verdict in _FIXED:
        return _FIXED[root.verdict]
    if root.verdict == "watchdog_stuck":
        who = _who(observation, root.suspects)
        return f"the watchdog of {who} has stopped: whether the job moves is unknown"
    if root.verdict == "stuck_in_init" and root.op is None and group is not None:
        named = group_title(group.name, group.desc).removeprefix("group ")
        return f"{_who(observation, root.named)} never made group {named}; its peers have"
    verb = _VERBS[root.verdict]
    if root.named:
        return f"{_who(observation, root.named)} {verb} {where}"
    if len(root.suspects) == 1:
        return f"{_who(observation, root.suspects)} is suspected, not proven: it {verb} {where}"
    return f"one of {_who(observation, root.suspects)} {verb} {where}; they cannot be told apart"


def _failed(observation: Observation, root: Root) -> str:
    memory = root.verdict == "out_of_memory"
    what = "ran out of memory" if memory else f"failed first ({root.cause})" if root.cause else "failed first"
    if root.named:
        return f"{_who(observation, root.named)} {what}"
    if len(root.suspects) > 1:
        return f"{_who(observation, root.suspects)} failed at the same time; which was first cannot be told"
    return f"ranks failed by their peers' trouble; {_who(observation, root.suspects)} was the first seen"
