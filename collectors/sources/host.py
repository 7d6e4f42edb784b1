"""The machine itself: processors, load, memory, pressure, network and disks as totals of the host.

In: proc/stat, proc/loadavg, proc/meminfo, proc/pressure/*, proc/net/dev, proc/diskstats. Out: samples of
entity ``host``. A part whose file is missing or damaged gives no sample or null with a reason; the others
go on. Source: proc(5); Documentation/accounting/psi.rst and admin-guide/iostats.rst of Linux.
"""

from __future__ import annotations

import errno
import re
from collections.abc import Callable, Iterator
from typing import Final

from collectors.minute import MetricSpec
from collectors.sources.base import FIRST_SAMPLE, HOST, OK, Rate, Reading, Sample
from collectors.sources.tree import Tree, reason

SECTOR_BYTES: Final = 512
"""diskstats counts sectors of 512 bytes whatever the disk's own sector is."""
_TICK_BITS: Final = 32
"""The milliseconds of diskstats are unsigned ints."""

_RATIO: Final = 0.0001
_BYTES: Final = 4_096.0
METRICS: Final = (
    MetricSpec("host_cpu_ratio", "ratio", _RATIO),
    MetricSpec("host_cpu_system_ratio", "ratio", _RATIO),
    MetricSpec("host_cpu_iowait_ratio", "ratio", _RATIO),
    MetricSpec("host_processes_running_count", "count", 1.0),
    MetricSpec("host_processes_blocked_count", "count", 1.0),
    MetricSpec("host_load_1m_count", "count", 0.01),
    MetricSpec("host_memory_used_bytes", "bytes", _BYTES),
    MetricSpec("host_memory_available_bytes", "bytes", _BYTES),
    MetricSpec("host_memory_used_ratio", "ratio", _RATIO),
    MetricSpec("host_memory_dirty_bytes", "bytes", _BYTES),
    MetricSpec("host_swap_used_bytes", "bytes", _BYTES),
    *(
        MetricSpec(f"host_pressure_{what}_{share}_ratio", "ratio", _RATIO)
        for what in ("cpu", "memory", "io")
        for share in ("some", "full")
    ),
    MetricSpec("net_rx_bytes_per_s", "bytes_per_s", 1.0),
    MetricSpec("net_tx_bytes_per_s", "bytes_per_s", 1.0),
    MetricSpec("net_rx_errors_per_s", "per_s", 0.001),
    MetricSpec("net_tx_errors_per_s", "per_s", 0.001),
    MetricSpec("net_rx_dropped_per_s", "per_s", 0.001),
    MetricSpec("net_tx_dropped_per_s", "per_s", 0.001),
    MetricSpec("host_disk_read_bytes_per_s", "bytes_per_s", 1.0),
    MetricSpec("host_disk_write_bytes_per_s", "bytes_per_s", 1.0),
    MetricSpec("host_disk_busy_max_ratio", "ratio", _RATIO),
    MetricSpec("host_disk_in_flight_count", "count", 1.0),
)

_NET_COLUMNS: Final = {
    "net_rx_bytes_per_s": 0,
    "net_rx_errors_per_s": 2,
    "net_rx_dropped_per_s": 3,
    "net_tx_bytes_per_s": 8,
    "net_tx_errors_per_s": 10,
    "net_tx_dropped_per_s": 11,
}
_NOT_A_DISK: Final = re.compile(r"(loop|ram|zram|sr|fd|nbd|dm-|md)\d*")
_PARTITION: Final = re.compile(r"((nvme\d+n\d+|mmcblk\d+)p\d+|(sd|vd|xvd|hd)[a-z]+\d+)")


class HostSource:
    """Totals of one host. Keeps the counters of the look before."""

    name = "host"
    period_s = 5.0
    deadline_s = 2.0
    metrics = METRICS

    def __init__(self) -> None:
        self._rates: dict[str, Rate] = {}
        self._cpu: tuple[int, ...] | None = None

    def read(self, tree: Tree, at_s: float) -> Reading:
        parts: tuple[Callable[[Tree, float], Iterator[Sample]], ...] = (
            self._processors, self._load, self._memory, self._pressure, self._network, self._disks,
        )  # fmt: skip
        samples: list[Sample] = []
        for part in parts:
            try:
                samples += part(tree, at_s)
            except FileNotFoundError:
                continue  # this kernel does not have it
            except OSError as error:
                samples.append(_unread(part.__name__, reason(error)))
            except (ValueError, IndexError, KeyError):
                samples.append(_unread(part.__name__, "unreadable"))
        return Reading(samples)

    # --- processors and load ---------------------------------------------------------------------------

    def _processors(self, tree: Tree, at_s: float) -> Iterator[Sample]:
        lines = dict(line.partition(" ")[::2] for line in tree.read_text("proc/stat").splitlines())
        if "cpu" in lines:
            yield from self._cpu_shares(tuple(int(word) for word in lines["cpu"].split()[:8]))
        for field, metric in (("procs_running", "running"), ("procs_blocked", "blocked")):
            if field in lines:
                yield Sample(HOST, f"host_processes_{metric}_count", int(lines[field]))

    def _cpu_shares(self, now: tuple[int, ...]) -> Iterator[Sample]:
        """Shares of the time since the last look: user nice system idle iowait irq softirq steal."""
        last, self._cpu = self._cpu, now
        names = ("host_cpu_ratio", "host_cpu_system_ratio", "host_cpu_iowait_ratio")
        if last is None or len(last) != len(now) or len(now) < 5:
            yield from (Sample(HOST, name, None, FIRST_SAMPLE) for name in names)
            return
        # idle and iowait may fall by a tick or two (proc(5)); that is no reset.
        spent = [max(0, after - before) for before, after in zip(last, now, strict=True)]
        total = sum(spent)
        if not total:
            yield from (Sample(HOST, name, None, "no_time_passed") for name in names)
            return
        system = spent[2] + sum(spent[5:7])
        shares = (total - spent[3] - spent[4], system, spent[4])
        yield from (Sample(HOST, name, share / total) for name, share in zip(names, shares, strict=True))

    def _load(self, tree: Tree, at_s: float) -> Iterator[Sample]:
        yield Sample(HOST, "host_load_1m_count", float(tree.read_text("proc/loadavg").split()[0]))

    # --- memory and pressure -----------------------------------------------------------------------------

    def _memory(self, tree: Tree, at_s: float) -> Iterator[Sample]:
        kib = {}
        for line in tree.read_text("proc/meminfo").splitlines():
            name, _, rest = line.partition(":")
            kib[name] = int(rest.split()[0])
        total, available = kib["MemTotal"] * 1024, kib["MemAvailable"] * 1024
        yield Sample(HOST, "host_memory_used_bytes", total - available)
        yield Sample(HOST, "host_memory_available_bytes", available)
        yield Sample(HOST, "host_memory_used_ratio", (total - available) / total if total else None)
        if "Dirty" in kib:
            yield Sample(HOST, "host_memory_dirty_bytes", kib["Dirty"] * 1024)
        if "SwapTotal" in kib:
            yield Sample(HOST, "host_swap_used_bytes", (kib["SwapTotal"] - kib["SwapFree"]) * 1024)

    def _pressure(self, tree: Tree, at_s: float) -> Iterator[Sample]:
        """Share of the time since the last look in which some or all tasks waited, from the exact totals."""
        for what in ("cpu", "memory", "io"):
            try:
                text = tree.read_text(f"proc/pressure/{what}")
            except OSError as error:
                if error.errno in (errno.ENOENT, errno.EOPNOTSUPP):
                    continue  # built without it, or switched off with psi=0
                raise
            for line in text.splitlines():
                share, _, rest = line.partition(" ")
                stalled_us = int(rest.rpartition("total=")[2])
                metric = f"host_pressure_{what}_{share}_ratio"
                value, quality = self._rate(metric, stalled_us / 1e6, at_s)
                yield Sample(HOST, metric, None if value is None else min(value, 1.0), quality)

    # --- network and disks -------------------------------------------------------------------------------

    def _network(self, tree: Tree, at_s: float) -> Iterator[Sample]:
        """Sum over the interfaces with a device behind them; over all but loopback where none has one."""
        rows: dict[str, list[int]] = {}
        for line in tree.read_text("proc/net/dev").splitlines()[2:]:
            name, _, rest = line.partition(":")
            if rest:
                rows[name.strip()] = [int(word) for word in rest.split()]
        rows.pop("lo", None)
        physical = [name for name in rows if tree.exists(f"sys/class/net/{name}/device")]
        chosen = physical or list(rows)
        if not chosen:
            return
        for metric, column in _NET_COLUMNS.items():
            yield self._sum(metric, [(name, rows[name][column], 1.0) for name in chosen], at_s)

    def _disks(self, tree: Tree, at_s: float) -> Iterator[Sample]:
        rows = {}
        for line in tree.read_text("proc/diskstats").splitlines():
            words = line.split()
            if (
                len(words) >= 14
                and not _NOT_A_DISK.fullmatch(words[2])
                and not _PARTITION.fullmatch(words[2])
            ):
                rows[words[2]] = [int(word) for word in words[3:]]
        if not rows:
            return
        for metric, column in (("host_disk_read_bytes_per_s", 2), ("host_disk_write_bytes_per_s", 6)):
            yield self._sum(metric, [(name, row[column], SECTOR_BYTES) for name, row in rows.items()], at_s)
        busy = [self._rate(f"busy/{name}", row[9], at_s, _TICK_BITS) for name, row in rows.items()]
        known = [value for value, _ in busy if value is not None]
        worst = min(max(known) / 1_000, 1.0) if known else None
        yield Sample(HOST, "host_disk_busy_max_ratio", worst, OK if known else busy[0][1])
        yield Sample(HOST, "host_disk_in_flight_count", sum(row[8] for row in rows.values()))

    def _sum(self, metric: str, counters: list[tuple[str, int, float]], at_s: float) -> Sample:
        """Adds the rates of (name, counter, factor). One that was reset makes this look's sum unknown."""
        total = 0.0
        worst = OK
        known = 0
        for name, counter, factor in counters:
            value, quality = self._rate(f"{metric}/{name}", counter, at_s)
            if value is None:
                worst = quality if worst == OK or quality != FIRST_SAMPLE else worst
                continue
            known += 1
            total += value * factor
        # A device that has just appeared has no rate yet; the others' sum is still the host's.
        if known and worst in (OK, FIRST_SAMPLE):
            return Sample(HOST, metric, total)
        return Sample(HOST, metric, None, worst)

    def _rate(
        self, key: str, value: float, at_s: float, wrap_bits: int | None = None
    ) -> tuple[float | None, str]:
        if key not in self._rates:
            self._rates[key] = Rate(wrap_bits)
        return self._rates[key].update(value, at_s)


_FIRST_METRIC: Final = {
    "_processors": "host_cpu_ratio",
    "_load": "host_load_1m_count",
    "_memory": "host_memory_used_bytes",
    "_pressure": "host_pressure_cpu_some_ratio",
    "_network": "net_rx_bytes_per_s",
    "_disks": "host_disk_busy_max_ratio",
}


def _unread(part: str, reason: str) -> Sample:
    """Null with a reason for the part's leading metric."""
    return Sample(HOST, _FIRST_METRIC[part], None, reason)
