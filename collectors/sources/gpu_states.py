"""What GPU values say is wrong: throttling, memory rows, dead samplers, whatever tool gave the values.

In: values per GPU of one look. Out: standing events, and samples whose value cannot be true set to unknown.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Final

from msgspec.structs import replace

from collectors.sources.base import Attribute, Sample, SourceEvent
from collectors.sources.gpu_metrics import reasons
from collectors.wire.records import Severity

POWER_BRAKE: Final = 0x80
AT_ONCE_MASK: Final = 0x40 | POWER_BRAKE
"""Hardware thermal slowdown and power brake: told as soon as they are seen."""
SUSTAINED_MASK: Final = 0x8 | 0x20
SUSTAINED_S: Final = 30.0
SAMPLED: Final = ("gr_engine_active_ratio", "sm_active_ratio", "tensor_active_ratio", "dram_active_ratio")
DEAD_SAMPLER: Final = "dead_sampler"
BUSY_UTIL_RATIO: Final = 0.5
BUSY_POWER_W: Final = 150.0

RECOVERY_ACTIONS: Final = {
    1: "GPU_RESET",
    2: "NODE_REBOOT",
    3: "DRAIN_P2P",
    4: "DRAIN_AND_RESET",
    5: "RECOVER_IMEX_DOMAIN",
    6: "BUS_RESET",
    7: "SYSTEM_REBOOT",
}
"""Source: NVML_GPU_RECOVERY_ACTION_* of nvml.h; 0 is none."""
FABRIC_FAULTS: Final = {1: "not_started", 4: "failed", 6: "nvml_too_old"}
"""0 is a GPU without a fabric, 2 in progress, 3 success. Source: dcgm_structs.h."""
FABRIC_UNHEALTHY: Final = 2

Values = Mapping[str, float | None]


@dataclass(slots=True)
class Throttle:
    """What is remembered of a GPU's throttling."""

    since_s: float | None = None

    def events(self, entity: str, mask: float | None, at_s: float) -> Iterator[SourceEvent]:
        """``throttle`` while it stands: at once for hardware causes, after a while for the others."""
        if mask is None:
            return
        bits = int(mask)
        if not bits & SUSTAINED_MASK:
            self.since_s = None
        elif self.since_s is None:
            self.since_s = at_s
        sustained = self.since_s is not None and at_s - self.since_s >= SUSTAINED_S
        told = bits & (AT_ONCE_MASK | (SUSTAINED_MASK if sustained else 0))
        if told:
            names = reasons(told)
            text = f"clocks are held down: {', '.join(names)}"
            severity: Severity = "critical" if told & POWER_BRAKE else "warning"
            attributes: dict[str, Attribute] = {"reasons": names, "mask": told}
            yield SourceEvent(entity, "throttle", text, severity, attributes=attributes, standing=True)


def lost_event(uuid: str) -> SourceEvent:
    """``gpu_lost`` of a GPU of the inventory."""
    text = f"GPU {uuid} is missing: the inventory has it, the driver does not list it"
    return SourceEvent(f"gpu/{uuid}", "gpu_lost", text, "critical", standing=True)


def verdict_events(entity: str, values: Values) -> Iterator[SourceEvent]:
    """What the driver itself says is to be done, and a GPU that is not part of its NVLink fabric."""
    action = values.get("recovery_action_count")
    if action:
        name = RECOVERY_ACTIONS.get(int(action), f"ACTION_{int(action)}")
        text = f"the driver asks for a recovery action: {name}"
        told: dict[str, Attribute] = {"recovery_action": name}
        yield SourceEvent(entity, "recovery_action", text, "critical", attributes=told, standing=True)
    fabric = values.get("fabric_manager_status_count")
    if fabric is not None and (state := FABRIC_FAULTS.get(int(fabric))):
        text = f"the GPU is not part of the NVLink fabric: {state}"
        told = {"state": state}
        yield SourceEvent(entity, "fabric_fault", text, "critical", attributes=told, standing=True)
    elif values.get("fabric_health_count") == FABRIC_UNHEALTHY:
        told = {"state": "unhealthy"}
        text = "the GPU's part of the NVLink fabric is unhealthy"
        yield SourceEvent(entity, "fabric_fault", text, "warning", attributes=told, standing=True)


def memory_events(entity: str, values: Values) -> Iterator[SourceEvent]:
    """``ecc`` while memory waits for a reset, could not be remapped or had uncorrectable errors."""
    if values.get("row_remap_failure_count"):
        text = "a memory row could not be remapped: the GPU is to be replaced"
        yield SourceEvent(entity, "ecc", text, "critical", attributes={"fatal": True}, standing=True)
    elif values.get("row_remap_pending_count") or values.get("retired_pages_pending_count"):
        text = "memory waits to be remapped: reset the GPU when the job ends"
        yield SourceEvent(entity, "ecc", text, "warning", attributes={"fatal": False}, standing=True)
    elif errors := values.get("ecc_dbe_volatile"):
        text = f"{errors:g} uncorrectable memory errors since the driver was loaded"
        told: dict[str, Attribute] = {"fatal": False, "errors": int(errors)}
        yield SourceEvent(entity, "ecc", text, "warning", attributes=told, standing=True)


def without_dead_sampler(samples: list[Sample], values: Values) -> list[Sample]:
    """Samples of one GPU; profiling values of 0 on a GPU that plainly works are a sampler that died."""
    util, power = values.get("util_ratio"), values.get("power_w")
    busy = util is not None and util >= BUSY_UTIL_RATIO and (power is None or power >= BUSY_POWER_W)
    if not busy or values.get("gr_engine_active_ratio") != 0:
        return samples
    return [
        replace(sample, value=None, quality=DEAD_SAMPLER)
        if sample.metric in SAMPLED and sample.value == 0
        else sample
        for sample in samples
    ]
