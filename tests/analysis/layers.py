"""A made job for the join across layers: hosts of eight GPUs, four to a leaf, two to a rack, and signals."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from clusterwatch.analysis.correlate_model import Onset, Place, Vitals, World
from clusterwatch.analysis.model import Finding, GroupRef, Owner, Severity
from clusterwatch.analysis.signals import Signal

S = 1_000_000_000
NOON = 1_764_763_200 * S
"""2025-12-03 12:00:00 UTC"""
ONSET = NOON + 190 * S
"""12:03:10 UTC"""
GPUS = 8


def places(hosts: int = 8, **more: Any) -> dict[int, Place]:
    """Rank ``8 * host + gpu``; node ids begin at 1."""
    return {
        host * GPUS + gpu: Place(
            host * GPUS + gpu, host + 1, f"host-{host}", gpu, uuid(host, gpu), 1_000 + gpu,
            frozenset({f"mlx5_{gpu}"}), f"leaf-{host // 4}", f"rack-{host // 2}", **more,
        )
        for host in range(hosts)
        for gpu in range(GPUS)
    }  # fmt: skip


def uuid(host: int, gpu: int) -> str:
    return f"GPU-{host}-{gpu}"


def signal(kind: str, host: int = 1, part: str = "host", at_s: float = 0.0, **more: Any) -> Signal:
    """``at_s``: seconds after the onset."""
    told: dict[str, Any] = {
        "until_ns": None, "node_id": host + 1, "host": f"host-{host}", "severity": Severity.CRITICAL,
        "text": f"{kind} told", "source": "kernel_log", "clock_error_s": 0.01,
    }  # fmt: skip
    return Signal(kind=kind, part=part, at_ns=ONSET + int(at_s * S), **(told | more))


def xid(code: int, host: int = 1, gpu: int = 3, at_s: float = 1.0, **more: Any) -> Signal:
    return signal("xid", host, f"gpu/{uuid(host, gpu)}", at_s, code=code, **more)


def throttle(host: int, gpu: int, mask: int, reason: str, at_s: float = -5.0, **more: Any) -> Signal:
    fields = {"mask": str(mask), "reasons": f'["{reason}"]', "standing": "true"}
    return signal(
        "throttle", host, f"gpu/{uuid(host, gpu)}", at_s, fields=fields, source="gpu_nvml", **more
    )  # fmt: skip


def brake(host: int, gpu: int, at_s: float = -5.0, **more: Any) -> Signal:
    return throttle(host, gpu, 0x80, "hw_power_brake_slowdown", at_s, **more)


def link_down(host: int = 1, device: str = "mlx5_3", at_s: float = 1.0, **more: Any) -> Signal:
    return signal("link_down", host, f"port/{device}/1", at_s, **more)


def link_up(host: int = 1, device: str = "mlx5_3", at_s: float = 3.0) -> Signal:
    return signal("link_up", host, f"port/{device}/1", at_s, severity=Severity.INFO)


def world(*signals: Signal, hosts: int = 8, slack_s: float = 3.0, **more: Any) -> World:
    told: dict[str, Any] = {"places": places(hosts), "onset": Onset(ONSET, slack_s)}
    return World(signals=signals, **(told | more))


def finding(verdict: str, fault_class: str = "hang", **more: Any) -> Finding:
    told: dict[str, Any] = {
        "severity": Severity.CRITICAL, "summary": f"{verdict} of the job", "rule": f"hang.{verdict} v1",
        "confidence": 0.6, "owner": Owner.UNKNOWN,
    }  # fmt: skip
    return Finding(verdict=verdict, fault_class=fault_class, **(told | more))


def joined_call(hosts: int = 8) -> Finding:
    """Every rank waits in one call that never ends."""
    group = GroupRef("0", "default_pg", tuple(range(hosts * GPUS)))
    return finding("all_joined_not_finished", confidence=0.3, group=group)


def missing(*ranks: int, **more: Any) -> Finding:
    return finding("missing_rank", culprit_ranks=ranks, **more)


def slow(verdict: str, *ranks: int, fault_class: str = "hardware") -> Finding:
    return finding(verdict, fault_class, severity=Severity.WARNING, culprit_ranks=ranks)


def spinning(hosts: int = 8, **odd: Vitals) -> dict[int, Vitals]:
    """GPUs that spin in a call while nothing moves; ``rank_5=Vitals(...)`` does otherwise."""
    usual = Vitals(util_ratio=1.0, temperature_c=55.0, port_mib_per_s=0.0)
    found = dict.fromkeys(range(hosts * GPUS), usual)
    return found | {int(name.removeprefix("rank_")): one for name, one in odd.items()}


def checkpointing(found: dict[int, Place]) -> dict[int, Place]:
    return {rank: replace(place, phase="checkpoint") for rank, place in found.items()}
