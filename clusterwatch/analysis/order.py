"""Two calls of different groups that some ranks issued in one order and the rest in the other.

In: calls that all their members have issued and none finished. Out: a ``Root``. On the GPU each rank runs
them in its own order, so both wait for ever though nobody is missing.
"""

from __future__ import annotations

from collections.abc import Sequence

from clusterwatch.analysis.root import Root
from clusterwatch.analysis.sentence import noun
from clusterwatch.analysis.waitfor import Wait, op_of


def swapped(waits: Sequence[Wait]) -> Root | None:
    """The first pair of ``waits`` (one per call) whose shared members disagree on the order."""
    ordered = sorted(waits, key=lambda w: (w.group.key, w.sequence))
    for number, first in enumerate(ordered):
        for second in ordered[number + 1 :]:
            if first.group is second.group:
                continue
            root = _judge(first, second)
            if root is not None:
                return root
    return None


def _judge(first: Wait, second: Wait) -> Root | None:
    """Majority of the ranks that are in both calls; suspects on a tie."""
    sides: tuple[list[int], list[int]] = ([], [])
    for rank in sorted(set(first.group.views) & set(second.group.views)):
        one = first.group.views[rank].entry(first.sequence)
        two = second.group.views[rank].entry(second.sequence)
        if one is not None and two is not None:
            sides[one > two].append(rank)
    if not all(sides):
        return None
    few, many = sorted(sides, key=len)
    usual = first if many is sides[0] else second
    tie = len(few) == len(many)
    texts = [f"{op_of(w)} {w.sequence} of {w.group.role}" for w in (first, second)]
    why = [
        f"{noun(side)} issued {a} before {b}" for side, a, b in zip(sides, texts, texts[::-1], strict=True)
    ]
    return Root(
        "order_mismatch",
        () if tie else tuple(few),
        tuple(sorted(few + many)) if tie else (),
        usual.group,
        usual.sequence,
        op_of(usual),
        why=why,
        certainty=0.6 if tie else 0.9,
    )
