"""The first finding on a stall, from progress and process evidence alone, before a trace is here.

In: a stalled ``WorldState`` and what is known of its ranks. Out: a ``Diagnosis`` in the words of DESIGN 4. It
names a culprit only by process evidence; numbers alone give suspects, with confidence <= 0.5.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Final

from clusterwatch.analysis.model import (
    Coverage,
    Culprit,
    Diagnosis,
    Downstream,
    Finding,
    GroupRef,
    KnownGroup,
    Owner,
    ProcessState,
    RankFacts,
    Severity,
)
from clusterwatch.analysis.progress import GroupState, Reason, WorldState

RULE: Final = "live.progress v1"
SUSPECTS_NAMED_RATIO: Final = 0.5
"""More suspects than this part of the ranks is no hint: nobody is named."""
SUSPECTS_NAMED_AT_LEAST: Final = 2
SUMMARY_MAX_CHARS: Final = 200
CLOCKS_APART_NS: Final = 500_000_000
"""NTP keeps hosts within milliseconds, yet eight nodes of one fault were logged within 0.5 s
(marin-community/marin#8934)."""
_NAMED_IN_SENTENCE: Final = 4


@dataclass(frozen=True, slots=True)
class _Kind:
    """What a reason means: verdict, whether it may be staked on a page, and what to do."""

    verdict: str
    is_culprit: bool
    decisive: bool
    confidence: float
    cause: str | None
    owner: Owner
    sentence: str
    action: str


_KINDS: Final[Mapping[Reason, _Kind]] = {
    Reason.DIED: _Kind(
        "dead_rank", True, True, 0.95, None, Owner.UNKNOWN,
        "{who} died and the peers still wait",
        "Read the exit status and last exception of the dead rank, then restart from the last checkpoint.",
    ),
    Reason.NODE_SILENT: _Kind(
        "dead_node", True, True, 0.85, None, Owner.INFRA,
        "{who} went silent with the whole host and the peers wait",
        "Check the host's power, console and network; drain it and restart from the last checkpoint.",
    ),
    Reason.STOPPED: _Kind(
        "missing_rank", True, False, 0.9, "stopped", Owner.USER,
        "{who} stopped (SIGSTOP or a debugger); the peers wait",
        "Find who stopped the process; `kill -CONT PID` lets it go on.",
    ),
    Reason.HOOK_SILENT: _Kind(
        "missing_rank", False, False, 0.5, None, Owner.UNKNOWN,
        "not a word from {who}, though alive: stopped, or the interpreter is held",
        "Look at the stack of the silent process once it is here.",
    ),
    Reason.FINISHED: _Kind(
        "missing_rank", False, False, 0.5, "user_code", Owner.USER,
        "{who} ended normally while the peers still wait",
        "Compare how many steps each rank runs: one left its loop early.",
    ),
    Reason.BEHIND: _Kind(
        "missing_rank", False, False, 0.5, None, Owner.UNKNOWN,
        "{who} fell behind the peers, who wait, and joined no other call",
        "Look at the stacks of the suspects once they are here.",
    ),
    Reason.OUTSIDE: _Kind(
        "missing_rank", False, False, 0.4, None, Owner.UNKNOWN,
        "{who} joined no collective call while the others wait in one",
        "Look at the stacks of the suspects once they are here.",
    ),
    Reason.UNOBSERVED: _Kind(
        "suspect_no_dump", False, False, 0.3, None, Owner.UNKNOWN,
        "nothing is known of {who}; all ranks that are seen wait",
        "Check the agent on the host of the unseen ranks.",
    ),
}  # fmt: skip


def diagnose_stall(
    job: str,
    world: WorldState,
    stall_s: float,
    facts: Mapping[int, RankFacts],
    groups: Mapping[int, KnownGroup],
    coverage: Coverage,
) -> Diagnosis:
    """What can be said of a stalled world now.

    Args:
        job: its name for people.
        world: a world whose motion is STALLED.
        stall_s: seconds since its last progress.
        facts: by global rank; may be incomplete.
        groups: by the id that ``GroupState.group_id`` holds; may be incomplete.
    """
    state = world.groups[0] if world.groups else None
    known = groups.get(state.group_id) if state else None
    if _is_named(world):
        finding = _named(world, stall_s, facts, state, known)
    else:
        finding = _unnamed(world, stall_s, state, known)
    finding = replace(finding, summary=f"Job {job} stands still: {finding.summary}."[:SUMMARY_MAX_CHARS])
    return Diagnosis((finding,), coverage)


def diagnose_failure(job: str, facts: Mapping[int, RankFacts], coverage: Coverage) -> Diagnosis:
    """What exits alone say of a failure: the first to fail, or which cannot be told apart.

    Clocks of different hosts differ, so failures on other hosts within ``CLOCKS_APART_NS`` of the first are
    suspects with it.

    Args:
        job: its name for people.
        facts: by global rank; at least one exited and not normally.
    """
    failed = [f for f in facts.values() if f.process is ProcessState.EXITED and f.clean_exit is not True]
    failed.sort(key=lambda fact: (_failed_ns(fact), fact.rank))
    first = failed[0]
    near = [
        f for f in failed
        if f is first or (f.host != first.host and _failed_ns(f) - _failed_ns(first) < CLOCKS_APART_NS)
    ]  # fmt: skip
    alone = len(near) == 1
    names = tuple(fact.rank for fact in near)
    hosts = sorted({fact.host for fact in near if fact.host})
    verb = "failed first" if alone else "failed first, too close in time to tell apart"
    finding = Finding(
        verdict="rank_failed",
        fault_class="crash",
        severity=Severity.CRITICAL,
        summary=f"Job {job} failed: {_who(names, hosts)} {verb} ({_how(first)})."[:SUMMARY_MAX_CHARS],
        rule="live.exits v1",
        confidence=0.6 if alone else 0.4,
        culprit_ranks=names if alone else (),
        suspect_ranks=() if alone else tuple(sorted(names)),
        culprits=(_culprit(first.rank, first),) if alone else (),
        node=hosts[0] if len(hosts) == 1 else None,
        downstream=Downstream(0, len(facts) - len(near)),
        why=tuple(
            f"rank {f.rank} on {f.host or 'unknown host'}: {_how(f)}" for f in failed[:_NAMED_IN_SENTENCE]
        ),
        recommended_action="Read the last exception or exit status of the first to fail, then restart.",
        decisive=True,
    )
    return Diagnosis((finding,), coverage)


def _failed_ns(fact: RankFacts) -> int:
    """When it failed by its own host's clock; an exception comes before the exit it leads to."""
    times = [t for t in (fact.exit_ns, fact.exception.at_ns if fact.exception else None) if t is not None]
    return min(times, default=2**63 - 1)


def _how(fact: RankFacts) -> str:
    if fact.exception is not None:
        return f"{fact.exception.type}: {fact.exception.message}"
    if fact.exit_signal is not None:
        return f"killed by signal {fact.exit_signal}"
    if fact.exit_code is not None:
        return f"exit code {fact.exit_code}"
    return "gone without an exit status"


def _is_named(world: WorldState) -> bool:
    if not world.suspects:
        return False
    most = max(SUSPECTS_NAMED_AT_LEAST, int(SUSPECTS_NAMED_RATIO * world.rank_count))
    return _KINDS[_leading(world)].is_culprit or len(world.suspects) <= most


def _leading(world: WorldState) -> Reason:
    """The strongest of the suspects' reasons; ``Reason`` is declared strongest first."""
    return min(world.reasons, key=list(Reason).index)


def _named(
    world: WorldState,
    stall_s: float,
    facts: Mapping[int, RankFacts],
    state: GroupState | None,
    known: KnownGroup | None,
) -> Finding:
    reason = _leading(world)
    kind = _KINDS[reason]
    certain = tuple(r for r, why in zip(world.suspects, world.reasons, strict=True) if why is reason)
    hosts = sorted({facts[r].host or "" for r in certain if r in facts} - {""})
    named = certain if kind.is_culprit else ()
    return _finding(
        world, stall_s, state, known,
        verdict=kind.verdict,
        confidence=kind.confidence,
        cause=kind.cause,
        owner=kind.owner,
        culprit_ranks=named,
        suspect_ranks=() if kind.is_culprit else world.suspects,
        culprits=tuple(_culprit(r, facts.get(r)) for r in named),
        node=hosts[0] if len(hosts) == 1 else None,
        summary=kind.sentence.format(who=_who(named or world.suspects, hosts)),
        recommended_action=kind.action,
        decisive=kind.decisive and bool(world.waiting),
        why=tuple(_why(r, facts.get(r), why) for r, why in _first(world)),
    )  # fmt: skip


def _unnamed(
    world: WorldState, stall_s: float, state: GroupState | None, known: KnownGroup | None
) -> Finding:
    if world.all_joined:
        verdict, text = "all_joined_not_finished", "every rank has joined the open call and none finishes"
    elif not world.waiting:
        verdict, text = "outside_collectives", "no rank moves and none waits in a collective call"
    else:
        verdict = "not_enough_data"
        text = f"{len(world.waiting)} ranks wait and progress alone does not tell for whom"
    return _finding(
        world, stall_s, state, known,
        verdict=verdict, confidence=0.3, summary=text,
        recommended_action="Wait for the stacks and traces that were asked for.",
    )  # fmt: skip


def _finding(
    world: WorldState,
    stall_s: float,
    state: GroupState | None,
    known: KnownGroup | None,
    *,
    verdict: str,
    confidence: float,
    summary: str,
    recommended_action: str,
    cause: str | None = None,
    owner: Owner = Owner.UNKNOWN,
    culprit_ranks: tuple[int, ...] = (),
    suspect_ranks: tuple[int, ...] = (),
    culprits: tuple[Culprit, ...] = (),
    node: str | None = None,
    decisive: bool = False,
    why: tuple[str, ...] = (),
) -> Finding:
    unknown = verdict == "not_enough_data"
    return Finding(
        verdict=verdict,
        fault_class="none" if unknown else "hang",
        severity=Severity.UNKNOWN if unknown else Severity.CRITICAL,
        summary=summary,
        rule=RULE,
        confidence=confidence,
        cause=cause,
        owner=owner,
        culprit_ranks=culprit_ranks,
        suspect_ranks=suspect_ranks,
        culprits=culprits,
        group=GroupRef(known.name, known.desc, known.ranks) if known else None,
        seq=state.sequence if state else None,
        node=node,
        downstream=Downstream(len(world.groups), len(world.waiting)),
        why=(f"no number of the job has moved for {stall_s:.1f} s; phase: {world.phase}", *why),
        recommended_action=recommended_action,
        decisive=decisive,
        joined_ranks=state.waiting if state else (),
        missing_ranks=state.behind if state else (),
    )


def _culprit(rank: int, fact: RankFacts | None) -> Culprit:
    if fact is None:
        return Culprit(rank)
    return Culprit(rank, fact.host, fact.gpu, fact.gpu_uuid, fact.pid)


def _first(world: WorldState) -> list[tuple[int, Reason]]:
    return list(zip(world.suspects, world.reasons, strict=True))[:_NAMED_IN_SENTENCE]


def _why(rank: int, fact: RankFacts | None, reason: Reason) -> str:
    host = f" on {fact.host}" if fact and fact.host else ""
    return f"rank {rank}{host}: {reason}"


def _who(ranks: tuple[int, ...], hosts: list[str]) -> str:
    shown = ", ".join(str(rank) for rank in ranks[:_NAMED_IN_SENTENCE])
    more = f" and {len(ranks) - _NAMED_IN_SENTENCE} more" if len(ranks) > _NAMED_IN_SENTENCE else ""
    word = "rank" if len(ranks) == 1 else "ranks"
    return f"{word} {shown}{more}" + (f" on {hosts[0]}" if len(hosts) == 1 else "")
