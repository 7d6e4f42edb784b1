"""Ranks that others wait for and that wait for nobody themselves, and last calls that all have joined.

In: ``World``, the wait graph, p2p pairs, ``Evidence``. Out: ``Root`` per rank or call. What the trace does
not record (gloo's sends and receives, ranks without a dump) makes suspects, not culprits.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence

from clusterwatch.analysis import order, p2p, pattern, unheard, waitfor
from clusterwatch.analysis.calls import OpenCall
from clusterwatch.analysis.groups import World
from clusterwatch.analysis.p2p import Half, Pairing
from clusterwatch.analysis.root import Evidence, Root
from clusterwatch.analysis.sentence import group_title, noun
from clusterwatch.analysis.signature import element_count
from clusterwatch.analysis.unheard import SUSPECTS_MAX
from clusterwatch.analysis.waitfor import WaitGraph
from collectors.formats.columns import NULL


def unexplained(
    world: World,
    graph: WaitGraph,
    pairing: Pairing,
    evidence: Evidence,
    roots: set[int],
    rings: Sequence[frozenset[int]],
) -> list[Root]:
    """Ranks others wait for that wait for nobody in the trace, and that no stuck call or ring holds up."""
    starved: dict[int, list[Half]] = defaultdict(list)
    for half in pairing.unmatched:
        starved[half.peer].append(half)
    missing, blind, partners = [], [], []
    for rank in sorted(graph.awaited() - roots):
        if graph.waits(rank):
            continue
        if rank not in world.windows:
            blind.append(rank)
        elif rank in graph.lacking:
            missing.append(rank)
        elif rank in starved:
            partners.append(rank)
    starts = {rank for rank in (*missing, *partners, *blind) if not graph.soft.get(rank)} | roots
    held_up = waitfor.leading_to(graph, starts.union(graph.stuck(), *rings)) - starts
    missing, partners = ([rank for rank in ranks if rank not in held_up] for ranks in (missing, partners))
    return _name_sinks(world, graph, evidence, (missing, blind, partners), starved, bool(roots))


def _name_sinks(
    world: World,
    graph: WaitGraph,
    evidence: Evidence,
    sinks: tuple[list[int], list[int], list[int]],
    starved: dict[int, list[Half]],
    explained: bool,
) -> list[Root]:
    missing, blind, partners = sinks
    quiet = [rank for rank in missing if world.gloo(rank)]
    sure = [rank for rank in missing if rank not in quiet]
    stood = [rank for rank in quiet if rank not in evidence.waits_by_stack]
    busy = [rank for rank in stood if rank in evidence.busy_by_stack]
    roots = []
    if busy:
        sure += busy
    elif quiet and not explained:
        if not stood:
            roots.append(_unseen_partner(world, graph, quiet))
        else:
            last = _unless_too_early(graph, _furthest_behind(world, graph, stood), stood)
            unseen = sorted({*blind, *world.no_dump})
            if not unseen:
                roots += _if_all_are_heard(world, last)
            elif len(unseen) < SUSPECTS_MAX and unheard.as_far(world, last.ranks, unseen):
                roots.append(unheard.beside(last, unseen))
                unseen = []
            blind = unseen
    roots += [_missing(world, rank, graph.lacking[rank]) for rank in sure]
    for rank in partners:
        roots.append(_partner(rank, starved[rank]))
    if blind and not (sure and not unheard.only_they_lack(graph)):
        roots += unheard.suspects(world, graph, blind, quiet, evidence, starved)
    return roots


def _if_all_are_heard(world: World, last: Root) -> list[Root]:
    """gloo ranks that come last, where their dumps alone tell how many there are: two that tie in different
    calls wait for somebody who left no dump rather than have failed at one point of the program."""
    if world.size_told:
        return [last]
    if last.group is not None and not set(last.ranks) <= {*last.group.members}:
        return []
    last.why.append(unheard.SIZE_UNTOLD)
    return [last]


def _next_awaited(world: World, rank: int, calls: list[OpenCall]) -> OpenCall:
    """Of the calls a rank lacks, the one its own pattern has next; else one that lacks few beside
    it, the one its peers made first."""
    role = pattern.next_role(world, rank) if len(calls) > 1 else None
    return min(calls, key=lambda call: (call.group.role != role, _lacks_most(call), call.key))


def _lacks_most(call: OpenCall) -> bool:
    """Most members are absent, so that the few who made it may be the ones that went wrong."""
    return len(call.absent) * 2 > call.group.size > 2


def _missing(world: World, rank: int, calls: list[OpenCall]) -> Root:
    first = _next_awaited(world, rank, calls)
    most = _lacks_most(first)
    high = first.group.views[rank].high if rank in first.group.views else None
    last = f"its last call there is {high}" if high is not None else "its dump holds no call there"
    why = [f"rank {rank} never issued {first.op} {first.sequence} of {first.group.title}: {last}"]
    alone = first.waiting if most and len(first.group.issued(first.sequence)) == 1 else ()
    if alone:
        why.append(f"{noun(alone)} made it alone: it may be one call too many just as well")
    why += _last_call(world, rank)
    return Root(
        "missing_rank",
        () if most else (rank,),
        tuple(sorted((rank, *alone))) if most else (),
        first.group,
        first.sequence,
        first.op,
        why=why,
        certainty=0.5 if most else 0.9,
        missing=first.absent,
    )


def _last_call(world: World, rank: int) -> list[str]:
    """Where in the user's code the rank's newest recorded call was made: it has got past that line."""
    window = world.windows[rank]
    if window.last is None or window.last[3] == NULL:
        return []
    index, signature, sequence, site = window.last
    group = window.told_groups[index]
    op = p2p.globally(window.call_signatures[signature].op, group.ranks)
    what = f"{op} {sequence} of {group_title(group.name, group.desc)}"
    return [f"rank {rank} last issued {what}, from {window.sites[site]}"]


def _furthest_behind(world: World, graph: WaitGraph, ranks: list[int]) -> Root:
    """Of gloo ranks without an open call, who may wait unseen, only the last in the pattern is named."""
    reached = pattern.positions(world, ranks)
    roots = {rank: _missing(world, rank, graph.lacking[rank]) for rank in ranks}

    def lag(rank: int) -> int:
        """Calls between the rank's last one and the one its peers wait in."""
        gaps = []
        for call in graph.lacking[rank]:
            view = call.group.views.get(rank)
            gaps.append(call.sequence - (view.high or 0 if view else 0))
        return min(gaps)

    def ahead(rank: int) -> float:
        """How far the peer that waits for it soonest has come: the sooner, the nearer to the start."""
        peers = {peer for call in graph.lacking[rank] for peer in call.waiting[:1]}
        soonest = pattern.positions(world, sorted({*peers, rank}))
        return min((soonest[p] for p in peers), default=0.0)

    order = {rank: (reached[rank], ahead(rank), lag(rank)) for rank in ranks}
    lowest = min(order.values())
    last = [rank for rank in ranks if order[rank] == lowest]
    first = roots[last[0]]
    for rank in last[1:]:
        other = roots[rank]
        same = other.group is first.group and other.sequence == first.sequence
        if same and first.named:
            first.named = (*first.named, rank)
        else:
            first.suspects = tuple(sorted({*first.suspects, *first.named, rank}))
            first.named = ()
        first.why += other.why
    if len(ranks) > len(last):
        first.why.append(
            f"further on in the job's call pattern, a call is lacking from {noun(set(ranks) - set(last))} too"
        )
    first.certainty = 0.75 if first.named else 0.5
    return first


def _unless_too_early(graph: WaitGraph, last: Root, quiet: list[int]) -> Root:
    """Keeps the name unless a sibling group that has come further is split as well.

    A rank that is late holds up all members of the groups behind it. Where one of them went on and the other
    did not, the one that went on may have made a call too early instead, and two late ranks look alike.
    """
    ahead = [
        call
        for call in graph.calls
        if last.group is not None
        and call.group is not last.group
        and call.group.role == last.group.role
        and call.sequence > (last.sequence or 0)
        and set(call.absent) & set(quiet)
    ]
    near = {*last.ranks, *(rank for call in ahead for rank in call.waiting + call.absent)}
    if not ahead or len(near) > SUSPECTS_MAX:
        return last
    early = noun({rank for call in ahead for rank in call.waiting})
    last.suspects, last.named, last.certainty = tuple(sorted(near)), (), 0.4
    last.why.append(f"{early} went on while a partner did not: a call made too early would look the same")
    return last


def _unseen_partner(world: World, graph: WaitGraph, ranks: list[int]) -> Root:
    """Every rank that lacks a call waits by its stack: for a send or receive that gloo does not record.

    One of them, or of those in a call with them, broke the exchange.
    """
    last = _furthest_behind(world, graph, ranks)
    near = {*ranks, *(_next_awaited(world, rank, graph.lacking[rank]).waiting[0] for rank in ranks)}
    last.verdict, last.named = "p2p_unmatched", ()
    last.suspects = tuple(sorted(near if len(near) <= SUSPECTS_MAX else ranks))
    last.certainty = 0.4
    last.why.append(f"{noun(ranks)} wait in a call by their stacks; gloo records no send or receive")
    return last


def _partner(rank: int, halves: list[Half]) -> Root:
    first = min(halves, key=lambda h: (h.created_ns, h.rank))
    half = "receive" if first.sends else "send"
    return Root(
        "p2p_unmatched",
        (rank,),
        (),
        first.group,
        first.sequence,
        first.op,
        why=[f"rank {first.rank} waits in {first.text}; rank {rank} never issued the {half}"],
        certainty=0.8,
    )


def all_joined(
    world: World, graph: WaitGraph, pairing: Pairing, covered: set[int], blamed: set[int]
) -> list[Root]:
    """Calls that all members have issued and none has finished, and that nothing else explains: what their
    members wait for beside them was issued later, so it cannot be why.

    gloo hides the sends and receives that may tie a stall to another one, so there any root explains all.

    Args:
        covered: ranks of other roots, and those that wait for them.
        blamed: ranks of other roots: what holds them up holds up each call of their groups, since a process
            that stands still writes down no end either.
    """
    found: list[Root] = []
    by_first: dict[int, list[OpenCall]] = defaultdict(list)
    for call in graph.calls:
        if not (call.absent or call.silent or call.ahead) and world.knows_members(call.group):
            by_first[call.waiting[0]].append(call)
    for ranks in waitfor.components(graph) if by_first or pairing.joined else ():
        if covered and any(world.windows[r].gloo for r in ranks if r in world.windows):
            continue
        stuck = [call for rank in sorted(ranks & by_first.keys()) for call in by_first[rank]]
        if ranks & covered:
            stuck = [c for c in stuck if not (c.held_up or c.behind or blamed & {*c.group.members})]
            if not stuck:
                continue
        crossed = order.swapped(stuck)
        if crossed is not None:
            found.append(crossed)
            continue
        newest = [call for call in stuck if call.sequence == call.group.high or _several_open(call)]
        if newest:
            first = min(newest, key=lambda call: (bool(call.held_up), call.key))
            who = _all_of(world, first)
            why = [f"{who} issued {first.op} {first.sequence}, none ended"]
            if not world.size_told:
                why.append(unheard.SIZE_UNTOLD)
            if not first.timed and not first.group.rows.gloo[first.group.mine].any():
                why.append("the recorder's timing is off: a queued call and a running one look alike")
            found.append(
                Root("all_joined_not_finished", (), (), first.group, first.sequence, first.op, why=why)
            )
            continue
        halves = [pair for pair in pairing.joined if pair[0].rank in ranks - covered and pair[0].end_is_told]
        if halves:
            found.append(_joined_halves(*halves[0]))
    return found


def _all_of(world: World, call: OpenCall) -> str:
    if not world.size_told:
        return "all members that left a dump"
    return "its only member" if call.group.size == 1 else f"all {call.group.size} members"


def _several_open(call: OpenCall) -> bool:
    """Some member has issued more calls after the open one."""
    return bool((call.group.rows.groups["open_count"][call.group.mine] > 1).any())


def unequal_halves(pairing: Pairing) -> list[Root]:
    """Pairs of a send and a receive that pass different things: one finding per pair of ranks."""
    found: dict[tuple[int, ...], Root] = {}
    for a, b in pairing.wrong_size:
        ranks = tuple(sorted((a.rank, b.rank)))
        what = [
            f"{'+'.join(map(str, half.sizes))} of {'/'.join(half.dtypes) or 'unknown type'}"
            for half in (a, b)
        ]
        root = Root(
            "p2p_unmatched", (), ranks, b.group, b.sequence, b.op, cause="wrong_size",
            why=[f"rank {a.rank} sends {what[0]}, rank {b.rank} receives {what[1]}"], certainty=0.8,
            told=_unequal(a, b),
        )  # fmt: skip
        found.setdefault(ranks, root)
    return list(found.values())


def _unequal(sends: Half, receives: Half) -> str:
    sent, received = element_count(sends.sizes), element_count(receives.sizes)
    if sent == received:
        types = ["/".join(half.dtypes) for half in (sends, receives)]
        return f"rank {sends.rank} sends {types[0]} and rank {receives.rank} receives {types[1]}"
    return f"rank {sends.rank} sends {sent} elements and rank {receives.rank} receives {received}"


def _joined_halves(a: Half, b: Half) -> Root:
    why = [f"rank {a.rank} issued {a.text} and rank {b.rank} {b.text}; neither finished"]
    return Root("all_joined_not_finished", (), (), a.group, b.sequence, b.op, why=why)
