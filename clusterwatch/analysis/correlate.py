"""One cause across layers: joins a finding with what GPUs, links, hosts, mounts and racks told.

In: a ``Finding`` of a job, a ``World`` (places of its ranks, signals, onset, newest values). Out: ``Joined``:
the cause, the part, the ranks on it, how sure, and each signal with the reason it was taken or not. A signal
counts only where its kind can do this, before the trouble began as far as clocks tell, on a part that the
ranks use, and not as often on healthy peers. A cause is named from 80 % of the cost on; else why not is said.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from clusterwatch.analysis import correlate_words as words
from clusterwatch.analysis.correlate_causes import (
    CRASHES,
    KEPT,
    NAMED_STALLS,
    OF_STORAGE,
    STALLS,
    is_app_error,
)
from clusterwatch.analysis.correlate_gather import Gathered, gather, is_shared
from clusterwatch.analysis.correlate_model import (
    COVERS_MIN_RATIO,
    NAME_MIN,
    Candidate,
    Joined,
    Layer,
    Part,
    PartKind,
    World,
)
from clusterwatch.analysis.correlate_places import Index
from clusterwatch.analysis.correlate_time import first_of
from clusterwatch.analysis.correlate_vitals import Network, network, odd_gpu
from clusterwatch.analysis.model import Finding, Owner, Severity
from clusterwatch.analysis.verdicts import SLOW_CLASSES

PEERS_MIN: Final = 4
FEW_PEERS: Final = 0.9
LIFT_MIN: Final = 3.0
COMMON_MAX_RATIO: Final = 0.5
"""What more of those have who merely wait explains nothing."""
UNSURE_STORAGE: Final = 0.6
"""A mount of the host stalls, and nothing tells that the rank waits for it."""
NOT_ALONE: Final = 0.9
"""Others have signals, too, that came later."""
ODD_CONFIDENCE: Final = 0.5
SUSPECTS_MAX: Final = 64
_WITH_STORAGE: Final = frozenset({Layer.STORAGE, Layer.HOST, Layer.POWER})


def is_joined(finding: Finding) -> bool:
    """Whether other layers can say anything of such a finding."""
    slow = finding.fault_class in SLOW_CLASSES or finding.verdict == "slow_cause_unknown"
    known = finding.verdict in STALLS | CRASHES or slow
    return known and finding.cause not in KEPT


def join(finding: Finding, world: World) -> Joined | None:
    """What the layers beneath say of a finding; None where it is no matter of theirs, or nobody is placed."""
    if not is_joined(finding) or not world.places:
        return None
    case = _Case.of(finding, world)
    if case.named:
        return _of_named(case)
    return _of_unnamed(case)


@dataclass(frozen=True, slots=True)
class _Weighed:
    """A candidate with its share of healthy peers that have the same, and what is left of its worth."""

    candidate: Candidate
    confidence: float
    peers: str

    @property
    def how(self) -> str:
        one = self.candidate
        rest = self.confidence / max(1e-9, one.cause.worth * one.certainty)
        return words.how(self.confidence, one, rest)


@dataclass(frozen=True, slots=True)
class _Case:
    finding: Finding
    world: World
    index: Index
    relevant: frozenset[int]
    named: bool
    """the finding itself names whom to ask about; else they are all that may be it"""
    told: Gathered
    have: Mapping[str, tuple[int, int]]
    """by cause: ranks of the whole job with it, and of those that matter"""
    placed_count: int
    """of those that matter"""
    network: Network

    @classmethod
    def of(cls, finding: Finding, world: World) -> _Case:
        index = Index(world.places.values())
        ranks = finding.culprit_ranks or finding.suspect_ranks
        if not ranks:
            ranks = finding.group.ranks if finding.group is not None else tuple(world.places)
        relevant = frozenset(ranks)
        told = gather(finding.verdict, world, index, relevant)
        return cls(
            finding, world, index, relevant, bool(finding.culprit_ranks), told,
            _have(told.candidates, relevant), len(relevant & index.by_rank.keys()),
            network(relevant, world.vitals),
        )  # fmt: skip

    def weighed(self) -> tuple[list[_Weighed], list[str]]:
        """(candidates on the ranks that matter, why others explain nothing)."""
        kept: list[_Weighed] = []
        refused: list[str] = []
        for one in self.told.candidates:
            if one.ranks.isdisjoint(self.relevant) or not self._is_of_its_kind(one):
                continue
            found = self._weigh(one)
            if isinstance(found, str):
                refused.append(found)
            else:
                kept.append(found)
        return kept, refused

    def _is_of_its_kind(self, one: Candidate) -> bool:
        """A rank that waits for storage by its own stack is not held up by its GPU."""
        return self.finding.cause not in OF_STORAGE or one.cause.layer in _WITH_STORAGE

    def _weigh(self, one: Candidate) -> _Weighed | str:
        factor, exempt = 1.0, is_shared(one) and not self.named
        if one.cause.layer is Layer.STORAGE and self.finding.verdict in STALLS:
            if self.network is Network.BUSY:
                return f"{one.part.label}: {one.cause.says}, but RDMA still moves the job's data"
            waits = self._waits_for_storage(one)
            factor, exempt = (1.0 if waits else UNSURE_STORAGE), exempt or waits
        lift = self._lift(one)
        if lift.explains_nothing and not exempt:
            return f"{one.part.label}: {one.cause.says}, but {lift.words}: it explains nothing"
        factor *= 1.0 if exempt else lift.factor
        return _Weighed(one, one.cause.worth * one.certainty * factor, lift.words)

    def _waits_for_storage(self, one: Candidate) -> bool:
        if self.finding.cause in OF_STORAGE:
            return True
        mine = [self.index.by_rank[rank] for rank in one.ranks & self.relevant]
        return sum(place.is_blocked or place.phase in OF_STORAGE for place in mine) * 2 >= len(mine)

    def _lift(self, one: Candidate) -> _Lift:
        """How much more often the ranks that matter have it than the others of the job."""
        everywhere, here = self.have[one.cause.word]
        mine = len(one.ranks & self.relevant)
        if not self.named:
            beside = len(self.index.by_rank) - len(one.ranks)
            return _Lift.of(everywhere - len(one.ranks), beside, 1.0)
        with_it = everywhere - here
        if one.part.kind in (PartKind.SOME_GPU, PartKind.SOME_PORT):
            with_it -= len(one.ranks) - mine  # one of the host's ranks has it, and not each
        peers = len(self.index.by_rank) - self.placed_count
        return _Lift.of(max(0, with_it), peers, here / len(self.relevant))


def _have(candidates: Sequence[Candidate], relevant: frozenset[int]) -> dict[str, tuple[int, int]]:
    """Ranks with each cause: (of the whole job, of those that matter)."""
    ranks: dict[str, set[int]] = defaultdict(set)
    for one in candidates:
        ranks[one.cause.word] |= one.ranks
    return {word: (len(mine), len(mine & relevant)) for word, mine in ranks.items()}


@dataclass(frozen=True, slots=True)
class _Lift:
    explains_nothing: bool
    factor: float
    words: str

    @classmethod
    def of(cls, with_it: int, peers: int, mine_ratio: float) -> _Lift:
        if peers < PEERS_MIN:
            return cls(False, FEW_PEERS, f"only {peers} other ranks to compare with")
        ratio = with_it / peers
        if not with_it:
            return cls(False, 1.0, f"none of {peers} other ranks has the same")
        lift = mine_ratio / ratio
        said = f"{with_it} of {peers} other ranks have the same (lift {lift:.1f})"
        return cls(ratio > COMMON_MAX_RATIO or lift < LIFT_MIN, max(0.5, 1.0 - 2.0 * ratio), said)


# --- whom the finding names already -----------------------------------------------------------------------


def _of_named(case: _Case) -> Joined:
    kept, refused = case.weighed()
    by_word: dict[str, list[_Weighed]] = defaultdict(list)
    for one in kept:
        by_word[one.candidate.cause.word].append(one)
    covered = {
        word: frozenset().union(*(one.candidate.ranks for one in mine)) & case.relevant
        for word, mine in by_word.items()
    }
    enough = [w for w in by_word if len(covered[w]) >= COVERS_MIN_RATIO * len(case.relevant)]
    if not enough:
        short = [words.too_little(by_word[w][0].candidate, covered[w], case.relevant) for w in by_word]
        most = max((len(ranks) for ranks in covered.values()), default=0)
        return _nothing(case, [*short, *refused], most / len(case.relevant))
    word = min(enough, key=lambda w: _rank_of(by_word[w], case.finding))
    mine = by_word[word]
    best = max(mine, key=lambda one: one.confidence)
    part = _one_part([one.candidate.part for one in mine])
    return _joined(case, best, [one.candidate for one in mine], part, covered[word], refused)


def _rank_of(mine: Sequence[_Weighed], finding: Finding) -> tuple[bool, float, float, str]:
    """Of several causes: what stops a job and came first; of something slow what is likelier."""
    best = max(one.confidence for one in mine)
    stops = finding.verdict in STALLS | CRASHES
    fatal = any(one.candidate.cause.fatal for one in mine)
    at_ns = min(one.candidate.at_ns for one in mine)
    return (not fatal, at_ns if stops else -best, -best, mine[0].candidate.cause.word)


def _one_part(parts: Sequence[Part]) -> Part | None:
    """The part; the host where several of one host have it; None: no single part."""
    if len(parts) == 1:
        return parts[0]
    hosts = {part.host for part in parts}
    host = hosts.pop() if len(hosts) == 1 else ""
    return Part(PartKind.HOST, host, host) if host else None


# --- whom the trace cannot tell apart ---------------------------------------------------------------------


def _of_unnamed(case: _Case) -> Joined:
    kept, refused = case.weighed()
    fatal = [one for one in kept if one.candidate.cause.fatal]
    asked = fatal or kept
    root, tied = first_of([one.candidate for one in asked])
    if tied:
        return _tied(case, tied, refused)
    if root is None:
        return _odd_one(case, refused)
    best = next(one for one in asked if one.candidate is root)
    if len(kept) > 1:
        best = _Weighed(root, best.confidence * NOT_ALONE, best.peers)
        refused = [*refused, words.later(root, [one.candidate for one in kept])]
    if best.confidence < NAME_MIN:
        return _nothing(case, [words.unsure(root, best.confidence), best.how, *refused], 0.0)
    return _joined(case, best, [root], root.part, root.ranks & case.relevant, refused)


def _tied(case: _Case, tied: Sequence[Candidate], refused: Sequence[str]) -> Joined:
    ranks = sorted(set().union(*(one.ranks for one in tied)) & case.relevant)
    domain = words.domain([case.index.by_rank[rank] for rank in ranks])
    line = words.cannot_order(tied, domain)
    found = _nothing(case, [line, *refused], 1.0 / len(tied))
    return words.with_suspects(found, ranks[:SUSPECTS_MAX])


def _odd_one(case: _Case, refused: Sequence[str]) -> Joined:
    """No signal tells: the one GPU that rests while its peers spin in the call is suspected, never named."""
    lines = [*refused, *words.of_vitals(case.relevant, case.world.vitals, case.network)]
    odd = odd_gpu(case.relevant, case.world.vitals) if case.finding.verdict not in NAMED_STALLS else None
    if odd is None:
        return _nothing(case, lines, 0.0)
    found = _nothing(case, [words.rests(odd, case.index.by_rank.get(odd), len(case.relevant)), *lines], 0.0)
    return words.with_suspects(found, [odd], ODD_CONFIDENCE)


# --- what is said -----------------------------------------------------------------------------------------


def _joined(
    case: _Case, best: _Weighed, mine: Sequence[Candidate], part: Part | None, ranks: frozenset[int],
    refused: Sequence[str],
) -> Joined:  # fmt: skip
    one = best.candidate
    first = min((c.first for c in mine), key=lambda signal: signal.at_ns)
    is_exact = part is not None and part.kind in (PartKind.GPU, PartKind.PORT)
    exact = ranks if case.named or is_exact else frozenset[int]()
    suspects = frozenset[int]() if exact or is_shared(one) else ranks
    said = words.sentence_of(one, first, part, words.hottest(ranks, case.world.vitals), len(mine))
    covers = len(ranks) / len(case.relevant) if case.named else 1.0
    why = [
        f"cause: {said}",
        f"{best.peers}; it explains {covers:.0%} of the cost",
        best.how,
        *words.of_layer(one, case.world),
        *refused,
    ]
    critical = any(signal.severity is Severity.CRITICAL for c in mine for signal in c.signals)
    return Joined(
        cause=one.cause.word,
        layer=one.cause.layer,
        sentence=said,
        part=part,
        ranks=tuple(sorted(exact)),
        suspects=tuple(sorted(suspects))[:SUSPECTS_MAX],
        owner=Owner.UNKNOWN if is_app_error(one.cause) else one.cause.owner,
        confidence=best.confidence,
        covers_ratio=covers,
        why=tuple(why[: words.WHY_MAX]),
        rows=case.told.rows,
        left_out=case.told.left_out,
        decisive=one.cause.fatal and one.cause.layer is Layer.GPU and is_exact and critical,
    )


def _nothing(case: _Case, lines: Sequence[str], covers: float) -> Joined:
    """Nothing is named; what was looked at is said."""
    return Joined(
        covers_ratio=covers,
        why=tuple(lines[: words.WHY_MAX]),
        looked=words.looked_at(case.told.signals, len(case.relevant), case.world.unread),
        rows=case.told.rows,
        left_out=case.told.left_out,
    )
