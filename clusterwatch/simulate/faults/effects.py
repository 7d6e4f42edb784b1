"""What faults of several families do alike: slow a world down, stop it, let a process fail."""

from __future__ import annotations

from collections.abc import Sequence

from clusterwatch.simulate.answers import FRAMES, RING
from clusterwatch.simulate.edges import Link, LinkPace, slowdown
from clusterwatch.simulate.faults.places import Case, Place
from clusterwatch.simulate.faults.requests import FaultError
from clusterwatch.simulate.progress import SHAPE, Stall
from clusterwatch.simulate.steps import Column, StepShift
from clusterwatch.simulate.telemetry import Shift
from clusterwatch.simulate.traces import Fault, TraceJob
from clusterwatch.simulate.world import World
from collectors.wire.records import ExceptionInfo, Severity

S = 1_000_000_000
WORK_RATIO = 0.72
"""Part of a step that is a rank's own work: so much of its slowness becomes the job's."""


def shift(
    case: Case,
    nodes: Sequence[int],
    metric: str,
    how: str,
    value: float,
    gpus: Sequence[int] | None = None,
    ramp_s: float = 0.0,
) -> None:
    """A metric of some places is changed for as long as the fault lasts."""
    case.scene.shifts.append(
        Shift(
            tuple(nodes), metric, how, value, case.start_ns, case.end_ns,  # type: ignore[arg-type]
            None if gpus is None else tuple(gpus), ramp_s,
        )
    )  # fmt: skip


def slow_world(case: Case, of: World, factor: float) -> None:
    """Every step of a world takes longer."""
    of.timeline.slow_down(case.start_ns, case.end_ns, factor)


def slow_ranks(
    case: Case,
    of: World,
    ranks: Sequence[int],
    column: Column,
    factor: float = 1.0,
    add_s: float = 0.0,
    share: float = 1.0,
) -> None:
    """Some ranks spend more time on a part of their steps."""
    case.scene.step_shifts[of.plan.first_node].append(
        StepShift(ranks, column, case.start_ns, case.end_ns, factor, add_s, share)
    )


def slow_work(case: Case, of: World, ranks: Sequence[int], factor: float) -> None:
    """Some ranks work slower, and the job with them."""
    slow_ranks(case, of, ranks, "work", factor)
    slow_world(case, of, 1.0 + WORK_RATIO * (factor - 1.0))


def slow_links(
    case: Case, of: World, ranks: Sequence[int], link: Link, ratio: float, slows_job: bool = True
) -> None:
    """Links of some ranks have only ``ratio`` of their bandwidth, and the job waits for their transfers."""
    case.scene.link_paces[of.plan.first_node].append(
        LinkPace(tuple(ranks), link, ratio, case.start_ns, case.end_ns)
    )
    if slows_job:
        slow_world(case, of, slowdown(of.plan, link, ratio, case.scene.shape.domain_nodes))


def stall(
    case: Case, of: World, faults: tuple[Fault, ...], start_ns: int | None = None, end_ns: int | None = None
) -> Stall:
    """A step of the world is never finished, or not before ``end_ns``.

    Raises:
        FaultError: the world has no place for such a fault.
    """
    begin_ns = case.start_ns if start_ns is None else start_ns
    before = of.timeline.moment(begin_ns)
    step = of.timeline.stop_in_step(begin_ns, end_ns)
    trace = TraceJob(
        of.plan.layout, faults, SHAPE, steps=step - before.first_step + 1, ring=RING, frames=FRAMES,
        seed=case.scene.seed,
    )  # fmt: skip
    try:
        found = Stall(before.attempt, step, trace)
        _ = trace.plans, trace.reached
    except ValueError as error:
        raise FaultError(f"{case.name}: {error}") from error
    of.progress.stalls.append(found)
    return found


def onset_ns(case: Case, of: World, found: Stall, rank: int) -> int:
    """When a rank gets stuck in a stalled step."""
    stage = of.plan.layout.stage(rank)
    done = int(found.trace.reached.completed[rank]) / len(of.progress.programs[stage].calls)
    return of.timeline.wall_of(found.step, min(done, 0.999), case.start_ns)


def fail_process(case: Case, place: Place, at_ns: int, message: str) -> None:
    """A rank raises and ends with code 1."""
    raised = ExceptionInfo(
        "torch.AcceleratorError",
        message,
        'Traceback (most recent call last):\n  File "/opt/train/train.py", line 212, in <module>\n'
        f'  File "/opt/train/loop.py", line 88, in train_step\ntorch.AcceleratorError: {message}\n',
        at_ns - 200_000_000,
    )
    case.scene.end_process(place.world, place.rank, at_ns, exit_code=1, exception=raised)


def xid(
    case: Case, place: Place, at_ns: int, number: int, text: str, severity: Severity = "critical"
) -> None:
    """A line of the kernel log, as the driver writes it."""
    pid = place.world.pid(place.rank, place.world.timeline.moment(at_ns).attempt)
    line = f"NVRM: Xid (PCI:{place.pci}): {number}, pid={pid}, name=python, {text}"
    fields = {
        "xid": str(number),
        "pci": place.pci,
        "gpu_index": str(place.gpu),
        "gpu_uuid": place.uuid,
        "entity": f"gpu/{place.uuid}",
        "code": str(number),
    }
    case.scene.event(at_ns, place.node.place, "kernel_log", "xid", severity, line, fields)


def link_event(case: Case, place: Place, at_ns: int, up: bool) -> None:
    """What the kernel says of a port."""
    word = "up" if up else "down"
    text = f"mlx5_core {place.pci}:00.0 eth{place.gpu}: Link {word}"
    fields = {
        "port": place.nic,
        "gpu_index": str(place.gpu),
        "leaf": place.node.leaves[place.gpu],
        "entity": f"port/mlx5_{place.gpu}/1",
    }
    if not up:
        fields["standing"] = "true"
    severity: Severity = "info" if up else "critical"
    case.scene.event(at_ns, place.node.place, "kernel_log", f"link_{word}", severity, text, fields)
