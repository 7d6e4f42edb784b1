"""How far every rank of a made job gets once something has gone wrong.

In: ``Layout``, the programs of its stages, and what goes wrong where. Out: for each rank the calls it has
finished and issued in the step of the fault. A GPU runs its calls in the order they were issued; a collective
ends when all members have come to it; the CPU runs ahead to the next call whose result it waits for.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final

import numpy as np

from clusterwatch.simulate.traces_layout import Ints, Layout
from clusterwatch.simulate.traces_program import Program

_NEVER: Final = 1 << 40


@dataclass(slots=True)
class Obstacles:
    """What keeps calls from ending. Places are calls of the step; ranks are global."""

    limit: dict[int, int] = field(default_factory=dict)
    """rank -> first call that it never issues"""
    held: dict[int, int] = field(default_factory=dict)
    """rank -> first call that it issues but never runs"""
    stuck: list[tuple[int, int]] = field(default_factory=list)
    """(rank, place): this call of its group ends nowhere"""
    swapped: dict[int, tuple[int, int]] = field(default_factory=dict)
    """rank -> two calls that it makes in the other order"""
    alone: list[tuple[int, int]] = field(default_factory=list)
    """(rank, place): a call that no other rank knows of"""


@dataclass(frozen=True, slots=True)
class Reached:
    """Calls of the last step that each rank has finished and issued, length world."""

    completed: Ints
    issued: Ints


def run(layout: Layout, programs: Sequence[Program], obstacles: Obstacles) -> Reached:
    """Lets all ranks go until nobody can go on. Cost: O(world) per call of the longest chain of calls."""
    meetings, need = _meetings(layout, programs)
    for rank, (one, other) in obstacles.swapped.items():
        meetings[rank, [one, other]] = meetings[rank, [other, one]]
    for rank, place in obstacles.stuck:
        need[meetings[rank, place]] = _NEVER
    lonely = len(need)
    need = np.append(need, np.full(len(obstacles.alone), _NEVER))
    for number, (rank, place) in enumerate(obstacles.alone):
        meetings[rank, place] = lonely + number
    ranks = np.arange(layout.world)
    length = np.array([len(program.calls) for program in programs])[_stages(layout)]
    stop = length.copy()
    for kept in (obstacles.limit, obstacles.held):
        for rank, place in kept.items():
            stop[rank] = min(stop[rank], place)
    completed = _advance(meetings, need, stop)
    issued = np.empty_like(completed)
    for stage, program in enumerate(programs):
        mine = ranks[_stages(layout) == stage]
        done = completed[mine]
        ahead = program.next_blocking[np.minimum(done, len(program.calls) - 1)] + 1
        issued[mine] = np.where(done == len(program.calls), len(program.calls), ahead)
    for rank, place in obstacles.limit.items():
        issued[rank] = min(issued[rank], place)
    return Reached(completed, issued)


def _advance(meetings: Ints, need: Ints, stop: Ints) -> Ints:
    ranks = np.arange(len(stop))
    came = np.zeros(len(need), np.int64)
    completed = np.zeros(len(stop), np.int64)
    arriving = ranks[completed < stop]
    while len(arriving):
        came += np.bincount(meetings[arriving, completed[arriving]], minlength=len(need))
        waiting = ranks[completed < stop]
        at = meetings[waiting, completed[waiting]]
        free = waiting[came[at] == need[at]]
        completed[free] += 1
        arriving = free[completed[free] < stop[free]]
    return completed


def _stages(layout: Layout) -> Ints:
    return np.arange(layout.world) // (layout.world // layout.pipeline)


def _meetings(layout: Layout, programs: Sequence[Program]) -> tuple[Ints, Ints]:
    """Number of the meeting that each call of each rank is, shape (world, calls); how many each needs."""
    most = {
        role: 1 + max((c.number for p in programs for c in p.calls if c.role == role), default=0)
        for role in layout.roles
    }
    lanes = layout.world // layout.pipeline
    first, need, total = {}, [], 0
    for role in layout.roles:
        pairs = layout.world if role == "pp" else layout.world // layout.size(role)
        first[role] = total
        need.append(np.full(pairs * most[role], 2 if role == "pp" else layout.size(role)))
        total += pairs * most[role]
    meetings = np.full((layout.world, max(len(p.calls) for p in programs)), -1, np.int64)
    for stage, program in enumerate(programs):
        ranks = np.arange(stage * lanes, (stage + 1) * lanes)
        for place, call in enumerate(program.calls):
            group = layout.group_index[call.role][ranks]
            if call.is_p2p:
                group = min(stage, call.moves[0][1]) * lanes + ranks % lanes
            meetings[ranks, place] = first[call.role] + group * most[call.role] + call.number
    return meetings, np.concatenate(need)
