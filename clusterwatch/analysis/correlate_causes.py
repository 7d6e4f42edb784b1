"""What each kind of signal means as a cause: its word, its layer, whose it is, which verdicts it can explain.

In: a ``Signal``. Out: a ``Cause``, or None for what explains nothing: information, echoes, other words. What
an Xid means has been told by its agent as the signal's severity; the driver's own recovery action wins.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Final

from clusterwatch.analysis.correlate_model import Cause, Layer
from clusterwatch.analysis.correlate_time import CLOCK_FAULTS
from clusterwatch.analysis.health_kinds import ENDS, OVER
from clusterwatch.analysis.model import Owner, Severity
from clusterwatch.analysis.signals import Signal
from collectors.wire.metrics import Throttle

UNNAMED_STALLS: Final = frozenset({"all_joined_not_finished", "outside_collectives"})
"""Stalls of which the trace alone names nobody."""
NAMED_STALLS: Final = frozenset(
    {
        "missing_rank", "queued_not_started", "dead_rank", "dead_node", "suspect_no_dump",
        "suspect_stale_dump", "stuck_in_init", "watchdog_stuck",
    }
)  # fmt: skip
"""Mismatches and cycles are faults of code, whatever the hardware says."""
STALLS: Final = NAMED_STALLS | UNNAMED_STALLS
CRASHES: Final = frozenset({"rank_failed"})
_STOPS: Final = STALLS | CRASHES
_SLOW_ANY: Final = frozenset({"slow_cause_unknown"})
_SLOW_GPU: Final = frozenset({"slow_gpu"}) | _SLOW_ANY
_SLOW_LINK: Final = frozenset({"slow_nic", "slow_switch"}) | _SLOW_ANY
_SLOW_NVLINK: Final = frozenset({"slow_nvlink"}) | _SLOW_ANY
_SLOW_HOST: Final = frozenset({"slow_host", "slow_dataloader"}) | _SLOW_ANY
_SLOW_STORAGE: Final = frozenset({"slow_storage", "slow_dataloader"}) | _SLOW_ANY
OF_STORAGE: Final = frozenset({"data_loading", "checkpoint", "io"})
"""Words of a stack, or phases, in which a rank waits for storage."""
KEPT: Final = frozenset({"stopped", "compile", "gc", "agent_gone"})
"""Causes by a rank's own process or stack that no signal of another layer replaces."""

LOST_XID: Final = 79
NVLINK_XIDS: Final = frozenset({74, *range(144, 151)})
_GONE: Final = frozenset({"", "null", "NONE"})


def _cause(
    word: str, says: str, layer: Layer, worth: float, explains: frozenset[str], fatal: bool = False
) -> Cause:
    return Cause(word, says, layer, Owner.INFRA, worth, explains, fatal)


_OF_KIND: Final[Mapping[str, Cause]] = {
    "gpu_lost": _cause("gpu_lost", "GPU lost", Layer.GPU, 0.95, _STOPS, True),
    "gpu_missing": _cause("gpu_lost", "GPU lost", Layer.GPU, 0.95, _STOPS, True),
    "gpu_read_hung": _cause("gpu_read_hung", "the driver does not answer", Layer.GPU, 0.8, _STOPS, True),
    "recovery_action": _cause("recovery_action", "the driver asks for a reset", Layer.GPU, 0.9, _STOPS, True),
    "fabric_fault": _cause("fabric_fault", "out of its fabric", Layer.NVLINK, 0.8, _STOPS | _SLOW_NVLINK),
    "ecc": _cause("memory_errors", "memory errors", Layer.GPU, 0.6, _STOPS | _SLOW_GPU),
    "sxid": _cause("sxid", "NVSwitch error", Layer.NVLINK, 0.85, _STOPS | _SLOW_NVLINK),
    "link_down": _cause("link_down", "link down", Layer.LINK, 0.9, _STOPS | _SLOW_LINK, True),
    "port_down": _cause("link_down", "link down", Layer.LINK, 0.9, _STOPS | _SLOW_LINK, True),
    "port_missing": _cause("link_down", "port missing", Layer.LINK, 0.85, _STOPS | _SLOW_LINK, True),
    "rdma_missing": _cause("link_down", "RDMA device missing", Layer.LINK, 0.85, _STOPS | _SLOW_LINK, True),
    "link_flap": _cause("link_flap", "link flapped", Layer.LINK, 0.75, _STOPS | _SLOW_LINK),
    "rate_degraded": _cause("link_degraded", "link below its rate", Layer.LINK, 0.85, _SLOW_LINK),
    "link_degraded": _cause("link_degraded", "link below its rate", Layer.LINK, 0.85, _SLOW_LINK),
    "optics_weak": _cause("optics_weak", "weak optics", Layer.LINK, 0.6, _SLOW_LINK),
    "pcie_degraded": _cause("pcie_degraded", "PCIe below its width", Layer.GPU, 0.75, _SLOW_GPU | _SLOW_LINK),
    "pfc_watchdog": _cause("pause_storm", "pause storm", Layer.LINK, 0.85, _STOPS | _SLOW_LINK, True),
    "nic_error": _cause("nic_error", "network card error", Layer.LINK, 0.7, _STOPS | _SLOW_LINK),
    "switch_lost": _cause("switch_lost", "switch lost", Layer.LINK, 0.9, _STOPS | _SLOW_LINK, True),
    "switch_restarted": _cause("switch_restarted", "switch restarted", Layer.LINK, 0.85, _STOPS, True),
    "lockup": _cause("host_lockup", "a processor is stuck", Layer.HOST, 0.85, _STOPS | _SLOW_HOST, True),
    "rcu_stall": _cause("host_lockup", "the kernel stalls", Layer.HOST, 0.75, _STOPS | _SLOW_HOST),
    "kernel_panic": _cause("kernel_panic", "kernel panic", Layer.HOST, 0.95, _STOPS, True),
    "oom_kill": _cause("host_memory", "killed for host memory", Layer.HOST, 0.9, _STOPS, True),
    "fs_error": _cause("disk_error", "file system error", Layer.HOST, 0.6, _STOPS | _SLOW_STORAGE),
    "disk_error": _cause("disk_error", "disk error", Layer.HOST, 0.6, _STOPS | _SLOW_STORAGE),
    "power_lost": _cause("power_lost", "power lost", Layer.POWER, 0.9, _STOPS, True),
}  # fmt: skip
_STORAGE_KINDS: Final = (
    "mount_stall", "nfs_server_stalled", "nfs_not_responding", "mount_probe_stuck", "mount_failed",
    "fuse_daemon_gone", "fuse_daemon_blocked", "weka_disconnected", "lustre_evicted", "lustre_import_down",
)  # fmt: skip
KINDS: Final = frozenset({*_OF_KIND, *_STORAGE_KINDS, *CLOCK_FAULTS, *ENDS, OVER, "xid", "throttle"})
"""All that a join reads."""
_STORAGE: Final = _cause("storage_stall", "storage stalled", Layer.STORAGE, 0.85, _STOPS | _SLOW_STORAGE)
_BRAKE: Final = _cause("power_brake", "power brake", Layer.POWER, 0.9, _SLOW_GPU)
_THERMAL: Final = _cause("thermal_throttle", "thermal throttle", Layer.GPU, 0.9, _SLOW_GPU)
_SLOWED: Final = _cause("hw_slowdown", "clocks held down", Layer.GPU, 0.7, _SLOW_GPU)
_XID: Final = _cause("xid", "Xid", Layer.GPU, 0.9, _STOPS, True)
_APP_XID: Final = Cause("xid", "Xid", Layer.GPU, Owner.UNKNOWN, 0.65, CRASHES | NAMED_STALLS)
"""What the driver logs for errors of programs, too: page faults, illegal instructions."""
_LOST: Final = _cause("xid_79", "Xid 79, fell off the bus", Layer.GPU, 0.95, _STOPS, True)


def cause_of(signal: Signal) -> Cause | None:
    """What the signal would be the cause of, wherever it is; None: of nothing, as it follows or informs."""
    if signal.severity is Severity.INFO or is_echo(signal):
        return None
    if signal.kind == "xid":
        return _of_xid(signal)
    if signal.kind == "throttle":
        return _of_throttle(signal)
    if signal.kind in _STORAGE_KINDS:
        return _STORAGE
    found = _OF_KIND.get(signal.kind)
    if found is None or signal.severity is Severity.CRITICAL or found.layer is not Layer.GPU:
        return found
    return replace(found, worth=min(found.worth, 0.6), fatal=False)


def is_echo(signal: Signal) -> bool:
    """Whether the driver's words make it follow from another Xid."""
    root = signal.fields.get("root_code", "")
    return signal.kind == "xid" and root not in _GONE and root != str(signal.code)


def is_app_error(cause: Cause) -> bool:
    """Whether a program can have made it as well as the hardware."""
    return cause.owner is Owner.UNKNOWN


def _of_xid(signal: Signal) -> Cause | None:
    if signal.code is None:
        return None
    if signal.code == LOST_XID:
        return _LOST
    word, says = f"xid_{signal.code}", f"Xid {signal.code}"
    asked = signal.fields.get("recovery_action", "") not in _GONE
    if signal.code in NVLINK_XIDS:
        explains = _STOPS | _SLOW_NVLINK
        worth = 0.9 if signal.severity is Severity.CRITICAL or asked else 0.8
        return Cause(word, f"{says}, NVLink", Layer.NVLINK, Owner.INFRA, worth, explains, worth > 0.8)
    kind = _XID if signal.severity is Severity.CRITICAL or asked else _APP_XID
    return replace(kind, word=word, says=says)


def _of_throttle(signal: Signal) -> Cause | None:
    """A power cap of software is how GPUs run under full load: it explains nothing alone."""
    told = signal.fields.get("mask", "")
    mask = int(told) if told.isascii() and told.isdecimal() and len(told) < 12 else 0
    if mask & Throttle.HW_POWER_BRAKE:
        return _BRAKE
    if mask & (Throttle.HW_THERMAL | Throttle.SW_THERMAL):
        return _THERMAL
    return _SLOWED if mask & Throttle.HW_SLOWDOWN else None
