"""WEKA's client: whether each frontend is connected, its containers, and how long requests take.

In: /proc/wekafs/interface and /proc/wekafs/stat, which the driver has; ``weka local ps --json``
(commands/weka_local_ps.json) once in five minutes. Out: samples of ``weka/<container>`` and ``host``;
standing events ``weka_disconnected`` and ``weka_container_down``. Source: the driver's text as WEKA's own
operator (waitForFrontendDisconnect) and NVIDIA's guide to GPUDirect Storage read it.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Any, Final

from collectors.minute import MetricSpec
from collectors.sources.base import HOST, Attribute, Reading, Sample, SourceEvent
from collectors.sources.tools import output
from collectors.sources.tree import Tree

INTERFACE: Final = "proc/wekafs/interface"
STATISTICS: Final = "proc/wekafs/stat"
RECORDING: Final = "weka_local_ps.json"
PS_EVERY_S: Final = 300.0
PS_S: Final = 8.0
CONTAINERS_MAX: Final = 32
_CONTAINER: Final = re.compile(r"Container=([A-Za-z0-9_.-]{1,64})")
_CONNECTED: Final = "Connected frontend"
_OPERATION: Final = re.compile(
    r"(total|read|write|lookup|getattr|open):\s+(\d{1,12}) us\s+(\d{1,12}) us\s+\d{1,15} ns\s+\d{1,15} ns\s+"
    r"(\d{1,20})"
)
_NAME: Final = re.compile(r"[A-Za-z0-9_.-]{1,64}")


class WekaSource:
    """The WEKA client of this node."""

    name = "weka"
    period_s = 30.0
    deadline_s = 12.0
    metrics = (
        MetricSpec("frontend_connected_count", "count", 1.0),
        MetricSpec("container_running_count", "count", 1.0),
        *(MetricSpec(f"weka_{op}_wait_s", "s", 0.0001) for op in ("read", "write", "total")),
    )

    def __init__(self) -> None:
        self._asked_s = float("-inf")
        self._containers: dict[str, str] = {}

    def read(self, tree: Tree, at_s: float) -> Reading:
        try:
            connected = frontends(tree.read_text(INTERFACE, 262_144))
        except OSError:
            connected = {}
        there = tree.exists(INTERFACE)
        if there or not tree.is_live:
            self._ask(tree, at_s)
        samples = [
            Sample(f"weka/{name}", "frontend_connected_count", int(is_connected))
            for name, is_connected in connected.items()
        ]
        samples += [
            Sample(f"weka/{name}", "container_running_count", int(status == "Running"))
            for name, status in self._containers.items()
        ]
        samples += _statistics(tree)
        return Reading(samples, [*_disconnected(connected), *_stopped(self._containers)])

    def _ask(self, tree: Tree, at_s: float) -> None:
        """What containers run: by WEKA's own tool, rarely; a tool that fails says nothing of them."""
        if tree.is_paced and at_s - self._asked_s < PS_EVERY_S:
            return
        self._asked_s = at_s
        try:
            said = output(tree, RECORDING, ["weka", "local", "ps", "--json"], PS_S, 1_048_576)
            self._containers = containers(json.loads(said))
        except (OSError, ValueError, RecursionError):
            self._containers = {}


def frontends(text: str) -> dict[str, bool]:
    """Container -> whether its frontend is connected to the driver."""
    found: dict[str, bool] = {}
    for line in text.splitlines()[:4_096]:
        if (match := _CONTAINER.match(line)) and (match[1] in found or len(found) < CONTAINERS_MAX):
            found[match[1]] = found.get(match[1], False) or _CONNECTED in line
    return found


def containers(said: Any) -> dict[str, str]:
    """Container -> ``runStatus``."""
    found: dict[str, str] = {}
    for container in said[:CONTAINERS_MAX] if isinstance(said, list) else ():
        name = container.get("name") if isinstance(container, dict) else None
        status = container.get("runStatus") if isinstance(container, dict) else None
        if (
            isinstance(name, str)
            and _NAME.fullmatch(name)
            and isinstance(status, str)
            and _NAME.fullmatch(status)
        ):
            found[name] = status
    return found


def operations(text: str) -> dict[str, tuple[float, float, int]]:
    """Operation -> (average s, longest s, count) since the driver was loaded."""
    found: dict[str, tuple[float, float, int]] = {}
    for match in _OPERATION.finditer(text):
        found.setdefault(match[1], (int(match[2]) / 1e6, int(match[3]) / 1e6, int(match[4])))
    return found


def _statistics(tree: Tree) -> Iterator[Sample]:
    try:
        text = tree.read_text(STATISTICS, 262_144)
    except OSError:
        return
    for name, (average_s, longest_s, count) in operations(text).items():
        yield Sample(HOST, f"weka_{name}_wait_s", average_s if count else None, "ok" if count else "no_ops")
        yield Sample(
            HOST, f"weka_{name}_longest_s", longest_s if count else None, "ok" if count else "no_ops"
        )
        yield Sample(HOST, f"weka_{name}_total", count)


def _disconnected(connected: dict[str, bool]) -> Iterator[SourceEvent]:
    for name, is_connected in connected.items():
        if not is_connected:
            text = f"WEKA's frontend {name} is not connected to the driver: what waits for it hangs"
            yield SourceEvent(f"weka/{name}", "weka_disconnected", text, "critical", standing=True)


def _stopped(found: dict[str, str]) -> Iterator[SourceEvent]:
    for name, status in found.items():
        if status != "Running":
            told: dict[str, Attribute] = {"status": status}
            text = f"WEKA's container {name} does not run: {status}"
            entity = f"weka/{name}"
            yield SourceEvent(entity, "weka_container_down", text, attributes=told, standing=True)
