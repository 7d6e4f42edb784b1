"""Faults of GPUs."""

from __future__ import annotations

from clusterwatch.simulate.faults import places
from clusterwatch.simulate.faults.effects import (
    S,
    fail_process,
    onset_ns,
    shift,
    slow_links,
    slow_work,
    stall,
    xid,
)
from clusterwatch.simulate.faults.places import Case, Place
from clusterwatch.simulate.faults.truth import Truth
from clusterwatch.simulate.traces import Fault, Kind
from collectors.wire.metrics import Throttle

_HEAT_S = 20.0


def _truth(case: Case, place: Place, kind: str, fault_class: str, **more: object) -> Truth:
    made: dict[str, object] = {
        "job": place.world.plan.job,
        "world": place.world.plan.world,
        "culprit_ranks": (place.rank,),
        "node": place.node.name,
        "gpu": place.gpu,
        "gpu_uuid": place.uuid,
        "start_ns": case.start_ns,
        "end_ns": case.end_ns,
    }
    return Truth(case.name, kind, fault_class, **(made | more))  # type: ignore[arg-type]


def slow_gpu(case: Case) -> Truth:
    """Lower clocks for no reason that it tells."""
    place, factor = places.gpu(case), 1.3
    where, gpus = (place.node.place,), (place.gpu,)
    shift(case, where, "gpu_sm_clock_mhz", "scale", 1 / factor, gpus)
    shift(case, where, "gpu_power_w", "scale", 0.86, gpus)
    shift(case, where, "gpu_sm_activity_ratio", "scale", 1.2, gpus)
    slow_work(case, place.world, [place.rank], factor)
    return _truth(case, place, "slow_gpu", "hardware", severity={"factor": factor})


def thermal_throttle(case: Case) -> Truth:
    """It heats up, then the driver halves its clocks."""
    place, factor = places.gpu(case), 1.5
    where, gpus = (place.node.place,), (place.gpu,)
    shift(case, where, "gpu_temperature_c", "add", 33.0, gpus, _HEAT_S)
    shift(case, where, "gpu_memory_temperature_c", "add", 24.0, gpus, _HEAT_S)
    hot = Case(case.scene, case.request, case.start_ns + int(_HEAT_S * S), case.end_ns, case.random)
    shift(hot, where, "gpu_sm_clock_mhz", "scale", 0.6, gpus)
    shift(hot, where, "gpu_power_w", "scale", 0.7, gpus)
    bits = Throttle.SW_THERMAL | Throttle.HW_THERMAL | Throttle.HW_SLOWDOWN
    shift(hot, where, "gpu_throttle_reasons", "bits", float(bits), gpus)
    slow_work(hot, place.world, [place.rank], factor)
    return _truth(
        case, place, "slow_gpu", "hardware", acceptable_kinds=("cooling_fault",), severity={"factor": factor}
    )


def _lost_process(case: Case, place: Place, message: str) -> tuple[int, int]:
    """The rank fails in a step that its peers then wait in; (moment, step)."""
    found = stall(case, place.world, (Fault(Kind.NO_DUMP, place.rank),))
    at_ns = onset_ns(case, place.world, found, place.rank)
    fail_process(case, place, at_ns, message)
    if case.end_ns is not None:
        case.scene.restart_job(place.world.plan.job, at_ns, max(case.end_ns, at_ns + 10 * S))
    return at_ns, found.step


def hbm_error(case: Case) -> Truth:
    """An uncorrectable memory error, contained: the process dies, the row is remapped."""
    place = places.gpu(case)
    at_ns, step = _lost_process(case, place, "CUDA error: uncorrectable ECC error encountered")
    now = Case(case.scene, case.request, at_ns, at_ns + S, case.random)
    shift(now, (place.node.place,), "gpu_ecc_uncorrectable_total", "grow", 1.0, (place.gpu,))
    xid(case, place, at_ns - S // 2, 48, "An uncorrectable double bit error (DBE) has been detected on GPU")
    xid(case, place, at_ns - S // 2 + 1_000_000, 63, "Row Remapper: New row marked for remapping", "warning")
    xid(case, place, at_ns - S // 2 + 2_000_000, 94, "Contained memory error")
    return _truth(
        case, place, "gpu_fault", "health", start_ns=at_ns, step=step, acceptable_kinds=("rank_failed",)
    )


def gpu_off_bus(case: Case) -> Truth:
    """The driver can no longer reach it: no values, no process."""
    place = places.gpu(case)
    at_ns, step = _lost_process(case, place, "CUDA error: unspecified launch failure")
    gone = Case(case.scene, case.request, at_ns, case.end_ns, case.random)
    for metric in _OF_GPU:
        shift(gone, (place.node.place,), metric, "blank", 0.0, (place.gpu,))
    xid(case, place, at_ns - S // 2, 79, "GPU has fallen off the bus.")
    return _truth(
        case, place, "gpu_lost", "health", start_ns=at_ns, step=step, acceptable_kinds=("rank_failed",)
    )


def nvlink_degraded(case: Case) -> Truth:
    """One GPU's links run at a third: its tensor group's calls take longer."""
    place = places.gpu(case, lambda w: w.plan.layout.tensor > 1)
    where, gpus = (place.node.place,), (place.gpu,)
    shift(case, where, "gpu_nvlink_tx_mib_per_s", "scale", 0.33, gpus)
    shift(case, where, "gpu_nvlink_rx_mib_per_s", "scale", 0.33, gpus)
    xid(
        case,
        place,
        case.start_ns,
        74,
        "NVLink: fatal error detected on link 8(0x0, 0x0, 0x10000, 0x0)",
        "warning",
    )
    slow_links(case, place.world, [place.rank], "nvlink", 0.33)
    return _truth(
        case, place, "slow_nvlink", "hardware", link=place.nvlink, severity={"bandwidth_ratio": 0.33}
    )


_OF_GPU = tuple(
    f"gpu_{name}"
    for name in (
        "power_w", "temperature_c", "memory_temperature_c", "sm_clock_mhz", "util_ratio", "sm_activity_ratio",
        "tensor_active_ratio", "memory_used_bytes", "nvlink_tx_mib_per_s", "nvlink_rx_mib_per_s",
        "pcie_tx_mib_per_s", "pcie_rx_mib_per_s", "ecc_correctable_total", "ecc_uncorrectable_total",
        "throttle_reasons",
    )
)  # fmt: skip
"""All that NVML says; the port beside it goes on."""
