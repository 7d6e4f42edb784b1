"""The columns that ranks of one kind share, and each rank's own times on top.

In: a ``Program``, how far the rank got in the last step, what it did otherwise. Out: ``Ring``, whose
``entries_of`` gives a rank's columns for its clock.
"""

from __future__ import annotations

from array import array
from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

from clusterwatch.simulate.traces_faults import Kind, Plan
from clusterwatch.simulate.traces_layout import Ints
from clusterwatch.simulate.traces_program import Program, move_signature
from collectors.formats.columns import COMPLETED, NULL, SCHEDULED, STARTED, Entries, Signature

START_NS: Final = 1_790_000_000_000_000_000
_CALL_NS: Final = 2_000_000
"""From one call to the next."""
_PAUSE_NS: Final = 250_000_000
"""Between two steps."""
_START_DELAY_NS: Final = 1_000_000
_CALL_TIME_NS: Final = 3_000_000
_TIMEOUT_MS: Final = 600_000
NOISE_NS: Final = 900_000
"""By so much at most a rank's times differ from the plan: below the time from call to call."""


@dataclass(frozen=True, slots=True)
class RingShape:
    """What a recorder keeps and sees. ``step``: the last step of the job, counted from 0."""

    step: int
    step_ns: int
    ring: int
    frames: int
    timing: bool
    open_only: bool


@dataclass(frozen=True, slots=True)
class Standing:
    """How far a rank got in the last step, in calls."""

    completed: int
    issued: int
    plan: Plan | None = None
    """what it did otherwise than its equals"""


@dataclass(frozen=True, slots=True)
class GroupCounts:
    """Numbers of the last call of a group that was issued, and of the last that ended; 0 without one."""

    issued: int
    completed: int


@dataclass(frozen=True, slots=True)
class Ring:
    """What equals share."""

    shared: Entries
    """all columns; those of times are of the plan, without clock and noise"""
    created_ns: Ints
    started_ns: Ints
    completed_ns: Ints
    signatures: tuple[Signature, ...]
    stacks: tuple[tuple[str, ...], ...]
    counts: tuple[GroupCounts, ...]
    """by role of the layout"""

    def entries_of(self, clock_ns: int, noise: Ints) -> Entries:
        """Columns of one rank; those that equals share are the same objects.

        Args:
            clock_ns: error of its host's clock.
            noise: at least as long as the ring, 0 up to ``NOISE_NS``.
        """
        moved = noise[: len(self.created_ns)] + clock_ns
        shared = self.shared
        return Entries(
            shared.record_id, shared.group, shared.sequence, shared.p2p_sequence, shared.op_id,
            shared.signature, shared.stack, shared.state, shared.retired, _moved(self.created_ns, moved),
            _moved(self.started_ns, moved), _moved(self.completed_ns, moved), shared.duration_ns,
            shared.timeout_ms,
        )  # fmt: skip


def _moved(times: Ints, by: Ints) -> array[int]:
    return column("q", np.where(times == NULL, NULL, times + by))


def column(typecode: str, values: NDArray[np.generic]) -> array[int]:
    """A numpy column as the standard library's array of ``typecode``."""
    made = array(typecode)
    made.frombytes(values.astype(made.typecode).tobytes())
    return made


def step_ns(programs: tuple[Program, ...]) -> int:
    """From one step to the next: the longest program and a pause."""
    return max(len(p.entries.call) for p in programs) * _CALL_NS + _PAUSE_NS


def ring(program: Program, roles: int, shape: RingShape, standing: Standing) -> Ring:
    """The ring of a rank that has made ``shape.step`` whole steps and stands so in the next one."""
    rows, plan = program.entries, standing.plan
    per_step = len(rows.call)
    end = shape.step * per_step + int(program.first_entry[standing.issued])
    numbers = np.arange(max(0, end - shape.ring), end)
    step, place = numbers // per_step, numbers % per_step
    last = step == shape.step
    call = rows.call[place]
    done = (~last | (call < standing.completed)) & ~rows.member[place]
    running = last & (call == standing.completed) & ~rows.member[place] & shape.timing
    if plan is not None and plan.kind is Kind.QUEUED_NOT_STARTED:
        running[:] = False
    counts = tuple(_counts(program, role, shape.step, standing) for role in range(roles))
    if plan is not None and plan.kind is Kind.CROSS_GROUP_CYCLE and plan.other is not None:
        place = _crossed(program, place, last, plan.place, plan.other)
    signature, signatures = _said(program, rows.signature[place].copy(), place, last, plan)
    if shape.open_only:
        kept = _open_window(rows.group[place], last & (call >= standing.completed))
        numbers, step, place = numbers[kept], step[kept], place[kept]
        done, running, signature = done[kept], running[kept], signature[kept]
    created = START_NS + step * shape.step_ns + place * _CALL_NS
    seen = (done | running) if shape.timing else np.zeros(len(done), bool)
    depth = shape.frames
    shared = Entries(
        record_id=column("q", numbers),
        group=column("i", rows.group[place]),
        sequence=column("q", rows.sequence[place] + step * rows.sequence_stride[place]),
        p2p_sequence=column("q", rows.p2p_sequence[place] + step * rows.p2p_stride[place]),
        op_id=column("q", rows.op_id[place] + step * rows.op_stride[place]),
        signature=column("i", signature),
        stack=column("i", rows.stack[place] if depth else np.full(len(place), NULL)),
        state=column("b", np.where(done, COMPLETED, np.where(running, STARTED, SCHEDULED))),
        retired=column("b", done),
        duration_ns=column("q", np.where(seen & done, _CALL_TIME_NS - _START_DELAY_NS, NULL)),
        timeout_ms=column("q", np.full(len(place), _TIMEOUT_MS)),
    )
    stacks = tuple(_stack(site, depth) for site in program.sites) if depth else ()
    return Ring(
        shared, created, np.where(seen, created + _START_DELAY_NS, NULL),
        np.where(done, created + _CALL_TIME_NS, NULL), signatures, stacks, counts,
    )  # fmt: skip


def _counts(program: Program, role: int, step: int, standing: Standing) -> GroupCounts:
    """Counted by calls made, so that two calls in another order count the same."""
    rows = program.entries
    numbers = np.maximum(rows.p2p_sequence, rows.sequence)
    stride = np.maximum(rows.p2p_stride, rows.sequence_stride)
    mine = rows.group == role
    whole = step * int(stride[mine].max(initial=0))
    ends = []
    for calls in (standing.issued, standing.completed):
        made = _made_calls(standing, calls)
        held = numbers[mine & np.isin(rows.call, made)]
        ends.append(int(held.max(initial=0)) + whole)
    return GroupCounts(*ends)


def _made_calls(standing: Standing, count: int) -> Ints:
    """The first ``count`` calls that the rank makes in the step."""
    made, plan = np.arange(count), standing.plan
    if plan is None or plan.kind is not Kind.CROSS_GROUP_CYCLE or plan.other is None:
        return made
    made[made == plan.place] = plan.other if count <= plan.other else plan.place
    return made


def _crossed(program: Program, place: Ints, last: NDArray[np.bool_], one: int, other: int) -> Ints:
    """The entries of two calls change places."""
    first, second = int(program.first_entry[one]), int(program.first_entry[other])
    turned = place.copy()
    turned[last & (place == first)] = second
    turned[last & (place == second)] = first
    return turned


def _said(
    program: Program, signature: Ints, place: Ints, last: NDArray[np.bool_], plan: Plan | None
) -> tuple[Ints, tuple[Signature, ...]]:
    """Signatures of the entries after what the rank passes otherwise."""
    if plan is None:
        return signature, program.signatures
    at = int(program.first_entry[plan.place])
    here = last & (place == at)
    if plan.kind is Kind.ORDER_MISMATCH and plan.other is not None:
        there = int(program.first_entry[plan.other])
        usual = program.entries.signature
        signature[here], signature[last & (place == there)] = usual[there], usual[at]
        return signature, program.signatures
    said = plan.said
    if plan.strange is not None:
        usual_move = program.signatures[int(program.entries.signature[at])]
        stage = int(usual_move.op.split()[1].split("->")[0])
        said = move_signature(stage, plan.strange, usual_move.input_sizes)
    if said is None:
        return signature, program.signatures
    signature[here] = len(program.signatures)
    return signature, (*program.signatures, said)


def _open_window(group: Ints, is_open: NDArray[np.bool_]) -> NDArray[np.bool_]:
    """Open entries and the newest one of each group."""
    kept = is_open.copy()
    newest = np.unique(group[::-1], return_index=True)[1]
    kept[len(group) - 1 - newest] = True
    return kept


def _stack(site: str, depth: int) -> tuple[str, ...]:
    """Innermost frame first; the outer ones are the same for all calls, as in a real program."""
    inner = [
        "wrapper (/opt/venv/lib/python3.12/site-packages/torch/distributed/c10d_logger.py:83)",
        f"{site} (/opt/train/model.py:{100 + sum(site.encode()) % 800})",
    ]
    outer = [f"layer_{n} (/opt/train/layers.py:{40 + 7 * n})" for n in range(depth)]
    return (*inner, *outer)[:depth]
