"""Members of a group that pass different things in one call: operation, sizes, types, order.

In: ``World``. Out: ``Mismatch`` per group, at the first call that went wrong. The odd one out is found by
majority; in a tie (always so with two ranks) by the same call of the sibling groups and by the group's own
pattern; else nobody is named. Only groups in which digests differ are looked at.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from dataclasses import dataclass
from typing import Final

import numpy as np

from clusterwatch.analysis import shares
from clusterwatch.analysis.agreement import Agreement
from clusterwatch.analysis.columns import View
from clusterwatch.analysis.groups import Group, World
from clusterwatch.analysis.rows import Calls
from clusterwatch.analysis.signature import ALL_PARTY, Passed, element_count, plain
from clusterwatch.analysis.tables import Numbers
from collectors.formats.columns import NULL

_LOOK_BACK: Final = 128
_SWAP_REACH: Final = 8
_ALIGNED_CALLS: Final = 4
"""Calls before the fault in which a sibling group must agree before its word on the fault counts."""
_WITNESSES: Final = 8
"""Members whose rings are read for the group's own pattern."""

_Said = dict[int, Passed]


@dataclass(frozen=True, slots=True)
class Mismatch:
    """``odd`` is whom the evidence names; empty when it cannot tell, then ``said`` are the suspects."""

    verdict: str
    group: Group
    sequence: int
    said: _Said
    odd: tuple[int, ...]
    usual: Passed | None
    decided_by: str
    cause: str | None = None
    over: bool = False
    """every member has ended the call (gloo ends a failed one too)"""
    majority: bool = False
    """named because most members agree"""

    @property
    def last(self) -> bool:
        """On gloo, the group's newest call, in which all must agree: it ended, so it ended in an error."""
        gloo = bool(self.group.rows.gloo[self.group.mine].any())
        together = all(plain(what.op) in ALL_PARTY for what in self.said.values())
        return gloo and together and self.sequence == self.group.high and len(self.said) > 1


def find(world: World) -> list[Mismatch]:
    """One ``Mismatch`` per group at most. Cost: O(kept calls) in numpy, O(members) per group that differs."""
    agreement = Agreement(world)
    siblings = _Siblings(world, agreement)
    found: dict[int, Mismatch] = {}
    for number in agreement.groups_that_differ():
        sequence = _first_bad(world.groups[number])
        if sequence is not None:
            found[number] = _judge(world.groups[number], sequence, siblings)
    for number in agreement.groups_out_of_balance():
        one = _all_to_all(world.groups[number]) if number not in found else None
        if one is not None:
            found[number] = one
    for group in world.groups if world.no_dump else ():
        one = _alone(group, siblings) if group.number not in found and not group.whole else None
        if one is not None:
            found[group.number] = one
    return [found[number] for number in sorted(found)]


class _Siblings:
    """What the other groups of a role passed in a call."""

    def __init__(self, world: World, agreement: Agreement) -> None:
        self.world = world
        self.agreement = agreement
        roles: dict[str, list[int]] = defaultdict(list)
        for group in world.groups:
            roles[group.role].append(group.number)
        self.roles: dict[str, Numbers] = {role: np.array(numbers) for role, numbers in roles.items()}

    def say(self, group: Group, sequence: int) -> tuple[Passed, int] | None:
        """What most siblings passed, of those whose calls before it are the group's own; and how many. None
        where no call before it is held: stages of a pipeline share a role and run different programs."""
        others = self.roles[group.role]
        others = others[others != group.number]
        if not len(others):
            return None
        here = self.agreement.agreed(others, sequence)
        votes, compared = here != 0, sequence <= 1
        for back in range(1, _ALIGNED_CALLS + 1):
            mine = self.agreement.agreed(np.array([group.number]), sequence - back)[0]
            if mine:
                compared = True
                votes &= self.agreement.agreed(others, sequence - back) == mine
        if not (compared and votes.any()):
            return None
        digests, counts = np.unique(here[votes], return_counts=True)
        top = int(counts.argmax())
        if counts[top] * 2 <= counts.sum():
            return None
        voter = int(others[votes & (here == digests[top])][0])
        passed = next(iter(_said(self.world.groups[voter], sequence).values()), None)
        return None if passed is None else (passed, int(counts[top]))


def _said(group: Group, sequence: int) -> _Said:
    """What each member passed, by rank; one ``Passed`` per different thing."""
    calls = group.calls
    marks = calls.at(sequence)
    ranks, digests = calls.rank[marks].tolist(), calls.digest[marks].tolist()
    known: dict[int, Passed] = {}
    said: _Said = {}
    for rank, digest in zip(ranks, digests, strict=True):
        passed = known.get(digest) or group.views[rank].passed(sequence)
        if passed is not None:
            known[digest] = said[rank] = passed
    return said


def _kind(different: set[Passed]) -> str:
    """The first thing in which the calls differ gives the verdict."""
    if len({what.op for what in different}) > 1:
        return "op_mismatch"
    return "size_mismatch" if len({what.sizes for what in different}) > 1 else "dtype_mismatch"


def _over(group: Group, sequence: int) -> bool:
    """Every member that left a dump has issued the call and has nothing open up to it."""
    high, first_open = group.rows.high[group.mine], group.rows.first_open[group.mine]
    return bool(((high >= sequence) & ((first_open == NULL) | (first_open > sequence))).all())


def _newest(calls: Calls, high: int) -> list[int]:
    """Numbers of the newest calls that any member holds, falling."""
    return sorted(set(calls.sequence[calls.sequence > high - _LOOK_BACK].tolist()), reverse=True)


def _first_bad(group: Group) -> int | None:
    """The first call since the last healthy one in which members differ."""
    calls, high = group.calls, group.high
    if high is None or len(group.views) < 2:
        return None
    gloo = bool(group.rows.gloo[group.mine].any())
    bad = None
    for sequence in _newest(calls, high):
        digests = calls.digest[calls.at(sequence)]
        if len(digests) < 2:
            continue
        over = _over(group, sequence)
        if (digests == digests[0]).all():
            if over and len(digests) == (group.size if gloo else len(group.views)):
                break  # on gloo a call that failed for want of a member looks the same
        elif not over or gloo:
            bad = sequence
    return bad


def _judge(group: Group, sequence: int, siblings: _Siblings) -> Mismatch:
    said = _said(group, sequence)
    usual, decided_by, majority = _usual(group, sequence, said, siblings)
    odd = tuple(rank for rank, what in said.items() if what != usual) if usual else ()
    verdict = _kind(set(said.values()))
    cause = None
    if usual is not None and odd:
        if _swapped(group, sequence, odd, usual):
            verdict = "order_mismatch"
        elif verdict == "op_mismatch" and _shifted(group, sequence, odd, usual):
            cause = "skipped_call"
    over = _over(group, sequence)
    return Mismatch(verdict, group, sequence, said, odd, usual, decided_by, cause, over, majority)


def _usual(group: Group, sequence: int, said: _Said, siblings: _Siblings) -> tuple[Passed | None, str, bool]:
    """What the call should have been, what that rests on, and whether on a majority of the members."""
    counts = Counter(said.values())
    top, votes = max(counts.items(), key=lambda item: (item[1], item[0]))
    if votes * 2 > len(said):
        return top, f"{votes} of {len(said)} ranks agree", True
    others = siblings.say(group, sequence)
    if others is not None and others[0] in counts:
        return others[0], f"{others[1]} sibling groups made this call as {others[0].text()}", False
    fitting = shares.only_fitting(counts, group.size)
    if fitting is not None:
        return fitting, f"only {fitting.text()} fits a group of {group.size}", False
    own = _history_says(group, sequence)
    if own is not None and own in counts:
        return own, f"the group's own pattern has {own.text()} here", False
    return None, "the ranks are evenly split and no other group decides", False


def _history_says(group: Group, sequence: int) -> Passed | None:
    """What the group's own period puts at ``sequence``: the shortest one kept three times before it.

    One call repeated is no period: it does not say that another one could not follow.
    """
    witnesses = [group.views[rank] for rank in list(group.views)[:_WITNESSES]]
    past: list[Passed] = []
    for back in range(1, _LOOK_BACK):
        what = {view.passed(sequence - back) for view in witnesses} - {None}
        if len(what) != 1:
            break
        past += [passed for passed in what if passed is not None]
    if len(set(past)) < 2:
        return None
    for period in range(2, len(past) // 3 + 1):
        if past[period:] == past[: len(past) - period]:
            return past[period - 1]
    return None


def _alone(group: Group, siblings: _Siblings) -> Mismatch | None:
    """The newest call of a member whose peers left no dump, against the same call of the sibling groups.

    gloo aborts the process that gets more than it asked for: the peer of a wrong size dies without a dump.
    """
    sequence = group.high
    if sequence is None or siblings.agreement.holders(group.number, sequence) != 1:
        return None
    said = _said(group, sequence)
    usual = siblings.say(group, sequence)
    if len(said) != 1 or usual is None or usual[1] < 2 or usual[0] in said.values():
        return None
    ((rank, what),) = said.items()
    if group.views[rank].passed_before(what, sequence):
        return None  # what it always does there
    why = f"{usual[1]} sibling groups made this call as {usual[0].text()}"
    over = sequence not in group.views[rank].open
    return Mismatch(_kind({what, usual[0]}), group, sequence, said, (rank,), usual[0], why, over=over)


def _swapped(group: Group, sequence: int, odd: tuple[int, ...], usual: Passed) -> bool:
    """The odd ranks make the usual call a little later, and the others make the odd one's call there."""
    view, rest = group.views[odd[0]], set(odd)
    odd_said = view.passed(sequence)
    for later in range(sequence + 1, sequence + 1 + _SWAP_REACH):
        theirs = {what for rank, what in _said(group, later).items() if rank not in rest}
        if theirs == {odd_said}:
            return view.passed(later) == usual
    return False


def _shifted(group: Group, sequence: int, odd: tuple[int, ...], usual: Passed) -> bool:
    """From here on the odd rank makes the calls its peers make one later: it has left one out."""
    view, rest = group.views[odd[0]], set(odd)
    pairs = []
    for later in range(sequence, sequence + _SWAP_REACH):
        mine = view.passed(later)
        theirs = {what for rank, what in _said(group, later + 1).items() if rank not in rest}
        if mine is None or len(theirs) != 1:
            break
        pairs.append(mine == theirs.pop())
    return len(pairs) >= 2 and all(pairs) and view.passed(sequence) != usual


def _totals(view: View, sequence: int) -> tuple[int, int]:
    """Elements sent and received in all."""
    entry = view.entry(sequence)
    recorded = view.recorded(entry) if entry is not None else None
    if recorded is None:
        return 0, 0
    return element_count(recorded.input_sizes), element_count(recorded.output_sizes)


def _all_to_all(group: Group) -> Mismatch | None:
    """All-to-all by totals: what all send is what all receive. The odd one stands out of an even split."""
    calls = group.calls
    if group.high is None or not group.whole or len(group.views) < 2:
        return None
    for sequence in _newest(calls, group.high):
        marks = calls.at(sequence)
        whole = int(marks.sum()) == len(group.views)
        if not whole or not calls.balance[marks].sum() or calls.finished[marks].all():
            continue
        amounts = {rank: _totals(view, sequence) for rank, view in group.views.items()}
        counts = Counter(amounts.values())
        top, votes = max(counts.items(), key=lambda item: (item[1], item[0]))
        clear = votes * 2 > len(amounts) and votes < len(amounts) and top[0] == top[1]
        odd = tuple(rank for rank, row in amounts.items() if row != top) if clear else ()
        rest = f"{votes} of {len(amounts)} ranks send and receive {top[0]} elements"
        why = rest if clear else "sent and received totals differ and nobody stands out"
        return Mismatch("size_mismatch", group, sequence, _said(group, sequence), odd, None, why)
    return None
