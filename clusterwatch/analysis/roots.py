"""Where a stall starts: the ranks that wait for nobody while others wait for them.

In: ``World`` and ``Evidence`` (process facts, stacks). Out: ``Root`` per independent fault, and the graph.
Order of proof: mismatched calls, breaks of the call pattern, processes known gone, calls that peers
finished, then the sinks of the wait graph, cycles, and last calls that all have joined.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence

from clusterwatch.analysis import (
    blind,
    calls,
    crossing,
    cycle,
    lifecycle,
    mismatch,
    p2p,
    pattern,
    shares,
    sinks,
    unheard,
    waitfor,
)
from clusterwatch.analysis.calls import OpenCall
from clusterwatch.analysis.groups import World
from clusterwatch.analysis.p2p import Pairing
from clusterwatch.analysis.root import Evidence, Root
from clusterwatch.analysis.sentence import count, noun
from clusterwatch.analysis.signature import ALL_PARTY, plain
from clusterwatch.analysis.waitfor import WaitGraph


def find(world: World, evidence: Evidence) -> tuple[list[Root], WaitGraph]:
    """All independent faults of one look, and the graph they were read from."""
    wrong = mismatch.find(world)
    open_calls = calls.find(world)
    if not (evidence.failed or world.no_dump or open_calls):
        wrong = [m for m in wrong if not m.over or m.last]  # everybody has gone past it, nothing stands still
    bad = {m.group.number: m.sequence for m in wrong}
    pairing = p2p.pair(world)
    odd = {rank for m in wrong for rank in m.odd}
    explained = {rank for m in wrong for rank in m.said}
    graph = waitfor.build(open_calls, pairing, bad, odd)
    roots = [_from_mismatch(m) for m in wrong]
    roots += _lacking_too(world, open_calls, pairing, wrong)
    if graph.calls or pairing.unmatched or wrong:
        roots += _breaks(world, graph, explained)
        roots += _unique(evidence.lost)
    explained |= _add_seen_in_calls(roots, world, graph, pairing)
    forced = odd | {rank for root in roots for rank in root.named}
    explained |= {rank for root in roots for rank in root.suspects}
    graph.release(forced)
    rings, tied = waitfor.rings(graph)
    crossings = [c for c in crossing.find(world, pairing) if not any(c.ranks & ring for ring in rings)]
    closed = [*rings, *(c.ranks for c in crossings)]
    roots += sinks.unexplained(world, graph, pairing, evidence, forced | explained, closed)
    covered = explained | _ranks(roots) | waitfor.upstream(graph, _ranks(roots))
    roots += [cycle.judge(world, graph, ring) for ring in rings if not ring & covered]
    roots += [crossing.judge(c) for c in crossings if not c.ranks & covered]
    roots += _tied(world, graph, tied, explained | _ranks(roots))
    blamed = explained | _ranks(roots)
    roots += map(shares.refine, sinks.all_joined(world, graph, pairing, covered | blamed, blamed))
    roots = roots or unheard.leftover(world, graph)
    return _merged(lifecycle.refine(world, roots), evidence.hosts), graph


def _tied(world: World, graph: WaitGraph, rings: Sequence[frozenset[int]], blamed: set[int]) -> list[Root]:
    """Rings whose ranks wait for other faults as well: told where the order of the calls names who closed
    them, since else those faults may be all there is."""
    judged = [cycle.judge(world, graph, ring) for ring in rings if not ring & blamed]
    return [root for root in judged if root.named and root.verdict == "cross_group_cycle"]


def _ranks(roots: Sequence[Root]) -> set[int]:
    return {rank for root in roots for rank in root.ranks}


def _add_seen_in_calls(roots: list[Root], world: World, graph: WaitGraph, pairing: Pairing) -> set[int]:
    """Adds faults that one call or pair of halves shows by itself, where no root so far has their ranks.

    Returns:
        Ranks that wait in a call that can never end.
    """
    known = _ranks(roots)
    roots += [r for r in _misdirected(pairing, world) if not known & set(r.ranks)]
    known = _ranks(roots)
    roots += [r for r in sinks.unequal_halves(pairing) if not known & set(r.ranks)]
    half_done = [(r, call) for r, call in shares.half_done(graph.calls) if not known & set(r.ranks)]
    roots += [root for root, _ in half_done]
    known |= _ranks([root for root, _ in half_done])
    roots += [r for r in _late(graph) if not known & set(r.named)]
    known = _ranks(roots)
    roots += [r for r in _late_halves(pairing) if not known & set(r.named)]
    return {rank for _, call in half_done for rank in call.waiting}


def _unique(lost: Mapping[int, Root]) -> list[Root]:
    return list({id(root): root for _, root in sorted(lost.items())}.values())


_ALONE_MAX = 4
"""Up to so many ranks that lack one call are findings of their own: they may have failed for two reasons."""


def _merged(roots: list[Root], hosts: Mapping[int, str | None]) -> list[Root]:
    """Ranks that lack one and the same call are one finding when they share a host or are many."""
    together: dict[tuple[object, ...], list[Root]] = defaultdict(list)
    for number, root in enumerate(roots):
        mergeable = root.verdict in ("missing_rank", "queued_not_started") and root.cause is None
        group = root.group.key if root.group else None
        together[(root.verdict, group, root.sequence, bool(root.named)) if mergeable else (number,)].append(
            root
        )
    kept = []
    for same in together.values():
        places = {hosts.get(rank) for root in same for rank in root.ranks}
        one_host = len(places) == 1 and None not in places
        if len(same) == 1 or (same[0].named and not one_host and len(same) <= _ALONE_MAX):
            kept += same
        else:
            kept.append(_merge(same))
    return kept


def _merge(same: list[Root]) -> Root:
    first = same[0]
    first.named = tuple(sorted({rank for root in same for rank in root.named}))
    first.suspects = tuple(sorted({rank for root in same for rank in root.suspects} - set(first.named)))
    first.missing = tuple(sorted({rank for root in same for rank in root.missing}))
    first.why = list(dict.fromkeys(line for root in same for line in root.why))[:8]
    first.certainty = min(root.certainty for root in same)
    return first


def _from_mismatch(found: mismatch.Mismatch) -> Root:
    at = next(iter(found.said))
    usual = found.usual.text() if found.usual else None
    why = (
        [f"{noun(found.odd)} passed {found.said[found.odd[0]].text()}, the others {usual}"]
        if (found.odd and usual)
        else [f"rank {rank} passed {what.text()}" for rank, what in list(found.said.items())[:4]]
    )
    why.append(found.decided_by)
    certainty = (0.95 if found.majority else 0.8) if found.odd else 0.6
    return Root(
        found.verdict,
        found.odd,
        () if found.odd else tuple(found.said),
        found.group,
        found.sequence,
        found.usual.op if found.usual else found.said[at].op,
        cause=found.cause,
        why=why,
        certainty=certainty,
    )


def _lacking_too(
    world: World, open_calls: list[OpenCall], pairing: Pairing, wrong: list[mismatch.Mismatch]
) -> list[Root]:
    """Ranks that never came to a mismatched call and wait nowhere: what its members passed cannot be why."""
    bad = {(m.group.number, m.sequence) for m in wrong}
    if not bad:
        return []
    waiting = {rank for call in open_calls for rank in call.waiting}
    waiting |= {half.rank for pair in pairing.joined for half in pair}
    waiting |= {half.rank for half in pairing.unmatched}
    return [
        _never_came(call, rank)
        for call in open_calls
        if (call.group.number, call.sequence) in bad and len(call.absent) * 2 < call.group.size
        for rank in call.absent
        if rank not in waiting and not world.gloo(rank)
    ]


def _never_came(call: OpenCall, rank: int) -> Root:
    why = f"rank {rank} never issued {call.op} {call.sequence} of {call.group.title} and waits nowhere"
    return Root(
        "missing_rank", (rank,), (), call.group, call.sequence, call.op, why=[why], certainty=0.7,
        missing=call.absent,
    )  # fmt: skip


def _breaks(world: World, graph: WaitGraph, explained: set[int]) -> list[Root]:
    """A rank that made one call more or one less than its equals, found in its own sequence.

    Several of them in one closed ring took the same calls in another order, and are judged with it.
    """
    found = []
    awaited = graph.awaited()
    broken = pattern.breaks(world)
    ranks = {item.rank for item in broken}
    ringed = {rank for ring in waitfor.rings(graph)[0] if len(ring & ranks) > 1 for rank in ring}
    for item in broken:
        if item.rank in explained | ringed or not (graph.waits(item.rank) or item.rank in awaited):
            continue
        word = "one call too many" if item.extra else "one call too few"
        found.append(
            Root(
                "op_mismatch",
                (item.rank,),
                group=item.group,
                sequence=item.sequence,
                op=item.op,
                cause="extra_call" if item.extra else "skipped_call",
                why=[
                    f"rank {item.rank} made {word} of {item.op} in {item.group.title}: its own sequence "
                    "leaves the period that its equals keep",
                ],
                certainty=0.85,
            )
        )
    return found


def _misdirected(pairing: Pairing, world: World) -> list[Root]:
    found = []
    told: set[int] = set()
    for item in sorted(p2p.wrong_peer(pairing, world.windows), key=lambda item: not item.sure):
        half, starving = item.half, item.starving
        if half.rank in told:
            continue
        told.add(half.rank)
        verbs = ("sends to", "receive from") if half.sends else ("receives from", "send to")
        root = Root(
            "p2p_unmatched",
            group=starving.group,
            sequence=starving.sequence,
            op=starving.op,
            cause="wrong_peer",
            why=[
                f"rank {half.rank} {verbs[0]} rank {half.peer}, which has no counterpart",
                f"rank {starving.rank} waits to {verbs[1]} rank {half.rank}",
            ],
            certainty=0.85 if item.sure else 0.5,
        )
        if item.sure:
            root.named = (half.rank,)
        else:
            root.suspects = tuple(sorted({half.rank, half.peer}))
        found.append(root)
    return found


def _late(graph: WaitGraph) -> list[Root]:
    """Ranks that issued a call which did not run there though peers started or finished it."""
    awaited = graph.awaited()
    found, unclear = [], []
    for call in graph.calls:
        if call.ahead and not call.group.rows.gloo[call.group.mine].any() and _finished_ahead(call):
            peers = count(len(call.ahead), "peer")
            for rank in call.waiting:
                if rank in awaited and not blind.marks_are_late(call, rank):
                    why = f"{peers} finished {call.op} {call.sequence}; it never ended on rank {rank}"
                    found.append(_late_root(call, rank, why))
    named = {rank for root in found for rank in root.named}
    for call in graph.calls:
        if call.absent or not call.started:
            continue
        held = set(call.waiting) - set(call.started)
        peers = count(len(call.started), "peer")
        if len(held) * 2 > len(call.waiting):
            held -= set(call.held_up)
            if held and not any(map(graph.waits, held)):
                unclear.append(_mostly_queued(call, tuple(sorted(held - named)), peers))
            continue
        held -= named | set(call.held_up)  # what is older has a reason of its own
        if held and call.silent:
            unclear.append(_queued_or_unheard(call, tuple(sorted(held)), peers))
            continue
        for rank in sorted(held):
            why = f"{peers} started {call.op} {call.sequence}; rank {rank} still has it queued"
            found.append(_late_root(call, rank, why))
    return _first_per_rank(found) + unclear


def _late_halves(pairing: Pairing) -> list[Root]:
    """Ranks whose send or receive did not start though the other end of it did, and nothing older is open."""
    found = []
    for pair in pairing.joined:
        for half, other in (pair, pair[::-1]):
            if half.state_is_told and other.started and not half.started and not half.held_up:
                queued = f"rank {half.rank} still has its end queued"
                found.append(_late_half(half, f"rank {other.rank} started its end of {half.text}; {queued}"))
    return _first_per_rank(found)


def _late_half(half: p2p.Half, why: str) -> Root:
    where = half.group, half.sequence, half.op
    return Root("queued_not_started", (half.rank,), (), *where, why=[why], certainty=0.85)


def _mostly_queued(call: OpenCall, held: tuple[int, ...], peers: str) -> Root:
    """Starts are seen late, so a few of them against many queued calls name nobody."""
    why = f"{peers} started {call.op} {call.sequence}; {noun(held)} still have it queued"
    return Root("queued_not_started", (), held, call.group, call.sequence, call.op, why=[why], certainty=0.5)


def _queued_or_unheard(call: OpenCall, held: tuple[int, ...], peers: str) -> Root:
    """A kernel starts without its peers, so a queued call is a fault beside a member's silence."""
    has = "has" if len(held) == 1 else "have"
    why = [
        f"{peers} started {call.op} {call.sequence}; {noun(held)} still {has} it queued",
        f"{noun(call.silent)} left no dump",
    ]
    return Root(
        "queued_not_started",
        (),
        tuple(sorted((*held, *call.silent))),
        call.group,
        call.sequence,
        call.op,
        why=why,
        certainty=0.45,
        told=f"a call stands that {noun(held, 4)} {has} queued and {noun(call.silent, 4)} left no dump of",
    )


def _late_root(call: OpenCall, rank: int, why: str) -> Root:
    return Root(
        "queued_not_started", (rank,), (), call.group, call.sequence, call.op, why=[why], certainty=0.85
    )


def _first_per_rank(roots: list[Root]) -> list[Root]:
    """One finding per rank: the oldest call it is stuck in."""
    best: dict[int, tuple[int, Root]] = {}
    for root in roots:
        rank = root.named[0]
        view = root.group.views[rank] if root.group else None
        entry = view.entry(root.sequence or 0) if view else None
        place = view.place(entry) if view and entry is not None else 1 << 62
        if rank not in best or place < best[rank][0]:
            best[rank] = (place, root)
    return [root for _, (_, root) in sorted(best.items())]


def _finished_ahead(call: OpenCall) -> bool:
    """A broadcast's root may finish alone, so one peer's end proves a start only for all-party calls."""
    return len(call.ahead) >= (1 if plain(call.op) in ALL_PARTY else 2)
