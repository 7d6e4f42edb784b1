"""Which faults of parts stand, from signals as they come: begun, told again, over, or too old to hold.

In: signals in the order of their times; the same ones may come again. Out: ``Standing``, state that can be
kept. A source that sees a fault stand tells its end; what only happens (a line of a log) holds for a while.
An agent that starts again tells anew what stands: what it has not told within its slowest period is over.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Final

from clusterwatch.analysis import health_kinds as kinds
from clusterwatch.analysis.model import Severity
from clusterwatch.analysis.signals import Signal

HOLDS_NS: Final = 600 * 10**9
GPU_HOLDS_NS: Final = 6 * 3_600 * 10**9
"""A GPU whose driver wrote a fatal line is not well because ten quiet minutes passed."""
ANSWERS_NS: Final = 600 * 10**9
"""A lost GPU whose values are known again for so long is back; before that a reset may just have begun."""
TOLD_AGAIN_NS: Final = 360 * 10**9
"""The slowest source looks every 300 s."""
FLAPS_WITHIN_NS: Final = 1_800 * 10**9
FLAPS_MIN: Final = 3
"""A link that went down so often in half an hour is unstable, and up only when it stays so."""
FLAPS_QUIET_NS: Final = 600 * 10**9
READ_BACK_NS: Final = 24 * 3_600 * 10**9
"""The oldest signals that may be read again: so long it is remembered that a part is well."""
STANDING_MAX: Final = 40_000
"""A storm of a whole cluster with 24,576 GPUs, and some more."""
OF_TELLER_MAX: Final = 256
"""No agent can fill the table alone."""

Key = tuple[int, str, str, int]
"""node (0: none), part, kind, code (0: none)"""


@dataclass(frozen=True, slots=True)
class Held:
    """A signal that stands.

    Attributes:
        doubted_ns: its agent started again then and has not told it since.
        begins_ns: when a link went down, within the last half hour.
        over_ns: a link that has come and gone is kept for a while after its end, and a GPU that is back.
        answers_ns: since when a GPU that was lost has values again.
    """

    signal: Signal
    told_ns: int
    doubted_ns: int | None = None
    begins_ns: tuple[int, ...] = ()
    over_ns: int | None = None
    answers_ns: int | None = None

    @property
    def is_unstable(self) -> bool:
        return len(self.begins_ns) >= FLAPS_MIN


@dataclass(slots=True)
class Standing:
    """What stands, by key."""

    held: dict[Key, Held]
    left_out: int = 0
    """signals beyond the bounds"""

    @classmethod
    def empty(cls) -> Standing:
        return cls({})

    def take(self, signals: Iterable[Signal]) -> None:
        """Takes what was told, the oldest first. Cost: linear in the signals, and in what stands once."""
        tellers = Counter(_teller(held.signal) for held in self.held.values())
        by_part = _Index(self.held)
        for one in signals:
            if one.kind == kinds.STARTED:
                self._doubt(one)
            elif one.kind in kinds.ENDS:
                self._end(one, kinds.ENDS[one.kind], by_part)
            elif one.kind == kinds.OVER:
                self._end(one, one.fields.get("kind", ""), by_part)
            elif _is_kept(one):
                self._hold(one, tellers, by_part)

    def answer(self, answering: Iterable[Key], now_ns: int) -> None:
        """Notes which lost GPUs have values again; one that falls silent once more begins anew."""
        now = set(answering)
        for key, held in self.held.items():
            since_ns = (held.answers_ns or now_ns) if key in now else None
            if since_ns != held.answers_ns:
                self.held[key] = replace(held, answers_ns=since_ns)

    def forget(self, now_ns: int) -> None:
        """Lets go of what does not hold any more."""
        for key, held in list(self.held.items()):
            if _is_gone(held, now_ns):
                del self.held[key]
            elif held.over_ns is None and held.answers_ns and now_ns - held.answers_ns >= ANSWERS_NS:
                self.held[key] = replace(held, over_ns=now_ns)
            elif held.begins_ns and held.begins_ns[0] < now_ns - FLAPS_WITHIN_NS:
                recent = tuple(at_ns for at_ns in held.begins_ns if at_ns >= now_ns - FLAPS_WITHIN_NS)
                self.held[key] = replace(held, begins_ns=recent)

    @property
    def faults(self) -> list[Held]:
        """Those that are worth a fault, or go with one."""
        return [
            held
            for held in self.held.values()
            if held.signal.kind not in (kinds.PAUSED, kinds.DRAINED)
            and (held.over_ns is None or held.is_unstable)
        ]

    @property
    def paused(self) -> set[int]:
        """Nodes whose GPUs are left alone on purpose."""
        told = (held.signal for held in self.held.values() if held.signal.kind == kinds.PAUSED)
        return {one.node_id for one in told if one.node_id is not None}

    @property
    def drained(self) -> dict[int, str]:
        """Nodes that their scheduler gives no work, with the reason it was told."""
        told = (held.signal for held in self.held.values() if held.signal.kind == kinds.DRAINED)
        return {one.node_id: one.fields.get("reason", "") for one in told if one.node_id is not None}

    def _hold(self, one: Signal, tellers: Counter[int], by_part: _Index) -> None:
        key = _key(one)
        before = self.held.get(key)
        if before is None:
            if len(self.held) >= STANDING_MAX or tellers[_teller(one)] >= OF_TELLER_MAX:
                self.left_out += 1
                return
            tellers[_teller(one)] += 1
            by_part.add(key)
            begins_ns = (one.at_ns,) if _is_link(one) else ()
            self.held[key] = Held(one, one.at_ns, begins_ns=begins_ns)
            return
        if before.over_ns is not None and one.at_ns <= before.over_ns:
            return  # read again, and over since
        self.held[key] = _told_again(before, one)

    def _end(self, one: Signal, kind: str, by_part: _Index) -> None:
        for key in by_part.of(one.node_id or 0, one.part, kind):
            held = self.held.get(key)
            if held is None or one.at_ns < held.told_ns:
                continue
            if _is_link(held.signal):
                self.held[key] = replace(held, over_ns=one.at_ns, doubted_ns=None)
            else:
                del self.held[key]

    def _doubt(self, started: Signal) -> None:
        for key, held in self.held.items():
            mine = held.signal.teller_id == started.teller_id and held.signal.stands
            if mine and held.told_ns < started.at_ns and held.over_ns is None:
                self.held[key] = replace(held, doubted_ns=started.at_ns)


class _Index:
    """Keys by node, part and kind, whatever their code."""

    def __init__(self, keys: Iterable[Key]) -> None:
        self._keys: dict[tuple[int, str, str], list[Key]] = {}
        for key in keys:
            self.add(key)

    def add(self, key: Key) -> None:
        self._keys.setdefault(key[:3], []).append(key)

    def of(self, node_id: int, part: str, kind: str) -> list[Key]:
        return self._keys.get((node_id, part, kind), [])


def _told_again(before: Held, one: Signal) -> Held:
    """The newest words, the first time; a line of a log does not make less of what a source sees stand."""
    came_back = before.over_ns is not None
    newer = one if one.at_ns >= before.told_ns else before.signal
    began_ns = one.at_ns if came_back else before.signal.at_ns
    stands = one.stands or (before.signal.stands and not came_back)
    begins_ns = before.begins_ns
    if _is_link(one) and came_back:
        begins_ns = (*begins_ns, one.at_ns)
    doubted_ns = before.doubted_ns
    if doubted_ns is not None and one.at_ns >= doubted_ns:
        doubted_ns = None
    told_ns = max(before.told_ns, one.at_ns)
    answers_ns = before.answers_ns if one.at_ns <= before.told_ns else None
    signal = replace(newer, at_ns=began_ns, stands=stands)
    return Held(signal, told_ns, doubted_ns, begins_ns, answers_ns=answers_ns)


def _is_gone(held: Held, now_ns: int) -> bool:
    if held.over_ns is not None:
        kept_ns = FLAPS_WITHIN_NS if held.begins_ns else READ_BACK_NS
        return now_ns - held.over_ns > (FLAPS_QUIET_NS if held.is_unstable else kept_ns)
    if held.doubted_ns is not None and now_ns - held.doubted_ns > TOLD_AGAIN_NS:
        return True
    return not held.signal.stands and now_ns - held.told_ns > _holds_ns(held.signal)


def _is_kept(one: Signal) -> bool:
    if one.kind in (kinds.PAUSED, kinds.DRAINED):
        return True
    return kinds.verdict_of(one) is not None or kinds.is_echo(one)


def _is_link(one: Signal) -> bool:
    return kinds.verdict_of(one) == "link_down"


def _key(one: Signal) -> Key:
    return one.node_id or 0, one.part, one.kind, one.code or 0


def _teller(one: Signal) -> int:
    return one.teller_id or one.node_id or 0


def _holds_ns(one: Signal) -> int:
    is_gpu = (kinds.verdict_of(one) or "").startswith("gpu")
    return GPU_HOLDS_NS if is_gpu and one.severity is Severity.CRITICAL else HOLDS_NS
