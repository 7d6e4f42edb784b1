"""Whole recorded nodes, each with many traps, and the lines that ``once`` must and must not print for them.

Each module has ``node()``: files of two snapshots 60 s apart, and what is right. Written from the contract of
the recorded trees and from public reports of how such nodes fail, not from the sources' code.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

INTERVAL_S = 60
Files = Mapping[str, str | bytes]
Samples = Mapping[str, tuple[float | None, str]]


@dataclass(frozen=True, slots=True)
class Node:
    """Two snapshots and what is right.

    Attributes:
        samples: "entity metric" -> (value, quality), exactly.
        events: each must be printed: the keys given, and of ``attributes`` those given.
        silent: "entity metric" that must give no value: no line, or null.
        labelled: "entity metric" -> GPU instance -> value.
        unless: none of the printed events may fulfil any of these.
    """

    before: Files
    after: Files
    samples: Samples
    events: tuple[Mapping[str, Any], ...] = ()
    silent: tuple[str, ...] = ()
    unless: tuple[Callable[[Mapping[str, Any]], bool], ...] = ()
    labelled: Mapping[str, Mapping[str, float]] = field(default_factory=dict)


def event(entity: str, kind: str, code: int | None = None, **more: Any) -> dict[str, Any]:
    """What of an event must be right. ``t`` (seconds after boot) becomes its time."""
    told: dict[str, Any] = {"entity": entity, "kind": kind, "code": code}
    if "severity" in more:
        told["severity"] = more.pop("severity")
    if "t" in more:
        told["ts_ns"] = BOOT_S * 10**9 + round(more.pop("t") * 1e6) * 1000
    return told | {"attributes": more}


BOOT_S = 1_798_000_000


def base(host: str, boot: str = "5f7e0101-0000-4000-8000-000000000001") -> dict[str, str | bytes]:
    """What every node has."""
    return {
        "proc/sys/kernel/hostname": f"{host}\n",
        "proc/sys/kernel/random/boot_id": f"{boot}\n",
        "proc/stat": f"cpu  100 0 50 900 10 0 0 0 0 0\nbtime {BOOT_S}\n",
    }


def uuid(number: int) -> str:
    return f"GPU-e7a4{number:04x}-2b6d-4f18-8c53-71d2f6b0a1c0"
