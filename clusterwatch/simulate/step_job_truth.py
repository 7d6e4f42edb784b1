"""The truth about a made training job, in the words of ``truth.json`` of the collective log, version 1.

In: the shape, planned faults, how much longer steps took. Out: who is at fault and which answers are right.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

from clusterwatch.simulate.step_job_faults import Kind, Planned
from clusterwatch.simulate.step_job_layout import JobShape

COST_RATIO_MIN: Final = 0.02
"""A slow host that costs less than this share of a step need not be named."""
_ORDER: Final = ("hang", "hardware", "host", "storage", "software", "workload")
_SIZES: Final = {
    Kind.GPU: "factor", Kind.NIC: "bw", Kind.NVLINK: "bw", Kind.SWITCH: "bw", Kind.HOST: "launch",
    Kind.LOADER: "extra_ms", Kind.STORAGE: "write", Kind.GC: "share", Kind.STAGE: "factor",
    Kind.REPLICA: "factor", Kind.SEQUENCE: "sigma",
}  # fmt: skip


def truth(
    name: str, seed: int, shape: JobShape, planned: Sequence[Planned], cost_ratio: float | None
) -> dict[str, Any]:
    """The object of ``truth.json``.

    Args:
        cost_ratio: how much longer the steps with the fault took than without it; None: not measured.
    """
    ordered = sorted(planned, key=lambda fault: _ORDER.index(fault.fault_class))
    roots = [fault for fault in ordered if fault.fault_class not in ("workload",)] or ordered[:1]
    first = roots[0] if roots else None
    alone = first if len(roots) == 1 else None
    severity: dict[str, Any] = {"faults": [_severity(fault) for fault in ordered]} if ordered else {}
    if cost_ratio is not None:
        severity["cost_ratio"] = round(cost_ratio, 4)
    return {
        "scenario": name,
        "seed": seed,
        "kind": str(first.kind) if first else "no_fault",
        "class": first.fault_class if first else "none",
        "culprit_ranks": sorted(set().union(*(_culprits(shape, fault) for fault in roots))),
        "node": _node(shape, alone),
        "link": shape.part_name("nic", alone.place) if alone and alone.kind is Kind.NIC else None,
        "switch": _switch(shape, alone),
        "start_step": min((fault.step for fault in roots), default=None),
        "end_step": shape.steps if roots else None,
        "severity": severity,
        "blame_hardware": any(fault.fault_class == "hardware" for fault in roots),
        "acceptable": _acceptable(shape, roots, cost_ratio),
    }


def _severity(fault: Planned) -> dict[str, Any]:
    told: dict[str, Any] = {"kind": str(fault.kind), "class": fault.fault_class, "when": str(fault.when)}
    if fault.kind in _SIZES:
        told[_SIZES[fault.kind]] = fault.size
    return told | ({"point": fault.point} if fault.point else {})


def _culprits(shape: JobShape, fault: Planned) -> list[int]:
    """Who is to be named. All members wait inside the same kernel: a log cannot tell who holds it."""
    if fault.kind is Kind.INSIDE:
        return []
    return _tensor_group(shape, fault.place) if fault.kind is Kind.NVLINK else list(fault.ranks)


def _acceptable(shape: JobShape, roots: Sequence[Planned], cost_ratio: float | None) -> list[list[int]]:
    """Sets of ranks that are right answers."""
    if len(roots) != 1:
        return [sorted(set().union(*(_culprits(shape, fault) for fault in roots)))]
    fault = roots[0]
    sets = [_culprits(shape, fault)]
    if fault.kind is Kind.NVLINK:  # its group shows it, and only counters of the GPU tell which member it is
        sets.append([fault.place])
    if fault.kind is Kind.NIC and shape.pipeline == 1:  # of this port there is one group only
        sets.append(_data_group(shape, fault.place))
    if fault.kind is Kind.HOST and cost_ratio is not None and cost_ratio < COST_RATIO_MIN:
        sets.append([])
    return sets


def _tensor_group(shape: JobShape, rank: int) -> list[int]:
    stage, replica, _ = shape.place(rank)
    return [int(member) for member in shape.rank[stage, replica]]


def _data_group(shape: JobShape, rank: int) -> list[int]:
    stage, _, place = shape.place(rank)
    return [int(member) for member in shape.rank[stage, :, place]]


def _node(shape: JobShape, fault: Planned | None) -> int | None:
    """The node of a fault that has one place."""
    if fault is None or not fault.ranks or fault.kind in (Kind.SWITCH, Kind.INSIDE):
        return None
    return fault.place // shape.gpus_per_node


def _switch(shape: JobShape, fault: Planned | None) -> str | None:
    if fault is None or fault.kind is not Kind.SWITCH:
        return None
    return shape.leaf_name(int(shape.leaf[shape.place(fault.place)]))
