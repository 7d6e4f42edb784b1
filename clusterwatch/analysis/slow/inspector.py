"""Logs of NCCL's Inspector as a call log: steps, roles and ranks are told from the structure of the calls.

In: ``Lines`` and, where there is one, what a topology tells. Out: ``Inspected``: a ``CallLog`` whose ranks
are numbers of processes unless the logs or the topology tell the global ones. The late process has the
shortest calls; only its own work, between leaving one call and entering the next on one clock, names it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final

import numpy as np
from numpy.typing import NDArray

from clusterwatch.analysis.slow import inspector_numbers, inspector_roles, inspector_steps
from clusterwatch.analysis.slow.calls import COMPLETED, Calls, tidied
from clusterwatch.analysis.slow.inspector_lines import UNKNOWN, Lines, Process, Seats, jobs
from clusterwatch.analysis.slow.inspector_lines import tidied as tidied_lines
from clusterwatch.analysis.slow.inspector_roles import Place, Roles
from clusterwatch.analysis.slow.inspector_steps import Steps
from clusterwatch.analysis.slow.layout import Layout, Members
from clusterwatch.analysis.slow.log import CallLog

Ints = NDArray[np.int64]
Bools = NDArray[np.bool_]

SMALL_BYTES: Final = 64
"""A collective of fewer bytes waits for all and moves nothing: NCCL knows no barrier of its own."""
RARE_RATIO: Final = 0.9
"""A small collective that fewer steps have than this ends something rare, as a barrier does."""
ID_SHOWN: Final = 10
SMALLEST_BYTES: Final = 8_192
"""NCCL_INSPECTOR_DUMP_MIN_SIZE_BYTES, where nobody sets it (NCCL 2.30)."""
LOSSY_RATIO: Final = 1e-4
"""Of the calls; with more lines lost, single long gaps mean nothing."""
SENDS_UNSEEN: Final = (
    "they were written by the plugin of NCCL 2.28 or 2.29, which logs no send and no receive: in a job with "
    "pipeline stages waiting in these looks like work, so nobody's work is judged; NCCL 2.30 logs them"
)
HANGS_UNSEEN: Final = (
    "these logs hold finished calls only: a hang cannot be seen in them, and what finished after the last "
    "dump is not there; for a job that stands still give flight-recorder dumps"
)

SMALL_UNSEEN: Final = (
    f"calls of less than {SMALLEST_BYTES} bytes are not in these logs, so the end of each step is not "
    "judged: NCCL_INSPECTOR_DUMP_MIN_SIZE_BYTES=0 writes them"
)


@dataclass(frozen=True, slots=True)
class Inspected:
    """``processes``: by number in the call log; ``problems``: what could not be used, in words."""

    log: CallLog
    processes: Mapping[int, Process]
    problems: tuple[str, ...]


def inspected(lines: Lines, places: Sequence[Place] = (), declared: Layout | None = None) -> Inspected | None:
    """The logs of one job, the largest there; None where no line tells a call. Cost: O(n log n).

    Args:
        places: ranks of a topology, with the coordinates of each.
        declared: the layout of that topology, by rank.
    """
    lines = tidied_lines(lines)
    if not len(lines):
        return None
    lines, problems = _of_largest_job(lines)
    seats = Seats.of(lines)
    if seats.is_shared.any():
        shared = int(seats.is_shared.sum())
        ids = "id of a communicator is" if shared == 1 else "ids of communicators are"
        problems.append(f"{shared} {ids} borne by two, since ids are cut: their calls are not matched")
    peer = seats.who(lines.comm, lines.peer)
    number, is_late = inspector_numbers.sequences(lines)
    steps = inspector_steps.cut(lines, number)
    if not steps.is_found:
        problems.append("no call marks the steps: each process's calls are cut into equal parts")
    found = inspector_roles.roles(lines, seats, peer, steps)
    is_blind = lines.is_old.any() and inspector_roles.may_have_pipeline(lines, seats, found)
    if is_blind:
        problems.append(SENDS_UNSEEN)
    ranks, size, is_placed = _ranks(lines, seats, found, steps, places, problems)
    calls = _calls(lines, seats, found, steps, peer, number, is_late, ranks)
    layout = declared if is_placed and declared is not None else _layout(lines, found, ranks, size)
    hosts = [""] * layout.rank_count
    for process, rank in enumerate(ranks.tolist()):
        hosts[rank] = lines.processes[process].host
    members = Members.of(calls.group, calls.rank, len(calls.groups))
    is_ranked = is_placed or size > 0
    processes = {rank: lines.processes[process] for process, rank in enumerate(ranks.tolist())}
    names = {} if is_ranked else {rank: str(one.pid) for rank, one in processes.items()}
    log = CallLog(
        tidied(calls), replace(layout, hosts=tuple(hosts)), members, is_placed, names,
        is_inspected=True, has_steps=steps.is_found, is_lossy=bool(is_late.mean() > LOSSY_RATIO),
        is_blind=bool(is_blind),
    )  # fmt: skip
    if hides_small(lines):
        problems.append(SMALL_UNSEEN)
    return Inspected(log, processes, (*problems, HANGS_UNSEEN))


def _of_largest_job(lines: Lines) -> tuple[Lines, list[str]]:
    """The lines of the most processes that are joined by communicators, with processes numbered anew."""
    job = jobs(Seats.of(lines), len(lines.processes))
    told = np.bincount(lines.process, minlength=len(job)) > 0
    sizes = np.bincount(job[told], minlength=len(job))
    newest = np.zeros(len(job), np.int64)
    np.maximum.at(newest, job[lines.process], lines.end_ns)
    largest = int(np.lexsort((newest, sizes))[-1])
    kept = np.flatnonzero((job == largest) & told)
    left = int(told.sum()) - len(kept)
    problems = []
    if left:
        problems.append(
            f"{left} other processes share no communicator with the {len(kept)} that are judged: not used"
        )
    new = np.full(len(job), UNKNOWN)
    new[kept] = np.arange(len(kept))
    mine = lines.rows(new[lines.process] != UNKNOWN)
    processes = tuple(lines.processes[one] for one in kept.tolist())
    return replace(mine, process=new[mine.process], processes=processes), problems


def _ranks(
    lines: Lines, seats: Seats, found: Roles, steps: Steps, places: Sequence[Place], problems: list[str]
) -> tuple[Ints, int, bool]:
    """(rank or number by process, size of the world or 0, ranks are those of the topology)."""
    world = inspector_roles.world_ranks(lines, seats)
    if places:
        placed, why = inspector_roles.placed_ranks(lines, seats, found, steps, places)
        if placed and (world is None or world[0] == placed):
            return _by_process(placed), 0, True
        problems.append(f"--topology is not used: {why or 'its ranks are not those in the logs'}")
    if world is not None:
        return _by_process(world[0]), world[1], False
    return np.arange(len(lines.processes)), 0, False


def _by_process(ranks: Mapping[int, int]) -> Ints:
    return np.array([ranks[process] for process in range(len(ranks))], np.int64)


def _calls(
    lines: Lines, seats: Seats, found: Roles, steps: Steps, peer: Ints, number: Ints, is_late: Bools,
    ranks: Ints,
) -> Calls:  # fmt: skip
    """The lines as calls of ranks."""
    order = inspector_steps.occurrences(lines, steps.step, is_late)
    op, ops = _operations(lines, found, steps, order)
    group, groups = _groups(lines, seats)
    if hides_small(lines):
        number = _spaced(lines, steps, group, number)
    return Calls(
        rank=ranks[lines.process], group=group, op=op, sequence=number, step=steps.step, microbatch=order,
        peer=np.where(peer == UNKNOWN, UNKNOWN, ranks[np.maximum(peer, 0)]), size_bytes=lines.size_bytes,
        enqueue_ns=lines.launch_ns, start_ns=lines.start_ns, end_ns=lines.end_ns,
        state=np.full(len(lines), COMPLETED), groups=groups, ops=ops,
    )  # fmt: skip


def hides_small(lines: Lines) -> bool:
    """Whether calls below the plugin's usual minimum size are left out of the logs."""
    return not lines.is_old.any() and not (lines.size_bytes < SMALLEST_BYTES).any()


def _spaced(lines: Lines, steps: Steps, group: Ints, number: Ints) -> Ints:
    """Numbers that jump at the end of a step, as if a line were lost there: a call of all ranks that the logs
    hide lies there (norm of the gradients), and whoever waits in it would seem to work."""
    way = np.where(lines.is_p2p, lines.comm_rank < lines.peer, False)
    sends = np.array([op == "Send" for op in lines.ops], np.bool_)[lines.op]
    key = np.stack((group, np.where(lines.is_p2p, way == sends, False), number))
    calls, place = np.unique(key, axis=1, return_inverse=True)
    is_end = np.zeros(calls.shape[1], np.int64)
    np.maximum.at(is_end, place.reshape(-1), steps.is_end.astype(np.int64))
    found: Ints = number + 2 * np.cumsum(is_end)[place.reshape(-1)]
    return found


def _operations(lines: Lines, found: Roles, steps: Steps, order: Ints) -> tuple[Ints, tuple[str, ...]]:
    """Names that tell direction and stage of sends and receives, the size of the group of collectives."""
    is_send = np.array([op == "Send" for op in lines.ops], np.bool_)[lines.op]
    lower = lines.comm_rank < lines.peer
    forward = np.where(is_send, lower, ~lower)
    sizes = np.array([comm.n_ranks for comm in lines.comms], np.int64)[lines.comm]
    is_rare = _rare(lines, steps, order)
    key = np.stack(
        (
            lines.is_p2p.astype(np.int64),
            np.where(lines.is_p2p, is_send, lines.op),
            np.where(lines.is_p2p, forward, is_rare),
            np.where(lines.is_p2p, found.level[lines.process], sizes),
        )
    )
    kinds, place = np.unique(key, axis=1, return_inverse=True)
    names = []
    for is_p2p, what, flag, last in kinds.T.tolist():
        if is_p2p:
            names.append(f"{'send' if what else 'recv'}_{'f' if flag else 'b'}{last}")
        else:
            names.append(f"{'barrier ' if flag else ''}{lines.ops[what]} of {last}")
    return place.reshape(-1).astype(np.int64), tuple(names)


def _rare(lines: Lines, steps: Steps, order: Ints) -> Bools:
    """Small collectives that a process makes in some steps only: what it waited for lies before them."""
    small = np.flatnonzero((lines.size_bytes <= SMALL_BYTES) & ~lines.is_p2p & (order >= 0))
    key = np.stack([one[small] for one in (lines.process, lines.comm, lines.op, lines.size_bytes, order)])
    _, place, times = np.unique(key, axis=1, return_inverse=True, return_counts=True)
    found = np.zeros(len(lines), np.bool_)
    found[small] = times[place.reshape(-1)] < RARE_RATIO * max(1, steps.count)
    return found


def _groups(lines: Lines, seats: Seats) -> tuple[Ints, tuple[str, ...]]:
    """A group by communicator, by pair where ranks send to each other, by process where an id is shared."""
    is_p2p, shared = lines.is_p2p, seats.is_shared[lines.comm]
    low = np.where(is_p2p, np.minimum(lines.comm_rank, lines.peer), UNKNOWN)
    high = np.where(is_p2p, np.maximum(lines.comm_rank, lines.peer), UNKNOWN)
    own = np.where(shared, lines.process, UNKNOWN)
    keys, place = np.unique(np.stack((lines.comm, low, high, own)), axis=1, return_inverse=True)
    names = []
    for comm, first, second, _ in keys.T.tolist():
        one = lines.comms[comm]
        pair = "" if first == UNKNOWN else f", its ranks {first} and {second}"
        names.append(f"communicator {one.id[:ID_SHOWN]} of {one.n_ranks}{pair}")
    return place.reshape(-1).astype(np.int64), tuple(names)


def _layout(lines: Lines, found: Roles, ranks: Ints, size: int) -> Layout:
    """Hosts as told; each process is taken to have a GPU and a port of its own, without a name."""
    count = max(size, len(ranks))
    columns = {name: np.full(count, UNKNOWN, np.int64) for name in ("stage", "replica", "node", "gpu")}
    hosts = sorted({one.host for one in lines.processes})
    numbers = {host: number for number, host in enumerate(hosts)}
    seen: dict[str, int] = {}
    for process in np.argsort(ranks).tolist():
        host = lines.processes[process].host
        columns["node"][ranks[process]] = numbers[host]
        columns["gpu"][ranks[process]] = seen[host] = seen.get(host, UNKNOWN) + 1
    columns["stage"][ranks], columns["replica"][ranks] = found.stage, found.replica
    for name in ("stage", "replica"):  # who left no log is counted nowhere
        columns[name][columns[name] == UNKNOWN] = columns[name][ranks[0]]
    heard = set(ranks.tolist())
    ports = [f"port {rank}" if rank in heard else "" for rank in range(count)]
    return Layout(
        **columns, nic=tuple(ports), leaf=("",) * count, hosts=(), is_declared=False, parts_told=False
    )  # fmt: skip
