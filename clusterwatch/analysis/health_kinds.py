"""What a signal means for its part: a fault with its verdict, an echo of another one, or nothing.

In: a ``Signal``. Out: a word of class ``health``, or None. Kinds are those of ``collectors.sources`` and
``collectors.pollers``; one that is not named here is context of something else.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from clusterwatch.analysis.model import Severity
from clusterwatch.analysis.signals import Signal
from collectors.wire.metrics import Throttle

LOST_XID: Final = 79
STARTED: Final = "agent_started"
OVER: Final = "fault_over"
"""``fields.kind`` says of what"""
PAUSED: Final = "gpu_paused"
DRAINED: Final = "node_drained"
ENDS: Final = {"link_up": "link_down", "nfs_ok": "nfs_not_responding"}
"""Lines of a log that tell an end."""
DEAD: Final = frozenset({"kernel_panic", "node_down"})
"""The whole host is gone: what its parts tell, or others of them, follows from it."""

_GPU_LOST: Final = ("gpu_lost", "gpu_missing")
_GPU_FAULT: Final = ("recovery_action", "fabric_fault")
_LINK_DOWN: Final = ("link_down", "port_down", "port_missing", "rdma_missing", "nic_missing")
_LINK_DEGRADED: Final = (
    "rate_degraded", "link_flap", "optics_weak", "pcie_degraded", "xgmi_error", "nvlink_missing",
    "pfc_watchdog",
)  # fmt: skip
_POWER: Final = (
    "power_lost", "psu_failed", "bbu_failed", "on_battery", "power_redundancy_lost", "power_supply_lost",
)  # fmt: skip
_COOLING: Final = ("over_temperature", "fan_failed")
_STORAGE: Final = (
    "mount_stall", "nfs_server_stalled", "nfs_not_responding", "mount_probe_stuck", "mount_failed",
    "fuse_daemon_gone", "weka_disconnected", "lustre_import_down", "lustre_evicted",
)  # fmt: skip
_NODE: Final = ("lockup", "rcu_stall", "mount_missing", *DEAD)
_VERDICT_OF: Final[Mapping[str, str]] = {
    kind: verdict
    for verdict, kinds in (
        ("gpu_lost", _GPU_LOST), ("gpu_fault", _GPU_FAULT), ("link_down", _LINK_DOWN),
        ("link_degraded", _LINK_DEGRADED), ("power_fault", _POWER), ("cooling_fault", _COOLING),
        ("storage_stalled", _STORAGE), ("node_fault", _NODE),
    )
    for kind in kinds
}  # fmt: skip
_NODE_IF_CRITICAL: Final = frozenset(
    {"fs_error", "disk_error", "nvme_error", "nvme_missing", "nvme_plp_failed", "nvme_spare_low"}
)
_ECHOES: Final = frozenset({"xid", "sxid", "pcie_error", "ecc"})
READ: Final = frozenset(
    {
        *_VERDICT_OF, *_NODE_IF_CRITICAL, *_ECHOES, *ENDS, "gpu_read_hung", "throttle", STARTED, OVER, PAUSED,
        DRAINED,
    }
)  # fmt: skip
"""Kinds of events that say anything here."""
ORDER: Final = (
    "node_fault", "gpu_lost", "gpu_fault", "link_down", "link_degraded", "power_fault", "cooling_fault",
    "storage_stalled",
)  # fmt: skip
"""Of several that one part has the first is the fault, the others go with it."""


def verdict_of(signal: Signal) -> str | None:
    """The fault that a signal tells of by itself; None: none, as with information and a job's own errors."""
    if signal.severity is Severity.INFO:
        return None
    is_critical = signal.severity is Severity.CRITICAL
    if signal.kind == "xid":
        return _of_xid(signal, is_critical)
    if signal.kind in ("ecc", "gpu_read_hung", "pcie_error"):
        return _by_part(signal, is_critical)
    if signal.kind == "throttle":
        return _of_throttle(signal)
    if signal.kind == "sxid" or signal.kind in _NODE_IF_CRITICAL:
        return "node_fault" if is_critical else None
    return _VERDICT_OF.get(signal.kind)


def is_echo(signal: Signal) -> bool:
    """Whether it goes with a fault of the same part, and is none alone."""
    return signal.kind in _ECHOES and verdict_of(signal) is None


def is_of_gpu(signal: Signal) -> bool:
    return signal.part.startswith(("gpu/", "nvlink/")) or signal.kind in ("xid", *_GPU_LOST)


def is_power_brake(signal: Signal) -> bool:
    return signal.kind == "throttle" and bool(_mask(signal) & Throttle.HW_POWER_BRAKE)


def _of_xid(signal: Signal, is_critical: bool) -> str | None:
    """The catalogue's severity has been told by the agent; what the driver itself asks for wins."""
    if signal.code == LOST_XID:
        return "gpu_lost"
    asked = signal.fields.get("recovery_action", "") not in ("", "null", "NONE")
    return "gpu_fault" if is_critical or asked else None


def _by_part(signal: Signal, is_critical: bool) -> str | None:
    if signal.part.startswith("gpu/"):
        return "gpu_fault" if is_critical or signal.kind == "ecc" else None
    if not is_critical:
        return None
    return "link_degraded" if signal.part.startswith(("port/", "nic/")) else "node_fault"


def _of_throttle(signal: Signal) -> str | None:
    mask = _mask(signal)
    if mask & Throttle.HW_POWER_BRAKE:
        return "power_fault"
    return "cooling_fault" if mask & (Throttle.HW_THERMAL | Throttle.SW_THERMAL) else None


def _mask(signal: Signal) -> int:
    told = signal.fields.get("mask", "")
    return int(told) if told.isascii() and told.isdecimal() and len(told) < 12 else 0
