"""What a call says it is: operation, element counts, types; and which of these the members must share.

In: entries of a ``View``. Out: ``Signature``. Rules per operation, after NCCL's user guide ("Collective
Operations"): the count is compared, not the shape, since only the count reaches the library.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import prod
from typing import TYPE_CHECKING, Final

from collectors.formats import columns

if TYPE_CHECKING:
    from clusterwatch.analysis.columns import View

_SAME_BOTH: Final = frozenset(
    {"allreduce", "reduce", "broadcast", "allreducebarrier", "allgather", "allgatherbase", "reducescatter",
     "reducescatterbase", "allgatherintotensor", "reducescattertensor", "sparseallreduce", "barrier"}
)  # fmt: skip
_SAME_INPUT: Final = frozenset({"gather", "gathersingle"})
"""Only the root has an output."""
_SAME_OUTPUT: Final = frozenset({"scatter"})
"""Only the root has an input."""
TOTALS: Final = frozenset({"alltoall", "alltoallbase", "alltoallsingle"})
"""Each member may send a different amount; only the sums over the members must agree."""

ALL_PARTY: Final = frozenset(
    {"allreduce", "allreducebarrier", "allgather", "allgatherbase", "reducescatter", "reducescatterbase",
     "allgatherintotensor", "reducescattertensor", "sparseallreduce", "barrier", *TOTALS}
)  # fmt: skip
"""Operations that no member can finish before every member has taken part (a broadcast's root can)."""


@dataclass(frozen=True, slots=True, order=True)
class Signature:
    """``sizes`` are element counts per tensor; () where the operation lets them differ."""

    op: str
    input_sizes: tuple[int, ...]
    output_sizes: tuple[int, ...]
    dtypes: tuple[str, ...]

    @property
    def sizes(self) -> tuple[tuple[int, ...], tuple[int, ...]]:
        return (self.input_sizes, self.output_sizes)

    def text(self) -> str:
        """For people: ``all_reduce of 1024 x Float``."""
        counts = "+".join(map(str, self.input_sizes or self.output_sizes))
        kinds = "/".join(dict.fromkeys(self.dtypes))
        return f"{self.op} of {counts} x {kinds}" if counts and kinds else self.op


def plain(op: str) -> str:
    """``_all_gather_base`` -> ``allgatherbase``: names differ in underscores between backends."""
    return op.replace("_", "").lower()


def _counts(shapes: tuple[tuple[int, ...], ...]) -> tuple[int, ...]:
    return tuple(prod(shape) for shape in shapes)


def comparable(passed: columns.Signature, coalesced: bool = False) -> Signature:
    """What members must share of a call; ``coalesced``: it is made of several entries."""
    op, name = passed.op, plain(passed.op)
    sent, received = _counts(passed.input_sizes), _counts(passed.output_sizes)
    types = passed.input_dtypes or passed.output_dtypes
    if coalesced or "coalesced" in name:
        return Signature(op, (), (), ())
    if name in _SAME_BOTH:
        return Signature(op, sent, received, types)
    if name in _SAME_INPUT:
        return Signature(op, sent, (), passed.input_dtypes)
    if name in _SAME_OUTPUT:
        return Signature(op, (), received, passed.output_dtypes)
    if name in TOTALS:
        return Signature(op, (), (), types)
    return Signature(op, (), (), ())


def element_count(shapes: columns.Sizes) -> int:
    """Elements of all tensors together."""
    return sum(_counts(shapes))


def signature(view: View, sequence: int) -> Signature | None:
    """What the rank passed in call ``sequence``; None when the dump does not hold it."""
    entries, at = view.trace.entries, view.calls.get(sequence)
    if not at:
        return None
    last = at[-1]
    op, name = entries.op[last], plain(entries.op[last])
    sent, received = _counts(entries.input_sizes[last]), _counts(entries.output_sizes[last])
    types = entries.input_dtypes[last] or entries.output_dtypes[last]
    if len(at) > 1 or "coalesced" in name:
        return Signature(op, (), (), ())
    if name in _SAME_BOTH:
        return Signature(op, sent, received, types)
    if name in _SAME_INPUT:
        return Signature(op, sent, (), entries.input_dtypes[last])
    if name in _SAME_OUTPUT:
        return Signature(op, (), received, entries.output_dtypes[last])
    if name in TOTALS:
        return Signature(op, (), (), types)
    return Signature(op, (), (), ())


def totals(view: View, sequence: int) -> tuple[int, int] | None:
    """Elements sent and received in an all-to-all; None for other calls or unknown sizes."""
    entries, at = view.trace.entries, view.entry(sequence)
    if at is None or plain(entries.op[at]) not in TOTALS:
        return None
    sent, received = _counts(entries.input_sizes[at]), _counts(entries.output_sizes[at])
    return (sum(sent), sum(received)) if sent and received else None
