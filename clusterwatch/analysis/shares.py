"""What a member's own call says is wrong with it: sizes that do not fit the group, too many roots or none.

In: what members passed in one call. Out: the word on which of them is self-consistent, or a ``Root`` in place
of "all joined". Only the recorded sizes are used, after NCCL's user guide ("Collective Operations"): an
all-gather gives every member the inputs of all, a reduce-scatter takes from every member an input for all.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from math import prod
from typing import Final

from clusterwatch.analysis.calls import OpenCall
from clusterwatch.analysis.groups import Group
from clusterwatch.analysis.root import Root
from clusterwatch.analysis.sentence import noun
from clusterwatch.analysis.signature import Passed, plain
from collectors.formats.columns import Signature, Sizes

_GATHERS: Final = frozenset({"allgather", "allgatherbase", "allgatherintotensor"})
_SCATTERS: Final = frozenset({"reducescatter", "reducescatterbase", "reducescattertensor"})
_ROOTED: Final = frozenset({"gather", "gathersingle", "scatter"})


def fits(passed: Passed, members: int) -> bool | None:
    """Whether input and output fit a group of ``members``; None where the operation does not say."""
    name = plain(passed.op)
    sent, received = sum(passed.input_sizes), sum(passed.output_sizes)
    if not sent or not received or name not in _GATHERS | _SCATTERS:
        return None
    return received == sent * members if name in _GATHERS else sent == received * members


def only_fitting(said: Collection[Passed], members: int) -> Passed | None:
    """The one thing passed that fits the group, where everything else passed does not."""
    verdicts = {passed: fits(passed, members) for passed in said}
    good = [passed for passed, fit in verdicts.items() if fit]
    return good[0] if len(good) == 1 and all(fit is not None for fit in verdicts.values()) else None


def is_root(recorded: Signature) -> bool:
    """Whether a gather or scatter was issued as its root: only there both sides hold elements."""
    return bool(_elements(recorded.input_sizes) and _elements(recorded.output_sizes))


def _elements(shapes: Sizes) -> int:
    return sum(prod(shape) for shape in shapes)


def refine(root: Root) -> Root:
    """``all_joined_not_finished`` as ``size_mismatch`` where the call could never end. Cost: O(members)."""
    group, sequence = root.group, root.sequence
    if root.verdict != "all_joined_not_finished" or group is None or sequence is None or not group.whole:
        return root
    op = plain(root.op or "")
    if op in _GATHERS | _SCATTERS:
        return _unfit(root, group, sequence)
    return _roots(root, group, sequence) if op in _ROOTED else root


def _unfit(root: Root, group: Group, sequence: int) -> Root:
    """All passed the same, and it fits nobody; not where earlier calls that ended look like it."""
    view = next(iter(group.views.values()))
    passed = view.passed(sequence)
    if passed is None or fits(passed, group.size) is not False:
        return root
    earlier = [view.passed(number) for number in view.held() if number < sequence]
    if any(one is not None and fits(one, group.size) is False for one in earlier):
        return root
    sent, received = sum(passed.input_sizes), sum(passed.output_sizes)
    why = f"all pass {sent} elements and expect {received}: that does not fit {group.size} members"
    told = f"{noun(group.ordered, 4)} all pass sizes that fit no group of {group.size}"
    return _size_root(root, group.ordered, "wrong_ratio", why, told)


def roots_of(group: Group, sequence: int) -> tuple[int, ...] | None:
    """Members that passed data as the root of a gather or scatter; None where a dump does not hold it."""
    claims = []
    for rank, view in group.views.items():
        entry = view.entry(sequence)
        if entry is None:
            return None
        if is_root(view.recorded(entry)):
            claims.append(rank)
    return tuple(claims)


def half_done(calls: Iterable[OpenCall]) -> list[tuple[Root, OpenCall]]:
    """Gathers and scatters of several roots or none that some members have left already.

    A member that only sends, or gets its part from one of the roots, may end while the others wait for ever.
    """
    found = []
    for call in calls:
        if call.joined and call.ahead and call.group.whole and plain(call.op) in _ROOTED:
            usual = Root("all_joined_not_finished", (), (), call.group, call.sequence, call.op)
            one = _roots(usual, call.group, call.sequence)
            found += [(one, call)] if one is not usual else []
    return found


def _roots(root: Root, group: Group, sequence: int) -> Root:
    """A gather or scatter has one root; the sizes show who thinks to be it. Not where the recorder has noted
    an earlier one like that: the last that all ended.
    """
    claims = roots_of(group, sequence)
    if claims is None or len(claims) == 1 or group.size < 2 or _noted_so(group, sequence, root.op, claims):
        return root
    if claims:
        why = f"{noun(claims)} each pass data as the root"
        return _size_root(root, claims, "two_roots", why, f"{noun(claims, 4)} each act as the root")
    told = f"none of {noun(group.ordered, 4)} acts as the root"
    return _size_root(root, group.ordered, "no_root", "no member passes data as the root", told)


def _noted_so(group: Group, sequence: int, op: str | None, claims: tuple[int, ...]) -> bool:
    """Whether the last such call before it, which has ended, names as many roots."""
    view = next(iter(group.views.values()))
    earlier = [
        n for n in view.held() if n < sequence and (e := view.entry(n)) is not None and view.op(e) == op
    ]
    noted = roots_of(group, earlier[-1]) if earlier else None
    return noted is not None and len(noted) == len(claims)


def _size_root(root: Root, suspects: tuple[int, ...], cause: str, why: str, told: str) -> Root:
    return Root(
        "size_mismatch",
        (),
        suspects,
        root.group,
        root.sequence,
        root.op,
        cause=cause,
        why=[why],
        certainty=0.7,
        told=told,
    )
