"""Ports of a switch: from what any dialect tells to samples and events.

In: ``SwitchFacts`` and a clock. Out: ``Reading`` with samples of ``switchport/<switch>/<port>`` and
``switch/<switch>``; events ``port_down``, ``optics_weak``, ``pfc_watchdog``, ``rdma_on_lossy_priority`` while
they stand, ``switch_incomplete`` where it does not tell all; ``link_flap``, ``counter_reset`` and
``switch_restarted`` when they happen. Pure: no I/O.
"""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Final

from collectors.pollers.switch_facts import Neighbour, Port, SwitchFacts, priority_of
from collectors.sources.base import FIRST_SAMPLE, OK, RESET, Attribute, Reading, Sample, SourceEvent
from collectors.sources.counters import (
    NOT_AVAILABLE,
    OUT_OF_RANGE,
    Change,
    Count,
    CounterGroup,
    samples,
)
from collectors.sources.tree import printable
from collectors.wire.records import Severity

FLAP_WINDOW_S: Final = 600.0
FLAPS_MIN: Final = 2
MISSING_MAX: Final = 16
RATE_GBPS_MAX: Final = 10_000.0
OVER_RATE_MAX: Final = 1.25
"""Switches copy their counters every few seconds, so a look may see up to that more than the rate."""
NO_LIGHT_DBM: Final = -40.0
LIGHT_DBM_MAX: Final = 20.0
LANE_SPREAD_DB: Final = 4.0
"""A lane that gets so much less than the best one of its module is about to fail."""
TEMPERATURE_C: Final = (-40.0, 150.0)
WATCHDOG: Final = "pfc_watchdog"
LINK_DOWN: Final = "link_down"
NO_LIGHT: Final = "no_light"
RESTART_SLACK_S: Final = 60.0
_PAUSE: Final = re.compile(r"[rt]x_(?:pfc|(?:prio\d_)?pause(?:_duration)?)")
_QUEUE: Final = re.compile(r"tx_queue(\d)_bytes")
_ACTED: Final = ("pfc_watchdog_drops", "pfc_watchdog_storms")


@dataclass(frozen=True, slots=True)
class Rules:
    """What a site expects of its ports.

    Attributes:
        lossless_priorities: where RDMA belongs; None: as each port tells its own PFC.
        lossy_priorities: where other traffic may be (control, congestion notices).
        lossy_ratio_max: share of the port's rate that an unexpected priority may carry.
        rx_power_min_dbm: light below this is weak.
        untold_zeros: counters that are told only when they are not 0.
    """

    lossless_priorities: frozenset[int] | None = None
    lossy_priorities: frozenset[int] = frozenset({6, 7})
    lossy_ratio_max: float = 0.01
    rx_power_min_dbm: float = -10.0
    untold_zeros: frozenset[str] = frozenset()


@dataclass(slots=True)
class _Known:
    """What is remembered of one port."""

    group: CounterGroup
    epoch: str = ""
    was_up: bool = False
    neighbours: list[Neighbour] = field(default_factory=list)
    flaps: deque[tuple[float, int, int]] = field(default_factory=deque)
    """(when, times it came back, times it went) in the window"""
    told_flaps: int = 0


class SwitchPorts:
    """One switch over time."""

    def __init__(self, name: str, rules: Rules) -> None:
        self._name = name
        self._rules = rules
        self._ports: dict[str, _Known] = {}
        self._uptime_s: float | None = None
        self._at_s: float | None = None

    def reading(self, facts: SwitchFacts, at_s: float) -> Reading:
        """What one look gives; ``at_s`` is when the switch answered, by a monotonic clock."""
        restarted = self._has_restarted(facts, at_s)
        found = list(self._switch_samples(facts))
        events: list[SourceEvent] = []
        if restarted:
            text = f"{self._name} restarted: its counters began anew"
            events.append(SourceEvent(f"switch/{self._name}", "switch_restarted", text, "warning"))
        if facts.missing:
            events.append(self._incomplete(facts.missing))
        seen = {}
        for port in facts.ports.values():
            known = self._ports.get(port.name) or _Known(CounterGroup(facts.kinds), port.epoch)
            is_reset = restarted or port.epoch != known.epoch
            if is_reset:
                known = replace(known, group=CounterGroup(facts.kinds), epoch=port.epoch)
            look = _Look(self._name, port, known, self._rules, at_s, is_reset)
            found += look.samples()
            events += look.events()
            seen[port.name] = known
        self._ports = seen
        return Reading(found, events)

    def _incomplete(self, missing: list[str]) -> SourceEvent:
        told = [printable(one)[:128] for one in missing[:MISSING_MAX]]
        text = f"{self._name} does not tell everything: {'; '.join(told)}"[:300]
        return SourceEvent(
            f"switch/{self._name}", "switch_incomplete", text, "info",
            attributes={"switch": self._name, "missing": told}, standing=True,
        )  # fmt: skip

    def _has_restarted(self, facts: SwitchFacts, at_s: float) -> bool:
        """An uptime that fell, unless it only came to its own end; or one shorter than the time passed."""
        last, last_at_s, now = self._uptime_s, self._at_s, facts.uptime_s
        if now is None:
            return False
        self._uptime_s, self._at_s = now, at_s
        if last is None or last_at_s is None:
            return False
        expected_s = last + (at_s - last_at_s)
        if now >= last:
            return now + RESTART_SLACK_S < at_s - last_at_s
        wraps_s = facts.uptime_wraps_s
        return wraps_s is None or abs(now + wraps_s - expected_s) > RESTART_SLACK_S

    def _switch_samples(self, facts: SwitchFacts) -> Iterator[Sample]:
        entity = f"switch/{self._name}"
        states = [port.oper_up for port in facts.ports.values() if port.admin_up is not False]
        yield Sample(entity, "ports_count", len(facts.ports))
        yield Sample(entity, "ports_up_count", sum(state is True for state in states))
        yield Sample(entity, "ports_down_count", sum(state is False for state in states))
        if facts.uptime_s is not None:
            yield Sample(entity, "uptime_s", facts.uptime_s)


class _Look:
    """One look at one port."""

    def __init__(
        self, switch: str, port: Port, known: _Known, rules: Rules, at_s: float, is_reset: bool
    ) -> None:
        self._switch, self._port, self._known = switch, port, known
        self._rules, self._at_s = rules, at_s
        self._entity = f"switchport/{switch}/{port.name}"
        self._changes = known.group.update(port.counters, at_s)
        if is_reset:
            self._changes = {
                name: Change(None, None, RESET) if change.quality == FIRST_SAMPLE else change
                for name, change in self._changes.items()
            }
        self._bytes_per_s = dict(self._rates())

    def samples(self) -> Iterator[Sample]:
        port = self._port
        yield self._state("oper_up_count", port.oper_up)
        yield self._state("admin_up_count", port.admin_up)
        rate, quality = self._rate()
        yield Sample(self._entity, "rate_gbps", rate, quality)
        yield from self._traffic(rate, quality)
        yield from self._counted()
        yield from self._gauges()
        for neighbour in port.neighbours:
            labels = {
                "peer": neighbour.peer,
                "peer_port": neighbour.peer_port,
                "peer_mac": neighbour.peer_mac,
            }
            if neighbour.peer_guid:
                labels["peer_guid"] = neighbour.peer_guid
            yield Sample(self._entity, "neighbour_count", 1, OK, labels)

    def _state(self, metric: str, state: bool | None) -> Sample:
        return Sample(self._entity, metric, None if state is None else int(state), _known(state))

    def _rate(self) -> tuple[float | None, str]:
        """A port without a link tells a default or nothing."""
        rate = self._port.rate_gbps
        if self._port.oper_up is False:
            return None, LINK_DOWN
        if rate is None or rate == 0:
            return None, NOT_AVAILABLE
        return (rate, OK) if 0 < rate <= RATE_GBPS_MAX else (None, OUT_OF_RANGE)

    def _rates(self) -> Iterator[tuple[str, tuple[float | None, str]]]:
        """Bytes per second of each counter of bytes; more than the port's rate is a lie of somebody."""
        rate, _ = self._rate()
        for name, change in self._changes.items():
            if not name.endswith("_bytes"):
                continue
            if change.per_s is not None and rate is not None and change.per_s > _bytes(rate) * OVER_RATE_MAX:
                yield name, (None, OUT_OF_RANGE)
            else:
                yield name, (change.per_s, change.quality)

    def _traffic(self, rate_gbps: float | None, rate_quality: str) -> Iterator[Sample]:
        for name, (per_s, quality) in self._bytes_per_s.items():
            yield Sample(self._entity, f"{name}_per_s", per_s, quality)
            if name not in ("tx_bytes", "rx_bytes"):
                continue
            metric = f"{name[:2]}_utilization_ratio"
            if per_s is None or rate_gbps is None:
                yield Sample(self._entity, metric, None, quality if per_s is None else rate_quality)
            else:
                yield Sample(self._entity, metric, per_s / _bytes(rate_gbps))

    def _counted(self) -> Iterator[Sample]:
        untold = self._rules.untold_zeros
        counts = {
            name: count
            for name, count in self._port.counters.items()
            if not name.endswith("_bytes") and not (count.value == 0 and name in untold)
        }
        changes: Mapping[str, Change] = self._changes
        if self._watchdog_ever_acted():
            acts = self._watchdog_acts()
            changes = {
                name: _unless_zero(change) if acts and _PAUSE.fullmatch(name) else change
                for name, change in changes.items()
            }
            counts = {
                name: Count(None, WATCHDOG) if count.value == 0 and _PAUSE.fullmatch(name) else count
                for name, count in counts.items()
            }
        yield from samples(self._entity, self._known.group, counts, changes)

    def _watchdog_acts(self) -> bool:
        """It holds a queue, or acted since the look before, or may hold one: pause is not counted then."""
        port = self._port
        if port.watchdog_active or any(self._delta(name) for name in _ACTED):
            return True
        return port.watchdog_active is None and self._watchdog_ever_acted()

    def _watchdog_ever_acted(self) -> bool:
        counted = [self._port.counters[name].value for name in _ACTED if name in self._port.counters]
        return bool(self._port.watchdog_active) or any(counted)

    def _delta(self, name: str) -> int:
        change = self._changes.get(name)
        return (change.delta if change is not None else None) or 0

    def _gauges(self) -> Iterator[Sample]:
        if self._port.watchdog_active is not None:
            yield Sample(self._entity, "pfc_watchdog_active_count", self._port.watchdog_active)
        for metric, value in self._port.values.items():
            low, high = TEMPERATURE_C if metric.endswith("_c") else (0.0, 2.0**63)
            fits = low <= value <= high
            yield Sample(self._entity, metric, value if fits else None, OK if fits else OUT_OF_RANGE)
        for metric, lanes in (
            ("rx_power_dbm", self._port.rx_power_dbm),
            ("tx_power_dbm", self._port.tx_power_dbm),
        ):
            for lane, power in lanes.items():
                light, quality = _light(power)
                yield Sample(self._entity, metric, light, quality, {"lane": lane})

    def events(self) -> Iterator[SourceEvent]:
        fell = self._known.group.fell
        if fell:
            text = f"{self._where()}: {len(fell)} counters were set back"
            yield self._event("counter_reset", text, "info", {"counters": list(fell[:32])})
        yield from self._down()
        yield from self._flapping()
        yield from self._weak_optics()
        yield from self._watchdog()
        yield from self._rdma_on_lossy()

    def _down(self) -> Iterator[SourceEvent]:
        port, known = self._port, self._known
        if port.oper_up:
            known.was_up = True
            known.neighbours = port.neighbours or known.neighbours
        counted = [port.counters.get(name) for name in ("carrier_changes", "link_downed")]
        had_link = any(count is not None and count.value for count in counted)
        is_used = known.was_up or port.is_meant_up or bool(port.neighbours) or had_link
        if port.oper_up is not False or port.admin_up is False or not is_used:
            return
        peers = known.neighbours or port.neighbours
        other_end = f"; it went to {peers[0].peer} {peers[0].peer_port}".rstrip() if peers else ""
        yield self._event(
            "port_down", f"{self._where()} is down{other_end}", "warning", _peer(peers), standing=True
        )

    def _flapping(self) -> Iterator[SourceEvent]:
        known = self._known
        is_down = self._port.oper_up is False
        changes, lost = self._delta("carrier_changes"), self._delta("link_downed")
        went = changes // 2 + (changes % 2 if is_down else 0)
        came = changes - went
        if lost:  # InfiniBand counts only how often a link went
            went, came = went + lost, came + lost - is_down
        if changes or lost:
            known.flaps.append((self._at_s, came, went))
        while known.flaps and self._at_s - known.flaps[0][0] > FLAP_WINDOW_S:
            known.flaps.popleft()
        flaps, downs = sum(one[1] for one in known.flaps), sum(one[2] for one in known.flaps)
        if flaps >= FLAPS_MIN and flaps > known.told_flaps:
            text = f"{self._where()}: the link went {downs} times and came back {flaps} times"
            yield self._event(
                "link_flap", text, "warning", {"flaps": flaps, "downs": downs, **_peer(known.neighbours)}
            )
        known.told_flaps = flaps

    def _weak_optics(self) -> Iterator[SourceEvent]:
        """Judged while the link is up: without a link no light is what is to be expected."""
        if self._port.oper_up is not True:
            return
        powers = {lane: _light(power)[0] for lane, power in self._port.rx_power_dbm.items()}
        lit = {lane: power for lane, power in powers.items() if power is not None}
        if not lit:
            return  # copper, or a module that does not measure
        floor = max(self._rules.rx_power_min_dbm, max(lit.values()) - LANE_SPREAD_DB)
        dark = [lane for lane, power in self._port.rx_power_dbm.items() if _light(power)[1] == NO_LIGHT]
        weak = sorted([lane for lane, power in lit.items() if power < floor] + dark)
        if weak:
            told = ", ".join(f"lane {lane} {_spoken(powers[lane])}" for lane in weak)
            text = f"{self._where()} gets little light: {told}; the best lane {max(lit.values()):.1f} dBm"
            yield self._event(
                "optics_weak", text, "warning", {"lanes": weak, **_peer(self._port.neighbours)}, standing=True
            )

    def _watchdog(self) -> Iterator[SourceEvent]:
        active, drops = self._port.watchdog_active or 0, self._delta("pfc_watchdog_drops")
        if not active and not any(self._delta(name) for name in _ACTED):
            return
        doing = f"holds {active} queues" if active else "acted"
        text = f"{self._where()}: the PFC watchdog {doing}, {drops} packets dropped since the look before"
        yield self._event("pfc_watchdog", text, "critical", _peer(self._port.neighbours), standing=True)

    def _rdma_on_lossy(self) -> Iterator[SourceEvent]:
        rules = self._rules
        lossless = rules.lossless_priorities if rules.lossless_priorities is not None else self._port.lossless
        rate, _ = self._rate()
        if not lossless or rate is None:
            return
        found = {}
        for name, (per_s, _) in self._bytes_per_s.items():
            queue = _QUEUE.fullmatch(name)
            priority = priority_of(queue[1]) if queue else None
            if priority is None or priority in lossless or priority in rules.lossy_priorities:
                continue
            if per_s is not None and per_s > rules.lossy_ratio_max * _bytes(rate):
                found[priority] = per_s
        if found:
            told = ", ".join(f"{rate / 1e6:.0f} MB/s on {priority}" for priority, rate in found.items())
            text = f"{self._where()}: traffic outside the lossless priorities {sorted(lossless)}: {told}"
            yield self._event(
                "rdma_on_lossy_priority", text, "warning",
                {"priorities": sorted(found), **_peer(self._port.neighbours)}, standing=True,
            )  # fmt: skip

    def _where(self) -> str:
        return f"{self._switch} {self._port.name}"

    def _event(
        self, kind: str, text: str, severity: Severity, told: Mapping[str, Attribute], standing: bool = False
    ) -> SourceEvent:
        """Attributes are what stays the same while a fault stands; what changes is in the text."""
        attributes = {"switch": self._switch, "switch_port": self._port.name, **told}
        return SourceEvent(self._entity, kind, text[:300], severity, attributes=attributes, standing=standing)


def _peer(neighbours: list[Neighbour]) -> dict[str, Attribute]:
    return {"peer": neighbours[0].peer, "peer_port": neighbours[0].peer_port} if neighbours else {}


def _known(state: bool | None) -> str:
    return OK if state is not None else "unknown"


def _bytes(rate_gbps: float) -> float:
    return rate_gbps * 1e9 / 8


def _unless_zero(change: Change) -> Change:
    return Change(None, None, WATCHDOG) if change.delta == 0 else change


def _light(power_dbm: float) -> tuple[float | None, str]:
    """(dBm, quality). The least that a module can tell means that there is none."""
    if power_dbm <= NO_LIGHT_DBM:
        return None, NO_LIGHT
    return (power_dbm, OK) if power_dbm <= LIGHT_DBM_MAX else (None, OUT_OF_RANGE)


def _spoken(power_dbm: float | None) -> str:
    return "none" if power_dbm is None else f"{power_dbm:.1f} dBm"
