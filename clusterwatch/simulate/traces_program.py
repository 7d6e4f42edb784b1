"""What one pipeline stage of a made job calls in one training step, in order.

In: ``Layout`` and the size of a step. Out: ``Program``: the calls, and the recorder's entries they leave, as
columns of one step. The schedule is 1F1B as in Megatron-LM ("Efficient Large-Scale Language Model Training on
GPU Clusters", section 2.2); sends and receives are batches closed by one ``coalesced`` entry, or single.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Final

import numpy as np
from numpy.typing import NDArray

from clusterwatch.simulate.traces_layout import Ints, Layout
from collectors.formats.columns import Signature, Sizes

_TOKENS: Final = 512
_HIDDEN: Final = 4096
_ROUTED: Final = 1024
_SHARD: Final = 65_536
_BUCKETS: Final = 2
"""Parts in which gradients are summed; each is larger than the one before, so that they differ."""

Move = tuple[str, int]
"""``send`` or ``recv``, and the stage it goes to or comes from"""


@dataclass(frozen=True, slots=True)
class StepShape:
    """How much a step does."""

    layers: int = 1
    """per stage"""
    microbatches: int = 4
    batched_p2p: bool = True
    """sends and receives as batches; else one entry each"""


@dataclass(frozen=True, slots=True)
class Call:
    """One call of a step. ``number``: its place among the calls of its group and stage pair in the step."""

    role: str
    number: int
    signature: Signature
    site: str
    """function that makes it: calls of one place in the code share a stack"""
    blocking: bool = False
    """the CPU waits for its end, so nothing is issued behind it"""
    moves: tuple[Move, ...] = ()
    """sends and receives of a point-to-point call"""

    @property
    def is_p2p(self) -> bool:
        return bool(self.moves)


@dataclass(frozen=True, slots=True)
class StepEntries:
    """Columns of the entries of one step, length E; counters start at one and grow by ``stride`` a step."""

    call: Ints
    """index into ``Program.calls``"""
    group: Ints
    """index into the roles of the layout"""
    sequence: Ints
    sequence_stride: Ints
    p2p_sequence: Ints
    p2p_stride: Ints
    op_id: Ints
    op_stride: Ints
    signature: Ints
    stack: Ints
    member: NDArray[np.bool_]
    """a member of a batch: its own state never moves"""


@dataclass(frozen=True)
class Program:
    """Calls and entries of one step of a stage."""

    calls: tuple[Call, ...]
    entries: StepEntries
    signatures: tuple[Signature, ...]
    sites: tuple[str, ...]
    first_entry: Ints = field(repr=False)
    """first entry of each call, then their count; length calls + 1"""
    next_blocking: Ints = field(repr=False)
    """place of the first blocking call at or after each call, the last call of the step at the latest"""


def build(layout: Layout, stage: int, expert_place: int, shape: StepShape) -> Program:
    """The program of the ranks of one stage that hold one place among the expert ranks."""
    calls = tuple(_Writer(layout, stage, expert_place, shape).step())
    entries, signatures, sites, first_entry = _entries(layout, stage, calls, shape)
    blocking = np.full(len(calls), len(calls) - 1, np.int64)
    nearest = len(calls) - 1
    for place in range(len(calls) - 1, -1, -1):
        nearest = place if calls[place].blocking else nearest
        blocking[place] = nearest
    return Program(calls, entries, signatures, sites, first_entry, blocking)


class _Writer:
    """Writes the calls of one step down."""

    def __init__(self, layout: Layout, stage: int, expert_place: int, shape: StepShape) -> None:
        self._layout, self._stage, self._expert = layout, stage, expert_place
        self._shape = shape
        self._made: Counter[str] = Counter()

    def step(self) -> Iterator[Call]:
        stages, stage = self._layout.pipeline, self._stage
        count = self._shape.microbatches
        warm = min(stages - stage - 1, count)
        before, after = ("recv", stage - 1), ("send", stage + 1)
        for _ in range(warm):
            yield from self._move("recv_forward", before)
            yield from self._forward()
            yield from self._move("send_forward", after)
        if count > warm:
            yield from self._move("recv_forward", before)
        for number in range(count - warm):
            yield from self._forward()
            yield from self._move("send_forward_recv_backward", after, ("recv", stage + 1))
            yield from self._backward()
            back = ("send", stage - 1)
            last = number == count - warm - 1
            yield from (
                self._move("send_backward", back)
                if last
                else self._move("send_backward_recv_forward", back, before)
            )
        for _ in range(warm):
            yield from self._move("recv_backward", ("recv", stage + 1))
            yield from self._backward()
            yield from self._move("send_backward", ("send", stage - 1))
        yield from self._end()

    def _forward(self) -> Iterator[Call]:
        for _ in range(self._shape.layers):
            yield from self._gather("tp", "forward_layer")
            yield from self._gather("cp", "forward_attention")
            yield from self._exchange("forward_experts")
            yield from self._scatter("tp", "forward_layer")

    def _backward(self) -> Iterator[Call]:
        for _ in range(self._shape.layers):
            yield from self._gather("tp", "backward_layer")
            yield from self._exchange("backward_experts")
            yield from self._scatter("cp", "backward_attention")
            yield from self._scatter("tp", "backward_layer")

    def _end(self) -> Iterator[Call]:
        for role in ("edp", "dp"):
            for bucket in range(1, _BUCKETS + 1):
                whole, part = (self._layout.size(role) * bucket * _SHARD,), (bucket * _SHARD,)
                signature = _both("_reduce_scatter_base", whole, part)
                yield from self._call(role, signature, f"reduce_gradients_{bucket}")
        for role, site in (("tp", "found_inf"), ("mp", "gradient_norm"), ("default_pg", "mean_loss")):
            yield from self._call(role, _all_reduce(1), site, blocking=True)
        for role in ("edp", "dp"):
            yield from self._gather(role, "gather_parameters")

    def _call(self, role: str, signature: Signature, site: str, blocking: bool = False) -> Iterator[Call]:
        if self._layout.size(role) > 1:
            yield Call(role, self._made[role], signature, site, blocking)
            self._made[role] += 1

    def _gather(self, role: str, site: str) -> Iterator[Call]:
        whole, part = self._shapes(role)
        return self._call(role, _both("_all_gather_base", part, whole), site)

    def _scatter(self, role: str, site: str) -> Iterator[Call]:
        whole, part = self._shapes(role)
        return self._call(role, _both("_reduce_scatter_base", whole, part), site)

    def _shapes(self, role: str) -> tuple[tuple[int, ...], tuple[int, ...]]:
        size = self._layout.size(role)
        if role in ("dp", "edp"):
            return (size * _SHARD,), (_SHARD,)
        return (_TOKENS * size, 1, _HIDDEN), (_TOKENS, 1, _HIDDEN)

    def _exchange(self, site: str) -> Iterator[Call]:
        """Tokens to their experts and back; experts are not equally popular, which is legal."""
        size, place = self._layout.expert, self._expert
        share = _ROUTED + 8 * (2 * place - size + 1)
        sizes = ((_ROUTED, _HIDDEN), (share, _HIDDEN))
        for sent, received in (sizes, sizes[::-1]):
            yield from self._call("ep", _both("all_to_all", sent, received), site)

    def _move(self, site: str, *moves: Move) -> Iterator[Call]:
        real = tuple(move for move in moves if 0 <= move[1] < self._layout.pipeline)
        if not real:
            return
        pair = f"{min(self._stage, real[0][1])}"
        signature = _both("coalesced", (_TOKENS, 1, _HIDDEN), (_TOKENS, 1, _HIDDEN))
        yield Call("pp", self._made[pair], signature, site, True, real)
        self._made[pair] += 1


def _both(op: str, sent: tuple[int, ...], received: tuple[int, ...]) -> Signature:
    return Signature(op, False, (sent,), (received,), ("BFloat16",), ("BFloat16",))


def _all_reduce(count: int) -> Signature:
    return Signature("all_reduce", False, ((count,),), ((count,),), ("Float",), ("Float",))


def move_signature(stage: int, move: Move, sizes: Sizes) -> Signature:
    """A send or receive as the recorder names it; numbers are ranks of the group, which are the stages."""
    kind, peer = move
    name = f"send {stage}->{peer}" if kind == "send" else f"recv {stage}<-{peer}"
    return Signature(name, True, sizes, sizes, ("BFloat16",), ("BFloat16",))


CLOSING: Final = Signature("coalesced", True)


def _rows_of(call: Call, stage: int, batched: bool) -> list[tuple[Signature, bool]]:
    """Signature of each entry of a call, and whether its state never moves."""
    if not call.is_p2p:
        return [(call.signature, False)]
    sizes = call.signature.input_sizes
    rows = [(move_signature(stage, move, sizes), batched) for move in call.moves]
    return [*rows, (CLOSING, False)] if batched else rows


def _entries(
    layout: Layout, stage: int, calls: tuple[Call, ...], shape: StepShape
) -> tuple[StepEntries, tuple[Signature, ...], tuple[str, ...], Ints]:
    signatures: dict[Signature, int] = {}
    sites: dict[str, int] = {}
    roles = layout.roles
    collectives: Counter[str] = Counter()
    moves: Counter[str] = Counter()
    ops: Counter[str] = Counter()
    rows: list[tuple[int, ...]] = []
    first_entry = []
    for place, call in enumerate(calls):
        first_entry.append(len(rows))
        collectives[call.role] += not call.is_p2p
        moves[call.role] += call.is_p2p and shape.batched_p2p
        for signature, member in _rows_of(call, stage, shape.batched_p2p):
            moves[call.role] += call.is_p2p and not shape.batched_p2p
            ops[call.role] += signature is not CLOSING
            rows.append(
                (
                    place, roles.index(call.role), collectives[call.role],
                    moves[call.role] if call.is_p2p else 0, ops[call.role],
                    signatures.setdefault(signature, len(signatures)),
                    sites.setdefault(call.site, len(sites)), member,
                )
            )  # fmt: skip
    table = np.array(rows, np.int64).T
    strides = [np.array([counts[role] for role in roles]) for counts in (collectives, moves, ops)]
    per_step = [stride[table[1]] for stride in strides]
    entries = StepEntries(
        call=table[0], group=table[1], sequence=table[2], sequence_stride=per_step[0], p2p_sequence=table[3],
        p2p_stride=np.where(table[3] > 0, per_step[1], 0), op_id=table[4], op_stride=per_step[2],
        signature=table[5], stack=table[6], member=table[7].astype(bool),
    )  # fmt: skip
    return entries, tuple(signatures), tuple(sites), np.array([*first_entry, len(rows)])
