"""The first rank to fail, apart from the cascade it sets off.

In: ``Observation.facts`` (exits, signals, exceptions). Out: a ``Root``, or None when nobody failed. A peer's
"connection closed", a watchdog's abort, a SIGTERM by the launcher are effects; an own exception or a
fatal signal is a cause.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from clusterwatch.analysis.model import Observation, ProcessState, RankFacts
from clusterwatch.analysis.process import exit_word
from clusterwatch.analysis.root import Root
from clusterwatch.analysis.sentence import duration, noun

CLOCK_ERROR_NS: Final = 500_000_000
"""Two hosts' clocks are held to agree this well and no better when failures are put in order."""

_PEER_ERROR: Final = re.compile(
    r"connection (closed|reset|refused|aborted)|broken pipe|closed by peer|socket (closed|timeout)"
    r"|timed? ?out"
    r"|watchdog|nccl (communicator|remote|system|internal)|ncclremoteerror|remote (process|peer)|aborted"
    r"|op\.preamble|nbytes|gloo.{0,200}(transport|enforce)|heartbeat|signalexception|distbackenderror"
    r"|store.{0,40}(get|wait)|rendezvous",
    re.IGNORECASE | re.DOTALL,
)
"""Words of errors that a rank gets from its peers' trouble. Source: gloo's transport/tcp, torch's
ProcessGroupNCCL and TCPStore."""

_OUT_OF_MEMORY: Final = re.compile(
    r"out ?of ?memory|cannot allocate memory|can't allocate memory|std::bad_alloc|MemoryError", re.IGNORECASE
)
_FATAL: Final = frozenset({4, 6, 7, 8, 9, 11})
_ENDING: Final = frozenset({1, 2, 13, 15})
"""Signals by which a launcher or a user ends what is already failing."""


@dataclass(frozen=True, slots=True)
class Failure:
    rank: int
    host: str | None
    at_ns: int | None
    primary: bool
    out_of_memory: bool
    fact: RankFacts


def _failure(fact: RankFacts) -> Failure | None:
    exception = fact.exception
    text = f"{exception.type}: {exception.message}" if exception is not None else ""
    died = fact.exit_signal is not None or fact.exit_code not in (None, 0)
    if not died and exception is None:
        return None
    memory = bool(_OUT_OF_MEMORY.search(text))
    if exception is not None:
        primary = memory or not _PEER_ERROR.search(text)
    else:
        code_signal = fact.exit_code - 128 if fact.exit_code is not None and fact.exit_code > 128 else None
        signal = fact.exit_signal if fact.exit_signal is not None else code_signal
        primary = signal in _FATAL or (signal is None and fact.exit_code not in (None, 0))
        if signal in _ENDING:
            primary = False
    times = [t for t in (exception.at_ns if exception else None, fact.exit_ns) if t is not None]
    return Failure(fact.rank, fact.host, min(times, default=None), primary, memory, fact)


def failures(facts: Mapping[int, RankFacts]) -> list[Failure]:
    """Every rank that failed, the first first; unknown times last."""
    found = [failure for fact in facts.values() if (failure := _failure(fact)) is not None]
    return sorted(found, key=lambda f: (f.at_ns is None, f.at_ns or 0, f.rank))


def _together(first: Failure, other: Failure) -> bool:
    """Whether the order of the two cannot be told: one host has one clock, two hosts an error."""
    if first.at_ns is None or other.at_ns is None:
        return True
    if first.host is not None and first.host == other.host:
        return first.at_ns == other.at_ns
    return abs(other.at_ns - first.at_ns) <= CLOCK_ERROR_NS


def _strength(failure: Failure) -> int:
    """An own exception or crash tells more than a bare exit code or a SIGKILL from outside."""
    if failure.fact.exception is not None or failure.fact.exit_signal in (4, 7, 8, 11):
        return 2
    return 1 if failure.fact.exit_signal is not None else 0


def judge(observation: Observation) -> Root | None:
    """The first to fail as ``rank_failed`` or ``out_of_memory``; suspects where the order cannot be told."""
    failed = failures(observation.facts)
    if not failed:
        return None
    own = [f for f in failed if f.primary]
    aborted = [f for f in own if f.fact.exit_signal == 6 and f.fact.exception is None]
    if len(aborted) * 2 > len(observation.facts) and len(aborted) > 1:
        own = [f for f in own if f not in aborted]  # the watchdog aborts everybody: an effect of a hang
    if not own:
        return _only_effects(failed)
    first = own[0]
    tied = [f for f in own if _together(first, f)]
    strongest = max(_strength(f) for f in tied)
    tied = [f for f in tied if _strength(f) == strongest]
    named = tuple(sorted(f.rank for f in tied))
    sure = len(tied) == 1
    memory = all(f.out_of_memory for f in tied)
    root = Root(
        "out_of_memory" if memory else "rank_failed",
        named if sure else (),
        () if sure else named,
        cause=exit_word(tied[0].fact),
        why=[_line(f) for f in tied[:4]],
        certainty=(0.6 if _bare_abort(first, observation) else 0.95) if sure else 0.5,
    )
    victims = [f for f in failed if f.rank not in named]
    if victims:
        root.why.append(_cascade(tied[0], victims))
    return root


def _bare_abort(failure: Failure, observation: Observation) -> bool:
    """An abort without a word, and no ring to read: gloo aborts a rank for its peer's wrong size too."""
    fact = failure.fact
    return fact.exit_signal == 6 and fact.exception is None and not observation.windows


def _only_effects(failed: list[Failure]) -> Root:
    """All who failed did so because of somebody else, who is not among them."""
    first = failed[0]
    why = [_line(first), "every error seen is one that a peer's trouble causes; its origin is not among them"]
    return Root("rank_failed", (), (first.rank,), cause=exit_word(first.fact), why=why, certainty=0.3)


def _line(failure: Failure) -> str:
    fact = failure.fact
    what = exit_word(fact)
    if fact.exception is not None:
        message = " ".join(fact.exception.message.split())[:160]
        what = f"{fact.exception.type}: {message}" if message else fact.exception.type
    place = f" on {fact.host}" if fact.host else ""
    return f"rank {fact.rank}{place} failed: {what}"


def _cascade(first: Failure, victims: list[Failure]) -> str:
    later = [v.at_ns - first.at_ns for v in victims if v.at_ns is not None and first.at_ns is not None]
    lag = f", {duration(max(min(later), 0) / 1e9)} later" if later else ""
    return f"{noun(v.rank for v in victims)} failed in its wake{lag}"


def all_ended_well(observation: Observation) -> bool:
    """Every rank known of has ended by itself with code 0."""
    facts = observation.facts.values()
    return bool(facts) and all(
        f.process is ProcessState.EXITED
        and f.exit_signal is None
        and f.exit_code in (None, 0)
        and f.exception is None
        and (f.clean_exit is not False)
        for f in facts
    )
