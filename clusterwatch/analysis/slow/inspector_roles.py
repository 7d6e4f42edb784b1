"""Roles and ranks of processes, from the communicators they share: stage, replica, place in the world.

In: ``Lines``, ``Seats``, ``Steps``. Out: stage and replica by process; global ranks where they are certain: a
communicator of all processes tells them, or a topology whose coordinates fit the communicators and the hosts.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

from clusterwatch.analysis.slow.inspector_lines import UNKNOWN, Lines, Seats
from clusterwatch.analysis.slow.inspector_steps import INNER_RATIO, Steps

Ints = NDArray[np.int64]
Bools = NDArray[np.bool_]

PEERS_MIN: Final = 3
"""Fewer processes of like communicators are no stage of their own."""
WORLD_HEARD_MIN: Final = 0.9
"""Of the communicator of all processes; with fewer logs it may be one of several replicas."""


@dataclass(frozen=True, slots=True)
class Roles:
    """By process. ``level``: stage of the pipeline; ``stage``: of those the ones with like communicators.
    ``works_in``: by communicator, it is used inside micro-batches."""

    level: Ints
    stage: Ints
    replica: Ints
    works_in: Bools


@dataclass(frozen=True, slots=True)
class Place:
    """What a topology tells of a rank; ``UNKNOWN`` and empty where it does not."""

    rank: int
    node: int
    tensor: int
    data: int
    pipeline: int
    host: str = ""


def roles(lines: Lines, seats: Seats, peer: Ints, steps: Steps) -> Roles:
    """Args: ``peer``: process at the other end of each point-to-point row, else ``UNKNOWN``."""
    level = levels(lines, peer)
    works_in = _works_in(lines, steps)
    replica = _joined(seats, works_in, len(lines.processes))
    if not lines.is_p2p.any():  # of NCCL 2.28 and 2.29, or without a pipeline: what shares data is a stage
        in_stage = works_in.copy()
        in_stage[steps.mark[steps.mark != UNKNOWN]] = True
        level = _joined(seats, in_stage, len(lines.processes))
    return Roles(level, _stages(lines, level), replica, works_in)


def levels(lines: Lines, peer: Ints) -> Ints:
    """Pipeline stage by process: the longest way up from a process that nobody sends to from below.

    The rank inside a communicator rises with the stage, so each pair has a lower and an upper end.
    """
    rows = np.flatnonzero(peer != UNKNOWN)
    lower = lines.comm_rank[rows] < lines.peer[rows]
    ends = np.stack((lines.process[rows], peer[rows]))
    pairs = np.unique(np.where(lower, ends, ends[::-1]), axis=1)
    level = np.zeros(len(lines.processes), np.int64)
    waiting = np.bincount(pairs[1], minlength=len(level))
    above: dict[int, list[int]] = defaultdict(list)
    for low, high in pairs.T.tolist():
        above[low].append(high)
    ready = np.flatnonzero(waiting == 0).tolist()
    while ready:
        low = ready.pop()
        for high in above.pop(low, []):
            level[high] = max(level[high], level[low] + 1)
            waiting[high] -= 1
            if not waiting[high]:
                ready.append(high)
    return level


def may_have_pipeline(lines: Lines, seats: Seats, found: Roles) -> bool:
    """Whether processes may send to each other unseen: what shares tensors or data is surely no pipeline."""
    if lines.is_p2p.any():
        return False
    return len(np.unique(found.level)) > 1 or world_ranks(lines, seats) is None


def _works_in(lines: Lines, steps: Steps) -> Bools:
    """Communicators whose members make some call much more often than once a step, or send to each other."""
    found = np.zeros(len(lines.comms), np.bool_)
    found[lines.comm[lines.is_p2p]] = True
    rows = np.flatnonzero(~lines.is_p2p)
    key = np.stack([getattr(lines, name)[rows] for name in ("comm", "process", "op", "size_bytes")])
    kinds, count = np.unique(key, axis=1, return_counts=True)
    found[kinds[0][count >= INNER_RATIO * max(1, steps.count)]] = True
    found[steps.mark[steps.mark != UNKNOWN]] = False
    sizes = np.array([comm.n_ranks for comm in lines.comms], np.int64)
    found[sizes >= max(2, len(lines.processes))] = False
    return found


def _joined(seats: Seats, works_in: Bools, process_count: int) -> Ints:
    """A number by process, the same for those that work through one share of the data."""
    parent = list(range(process_count))

    def root(one: int) -> int:
        while parent[one] != one:
            parent[one] = parent[parent[one]]
            one = parent[one]
        return one

    usable = works_in[seats.comm] & ~seats.is_shared[seats.comm]
    first: dict[int, int] = {}
    for comm, process in zip(seats.comm[usable].tolist(), seats.process[usable].tolist(), strict=True):
        parent[root(process)] = root(first.setdefault(comm, process))
    roots = [root(one) for one in range(process_count)]
    found: Ints = np.unique(np.array(roots, np.int64), return_inverse=True)[1].astype(np.int64)
    return found


def _stages(lines: Lines, level: Ints) -> Ints:
    """Stages, and inside each the processes with like communicators, where there are enough of them."""
    made: dict[int, set[tuple[int, bool, int]]] = defaultdict(set)
    sizes = [(comm.n_ranks, comm.nnodes > 1) for comm in lines.comms]
    for process, comm, op in np.unique(np.stack((lines.process, lines.comm, lines.op)), axis=1).T.tolist():
        made[process].add((*sizes[comm], op))
    keys = [(int(level[one]), tuple(sorted(made[one]))) for one in range(len(level))]
    counts: dict[tuple[int, tuple[tuple[int, bool, int], ...]], int] = defaultdict(int)
    for key in keys:
        counts[key] += 1
    few = {key[0] for key, count in counts.items() if count < PEERS_MIN}
    told = [(key[0], ()) if key[0] in few else key for key in keys]
    numbers = {key: number for number, key in enumerate(sorted(set(told)))}
    return np.array([numbers[key] for key in told], np.int64)


# --- ranks -----------------------------------------------------------------------------------------------


def world_ranks(lines: Lines, seats: Seats) -> tuple[dict[int, int], int] | None:
    """(global rank by process, size of the job), where a communicator holds all processes; None where not.

    A group of many replicas looks the same while logs of the others are missing, so the seats that other
    communicators leave empty must fit into those that this one leaves empty, and nearly all must be filled.
    """
    count = len(lines.processes)
    if count < 2 or not len(seats.comm):
        return None
    heard = np.bincount(seats.comm, minlength=len(lines.comms))
    sizes = np.array([comm.n_ranks for comm in lines.comms], np.int64)
    whole = np.flatnonzero((heard == count) & ~seats.is_shared & (sizes >= count))
    if not len(whole):
        return None
    world = int(whole[np.argmax(sizes[whole])])
    size = int(sizes[world])
    if count < WORLD_HEARD_MIN * size or _empty_seats(seats, heard, sizes, size) > size - count:
        return None
    mine = seats.comm == world
    ranks = dict(zip(seats.process[mine].tolist(), seats.comm_rank[mine].tolist(), strict=True))
    return ranks, size


def _empty_seats(seats: Seats, heard: Ints, sizes: Ints, below: int) -> int:
    """Processes without a log that smaller communicators prove: a process sits in few of one size."""
    most = 0
    for size in np.unique(sizes[(heard > 0) & (sizes < below)]).tolist():
        mine = (sizes == size) & (heard > 0) & ~seats.is_shared
        each = int(np.bincount(seats.process[mine[seats.comm]]).max(initial=1))
        most = max(most, -(-int((size - heard[mine]).sum()) // each))
    return most


def placed_ranks(
    lines: Lines, seats: Seats, found: Roles, steps: Steps, places: Sequence[Place]
) -> tuple[dict[int, int], str]:
    """(rank by process, why not): coordinates in a topology that fit the communicators and the hosts."""
    shape = [max(getattr(place, axis) for place in places) + 1 for axis in ("pipeline", "data", "tensor")]
    by_place = {(place.pipeline, place.data, place.tensor): place for place in places}
    if min(min(place.tensor, place.data, place.pipeline) for place in places) < 0:
        return {}, "it tells no tp, dp and pp of each rank"
    if len(by_place) < len(places):
        return {}, "two ranks of it have the same tp, dp and pp"
    coordinates = _coordinates(lines, seats, found, steps, shape)
    ranks: dict[int, int] = {}
    nodes: dict[str, set[int]] = defaultdict(set)
    for process, where in coordinates.items():
        place = by_place.get(where)
        host = lines.processes[process].host
        if place is None or (place.host and place.host != host):
            return {}, "its tp, dp and pp do not fit the communicators and hosts in the logs"
        ranks[process] = place.rank
        nodes[host].add(place.node)
    one_each = all(len(of_host) == 1 for of_host in nodes.values())
    hosts_of = len({node for of_host in nodes.values() for node in of_host})
    if not ranks or len(set(ranks.values())) < len(lines.processes) or not one_each or hosts_of < len(nodes):
        return {}, "its groups and nodes do not fit the communicators and hosts in the logs"
    return ranks, ""


def _coordinates(
    lines: Lines, seats: Seats, found: Roles, steps: Steps, shape: list[int]
) -> dict[int, tuple[int, int, int]]:
    """(stage, replica, place in the tensor group) by process that has one seat of each kind."""
    pipeline, data, tensor = shape
    sends = np.zeros(len(lines.comms), np.bool_)
    sends[lines.comm[lines.is_p2p]] = True
    in_data, in_tensor = (dict[int, int]() for _ in range(2))
    for comm, seat, process in zip(
        seats.comm.tolist(), seats.comm_rank.tolist(), seats.process.tolist(), strict=True
    ):
        if seats.is_shared[comm]:
            continue
        size = lines.comms[comm].n_ranks
        if comm == steps.mark[process] and size == data:
            in_data[process] = seat
        elif found.works_in[comm] and not sends[comm] and size == tensor:
            in_tensor[process] = seat
    return {
        process: (int(found.level[process]), in_data.get(process, 0), in_tensor.get(process, 0))
        for process in range(len(lines.processes))
        if (data == 1 or process in in_data)
        and (tensor == 1 or process in in_tensor)
        and found.level[process] < pipeline
    }
