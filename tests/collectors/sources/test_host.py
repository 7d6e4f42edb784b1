"""The host source tells what /proc tells, and null with a reason where it does not."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from collectors.sources.base import Rate, Sample
from collectors.sources.host import METRICS, HostSource
from collectors.sources.tree import Tree

STAT = (
    "cpu  {user} 0 {system} {idle} {iowait} 0 0 0 0 0\ncpu0 1 2 3\nctxt 5\nprocs_running 3\nprocs_blocked 1\n"
)
MEMINFO = "MemTotal: 1000 kB\nMemAvailable: 250 kB\nDirty: 8 kB\nSwapTotal: 100 kB\nSwapFree: 60 kB\n"
NET = (
    "Inter-|   Receive |  Transmit\n face |bytes packets errs drop fifo frame compressed multicast|bytes\n"
    "    lo: 999 0 0 0 0 0 0 0 999 0 0 0 0 0 0 0\n"
    "  eth0: {rx} 0 {errors} 0 0 0 0 0 {tx} 0 0 0 0 0 0 0\n"
    "  veth1: {rx} 0 0 0 0 0 0 0 {tx} 0 0 0 0 0 0 0\n"
)
DISKS = (
    "   7       0 loop0 9 0 {read} 0 9 0 {read} 0 0 0 0\n"
    " 259       1 nvme0n1 5 0 {read} 0 5 0 {written} 0 {in_flight} {busy} 0\n"
    " 259       2 nvme0n1p1 5 0 {read} 0 5 0 {written} 0 1 {busy} 0\n"
    "   8       0 sda 5 0 {read} 0 5 0 {written} 0 0 0 0\n"
)
PSI = "some avg10=0.00 avg60=0.00 avg300=0.00 total={some}\nfull avg10=0.00 avg60=0.00 total={full}\n"


def write(root: Path, name: str, text: str) -> None:
    path = root / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)


def node(root: Path, scale: int) -> Tree:
    """A node after ``scale`` tens of seconds of steady work."""
    write(
        root,
        "proc/stat",
        STAT.format(user=400 * scale, system=100 * scale, idle=400 * scale, iowait=100 * scale),
    )
    write(root, "proc/loadavg", "1.50 1.00 0.50 2/300 4242\n")
    write(root, "proc/meminfo", MEMINFO)
    write(root, "proc/net/dev", NET.format(rx=1_000 * scale, tx=500 * scale, errors=2 * scale))
    write(
        root,
        "proc/diskstats",
        DISKS.format(read=20 * scale, written=40 * scale, busy=5_000 * scale, in_flight=4),
    )
    write(root, "proc/pressure/cpu", PSI.format(some=1_000_000 * scale, full=0))
    (root / "sys/class/net/eth0/device").mkdir(parents=True, exist_ok=True)
    return Tree(root)


def two_looks(tmp_path: Path) -> dict[str, Sample]:
    source = HostSource()
    source.read(node(tmp_path / "a", 1), 0.0)
    reading = source.read(node(tmp_path / "b", 2), 10.0)
    return {sample.metric: sample for sample in reading.samples}


def test_shares_and_rates_over_two_looks(tmp_path: Path) -> None:
    values = {name: sample.value for name, sample in two_looks(tmp_path).items()}
    assert values["host_cpu_ratio"] == 0.5
    assert values["host_cpu_system_ratio"] == 0.1
    assert values["host_cpu_iowait_ratio"] == 0.1
    assert values["host_pressure_cpu_some_ratio"] == pytest.approx(0.1)
    assert values["net_rx_bytes_per_s"] == 100.0  # eth0 only: it has a device, veth1 has none
    assert values["net_tx_bytes_per_s"] == 50.0
    assert values["net_rx_errors_per_s"] == 0.2
    assert values["host_disk_read_bytes_per_s"] == 2 * 2 * 512.0  # two disks, no partition, no loop
    assert values["host_disk_write_bytes_per_s"] == 2 * 4 * 512.0
    assert values["host_disk_busy_max_ratio"] == 0.5


def test_levels_need_one_look_only_and_rates_are_null_with_a_reason(tmp_path: Path) -> None:
    samples = {sample.metric: sample for sample in HostSource().read(node(tmp_path, 1), 0.0).samples}
    assert samples["host_memory_used_bytes"].value == 750 * 1024
    assert samples["host_memory_used_ratio"].value == 0.75
    assert samples["host_swap_used_bytes"].value == 40 * 1024
    assert samples["host_load_1m_count"].value == 1.5
    assert samples["host_processes_blocked_count"].value == 1
    assert samples["host_disk_in_flight_count"].value == 4
    for name in ("host_cpu_ratio", "net_rx_bytes_per_s", "host_disk_busy_max_ratio"):
        assert (samples[name].value, samples[name].quality) == (None, "first_sample")


def test_every_sample_is_of_a_declared_metric(tmp_path: Path) -> None:
    declared = {spec.name: spec.unit for spec in METRICS}
    assert len(declared) == len(METRICS)
    assert set(two_looks(tmp_path)) <= set(declared)
    assert all(name.endswith(unit) for name, unit in declared.items())


def test_a_missing_file_means_not_there_and_the_rest_goes_on(tmp_path: Path) -> None:
    tree = node(tmp_path, 1)
    (tmp_path / "proc/meminfo").unlink()
    (tmp_path / "proc/stat").unlink()
    names = {sample.metric for sample in HostSource().read(tree, 0.0).samples}
    assert "net_rx_bytes_per_s" in names
    assert not any(name.startswith(("host_memory", "host_cpu")) for name in names)


@pytest.mark.parametrize("text", ["", "garbage", "cpu", "\x00\xff", "cpu 1 2 three 4 5"])
@pytest.mark.parametrize(
    "name",
    ["proc/stat", "proc/meminfo", "proc/loadavg", "proc/net/dev", "proc/diskstats", "proc/pressure/cpu"],
)
def test_a_damaged_file_gives_no_invented_number(tmp_path: Path, name: str, text: str) -> None:
    tree = node(tmp_path, 1)
    whole = {sample.metric for sample in HostSource().read(tree, 0.0).samples}
    (tmp_path / name).write_text(text)
    samples = HostSource().read(tree, 0.0).samples
    assert all(sample.value is not None or sample.quality != "ok" for sample in samples)
    others = {sample.metric for sample in samples}
    assert len(whole - others) < len(whole) / 2


def test_a_path_that_gave_einval_is_not_opened_again(tmp_path: Path) -> None:
    node(tmp_path, 1)
    (tmp_path / "read_errors.json").write_text(json.dumps({"proc/meminfo": "EINVAL"}))
    samples = {sample.metric: sample for sample in HostSource().read(Tree(tmp_path), 0.0).samples}
    assert samples["host_memory_used_bytes"].quality == "einval"
    (tmp_path / "read_errors.json").unlink()
    again = {sample.metric: sample for sample in HostSource().read(Tree(tmp_path), 0.0).samples}
    assert again["host_memory_used_bytes"].quality == "einval"


def test_a_disk_counter_that_was_reset_has_no_rate(tmp_path: Path) -> None:
    source = HostSource()
    source.read(node(tmp_path / "a", 9), 0.0)
    samples = {sample.metric: sample for sample in source.read(node(tmp_path / "b", 1), 10.0).samples}
    assert (samples["host_disk_read_bytes_per_s"].value, samples["host_disk_read_bytes_per_s"].quality) == (
        None,
        "reset",
    )


def test_a_counter_that_wraps_keeps_its_rate() -> None:
    rate = Rate(wrap_bits=32)
    assert rate.update(2**32 - 500, 0.0) == (None, "first_sample")
    assert rate.update(500, 10.0) == (100.0, "ok")
    assert rate.update(100, 20.0) == (None, "reset")
    assert rate.update(200, 30.0) == (10.0, "ok")
    assert rate.update(300, 30.0) == (None, "first_sample")


def test_this_very_machine_can_be_read() -> None:
    source = HostSource()
    source.read(Tree(), 0.0)
    values = {sample.metric: sample.value for sample in source.read(Tree(), 1.0).samples}
    used = values["host_memory_used_bytes"]
    assert used is not None
    assert 0 < used < os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
