"""Network devices: link, flaps, the driver's counters, pause per priority and bit errors of the interval.

In: sys/class/net/<netdev> of devices on a bus, ``ethtool -S`` (live: asked of the kernel). Out: samples of
``nic/<netdev>``; ``link_down`` of one that was up, ``link_flap`` of one that went down and came back (also
where the kernel's log is not read), ``counter_reset``, ``pause_storm``.
Source: sysfs-class-net of Linux; counters.rst of mlx5.
"""

from __future__ import annotations

import functools
import re
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Final

from collectors.minute import MetricSpec
from collectors.sources.base import OK, Attribute, Reading, Sample, SourceEvent
from collectors.sources.counters import (
    NOT_AVAILABLE,
    UNREADABLE,
    Change,
    Count,
    CounterGroup,
    parsed,
    samples,
)
from collectors.sources.ethtool import KernelStats, is_kept, parse
from collectors.sources.infiniband import COUNTERS_PERIOD_S, set_back
from collectors.sources.pci_places import rdma_of_netdev
from collectors.sources.tree import KeptFiles, Tree, reason
from collectors.wire.records import Severity

ROOT: Final = "sys/class/net"
NETDEVS_MAX: Final = 64
FLAP_WINDOW_S: Final = 600.0
PAUSE_RATIO_MAX: Final = 1.05
METRICS: Final = (
    MetricSpec("link_up_count", "count", 1.0),
    MetricSpec("speed_gbps", "gbps", 0.1),
    MetricSpec("raw_ber_ratio", "ratio", 1e-15),
    MetricSpec("post_fec_ber_ratio", "ratio", 1e-15),
    MetricSpec("outbound_pci_stalled_wr_percent", "percent", 1.0),
    MetricSpec("outbound_pci_stalled_rd_percent", "percent", 1.0),
)

_NAME: Final = re.compile(r"[A-Za-z0-9_.-]{1,15}")
_MAC: Final = re.compile(r"(?:[0-9a-f]{2}:){5}[0-9a-f]{2}")
_NO_MAC: Final = "00:00:00:00:00:00"
_PAUSE_US: Final = re.compile(r"([rt]x_prio\d)_pause_duration")
_QUICK: Final = re.compile(r"[rt]x_prio\d_pause|link_down_events_phy|tx_pause_storm_")
"""What is told at every look; other statistics every ``COUNTERS_PERIOD_S``."""
_PERCENTS: Final = frozenset({"outbound_pci_stalled_wr", "outbound_pci_stalled_rd"})
_BIT_ERRORS: Final = (
    ("raw_ber_ratio", "rx_corrected_bits_phy"),
    ("post_fec_ber_ratio", "rx_pcs_symbol_err_phy"),
)
_STORMS: Final = ("tx_pause_storm_error_events", "tx_pause_storm_warning_events")


@dataclass(slots=True)
class _Nic:
    """What is remembered of one device."""

    link: CounterGroup = field(default_factory=lambda: CounterGroup({}))
    quick: CounterGroup = field(default_factory=lambda: CounterGroup({}))
    slow: CounterGroup = field(default_factory=lambda: CounterGroup({}))
    counted_at_s: float | None = None
    kept: list[Sample] = field(default_factory=list)
    """samples of the slow counters and of the speed, as they were last read"""
    flaps: deque[tuple[float, int, int]] = field(default_factory=deque)
    """(when, times it came back, times it went) in the window"""
    up: bool | None = None
    was_up: bool = False


class EthernetSource:
    """Every network device that sits on a bus."""

    name = "ethernet"
    period_s = 1.0
    deadline_s = 2.0
    metrics = METRICS

    def __init__(self) -> None:
        self._nics: dict[str, _Nic] = {}
        self._kernel = KernelStats()
        self._files = KeptFiles()
        self._found_at_s: float | None = None

    def read(self, tree: Tree, at_s: float) -> Reading:
        found: list[Sample] = []
        events: list[SourceEvent] = []
        if tree.is_due(self._found_at_s, at_s, COUNTERS_PERIOD_S):
            self._files.close()
            self._nics = {netdev: self._nics.get(netdev) or _Nic() for netdev in netdevs(tree)}
            self._found_at_s = at_s
        for netdev, nic in self._nics.items():
            look = _Look(tree, self._files, netdev, nic, at_s)
            found += look.samples(self._statistics(tree, netdev, look.is_quick))
            events += look.events()
        return Reading(found, events)

    def _statistics(self, tree: Tree, netdev: str, only_quick: bool) -> dict[str, Count]:
        wanted = _is_quick if only_quick else is_kept
        try:
            if tree.is_live:
                return self._kernel.read(netdev, wanted)
            return parse(tree.read_text(f"commands/ethtool_-S_{netdev}.txt"), wanted)
        except OSError:
            return {}


def netdevs(tree: Tree) -> list[str]:
    """Devices on a bus, bonds of them, or of which a tree holds statistics."""
    recorded = {
        name[len("ethtool_-S_") : -len(".txt")]
        for name in (() if tree.is_live else tree.list("commands"))
        if name.startswith("ethtool_-S_") and name.endswith(".txt")
    }
    on_bus = {
        name
        for name in tree.list(ROOT)
        if tree.exists(f"{ROOT}/{name}/device") or tree.exists(f"{ROOT}/{name}/bonding")
    }
    return [name for name in sorted(recorded | on_bus) if _NAME.fullmatch(name)][:NETDEVS_MAX]


@functools.lru_cache(maxsize=4_096)
def _is_quick(name: str) -> bool:
    return _QUICK.match(name) is not None


@functools.lru_cache(maxsize=4_096)
def _pause_metric(name: str) -> str | None:
    """The share of time of a counter of microseconds; None for other counters."""
    match = _PAUSE_US.fullmatch(name)
    return None if match is None else f"{match[1]}_pause_ratio"


class _Look:
    """One look at one device."""

    def __init__(self, tree: Tree, files: KeptFiles, netdev: str, nic: _Nic, at_s: float) -> None:
        self._tree, self._files, self._netdev, self._nic, self._at_s = tree, files, netdev, nic, at_s
        self._entity = f"nic/{netdev}"
        self._up = self._is_up()
        is_due = tree.is_due(nic.counted_at_s, at_s, COUNTERS_PERIOD_S)
        self.is_quick = not is_due and self._up == nic.up
        """only what is told at every look is read"""
        nic.up = self._up
        self._changes: dict[str, Change] = {}
        self._fell: tuple[str, ...] = ()

    def samples(self, read: Mapping[str, Count]) -> list[Sample]:
        """``read``: statistics of the driver; at a quick look those of ``_QUICK``."""
        quick = {name: count for name, count in read.items() if _is_quick(name)}
        found = [*self._link_samples(), *self._quick_samples(quick)]
        if not self.is_quick:
            slow = {name: count for name, count in read.items() if name not in quick}
            self._nic.kept = [*self._speed(), *self._address(), *self._slow_samples(slow)]
            self._nic.counted_at_s = self._at_s
        return found + self._nic.kept

    def _carrier_changes(self) -> Count | None:
        """None where the kernel does not count them."""
        return self._count(lambda: self._files.text(self._tree, f"{ROOT}/{self._netdev}/carrier_changes"))

    def _count(self, read: Callable[[], str]) -> Count | None:
        """A file of the device; None where it is not there."""
        try:
            return parsed(read())
        except FileNotFoundError:
            return None
        except OSError as error:
            return Count(None, reason(error))

    def _is_up(self) -> bool | None:
        try:
            state = self._files.text(self._tree, f"{ROOT}/{self._netdev}/operstate").strip()
        except OSError:
            return None
        return {"up": True, "down": False, "lowerlayerdown": False, "dormant": False}.get(state)

    def _link_samples(self) -> Iterator[Sample]:
        up = self._up
        yield Sample(
            self._entity,
            "link_up_count",
            None if up is None else int(up),
            OK if up is not None else "unknown",
        )
        carrier = self._carrier_changes()
        counts = {} if carrier is None else {"carrier_changes": carrier}
        self._changes = self._nic.link.update(counts, self._at_s)
        yield from samples(self._entity, self._nic.link, counts, self._changes)

    def _told_speed(self) -> str:
        return self._tree.read_text(f"{ROOT}/{self._netdev}/speed", 4_096)

    def _speed(self) -> Iterator[Sample]:
        """The file of a device without a link fails with EINVAL, and is then never read again: not asked."""
        if self._up is False:
            yield Sample(self._entity, "speed_gbps", None, "link_down")
        elif self._up and (count := self._count(self._told_speed)) is not None:
            mbps, quality = count.value, count.quality
            if quality == UNREADABLE:  # "-1": a driver that has no speed, as of virtual devices
                quality = NOT_AVAILABLE
            yield Sample(self._entity, "speed_gbps", None if mbps is None else mbps / 1_000, quality)

    def _address(self) -> Iterator[Sample]:
        """What a switch knows this port by; a fact in words has the value 1."""
        try:
            address = self._tree.read_text(f"{ROOT}/{self._netdev}/address", 64).strip().lower()
        except OSError:
            return
        if _MAC.fullmatch(address) and address != _NO_MAC:
            yield Sample(self._entity, "address_count", 1, OK, {"mac": address})

    def _quick_samples(self, quick: Mapping[str, Count]) -> Iterator[Sample]:
        changes = self._nic.quick.update(quick, self._at_s)
        self._changes |= changes
        self._fell += self._nic.quick.fell
        yield from samples(self._entity, self._nic.quick, quick, changes)
        yield from self._pauses(changes)

    def _slow_samples(self, read: Mapping[str, Count]) -> Iterator[Sample]:
        for name in sorted(_PERCENTS & read.keys()):
            value, quality = read[name].value, read[name].quality
            if value is not None and value > 100:
                value, quality = None, "out_of_range"
            yield Sample(self._entity, f"{name}_percent", value, quality)
        counts = {name: count for name, count in read.items() if name not in _PERCENTS}
        changes = self._nic.slow.update(counts, self._at_s)
        self._changes |= changes
        self._fell += self._nic.slow.fell
        yield from samples(self._entity, self._nic.slow, counts, changes)
        yield from self._bit_errors(changes)

    def _bit_errors(self, changes: Mapping[str, Change]) -> Iterator[Sample]:
        bits = changes.get("rx_bits_phy")
        for metric, name in _BIT_ERRORS:
            errors = changes.get(name)
            if bits is None or errors is None:
                continue
            if bits.delta is None or errors.delta is None:
                yield Sample(
                    self._entity, metric, None, errors.quality if errors.delta is None else bits.quality
                )
            elif bits.delta == 0:
                yield Sample(self._entity, metric, None, "no_traffic")
            else:
                yield Sample(self._entity, metric, errors.delta / bits.delta)

    def _pauses(self, changes: Mapping[str, Change]) -> Iterator[Sample]:
        """Which part of the time a priority stood still; the driver counts microseconds."""
        for name, change in changes.items():
            if (metric := _pause_metric(name)) is None:
                continue
            ratio, quality = change.per_s, change.quality
            if ratio is not None:
                ratio /= 1e6
                if ratio > PAUSE_RATIO_MAX:
                    ratio, quality = None, "out_of_range"
            yield Sample(self._entity, metric, ratio, quality)

    def events(self) -> Iterator[SourceEvent]:
        self._nic.was_up |= self._up is True
        if self._up is False and self._nic.was_up:
            yield self._event("link_down", f"{self._netdev}: Link down", "warning", standing=True)
        yield from self._flaps()
        fell = self._nic.link.fell + self._fell
        if fell:
            text = f"{self._netdev}: {set_back(fell)}"
            yield self._event("counter_reset", text, "info", counters=list(fell[:32]))
        for name in _STORMS:
            change = self._changes.get(name)
            if change is not None and change.delta:
                what = (
                    "pause was switched off, drops are possible"
                    if "error" in name
                    else "pause goes on for long"
                )
                text = f"{self._netdev}: {name} rose by {change.delta}: {what}"
                yield self._event("pause_storm", text, "critical" if "error" in name else "warning")

    def _flaps(self) -> Iterator[SourceEvent]:
        came, went = self._came_and_went()
        nic = self._nic
        if came or went:
            nic.flaps.append((self._at_s, came, went))
        while nic.flaps and self._at_s - nic.flaps[0][0] > FLAP_WINDOW_S:
            nic.flaps.popleft()
        flaps, downs = sum(one[1] for one in nic.flaps), sum(one[2] for one in nic.flaps)
        if came:
            text = f"{self._netdev}: the link went down {downs} times and came back {flaps} times"
            yield self._event("link_flap", text, "warning", flaps=flaps, downs=downs)

    def _came_and_went(self) -> tuple[int, int]:
        """Changes of the carrier are downs and ups in turn; the state now tells which was the last."""
        carrier = self._changes.get("carrier_changes")
        changes = (carrier.delta if carrier is not None else None) or 0
        went = changes // 2 + (changes % 2 if self._up is False else 0)
        physical = self._changes.get("link_down_events_phy")
        went = max(went, (physical.delta if physical is not None else None) or 0)
        return went - (1 if self._up is False and went else 0), went

    def _event(
        self, kind: str, text: str, severity: Severity, standing: bool = False, **told: int | list[str]
    ) -> SourceEvent:
        attributes: dict[str, Attribute] = {**told}
        if rdma := rdma_of_netdev(self._tree, self._netdev):
            attributes["rdma_device"] = rdma
        return SourceEvent(self._entity, kind, text, severity, attributes=attributes, standing=standing)
