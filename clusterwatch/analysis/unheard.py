"""Ranks that left no usable dump, as suspects: who waits for them, and whether a rank that did speak is as
likely.

In: ``World``, the wait graph, ``Evidence``. Out: ``Root`` with suspects only. gloo records no send or receive
and no list of members, so there a rank may wait for an unheard one unseen.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Final

from clusterwatch.analysis import pattern
from clusterwatch.analysis.calls import OpenCall
from clusterwatch.analysis.groups import World
from clusterwatch.analysis.p2p import Half
from clusterwatch.analysis.root import Evidence, Root
from clusterwatch.analysis.sentence import noun
from clusterwatch.analysis.signature import ALL_PARTY, plain
from clusterwatch.analysis.waitfor import WaitGraph

SUSPECTS_MAX: Final = 8
"""Ranks that are told as suspects where one of them may wait unseen for another; more tell nothing."""

SIZE_UNTOLD: Final = (
    "the dumps do not tell how many ranks the job has: one more may be missing (--world-size tells it)"
)


def suspects(
    world: World,
    graph: WaitGraph,
    blind: list[int],
    quiet: list[int],
    evidence: Evidence,
    starved: Mapping[int, list[Half]],
) -> list[Root]:
    """Ranks without a usable dump that peers wait for, or that a gloo rank may wait for unseen.

    Nobody where most of the world is unheard: suspecting the majority tells nothing.

    Args:
        blind: the ranks, rising.
        quiet: gloo ranks that lack a call and may wait for one of ``blind`` in a send or receive.
    """
    found: list[Root] = []
    if len(blind) * 2 > world.size:
        return found
    stale = [rank for rank in blind if rank in evidence.stale]
    silent = [rank for rank in blind if rank not in evidence.stale]
    for verdict, ranks in (("suspect_stale_dump", stale), ("suspect_no_dump", silent)):
        if not ranks:
            continue
        why = [f"{noun(ranks)} {left(verdict, ranks, evidence)}"]
        if quiet:
            why.append(f"{noun(quiet)} may wait for it in a send or receive, which gloo does not record")
        root = Root(verdict, (), tuple(ranks), why=why, certainty=0.4)
        _place(root, graph, quiet, [half for rank in ranks for half in starved.get(rank, ())])
        if root.missing and set(root.missing) <= set(ranks):
            why[0] += "; every other member of the call has issued it"
        found.append(root)
    return found


def left(verdict: str, ranks: Sequence[int], evidence: Evidence) -> str:
    """What there is of ``ranks``, in words."""
    if verdict == "suspect_stale_dump":
        return "left only a dump of an earlier time"
    if evidence.unreadable.issuperset(ranks):
        return "left a dump that cannot be read" if len(ranks) == 1 else "left dumps that cannot be read"
    return "left no dump" if evidence.unreadable.isdisjoint(ranks) else "left no dump that can be read"


def _place(root: Root, graph: WaitGraph, quiet: list[int], halves: list[Half]) -> None:
    """The first call or exchange in which peers wait for the suspects."""
    lacking = [call for rank in root.suspects for call in graph.lacking.get(rank, ())]
    if not lacking and not halves:
        lacking = [call for rank in quiet for call in graph.lacking[rank]]
    if lacking:
        first = min(lacking, key=lambda call: (bool(call.held_up), call.key))
        root.group, root.sequence, root.op = first.group, first.sequence, first.op
        root.missing = tuple(sorted((*first.absent, *first.silent)))
    elif halves:
        half = min(halves, key=lambda one: (one.created_ns, one.rank))
        root.group, root.sequence, root.op = half.group, half.sequence, half.op


def only_they_lack(graph: WaitGraph) -> bool:
    """Some call lacks nobody but ranks without a dump."""
    return any(call.silent and not call.absent and not call.behind for call in graph.calls)


def as_far(world: World, ranks: Sequence[int], blind: Iterable[int]) -> bool:
    """Whether each unheard rank is known to have come as far as ``ranks``, the last in the job's calls.

    It has where peers have finished as many calls with it, of every role, as these have made. Then who comes
    last is as likely to hold up the job as who left no dump.
    """
    reached = [pattern.reached(world, rank) for rank in ranks]
    for rank in blind:
        least = _proven(world, rank)
        if any(least.get(role, 0) < made for own in reached for role, made in own.items()):
            return False
    return bool(reached)


def _proven(world: World, rank: int) -> dict[str, int]:
    """Role -> calls that an unheard rank has made for certain: its peers have finished them with it."""
    found: Counter[str] = Counter()
    for group in world.groups:
        if rank not in group.ordered:
            continue
        found[group.role] += int(world.rows.shared_end[group.mine].max(initial=0))
    return dict(found)


def beside(last: Root, blind: Sequence[int]) -> Root:
    """``last`` as one suspect, the unheard ranks as the others."""
    who = last.ranks
    last.suspects, last.named, last.certainty = tuple(sorted({*who, *blind})), (), 0.45
    last.told = f"{noun(who, 4)} never came, and may wait unseen for {noun(blind, 4)}, which left no dump"
    last.why.append(
        f"{noun(blind)} left no dump, and peers have finished as many calls with it as {noun(who)} made"
    )
    return last


def leftover(world: World, graph: WaitGraph) -> list[Root]:
    """Someone waits, yet no rule says who began: the ranks that lack the oldest call, as suspects, or ranks
    without a dump that may be members of a group whose members gloo does not record."""
    lacking = [call for call in graph.calls if call.absent]
    if not lacking and 0 < len(world.no_dump) * 2 < world.size:
        unsure = [call for call in graph.calls if _may_lack_more(world, call)]
        return [_perhaps_a_member(world, min(unsure, key=lambda call: call.key))] if unsure else []
    if not lacking:
        return []
    hidden = all(world.gloo(rank) for call in lacking for rank in call.absent)
    if hidden and not world.size_told:
        return []  # they may wait unseen for ranks that nobody has heard of
    first = min(lacking, key=lambda call: call.key)
    suspects = tuple(sorted({*first.absent, *world.no_dump})) if hidden else first.absent
    if len(suspects) > max(SUSPECTS_MAX, len(first.absent)):
        return []
    why = [f"{noun(first.absent)} never issued {first.op} {first.sequence} of {first.group.title}"]
    return [
        Root(
            "missing_rank", (), suspects, first.group, first.sequence, first.op, why=why, certainty=0.3,
            missing=first.absent,
        )
    ]  # fmt: skip


def _may_lack_more(world: World, call: OpenCall) -> bool:
    """Whether the call is one of gloo's that an unheard rank may be a member of."""
    group = call.group
    if group.certain or plain(call.op) not in ALL_PARTY or not group.rows.gloo[group.mine].all():
        return False
    return bool(call.ahead) or not world.knows_members(group)


def _perhaps_a_member(world: World, call: OpenCall) -> Root:
    where = f"{call.op} {call.sequence} of {call.group.title} is open on {noun(call.waiting)}"
    if call.ahead:
        where += f", over on {noun(call.ahead)}: on gloo that is what a dead member leaves behind"
    else:
        where += "; gloo's dumps do not tell who else is a member"
    why = [where, f"{noun(world.no_dump)} left no dump"]
    return Root(
        "suspect_no_dump", (), world.no_dump, call.group, call.sequence, call.op, why=why, certainty=0.4
    )
