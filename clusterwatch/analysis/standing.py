"""Which faults of parts stand, from events as they come: begun, told again, over, or too old to hold.

In: signals in the order of their times. Out: ``Standing``, state that can be kept. A source that sees a fault
stand tells its end; what only happens (a line of a log) holds for a while. An agent that starts again tells
what stands anew: what it does not tell within its slowest period is over.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Final

from clusterwatch.analysis.health import INSTANT, VERDICT_OF
from clusterwatch.analysis.model import Severity
from clusterwatch.analysis.signals import Signal

HOLDS_NS: Final = 600 * 10**9
GPU_HOLDS_NS: Final = 6 * 3_600 * 10**9
"""A GPU whose driver wrote a fatal line is not well because ten quiet minutes passed."""
TOLD_AGAIN_NS: Final = 360 * 10**9
"""The slowest source looks every 300 s."""
STARTED: Final = "agent_started"
PAUSED: Final = "gpu_paused"
OVER: Final = "over"
ENDS: Final = {"link_up": "link_down", "nfs_ok": "nfs_not_responding"}
FROM_LOG: Final = "kernel_log"
STANDING_MAX: Final = 20_000

Key = tuple[int, str, str, int]
"""node (0: none), part, kind, code (0: none)"""


@dataclass(frozen=True, slots=True)
class Held:
    """A signal that stands. ``doubted_ns``: its agent started again then and has not told it since."""

    signal: Signal
    told_ns: int
    doubted_ns: int | None = None


@dataclass(slots=True)
class Standing:
    """What stands, by key."""

    held: dict[Key, Held]
    left_out: int = 0
    """signals beyond ``STANDING_MAX``"""

    @classmethod
    def empty(cls) -> Standing:
        return cls({})

    def take(self, signals: Iterable[Signal]) -> None:
        """Takes what was told, the oldest first."""
        for one in signals:
            if one.kind == STARTED:
                self._doubt(one)
            elif one.kind in ENDS:
                self._end(one, ENDS[one.kind])
            elif one.fields.get(OVER):
                self._end(one, one.kind)
            elif one.kind in VERDICT_OF or one.kind == PAUSED:
                self._hold(one)

    def forget(self, now_ns: int) -> None:
        """Lets go of what does not hold any more."""
        for key, held in list(self.held.items()):
            if self._is_over(held, now_ns):
                del self.held[key]

    @property
    def signals(self) -> list[Signal]:
        """Those that are worth a fault."""
        return [held.signal for held in self.held.values() if held.signal.kind != PAUSED]

    @property
    def paused(self) -> set[int]:
        """Nodes whose GPUs are left alone on purpose."""
        told = (held.signal for held in self.held.values() if held.signal.kind == PAUSED)
        return {one.node_id for one in told if one.node_id is not None}

    def _hold(self, one: Signal) -> None:
        key = _key(one)
        before = self.held.get(key)
        if before is None and len(self.held) >= STANDING_MAX:
            self.left_out += 1
            return
        began_ns = min(before.signal.at_ns, one.at_ns) if before is not None else one.at_ns
        told_ns = max(before.told_ns, one.at_ns) if before is not None else one.at_ns
        self.held[key] = Held(replace(one, at_ns=began_ns), told_ns)

    def _end(self, one: Signal, kind: str) -> None:
        for key in [key for key in self.held if key[:3] == (one.node_id or 0, one.part, kind)]:
            del self.held[key]

    def _doubt(self, started: Signal) -> None:
        for key, held in self.held.items():
            if key[0] == (started.node_id or 0) and not _only_happens(held.signal):
                self.held[key] = replace(held, doubted_ns=started.at_ns)

    def _is_over(self, held: Held, now_ns: int) -> bool:
        if held.doubted_ns is not None and now_ns - held.doubted_ns > TOLD_AGAIN_NS:
            return True
        return _only_happens(held.signal) and now_ns - held.told_ns > _holds_ns(held.signal)


def _key(one: Signal) -> Key:
    return one.node_id or 0, one.part, one.kind, one.code or 0


def _only_happens(one: Signal) -> bool:
    return one.kind in INSTANT or one.source == FROM_LOG


def _holds_ns(one: Signal) -> int:
    is_gpu = VERDICT_OF.get(one.kind, "").startswith("gpu")
    return GPU_HOLDS_NS if is_gpu and one.severity is Severity.CRITICAL else HOLDS_NS
