"""Faults after which a job stands still, by its own program's doing or a process's end."""

from __future__ import annotations

from clusterwatch.simulate.faults import places
from clusterwatch.simulate.faults.effects import S, onset_ns, stall
from clusterwatch.simulate.faults.places import Case, Fits
from clusterwatch.simulate.faults.truth import Truth
from clusterwatch.simulate.progress import Stall
from clusterwatch.simulate.traces import Fault, Kind
from clusterwatch.simulate.world import World

_STUCK = (
    "<module> (/opt/train/train.py:212)",
    "train_step (/opt/train/loop.py:88)",
    "log_samples (/opt/train/report.py:33)",
)
"""Outside of any collective call, in code of the job's own."""


def _rank_of(case: Case, fits: Fits) -> tuple[World, int | None]:
    """The world, and the rank where the target names one; else the trace's seed chooses it."""
    if case.target is not None and "/" in case.target and case.target.rpartition("/")[2].isdecimal():
        place = places.gpu(case, fits)
        return place.world, place.rank
    return places.world(case, fits), None


def _truth(case: Case, of: World, found: Stall, rank: int, kind: str, **more: object) -> Truth:
    place = places.place_of(of, rank)
    made: dict[str, object] = {
        "fault_class": "hang",
        "end_ns": case.end_ns,
        "job": of.plan.job,
        "world": of.plan.world,
        "attempt": found.attempt,
        "culprit_ranks": (rank,),
        "node": place.node.name,
        "gpu": place.gpu,
        "gpu_uuid": place.uuid,
        "step": found.step,
    }
    begin_ns = onset_ns(case, of, found, rank)
    return Truth(case.name, kind, start_ns=begin_ns, **(made | more))  # type: ignore[arg-type]


def _broken_program(case: Case, kind: Kind, fits: Fits) -> Truth:
    """A stall that only a restart ends."""
    of, rank = _rank_of(case, fits)
    found = stall(case, of, (Fault(kind, rank),))
    (plan,) = found.trace.plans
    truth = _truth(case, of, found, plan.rank, str(kind))
    if case.end_ns is not None:
        case.scene.restart_job(of.plan.job, truth.start_ns, max(case.end_ns, truth.start_ns + 10 * S))
    return truth


def rank_stuck(case: Case) -> Truth:
    """A rank stays in its own code and never makes the next call."""
    of, rank = _rank_of(case, places.anything)
    found = stall(case, of, (Fault(Kind.MISSING_RANK, rank),), end_ns=case.end_ns)
    (plan,) = found.trace.plans
    of.frames[plan.rank] = _STUCK
    return _truth(case, of, found, plan.rank, "missing_rank")


def rank_killed(case: Case) -> Truth:
    """A process is killed with signal 9; its peers wait for it."""
    of, rank = _rank_of(case, places.anything)
    found = stall(case, of, (Fault(Kind.NO_DUMP, rank),))
    (plan,) = found.trace.plans
    truth = _truth(
        case, of, found, plan.rank, "rank_failed", acceptable_kinds=("dead_rank",), fault_class="crash"
    )
    case.scene.end_process(of, plan.rank, truth.start_ns, signal=9)
    if case.end_ns is not None:
        case.scene.restart_job(of.plan.job, truth.start_ns, max(case.end_ns, truth.start_ns + 10 * S))
    return truth


def op_mismatch(case: Case) -> Truth:
    """One rank makes another call than its peers."""
    return _broken_program(case, Kind.OP_MISMATCH, places.anything)


def p2p_lost(case: Case) -> Truth:
    """A send of the pipeline goes to a stage that does not expect it."""
    return _broken_program(case, Kind.P2P_UNMATCHED, lambda of: of.plan.layout.pipeline > 2)


def cross_group_cycle(case: Case) -> Truth:
    """One rank makes two calls of two groups in the other order."""
    return _broken_program(
        case, Kind.CROSS_GROUP_CYCLE, lambda of: of.plan.layout.tensor > 2 and of.plan.layout.size("mp") > 1
    )


def symmetric_stall(case: Case) -> Truth:
    """All ranks are in the same call and none ends: nobody can be named from it."""
    of = places.world(case)
    found = stall(case, of, (Fault(Kind.ALL_JOINED_NOT_FINISHED, 0, "default_pg"),), end_ns=case.end_ns)
    nobody: dict[str, object] = {"culprit_ranks": (), "node": None, "gpu": None, "gpu_uuid": None}
    return _truth(case, of, found, 0, "all_joined_not_finished", **nobody)
