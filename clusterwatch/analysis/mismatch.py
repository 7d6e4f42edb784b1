"""Members of a group that pass different things in one call: operation, sizes, types, order.

In: ``World``. Out: ``Mismatch`` per group, at the first call that went wrong. The odd one out is found by
majority; in a tie (always so with two ranks) by the same call of the sibling groups and by the group's own
pattern; else nobody is named.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from dataclasses import dataclass
from typing import Final

from clusterwatch.analysis.columns import is_gloo
from clusterwatch.analysis.groups import Group, World
from clusterwatch.analysis.signature import Signature, signature, totals

_LOOK_BACK: Final = 128
_SWAP_REACH: Final = 8
_ALIGNED_CALLS: Final = 4
"""Calls before the fault in which a sibling group must agree before its word on the fault counts."""


@dataclass(frozen=True, slots=True)
class Mismatch:
    """``odd`` is whom the evidence names; empty when it cannot tell, then ``sides`` are the suspects."""

    verdict: str
    group: Group
    sequence: int
    said: dict[int, Signature]
    odd: tuple[int, ...]
    usual: Signature | None
    decided_by: str
    cause: str | None = None
    over: bool = False
    """every member has ended the call (gloo ends a failed one too)"""


def find(world: World) -> list[Mismatch]:
    """One ``Mismatch`` per group at most. Cost: O(groups x members x calls since the last healthy one)."""
    siblings: dict[str, list[Group]] = defaultdict(list)
    for group in world.groups:
        siblings[group.role].append(group)
    found = []
    for group in world.groups:
        sequence = _first_bad(group)
        if sequence is not None:
            found.append(_judge(group, sequence, siblings[group.role]))
            continue
        other = _all_to_all(group) or _alone(group, siblings[group.role])
        if other is not None:
            found.append(other)
    return found


def _alone(group: Group, siblings: list[Group]) -> Mismatch | None:
    """The newest call of a member whose peers left no dump, against the same call of the sibling groups.

    gloo aborts the process that gets more than it asked for: the peer of a wrong size dies without a dump.
    """
    sequence = group.high
    if sequence is None or len(group.views) == len(group.members):
        return None
    said = _said(group, sequence)
    usual = _siblings_say(group, sequence, siblings)
    if len(said) != 1 or usual is None or usual[1] < 2 or usual[0] in said.values():
        return None
    ((rank, what),) = said.items()
    why = f"{usual[1]} sibling groups made this call as {usual[0].text()}"
    over = sequence not in group.views[rank].open
    return Mismatch(_kind({what, usual[0]}), group, sequence, said, (rank,), usual[0], why, over=over)


def _kind(different: set[Signature]) -> str:
    """The first thing in which the calls differ gives the verdict."""
    if len({what.op for what in different}) > 1:
        return "op_mismatch"
    return "size_mismatch" if len({what.sizes for what in different}) > 1 else "dtype_mismatch"


def _said(group: Group, sequence: int) -> dict[int, Signature]:
    said = {rank: signature(view, sequence) for rank, view in group.views.items()}
    return {rank: what for rank, what in sorted(said.items()) if what is not None}


def _first_bad(group: Group) -> int | None:
    """The first call since the last healthy one in which members differ."""
    high = group.high
    if high is None or len(group.views) < 2:
        return None
    bad = None
    for sequence in range(high, max(high - _LOOK_BACK, 0), -1):
        said = _said(group, sequence)
        if len(said) < 2:
            if not said and bad is None and sequence < high - 2:
                break
            continue
        over = all(view.issued(sequence) and sequence not in view.open for view in group.views.values())
        if len(set(said.values())) == 1:
            if over and len(said) == len(group.views):
                break
        elif not over or any(is_gloo(view.trace) for view in group.views.values()):
            bad = sequence
    return bad


def _judge(group: Group, sequence: int, siblings: list[Group]) -> Mismatch:
    said = _said(group, sequence)
    usual, decided_by = _usual(group, sequence, said, siblings)
    odd = tuple(rank for rank, what in said.items() if what != usual) if usual else ()
    verdict = _kind(set(said.values()))
    cause = None
    if usual is not None:
        if _swapped(group, sequence, odd, usual):
            verdict = "order_mismatch"
        elif verdict == "op_mismatch" and _shifted(group, sequence, odd, usual):
            cause = "skipped_call"
    over = all(sequence not in view.open for view in group.views.values())
    return Mismatch(verdict, group, sequence, said, odd, usual, decided_by, cause, over)


def _usual(
    group: Group, sequence: int, said: dict[int, Signature], siblings: list[Group]
) -> tuple[Signature | None, str]:
    """What the call should have been, and what that rests on."""
    counts = Counter(said.values())
    top, votes = max(counts.items(), key=lambda item: (item[1], item[0]))
    if votes * 2 > len(said):
        return top, f"{votes} of {len(said)} ranks agree"
    others = _siblings_say(group, sequence, siblings)
    if others is not None and others[0] in counts:
        return others[0], f"{others[1]} sibling groups made this call as {others[0].text()}"
    own = _history_says(group, sequence)
    if own is not None and own in counts:
        return own, f"the group's own pattern has {own.text()} here"
    return None, "the ranks are evenly split and no other group decides"


def _agreed(group: Group, sequence: int) -> Signature | None:
    said = set(_said(group, sequence).values())
    return said.pop() if len(said) == 1 else None


def _siblings_say(group: Group, sequence: int, siblings: list[Group]) -> tuple[Signature, int] | None:
    before = [_agreed(group, sequence - back) for back in range(1, _ALIGNED_CALLS + 1)]
    votes: Counter[Signature] = Counter()
    for other in siblings:
        if other is group:
            continue
        what = _agreed(other, sequence)
        aligned = all(
            mine is None or mine == _agreed(other, sequence - back)
            for back, mine in enumerate(before, start=1)
        )
        if what is not None and aligned:
            votes[what] += 1
    if not votes:
        return None
    top, count = max(votes.items(), key=lambda item: (item[1], item[0]))
    return (top, count) if count * 2 > votes.total() else None


def _history_says(group: Group, sequence: int) -> Signature | None:
    """What the group's own period puts at ``sequence``: the shortest one kept three times before it."""
    past: list[Signature] = []
    for back in range(1, _LOOK_BACK):
        what = _agreed(group, sequence - back)
        if what is None:
            break
        past.append(what)
    for period in range(1, len(past) // 3 + 1):
        if past[period:] == past[: len(past) - period]:
            return past[period - 1]
    return None


def _swapped(group: Group, sequence: int, odd: tuple[int, ...], usual: Signature) -> bool:
    """The odd ranks make the usual call a little later, and the others make the odd one's call there."""
    if not odd:
        return False
    odd_said = signature(group.views[odd[0]], sequence)
    rest = [view for rank, view in group.views.items() if rank not in odd]
    for later in range(sequence + 1, sequence + 1 + _SWAP_REACH):
        theirs = {signature(view, later) for view in rest} - {None}
        if theirs == {odd_said}:
            mine = signature(group.views[odd[0]], later)
            return mine == usual or (mine is None and later == sequence + 1)
    return False


def _shifted(group: Group, sequence: int, odd: tuple[int, ...], usual: Signature) -> bool:
    """The odd ranks' calls are the others' next ones: they left one call out."""
    rest = [view for rank, view in group.views.items() if rank not in odd]
    view = group.views[odd[0]]
    pairs = []
    for later in range(sequence, sequence + _SWAP_REACH):
        mine = signature(view, later)
        theirs = {signature(other, later + 1) for other in rest} - {None}
        if mine is None or len(theirs) != 1:
            break
        pairs.append(mine == theirs.pop())
    return len(pairs) >= 2 and all(pairs) and usual not in (signature(view, sequence),)


def _all_to_all(group: Group) -> Mismatch | None:
    """All-to-all by totals: what all send is what all receive. The odd one stands out of an even split."""
    high = group.high
    if high is None or len(group.views) != len(group.members) or len(group.views) < 2:
        return None
    for sequence in range(high, max(high - _LOOK_BACK, 0), -1):
        rows = {rank: totals(view, sequence) for rank, view in sorted(group.views.items())}
        amounts = {rank: row for rank, row in rows.items() if row is not None}
        if len(amounts) < len(rows) or not any(sequence in view.open for view in group.views.values()):
            continue
        if sum(sent for sent, _ in amounts.values()) == sum(received for _, received in amounts.values()):
            continue
        counts = Counter(amounts.values())
        top, votes = max(counts.items(), key=lambda item: (item[1], item[0]))
        clear = votes * 2 > len(amounts) and votes < len(amounts) and top[0] == top[1]
        odd = tuple(rank for rank, row in amounts.items() if row != top) if clear else ()
        rest = f"{votes} of {len(amounts)} ranks send and receive {top[0]} elements"
        why = rest if clear else "sent and received totals differ and nobody stands out"
        return Mismatch("size_mismatch", group, sequence, _said(group, sequence), odd, None, why)
    return None
