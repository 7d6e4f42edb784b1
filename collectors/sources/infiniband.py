"""RDMA ports: state, rate and every counter that sysfs has of them, RoCE and InfiniBand alike.

In: sys/class/infiniband/<device>/ports/<n>. Out: samples of ``port/<device>/<n>``; ``link_down`` when a port
leaves ACTIVE, ``link_flap`` when it did and is back, ``counter_reset`` when counters were set back. Widths:
InfiniBand Architecture Specification 16.1.3.5 and mlx5's counters.c; a unit of ``port_xmit_data`` is four
bytes.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Final

from collectors.minute import MetricSpec
from collectors.sources.base import OK, Attribute, Reading, Sample, SourceEvent
from collectors.sources.counters import SATURATED, Change, Count, Counter, CounterGroup, parsed, samples
from collectors.sources.gpu_identity import inventory
from collectors.sources.pci_places import device_bdf, netdev_of_rdma
from collectors.sources.tree import KeptFiles, Tree, printable, reason

ROOT: Final = "sys/class/infiniband"
LINK_DOWN: Final = "link_down"
UNKNOWN_SPEED: Final = "unknown_speed"
DEVICES_MAX: Final = 64
PORTS_MAX: Final = 4
COUNTERS_MAX: Final = 256
COUNTERS_PERIOD_S: Final = 10.0
"""A live port's counters and rate are read this often, and which ports there are; its state at every look."""
WORD_BYTES: Final = 4
"""``port_xmit_data`` and ``port_rcv_data`` count words of four bytes."""
UTILIZATION_MAX: Final = 1.2
METRICS: Final = (
    MetricSpec("rate_gbps", "gbps", 0.1),
    MetricSpec("link_up_count", "count", 1.0),
    MetricSpec("tx_bytes_per_s", "bytes_per_s", 1_000.0),
    MetricSpec("rx_bytes_per_s", "bytes_per_s", 1_000.0),
    MetricSpec("tx_utilization_ratio", "ratio", 0.0001),
    MetricSpec("rx_utilization_ratio", "ratio", 0.0001),
)

_NAME: Final = re.compile(r"[A-Za-z0-9_.-]{1,64}")
_GUID: Final = re.compile(r"[0-9a-f]{16}")
_RATE: Final = re.compile(r"(\d{1,5}(?:\.\d+)?) Gb/sec \((\d{1,2})X(?: ([A-Z0-9]+))?\)")
_PORT_WIDTHS: Final = {
    "link_downed": 8,
    "link_error_recovery": 8,
    "port_rcv_constraint_errors": 8,
    "port_xmit_constraint_errors": 8,
    "local_link_integrity_errors": 4,
    "excessive_buffer_overrun_errors": 4,
    "symbol_error": 16,
    "port_rcv_errors": 16,
    "port_rcv_remote_physical_errors": 16,
    "port_rcv_switch_relay_errors": 16,
    "port_xmit_discards": 16,
    "VL15_dropped": 16,
    "port_xmit_wait": 32,
}
_PORT_KINDS: Final = {name: Counter(bits, saturates=True) for name, bits in _PORT_WIDTHS.items()}
_WIDE: Final = Counter(64, saturates=True)
_MAY_BE_NARROW: Final = frozenset(
    {"port_xmit_data", "port_rcv_data", "port_xmit_packets", "port_rcv_packets"}
)
"""64 bits wide, and 32 where the device lacks the extended set: then all ones of 32 bits say nothing."""
_CONGESTION: Final = (
    "rp_cnp_ignored",
    "rp_cnp_handled",
    "np_ecn_marked_roce_packets",
    "np_cnp_sent",
    "rx_icrc_encapsulated",
)
_HARDWARE_KINDS: Final = {name: Counter() for name in _CONGESTION}
_QUEUE: Final = Counter(32, wraps=True)
"""Other files of hw_counters come from 32-bit counters of the firmware."""
_NO_COUNTERS: Final = frozenset({"lifespan"})


@functools.lru_cache(maxsize=1_024)
def _is_counter(name: str) -> bool:
    return name not in _NO_COUNTERS and _NAME.fullmatch(name) is not None


@dataclass(slots=True)
class _Port:
    """What is remembered of one port, by its hardware: a device may get another name."""

    counters: CounterGroup = field(default_factory=lambda: CounterGroup(_PORT_KINDS, _WIDE))
    hardware: CounterGroup = field(default_factory=lambda: CounterGroup(_HARDWARE_KINDS, _QUEUE))
    up: bool | None = None
    was_up: bool = False
    counted_at_s: float | None = None
    guid: str = ""
    """of its adapter, 16 hex digits; empty where it is not told"""
    kept: list[Sample] = field(default_factory=list)
    """what the last look at all of it gave"""
    state: str | None = None
    physical: str | None = None
    sent: Change = Change(None, None, "first_sample")
    received: Change = Change(None, None, "first_sample")
    downs: int = 0
    """times that the link went down since the look before, by its own counter"""


_Hardware = tuple[str, str | None, int]
"""GUID, PCI address and port number: the name of a device may change."""


class InfinibandSource:
    """Every port of every RDMA device."""

    name = "infiniband"
    period_s = 1.0
    deadline_s = 2.0
    metrics = METRICS

    def __init__(self) -> None:
        self._ports: dict[_Hardware, _Port] = {}
        self._places: list[tuple[str, int, bool, _Port]] = []
        """device, port number, whether the inventory has it"""
        self._found_at_s: float | None = None
        self._files = KeptFiles()

    def read(self, tree: Tree, at_s: float) -> Reading:
        found: list[Sample] = []
        events: list[SourceEvent] = []
        if tree.is_due(self._found_at_s, at_s, COUNTERS_PERIOD_S):
            self._files.close()
            self._find(tree)
            self._found_at_s = at_s
        for device, number, is_expected, port in self._places:
            view = _View(tree, self._files, device, number, port, at_s)
            found += view.samples()
            events += view.events(is_expected)
        return Reading(found, events)

    def _find(self, tree: Tree) -> None:
        expected = expected_ports(tree)
        seen: dict[_Hardware, _Port] = {}
        self._places = []
        for device, number in ports(tree):
            folder = f"{ROOT}/{device}"
            told = _text(tree, f"{folder}/node_guid")
            key = told or device, device_bdf(tree, folder), number
            port = seen[key] = self._ports.get(key) or _Port(guid=plain_guid(told))
            self._places.append((device, number, (device, number) in expected, port))
        self._ports = seen


def ports(tree: Tree) -> Iterator[tuple[str, int]]:
    """(device, port number) of each port, in order."""
    for device in tree.list(ROOT)[:DEVICES_MAX]:
        if _NAME.fullmatch(device):
            for number in tree.list(f"{ROOT}/{device}/ports")[:PORTS_MAX]:
                if number.isascii() and number.isdigit() and len(number) <= 3:
                    yield device, int(number)


def expected_ports(tree: Tree) -> dict[tuple[str, int], float | None]:
    """(device, port) -> Gb/s that the node's inventory says it has."""
    rows = inventory(tree).get("rdma")
    found: dict[tuple[str, int], float | None] = {}
    for row in rows[:DEVICES_MAX] if isinstance(rows, list) else ():
        if isinstance(row, dict) and isinstance(device := row.get("device"), str) and _NAME.fullmatch(device):
            number, rate = row.get("port", 1), row.get("rate_gbps")
            if isinstance(number, int):
                found[device, number] = float(rate) if isinstance(rate, int | float) else None
    return found


def plain_guid(text: str | None) -> str:
    """A GUID as the fabric's tools write it, ``e8ebd30300771a40``; empty for none and for one of zeros."""
    digits = (text or "").replace(":", "").lower()
    return digits if _GUID.fullmatch(digits) and int(digits, 16) else ""


def rate_of(text: str) -> tuple[float | None, str]:
    """(Gb/s, quality) of a ``rate`` file. The kernel prints speeds it does not know as SDR."""
    match = _RATE.match(text.strip())
    if match is None:
        return None, "unreadable"
    if match[3] in (None, "SDR"):
        return None, UNKNOWN_SPEED
    return float(match[1]), OK


class _View:
    """One look at one port."""

    def __init__(
        self, tree: Tree, files: KeptFiles, device: str, number: int, port: _Port, at_s: float
    ) -> None:
        self._tree, self._device, self._port, self._at_s = tree, device, port, at_s
        self._number = number
        self._folder = f"{ROOT}/{device}/ports/{number}"
        self._entity = f"port/{device}/{number}"
        self._state = _kept(files, tree, f"{self._folder}/state")
        is_due = tree.is_due(port.counted_at_s, at_s, COUNTERS_PERIOD_S)
        self._is_quick = not is_due and self._state == port.state
        """nothing happened since the look before, so that only the state is read"""
        port.state = self._state
        if not self._is_quick:
            port.physical = _text(tree, f"{self._folder}/phys_state")
        self._up = port.up = port.up if self._is_quick else self._is_up()
        self._fell: tuple[str, ...] = ()

    def _is_up(self) -> bool | None:
        if self._state is None:
            return None
        active = self._state.split()[-1:] == ["ACTIVE"]
        return active and (self._port.physical is None or "LinkUp" in self._port.physical)

    def samples(self) -> list[Sample]:
        port = self._port
        if self._is_quick:
            port.downs = 0
            return port.kept
        up = None if self._up is None else int(self._up)
        rate, quality = self._rate()
        found = [
            Sample(self._entity, "link_up_count", up, OK if up is not None else "not_available"),
            Sample(self._entity, "rate_gbps", rate, quality),
            *self._counters(),
        ]
        if port.guid:
            found.append(Sample(self._entity, "address_count", 1, OK, {"guid": port.guid}))
        for way, change in (("tx", port.sent), ("rx", port.received)):
            per_s = None if change.per_s is None else change.per_s * WORD_BYTES
            found.append(Sample(self._entity, f"{way}_bytes_per_s", per_s, change.quality))
            found.append(self._utilization(f"{way}_utilization_ratio", per_s, change.quality, rate, quality))
        port.kept = found
        return found

    def _rate(self) -> tuple[float | None, str]:
        if self._up is None:
            return None, "not_available"
        if not self._up:
            return None, LINK_DOWN
        try:
            rate, quality = rate_of(self._tree.read_text(f"{self._folder}/rate", 4_096))
        except OSError as error:
            return None, reason(error)
        if quality == UNKNOWN_SPEED and (gbps := self._speed_of_netdev()) is not None:
            return gbps, OK
        return rate, quality

    def _speed_of_netdev(self) -> float | None:
        netdev = netdev_of_rdma(self._tree, self._device)
        text = _text(self._tree, f"sys/class/net/{netdev}/speed") if netdev else None
        return int(text) / 1_000 if text and text.isascii() and text.isdigit() and len(text) < 8 else None

    def _utilization(
        self, metric: str, per_s: float | None, quality: str, rate: float | None, rate_quality: str
    ) -> Sample:
        if rate is None:
            return Sample(self._entity, metric, None, rate_quality)
        if per_s is None:
            return Sample(self._entity, metric, None, quality)
        ratio = per_s * 8 / (rate * 1e9)
        if ratio > UTILIZATION_MAX:
            return Sample(self._entity, metric, None, "out_of_range")
        return Sample(self._entity, metric, ratio)

    def _counters(self) -> list[Sample]:
        port = self._port
        kept: list[Sample] = []
        read = self._read_folder(f"{self._folder}/counters")
        changes = port.counters.update(read, self._at_s)
        kept += samples(self._entity, port.counters, read, changes)
        missing = Change(None, None, "not_available")
        port.sent = changes.get("port_xmit_data", missing)
        port.received = changes.get("port_rcv_data", missing)
        port.downs = changes.get("link_downed", missing).delta or 0
        read = self._read_folder(self._hardware_folder())
        changes = port.hardware.update(read, self._at_s)
        kept += samples(self._entity, port.hardware, read, changes)
        self._fell = port.counters.fell + port.hardware.fell
        port.counted_at_s = self._at_s
        return kept

    def _hardware_folder(self) -> str:
        """hw_counters lie below the port or, on some kernels, below the device: then its first port's."""
        below_device = f"{ROOT}/{self._device}/hw_counters"
        own = f"{self._folder}/hw_counters"
        if self._tree.exists(own):
            return own
        first = next((number for device, number in ports(self._tree) if device == self._device), None)
        return below_device if self._number == first else own

    def _read_folder(self, folder: str) -> dict[str, Count]:
        counts: dict[str, Count] = {}
        for name, told in self._tree.texts(folder, COUNTERS_MAX, _is_counter).items():
            count = Count(None, reason(told)) if isinstance(told, OSError) else parsed(told)
            if name in _MAY_BE_NARROW and count.value == 2**32 - 1:
                count = Count(None, SATURATED)
            counts[name] = count
        return counts

    def events(self, is_expected: bool) -> Iterator[SourceEvent]:
        """``is_expected``: the inventory has this port, so that it is a fault also where it was never up."""
        port, up = self._port, self._up
        if up or port.downs:
            port.was_up = True
        if up and port.downs and _text(self._tree, f"{self._folder}/link_layer") == "InfiniBand":
            # A port of Ethernet is told by its network device.
            yield self._flap(port.downs)
        if up is False and (is_expected or port.was_up):
            state = " ".join((self._state or "").split()[-1:]) or "unknown"
            physical = " ".join((port.physical or "").split()[-1:]) or "unknown"
            text = f"{self._device} port {self._number}: {state}, {physical}"
            if state == "INIT" and physical == "LinkUp":
                text += "; no subnet manager has set it up"
            yield SourceEvent(
                self._entity, "link_down", text, "warning",
                attributes={"rdma_device": self._device, "state": state, "phys_state": physical},
                standing=True,
            )  # fmt: skip
        if self._fell:
            text = f"{self._device} port {self._number}: {set_back(self._fell)}"
            yield SourceEvent(
                self._entity, "counter_reset", text, "info", attributes={"counters": list(self._fell)}
            )

    def _flap(self, downs: int) -> SourceEvent:
        text = f"{self._device} port {self._number}: the link went down {downs} times and is back"
        attributes: dict[str, Attribute] = {"rdma_device": self._device, "flaps": downs, "downs": downs}
        return SourceEvent(self._entity, "link_flap", text, attributes=attributes)


def set_back(names: tuple[str, ...]) -> str:
    """What happened to counters, in words."""
    return f"{names[0]} was set back" if len(names) == 1 else f"{len(names)} counters were set back"


def _text(tree: Tree, path: str) -> str | None:
    """A short file, with what is not printable replaced; None where it cannot be read or is empty."""
    try:
        text = tree.read_text(path, 256).strip()
    except OSError:
        return None
    return printable(text) or None


def _kept(files: KeptFiles, tree: Tree, path: str) -> str | None:
    """The same of a file that is read at each look."""
    try:
        text = files.text(tree, path).strip()
    except OSError:
        return None
    return printable(text[:256]) or None
