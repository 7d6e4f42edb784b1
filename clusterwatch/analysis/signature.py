"""What a call says it is: operation, element counts, types; and which of these the members must share.

In: what the recorder noted. Out: ``Passed``. Rules per operation, after NCCL's user guide ("Collective
Operations"): the count is compared, not the shape, since only the count reaches the library.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import prod
from typing import Final

from collectors.formats.columns import Signature, Sizes

_SAME_BOTH: Final = frozenset(
    {"allreduce", "reduce", "broadcast", "allreducebarrier", "allgather", "allgatherbase", "reducescatter",
     "reducescatterbase", "allgatherintotensor", "reducescattertensor", "sparseallreduce", "barrier"}
)  # fmt: skip
_ROOTED: Final = frozenset({"gather", "gathersingle", "scatter"})
"""The root passes a share per member besides its own; NCCL notes a scatter's output as its input."""
TOTALS: Final = frozenset({"alltoall", "alltoallbase", "alltoallsingle", "alltoallv", "alltoallvsingle"})
"""Each member may send a different amount; only the sums over the members must agree."""

ALL_PARTY: Final = frozenset(
    {"allreduce", "allreducebarrier", "allgather", "allgatherbase", "reducescatter", "reducescatterbase",
     "allgatherintotensor", "reducescattertensor", "sparseallreduce", "barrier", *TOTALS}
)  # fmt: skip
"""Operations that no member can finish before every member has taken part (a broadcast's root can)."""


@dataclass(frozen=True, slots=True, order=True)
class Passed:
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


def _counts(shapes: Sizes) -> tuple[int, ...]:
    return tuple(prod(shape) for shape in shapes)


def comparable(passed: Signature, coalesced: bool = False) -> Passed:
    """What members must share of a call; ``coalesced``: it is made of several entries."""
    op, name = passed.op, plain(passed.op)
    sent, received = _counts(passed.input_sizes), _counts(passed.output_sizes)
    types = passed.input_dtypes or passed.output_dtypes
    if coalesced or "coalesced" in name:
        return Passed(op, (), (), ())
    if name in _SAME_BOTH:
        return Passed(op, sent, received, types)
    if name in _ROOTED:
        return _own_share(passed, sent, received)
    if name in TOTALS:
        return Passed(op, (), (), types)
    return Passed(op, (), (), ())


def _own_share(passed: Signature, sent: tuple[int, ...], received: tuple[int, ...]) -> Passed:
    """A member's own part of a gather or scatter: the smaller of the sides that hold anything."""
    sides = [(sum(sent), passed.input_dtypes), (sum(received), passed.output_dtypes)]
    count, types = min((side for side in sides if side[0]), default=(0, ()))
    return Passed(passed.op, (count,), (), types[:1])


def element_count(shapes: Sizes) -> int:
    """Elements of all tensors together."""
    return sum(_counts(shapes))
