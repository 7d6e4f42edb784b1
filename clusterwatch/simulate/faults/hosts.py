"""Faults of hosts, storage and power."""

from __future__ import annotations

from clusterwatch.simulate.faults import places
from clusterwatch.simulate.faults.effects import S, shift, slow_ranks, slow_work, slow_world, stall
from clusterwatch.simulate.faults.places import Case, Place
from clusterwatch.simulate.faults.truth import Truth
from clusterwatch.simulate.steps import StepShift
from clusterwatch.simulate.timeline import CHECKPOINT
from clusterwatch.simulate.topology import STORAGE_SERVICES
from clusterwatch.simulate.traces import Fault, Kind
from clusterwatch.simulate.world import Held
from collectors.wire.metrics import Throttle
from collectors.wire.records import Event

_SLOW_CHECKPOINT_S = 38
_USUAL_CHECKPOINT_S = 8.0
_BETWEEN_CHECKPOINTS_S = 150
_CHECKPOINTS_MAX = 4
_BLOCKED_TOLD_S = 16  # an agent looks 5 s after the last progress, and tells of state D after ten looks
_SAVING = (
    "<module> (/opt/train/train.py:212)",
    "save_checkpoint (/opt/train/checkpoint.py:64)",
    "_save (/opt/venv/lib/python3.12/site-packages/torch/serialization.py:967)",
)


def _truth(case: Case, place: Place, kind: str, fault_class: str, **more: object) -> Truth:
    made: dict[str, object] = {
        "job": place.world.plan.job,
        "world": place.world.plan.world,
        "culprit_ranks": place.node_ranks,
        "node": place.node.name,
        "end_ns": case.end_ns,
    }
    return Truth(case.name, kind, fault_class, case.start_ns, **(made | more))  # type: ignore[arg-type]


def cpu_hog(case: Case) -> Truth:
    """Something else takes the CPUs of a host: its ranks launch late."""
    place, factor = places.node(case), 1.3
    where = (place.node.place,)
    shift(case, where, "host_cpu_ratio", "set", 0.985)
    shift(case, where, "gpu_util_ratio", "scale", 0.9)
    slow_ranks(case, place.world, place.node_ranks, "cpu", 1.7)
    slow_ranks(case, place.world, place.node_ranks, "late_launch", 30.0)
    slow_work(case, place.world, place.node_ranks, factor)
    return _truth(case, place, "slow_host", "host", severity={"factor": factor})


def data_loader_slow(case: Case) -> Truth:
    """One rank waits for its data at the begin of every step."""
    place = places.gpu(case)
    extra_s = 0.2 * place.world.plan.step_s
    shift(case, (place.node.place,), "gpu_util_ratio", "scale", 0.86, (place.gpu,))
    slow_ranks(case, place.world, [place.rank], "data_wait", add_s=extra_s)
    slow_world(case, place.world, 1.2)
    return _truth(
        case, place, "slow_dataloader", "host", culprit_ranks=(place.rank,), gpu=place.gpu,
        gpu_uuid=place.uuid, severity={"extra_ms": extra_s * 1e3},
    )  # fmt: skip


def nfs_hung(case: Case) -> Truth:
    """A node's mount does not answer while a checkpoint is written: its ranks stand in the kernel."""
    place = places.node(case)
    of, where = place.world, (place.node.place,)
    for metric, value in (
        ("host_cpu_iowait_ratio", 0.46),
        ("host_processes_blocked_count", float(len(place.node_ranks))),
        ("storage_requests_waiting_count", 128.0),
        ("storage_write_mib_per_s", 0.0),
        ("storage_read_mib_per_s", 0.0),
    ):
        shift(case, where, metric, "set", value)
    missing = tuple(Fault(Kind.MISSING_RANK, rank) for rank in place.node_ranks)
    found = stall(case, of, missing, case.start_ns, case.end_ns)
    of.held.append(Held(place.node_ranks, CHECKPOINT, case.start_ns, case.end_ns))
    of.frames |= dict.fromkeys(place.node_ranks, _SAVING)
    text = f"nfs: server {STORAGE_SERVICES[0]} not responding, still trying"
    mount = {"server": STORAGE_SERVICES[0], "mount": "/mnt/checkpoints", "entity": "mount//mnt/checkpoints"}
    scene, number = case.scene, place.node.place
    scene.event(case.start_ns + 5 * S, number, "kernel_log", "nfs_not_responding", "critical", text, mount)
    for rank in place.node_ranks:
        _blocked(case, place, rank, case.start_ns + _BLOCKED_TOLD_S * S)
    if case.end_ns is not None:
        text = f"nfs: server {STORAGE_SERVICES[0]} OK"
        scene.event(case.end_ns, number, "kernel_log", "nfs_ok", "info", text, mount)
    return _truth(
        case, place, "storage_stalled", "health", step=found.step, acceptable_kinds=("missing_rank",)
    )


def _blocked(case: Case, place: Place, rank: int, at_ns: int) -> None:
    """What an agent says of a process in state D."""
    attempt = place.world.timeline.moment(at_ns).attempt
    pid, identity = place.world.pid(rank, attempt), place.world.rank_id(rank, attempt)
    fields = {"state": "D", "word": "blocked", "pid": str(pid), "wchan": "rpc_wait_bit_killable"}
    text = f"rank {rank} (pid {pid}) is blocked in the kernel"
    record = Event(at_ns, "agent", "process_state", "warning", text, fields, identity)
    case.scene.at(at_ns, place.node.place, lambda: (record,))


def checkpoint_slow(case: Case) -> Truth:
    """Checkpoints take five times as long because one node writes slowly; the others wait for it."""
    place = places.node(case)
    of, where = place.world, (place.node.place,)
    last_ns = case.start_ns + _CHECKPOINTS_MAX * _BETWEEN_CHECKPOINTS_S * S
    end_ns = min(case.end_ns or last_ns, last_ns)
    begin_ns, others = case.start_ns, [r for r in range(of.plan.size) if r not in place.node_ranks]
    while begin_ns < end_ns or begin_ns == case.start_ns:
        until_ns = begin_ns + _SLOW_CHECKPOINT_S * S
        at_ns = of.timeline.pause(begin_ns, until_ns, CHECKPOINT)
        slow = Case(case.scene, case.request, at_ns, until_ns, case.random)
        shift(slow, where, "storage_write_mib_per_s", "scale", 0.2)
        shift(slow, where, "storage_requests_waiting_count", "add", 96.0)
        shift(slow, where, "host_cpu_iowait_ratio", "add", 0.2)
        done_ns = at_ns + int(_USUAL_CHECKPOINT_S * S)
        rest = Case(case.scene, case.request, done_ns, until_ns, case.random)
        waiting = tuple(n.place for n in of.nodes if n.place != place.node.place)
        shift(rest, waiting, "storage_write_mib_per_s", "set", 0.0)
        shift(rest, waiting, "storage_requests_waiting_count", "set", 0.0)
        after_ns = until_ns + int(of.plan.step_s * 1.5 * S)
        share = _USUAL_CHECKPOINT_S / _SLOW_CHECKPOINT_S
        case.scene.step_shifts[of.plan.first_node].append(
            StepShift(others, "checkpoint", until_ns, after_ns, factor=share)
        )
        begin_ns += _BETWEEN_CHECKPOINTS_S * S
    return _truth(
        case, place, "slow_storage", "storage", severity={"checkpoint_s": float(_SLOW_CHECKPOINT_S)}
    )


def psu_lost(case: Case) -> Truth:
    """One of six power supplies has no input; the others carry the chassis."""
    place = places.node(case)
    shift(case, (place.node.place,), "host_power_supplies_ok_count", "set", 5.0)
    text = "Power supply 3: input lost (AC)"
    entity = f"psu/{place.node.name}/3"
    fields = {"power_supply": "3", "entity": entity, "standing": "true"}
    case.scene.event(case.start_ns, place.node.place, "bmc", "power_supply_lost", "warning", text, fields)
    if case.end_ns is not None:
        over = {"entity": entity, "kind": "power_supply_lost"}
        text = "power supply lost is over"
        case.scene.event(case.end_ns, place.node.place, "bmc", "fault_over", "info", text, over)
    return _truth(case, place, "power_fault", "health", job=None, world=None, culprit_ranks=())


def power_brake(case: Case) -> Truth:
    """A rack's supply asks all of its GPUs to slow down at once."""
    rack, nodes = places.nodes_where(case, "rack", lambda n: (n.rack,))
    shift(case, nodes, "gpu_sm_clock_mhz", "scale", 0.45)
    shift(case, nodes, "gpu_power_w", "scale", 0.5)
    bits = Throttle.HW_POWER_BRAKE | Throttle.HW_SLOWDOWN
    shift(case, nodes, "gpu_throttle_reasons", "bits", float(bits))
    gpus = tuple(range(case.scene.shape.gpus_per_node))
    ranks = places.ranks_on(case, nodes, lambda _node: gpus)
    for of in case.scene.worlds:
        if of.plan.first_node in ranks:
            slow_work(case, of, ranks[of.plan.first_node], 1.9)
    first = max(ranks, key=lambda key: len(ranks[key]))
    hit = next(of for of in case.scene.worlds if of.plan.first_node == first)
    mine = ranks[first]
    return Truth(
        case.name, "power_fault", "health", case.start_ns, case.end_ns, job=hit.plan.job,
        world=hit.plan.world, culprit_ranks=mine, acceptable=(mine, ()), rack=rack, severity={"factor": 1.9},
    )  # fmt: skip
