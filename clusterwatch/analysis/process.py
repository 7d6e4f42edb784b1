"""Process and node evidence: ranks that are known to be dead, stopped, frozen, or on a lost node.

In: ``Observation.facts`` and stacks. Out: ``Evidence`` for the search of roots. A lost agent proves nothing
of its ranks: the host answered last we knew.
"""

from __future__ import annotations

from collections import defaultdict
from typing import Final

from clusterwatch.analysis import stacks
from clusterwatch.analysis.model import Observation, ProcessState, RankFacts
from clusterwatch.analysis.root import Evidence, Root
from clusterwatch.analysis.sentence import duration, noun

SILENT_HOOK_S: Final = 3.0
"""A hook speaks once a second; three misses with a living process mean that its threads do not run."""

SIGNALS: Final = {
    1: "SIGHUP", 2: "SIGINT", 3: "SIGQUIT", 4: "SIGILL", 6: "SIGABRT", 7: "SIGBUS", 8: "SIGFPE", 9: "SIGKILL",
    11: "SIGSEGV", 13: "SIGPIPE", 15: "SIGTERM", 24: "SIGXCPU",
}  # fmt: skip
"""Linux numbers, signal(7)."""


def evidence(observation: Observation, stale: frozenset[int] = frozenset()) -> Evidence:
    """What processes, nodes and stacks say of each rank."""
    heard = frozenset(window.rank for window in observation.windows)
    doing = {one.rank: what for one in observation.stacks if (what := stacks.doing(one)) is not None}
    lost: dict[int, Root] = {}
    nodes: dict[str, list[int]] = defaultdict(list)
    for rank, fact in sorted(observation.facts.items()):
        if fact.process is ProcessState.NODE_SILENT:
            nodes[fact.host or f"of rank {rank}"].append(rank)
            continue
        root = _lost(fact) or _frozen(fact, doing, heard)
        if root is not None:
            lost[rank] = root
    for host, ranks in nodes.items():
        root = _node(host, ranks, observation)
        lost |= dict.fromkeys(ranks, root)
    return Evidence(
        lost=lost,
        waits_by_stack=frozenset(rank for rank, what in doing.items() if what.waits),
        busy_by_stack=_busy_phases(observation, doing)
        | {rank: what.cause or "" for rank, what in doing.items() if not what.waits},
        stale=stale,
        unreadable=frozenset(p.rank for p in observation.problems if p.rank is not None) - heard - stale,
        hosts={rank: fact.host for rank, fact in observation.facts.items()},
    )


_BUSY_PHASES: Final = frozenset({"data_loading", "checkpoint", "compile"})
"""Phases of the hook in which a rank is outside of any collective."""
_LONG_PHASE_S: Final = 1.0


def _busy_phases(observation: Observation, doing: dict[int, stacks.Doing]) -> dict[int, str]:
    """Ranks that their hook has seen in such a phase for long, where no stack tells."""
    running = (ProcessState.RUNNING, ProcessState.BLOCKED)
    return {
        rank: fact.phase
        for rank, fact in sorted(observation.facts.items())
        if rank not in doing
        and fact.process in running
        and fact.phase in _BUSY_PHASES
        and fact.phase is not None
        and (fact.phase_s or 0.0) >= _LONG_PHASE_S
    }


def _lost(fact: RankFacts) -> Root | None:
    """A process that cannot come to a call any more."""
    if fact.process is ProcessState.EXITED:
        return Root("dead_rank", (fact.rank,), cause=exit_word(fact), why=[_exit_line(fact)], certainty=0.97)
    if fact.process is ProcessState.STOPPED:
        since = f" for {duration(fact.process_since_s)}" if fact.process_since_s is not None else ""
        why = f"the process of rank {fact.rank} is stopped (state T){since}"
        return Root("missing_rank", (fact.rank,), cause="stopped", why=[why], certainty=0.95)
    return None


def _frozen(fact: RankFacts, doing: dict[int, stacks.Doing], heard: frozenset[int]) -> Root | None:
    """A living process whose hook went silent and that left no dump: none of its Python threads runs."""
    silent_s = fact.hook_silent_s
    if silent_s is None or silent_s < SILENT_HOOK_S or fact.rank in heard:
        return None
    if fact.process not in (ProcessState.RUNNING, ProcessState.BLOCKED):
        return None
    what = doing.get(fact.rank)
    if what is not None and what.waits:
        return None
    blocked = fact.process is ProcessState.BLOCKED
    cause = what.cause if what is not None else "io" if blocked else "gil_held"
    state = "blocked in the kernel (state D)" if blocked else "alive"
    why = f"rank {fact.rank} is {state}, but its hook has been silent for {duration(silent_s)}"
    return Root("missing_rank", (fact.rank,), cause=cause, why=[why], certainty=0.85)


def _node(host: str, ranks: list[int], observation: Observation) -> Root:
    silences = [observation.facts[r].process_since_s for r in ranks]
    longest = max((s for s in silences if s is not None), default=None)
    since = f" for {duration(longest)}" if longest is not None else ""
    why = f"host {host} with {noun(ranks)} has been silent{since}, without closing its connection"
    return Root("dead_node", tuple(sorted(ranks)), node=host, why=[why], certainty=0.95)


def exit_word(fact: RankFacts) -> str:
    if fact.exit_signal is not None:
        return SIGNALS.get(fact.exit_signal, f"signal {fact.exit_signal}")
    if fact.exception is not None:
        return fact.exception.type
    return f"exit code {fact.exit_code}" if fact.exit_code is not None else "exited"


def _exit_line(fact: RankFacts) -> str:
    place = f" on {fact.host}" if fact.host else ""
    pid = f" (pid {fact.pid})" if fact.pid is not None else ""
    return f"the process of rank {fact.rank}{pid}{place} ended: {exit_word(fact)}"


def agent_gone(observation: Observation) -> tuple[int, ...]:
    """Ranks whose agent died: nothing is known of them, and nothing is held against them."""
    return tuple(
        rank for rank, f in sorted(observation.facts.items()) if f.process is ProcessState.AGENT_GONE
    )
