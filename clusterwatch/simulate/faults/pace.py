"""What slows a job down without any part being broken: nobody may be accused of it."""

from __future__ import annotations

from clusterwatch.simulate.faults import places
from clusterwatch.simulate.faults.effects import slow_ranks, slow_world
from clusterwatch.simulate.faults.places import Case
from clusterwatch.simulate.faults.truth import Truth
from clusterwatch.simulate.world import World


def _truth(case: Case, of: World, kind: str, fault_class: str, severity: dict[str, float]) -> Truth:
    return Truth(
        case.name, kind, fault_class, case.start_ns, case.end_ns, job=of.plan.job, world=of.plan.world,
        severity=severity,
    )  # fmt: skip


def gc_pauses(case: Case) -> Truth:
    """Python's collector runs in single steps of single ranks, never at once."""
    of = places.world(case)
    pause_s = 0.15 * of.plan.step_s
    slow_ranks(case, of, range(of.plan.size), "gc", add_s=pause_s, share=0.02)
    slow_world(case, of, 1.12)
    return _truth(case, of, "gc_pauses", "software", {"pause_ms": pause_s * 1e3, "share": 0.02})


def stage_imbalance(case: Case) -> Truth:
    """The last pipeline stage has more to do than the others."""
    of = places.world(case, lambda w: w.plan.layout.pipeline > 1)
    per_stage = of.plan.size // of.plan.layout.pipeline
    last = range(of.plan.size - per_stage, of.plan.size)
    slow_ranks(case, of, last, "work", 1.35)
    slow_world(case, of, 1.25)
    return _truth(case, of, "stage_imbalance", "workload", {"factor": 1.35})


def sequence_imbalance(case: Case) -> Truth:
    """Some replicas get longer sequences, other ones in every step."""
    of = places.world(case, lambda w: w.plan.layout.data > 1)
    slow_ranks(case, of, range(of.plan.size), "work", 1.2, share=0.25)
    slow_world(case, of, 1.15)
    return _truth(case, of, "sequence_imbalance", "workload", {"factor": 1.2, "share": 0.25})
