"""Where a stall starts: the ranks that wait for nobody while others wait for them.

In: ``World`` and ``Evidence`` (process facts, stacks). Out: ``Root`` per independent fault, and the graph.
Order of proof: mismatched calls, breaks of the call pattern, processes known gone, calls that peers
finished, then the sinks of the wait graph, cycles, and last calls that all have joined.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping

from clusterwatch.analysis import cycle, mismatch, p2p, pattern, stacks, waitfor
from clusterwatch.analysis.columns import View, is_gloo
from clusterwatch.analysis.groups import Group, World
from clusterwatch.analysis.p2p import Half, Pairing
from clusterwatch.analysis.root import Evidence, Root
from clusterwatch.analysis.sentence import noun
from clusterwatch.analysis.signature import ALL_PARTY, plain
from clusterwatch.analysis.waitfor import Wait, WaitGraph


def find(world: World, evidence: Evidence) -> tuple[list[Root], WaitGraph]:
    """All independent faults of one look, and the graph they were read from."""
    wrong = mismatch.find(world)
    numbers = {id(group): number for number, group in enumerate(world.groups)}
    bad = {numbers[id(m.group)]: m.sequence for m in wrong}
    pairing = p2p.pair(world)
    odd = {rank for m in wrong for rank in m.odd}
    explained = {rank for m in wrong for rank in m.said}
    graph = waitfor.build(world, pairing, bad, odd)
    roots = [_from_mismatch(m) for m in wrong]
    waiting = bool(graph.open or pairing.unmatched or wrong)
    if waiting:
        roots += _breaks(world, graph, explained)
    if waiting:
        roots += _unique(evidence.lost)
    known = {rank for root in roots for rank in root.ranks}
    roots += [r for r in _misdirected(world, pairing) if not known & set(r.named)]
    roots += [r for r in _late(world, graph) if not known & set(r.named)]
    forced = odd | {rank for root in roots for rank in root.named}
    graph = waitfor.build(world, pairing, bad, forced)
    roots += _sinks(world, graph, pairing, evidence, forced | explained, bool(roots))
    covered = set(explained)
    for root in roots:
        for rank in root.ranks:
            covered |= {rank} | waitfor.upstream(graph, rank)
    roots += [cycle.judge(world, graph, ring) for ring in waitfor.cycles(graph) if not ring & covered]
    roots += _joined(world, graph, pairing, {rank for root in roots for rank in root.ranks} | covered)
    return _merged(roots, evidence.hosts), graph


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
    majority = found.decided_by[:1].isdigit() and "agree" in found.decided_by
    certainty = (0.95 if majority else 0.8) if found.odd else 0.6
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


def _breaks(world: World, graph: WaitGraph, explained: set[int]) -> list[Root]:
    """A rank that made one call more or one less than its equals, found in its own sequence."""
    found = []
    for item in pattern.breaks(world):
        if item.rank in explained:
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
                    f"rank {item.rank} made {word} of {item.op} in {item.group.role}: its own sequence "
                    "leaves the period that its equals keep",
                ],
                certainty=0.85,
            )
        )
    return found


def _misdirected(world: World, pairing: Pairing) -> list[Root]:
    found = []
    for sent, starving in p2p.wrong_peer(world, pairing):
        found.append(
            Root(
                "p2p_unmatched",
                (sent.rank,),
                group=starving.group,
                sequence=starving.sequence,
                op=starving.op,
                cause="wrong_peer",
                why=[
                    f"rank {sent.rank} sends to rank {sent.peer}, which never receives from it",
                    f"rank {starving.rank} waits to receive from rank {sent.rank}",
                ],
                certainty=0.85,
            )
        )
    return found


def _timed(group: Group) -> bool:
    """Whether starts are known: some member's recorder has seen one."""
    return any(
        "started" in view.trace.entries.state or any(view.trace.entries.started_ns)
        for view in group.views.values()
    )


def _state(view: View, sequence: int) -> str:
    at = view.entry(sequence)
    return "" if at is None else view.trace.entries.state[at]


def _late(world: World, graph: WaitGraph) -> list[Root]:
    """Ranks that issued a call which did not run there though peers started or finished it."""
    awaited = graph.awaited()
    found = []
    for wait in graph.open:
        op = _op(wait)
        finished = _finished_ahead(wait, op) and wait.rank in awaited and not is_gloo(wait.view.trace)
        if finished:
            why = f"{len(wait.ahead)} peers finished {op} {wait.sequence}; it never ended on rank {wait.rank}"
            found.append(_late_root(wait, op, why))
    named = {rank for root in found for rank in root.named}
    for (_, sequence), waits in _by_call(graph).items():
        group = waits[0].group
        if waits[0].absent or waits[0].silent or is_gloo(waits[0].view.trace) or not _timed(group):
            continue
        started = [w for w in waits if _state(w.view, sequence) == "started"]
        held = [w for w in waits if _state(w.view, sequence) == "scheduled"]
        if not started or len(held) * 2 > len(waits):
            continue
        for wait in held:
            if wait.rank in named or graph.edges.get(wait.rank):
                continue
            why = (
                f"{len(started)} peers started {_op(wait)} {sequence}; on rank {wait.rank} it is still queued"
            )
            found.append(_late_root(wait, _op(wait), why))
    return _first_per_rank(found)


def _late_root(wait: Wait, op: str, why: str) -> Root:
    return Root(
        "queued_not_started", (wait.rank,), (), wait.group, wait.sequence, op, why=[why], certainty=0.85
    )


def _first_per_rank(roots: list[Root]) -> list[Root]:
    """One finding per rank: the oldest call it is stuck in."""
    best: dict[int, tuple[int, Root]] = {}
    for root in roots:
        rank = root.named[0]
        view = root.group.views[rank] if root.group else None
        at = view.entry(root.sequence or 0) if view else None
        place = at if at is not None else 1 << 62
        if rank not in best or place < best[rank][0]:
            best[rank] = (place, root)
    return [root for _, (_, root) in sorted(best.items())]


def _finished_ahead(wait: Wait, op: str) -> bool:
    """A broadcast's root may finish alone, so one peer's end proves a start only for all-party calls."""
    return len(wait.ahead) >= (1 if plain(op) in ALL_PARTY else 2)


def _op(wait: Wait) -> str:
    at = wait.view.entry(wait.sequence)
    return wait.view.trace.entries.op[at] if at is not None else "unknown"


def _by_call(graph: WaitGraph) -> dict[tuple[int, int], list[Wait]]:
    calls: dict[tuple[int, int], list[Wait]] = defaultdict(list)
    for wait in graph.open:
        calls[(id(wait.group), wait.sequence)].append(wait)
    return calls


def _sinks(
    world: World,
    graph: WaitGraph,
    pairing: Pairing,
    evidence: Evidence,
    known: set[int],
    explained: bool,
) -> list[Root]:
    """Ranks others wait for that wait for nobody in the trace."""
    absent: dict[int, list[Wait]] = defaultdict(list)
    silent: dict[int, list[Wait]] = defaultdict(list)
    for waits in _by_call(graph).values():
        for rank in waits[0].absent:
            absent[rank].append(waits[0])
        for rank in waits[0].silent:
            silent[rank].append(waits[0])
    starved: dict[int, list[Half]] = defaultdict(list)
    for half in pairing.unmatched:
        starved[half.peer].append(half)
    missing, blind, partners = [], [], []
    for rank in sorted(graph.awaited() - known):
        if graph.waits(rank):
            continue
        if rank not in world.traces:
            blind.append(rank)
        elif rank in absent:
            missing.append(rank)
        elif rank in starved:
            partners.append(rank)
    return _name_sinks(
        world, graph, evidence, (missing, blind, partners), (absent, silent, starved), explained
    )


def _name_sinks(
    world: World,
    graph: WaitGraph,
    evidence: Evidence,
    sinks: tuple[list[int], list[int], list[int]],
    waits: tuple[dict[int, list[Wait]], dict[int, list[Wait]], dict[int, list[Half]]],
    explained: bool,
) -> list[Root]:
    (missing, blind, partners), (absent, silent, starved) = sinks, waits
    quiet = [rank for rank in missing if is_gloo(world.traces[rank])]
    sure = [rank for rank in missing if rank not in quiet and not _stuck_in_joined(graph, rank)]
    stood = [rank for rank in quiet if rank not in evidence.waits_by_stack]
    busy = [rank for rank in stood if rank in evidence.busy_by_stack]
    roots = []
    if busy:
        sure += busy
    elif quiet and not explained:
        if not stood:
            roots.append(_unseen_partner(_furthest_behind(world, quiet, absent), quiet, absent))
        elif world.no_dump:
            blind = sorted({*blind, *world.no_dump})
        else:
            roots.append(_furthest_behind(world, stood, absent))
    roots += [_missing(world, rank, absent[rank]) for rank in sure]
    for rank in partners:
        roots.append(_partner(rank, starved[rank]))
    if blind and not (sure and not _only_blind(graph, blind)):
        roots += _no_dump(world, blind, silent, quiet, absent, evidence)
    return roots


def _only_blind(graph: WaitGraph, blind: list[int]) -> bool:
    """Some call lacks nobody but ranks without a dump."""
    return any(w.silent and not w.absent and not w.behind for w in graph.open)


def _stuck_in_joined(graph: WaitGraph, rank: int) -> bool:
    """The rank sits in a call that all have joined and that is the oldest open one of every member: that
    call is stuck, and the rank merely waits in it."""
    for wait in graph.open:
        if wait.rank != rank or wait.absent or wait.silent or wait.behind or wait.ahead:
            continue
        if all(_oldest_open(view, wait.sequence) for view in wait.group.views.values()):
            return True
    return False


def _oldest_open(view: View, sequence: int) -> bool:
    at = view.entry(sequence)
    entries = view.trace.entries
    if at is None:
        return False
    return all(
        entries.state[i] == "completed" or entries.completed_ns[i] is not None or entries.retired[i]
        for i in range(at)
    )


def _missing(world: World, rank: int, waits: list[Wait]) -> Root:
    first = min(waits, key=lambda w: waitfor.issue_key(w.group, w.sequence))
    most = len(first.absent) * 2 > len(first.group.members) > 2
    high = first.group.views[rank].high if rank in first.group.views else None
    last = f"its last call there is {high}" if high is not None else "it made no call there"
    why = [f"rank {rank} never issued {_op(first)} {first.sequence} of {first.group.role}: {last}"]
    why += _last_call(world, rank)
    return Root(
        "missing_rank",
        () if most else (rank,),
        (rank,) if most else (),
        first.group,
        first.sequence,
        _op(first),
        why=why,
        certainty=0.5 if most else 0.9,
        missing=first.absent,
    )


def _last_call(world: World, rank: int) -> list[str]:
    """Where in the user's code the rank's newest recorded call was made: it has got past that line."""
    trace = world.traces[rank]
    if not len(trace.entries):
        return []
    place = stacks.user_frame(reversed(trace.entries.frames[-1]))
    group = trace.groups[trace.entries.group[-1]]
    what = f"{trace.entries.op[-1]} {trace.entries.sequence[-1]} of {group.desc or group.name}"
    return [f"rank {rank} last issued {what}, from {place}"] if place else []


def _furthest_behind(world: World, ranks: list[int], absent: dict[int, list[Wait]]) -> Root:
    """Of gloo ranks without an open call, who may wait unseen, only the last in the pattern is named."""
    reached = pattern.positions(world, ranks)
    roots = {rank: _missing(world, rank, absent[rank]) for rank in ranks}

    def lag(rank: int) -> int:
        """Calls between the rank's last one and the one its peers wait in."""
        gaps = []
        for wait in absent[rank]:
            view = wait.group.views.get(rank)
            gaps.append(wait.sequence - (view.high or 0 if view else 0))
        return min(gaps)

    def ahead(rank: int) -> float:
        """How far the peer that waits for it soonest has come: the sooner, the nearer to the start."""
        peers = {w.rank for w in absent[rank]}
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


_SUSPECTS_MAX = 8


def _unseen_partner(last: Root, ranks: list[int], absent: dict[int, list[Wait]]) -> Root:
    """Every rank that lacks a call waits by its stack: for a send or receive that gloo does not record.

    One of them, or of those in a call with them, broke the exchange.
    """
    near = {*ranks, *(wait.rank for rank in ranks for wait in absent[rank])}
    last.verdict, last.named = "p2p_unmatched", ()
    last.suspects = tuple(sorted(near if len(near) <= _SUSPECTS_MAX else ranks))
    last.certainty = 0.4
    last.why.append(f"{noun(ranks)} wait in a call by their stacks; gloo records no send or receive")
    return last


def _partner(rank: int, halves: list[Half]) -> Root:
    first = min(halves, key=lambda h: (h.view.trace.entries.created_ns[h.at] or 0, h.rank))
    half = "receive" if first.sends else "send"
    return Root(
        "p2p_unmatched",
        (rank,),
        (),
        first.group,
        first.sequence,
        first.op,
        why=[f"rank {first.rank} waits in {first.op}; rank {rank} never issued the {half}"],
        certainty=0.8,
    )


def _no_dump(
    world: World,
    blind: list[int],
    silent: dict[int, list[Wait]],
    quiet: list[int],
    absent: dict[int, list[Wait]],
    evidence: Evidence,
) -> list[Root]:
    """Ranks without a usable dump that peers wait for, or that a gloo rank may wait for unseen."""
    found = []
    for verdict, ranks in (
        ("suspect_stale_dump", [r for r in blind if r in evidence.stale]),
        ("suspect_no_dump", [r for r in blind if r not in evidence.stale]),
    ):
        if not ranks:
            continue
        waits = [w for rank in ranks for w in silent.get(rank, ())] or [w for q in quiet for w in absent[q]]
        first = min(waits, key=lambda w: waitfor.issue_key(w.group, w.sequence))
        reason = "left no dump" if verdict == "suspect_no_dump" else "left only a dump of an earlier time"
        why = [f"{noun(ranks)} {reason}; every other member of the call is accounted for"]
        if quiet:
            why.append(f"{noun(quiet)} may wait for it in a send or receive, which gloo does not record")
        found.append(
            Root(
                verdict, (), tuple(ranks), first.group, first.sequence, _op(first), why=why, certainty=0.4,
                missing=(*first.absent, *first.silent),
            )
        )  # fmt: skip
    return found


def _joined(world: World, graph: WaitGraph, pairing: Pairing, covered: set[int]) -> list[Root]:
    """Nothing else explains the stall: calls that all members have issued and none has finished.

    gloo hides the sends and receives that may tie a stall to another one, so there any root explains all.
    """
    found: list[Root] = []
    for ranks in waitfor.components(graph):
        hidden = bool(covered) and any(is_gloo(world.traces[r]) for r in ranks if r in world.traces)
        if ranks & covered or hidden:
            continue
        stuck = [
            waits[0]
            for waits in _by_call(graph).values()
            if waits[0].rank in ranks and not (waits[0].absent or waits[0].silent or waits[0].ahead)
        ]
        newest = [w for w in stuck if w.sequence == w.group.high or len(w.view.open) > 1]
        if newest:
            first = min(newest, key=lambda w: waitfor.issue_key(w.group, w.sequence))
            why = [
                f"all {len(first.group.members)} members issued {_op(first)} {first.sequence}, none finished"
            ]
            found.append(
                Root("all_joined_not_finished", (), (), first.group, first.sequence, _op(first), why=why)
            )
            continue
        halves = [(a, b) for a, b in pairing.joined if a.rank in ranks]
        if halves:
            a, b = pairing.wrong_size[0] if pairing.wrong_size else halves[0]
            found.append(_joined_halves(a, b, bool(pairing.wrong_size)))
    return found


def _joined_halves(a: Half, b: Half, wrong_size: bool) -> Root:
    if wrong_size:
        why = [f"rank {a.rank} sends {a.sizes}, rank {b.rank} receives {b.sizes}"]
        return Root(
            "p2p_unmatched", (), (a.rank, b.rank), b.group, b.sequence, b.op, cause="wrong_size", why=why,
            certainty=0.7,
        )  # fmt: skip
    why = [f"rank {a.rank} issued {a.op} and rank {b.rank} {b.op}; neither finished"]
    return Root("all_joined_not_finished", (), (), a.group, b.sequence, b.op, why=why)
