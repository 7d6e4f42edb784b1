"""PCIe links against the inventory; idle GPUs and devices that no longer answer."""

from __future__ import annotations

from pathlib import Path

import pytest

from collectors.sources.expected import ExpectedSource
from collectors.sources.pcie import PcieSource
from tests.collectors.sources.trees import given_lines, look, write

GPU = "GPU-00000000-0000-0000-0000-00000000000a"
BDF = "0000:12:00.0"
INVENTORY = f"""
[gpu]
uuids = ["{GPU}"]
pcie_width = 16
pcie_gen = 5
[[rdma]]
device = "mlx5_0"
port = 1
rate_gbps = 400
pcie_width = 16
pcie_gen = 5
"""


def device(root: Path, width: str = "16", speed: str = "32.0 GT/s PCIe", bdf: str = BDF) -> Path:
    folder = f"sys/bus/pci/devices/{bdf}"
    names = {"current_link_width": width, "max_link_width": "16", "current_link_speed": speed}
    names |= {"max_link_speed": "32.0 GT/s PCIe"}
    return write(root, {f"{folder}/{name}": text + "\n" for name, text in names.items()})


def smi(root: Path, width: int, gen: int, busy_percent: int) -> Path:
    head = "index, uuid, pci.bus_id, pcie.link.gen.current, pcie.link.width.current, utilization.gpu [%]\n"
    row = f"0, {GPU}, 00000000:0F:00.0, {gen}, {width}, {busy_percent} %\n"
    return write(root, {"commands/nvidia-smi_query-gpu.csv": head + row})


def test_the_given_node() -> None:
    assert given_lines(PcieSource(), "pci/") == []


@pytest.mark.parametrize(
    ("width", "speed", "wanted_width", "wanted_speed"),
    [
        ("8", "16.0 GT/s PCIe", (8, "ok"), (16.0, "ok")),
        ("0", "Unknown speed", (None, "link_down"), (None, "not_available")),
        ("63", "Unknown", (None, "out_of_range"), (None, "not_available")),
        ("", "", (None, "empty"), (None, "empty")),
        ("x", "x", (None, "unreadable"), (None, "unreadable")),
    ],
)
def test_values(
    tmp_path: Path,
    width: str,
    speed: str,
    wanted_width: tuple[float | None, str],
    wanted_speed: tuple[float | None, str],
) -> None:
    found, _ = look(PcieSource(), device(tmp_path, width, speed))
    assert found[f"pci/{BDF}", "pcie_width_count"] == wanted_width
    assert found[f"pci/{BDF}", "pcie_speed_gts"] == wanted_speed


def test_a_narrow_nic_stands_as_a_fault_against_the_inventory(tmp_path: Path) -> None:
    device(tmp_path, width="8")
    write(tmp_path, {"sys/class/infiniband/mlx5_0/device": f"../../../{BDF}"})
    assert look(PcieSource(), tmp_path)[1] == []
    write(tmp_path, {"etc/clusterwatch/agent.toml": INVENTORY})
    source = PcieSource()
    for _ in range(2):
        (event,) = look(source, tmp_path)[1]
        assert (event.entity, event.kind, event.standing) == (f"pci/{BDF}", "pcie_degraded", True)
        assert event.message == "mlx5_0: PCIe x8 instead of x16"
        assert event.attributes["bdf"] == BDF and event.attributes["rdma_device"] == "mlx5_0"


def test_an_idle_gpu_rests_at_a_low_generation_and_a_busy_one_must_not(tmp_path: Path) -> None:
    """A public case: hours of training at Gen2 x16 with full utilisation and no error."""
    write(tmp_path, {"etc/clusterwatch/agent.toml": INVENTORY})
    assert look(PcieSource(), smi(tmp_path, 16, 1, 0))[1] == []
    (event,) = look(PcieSource(), smi(tmp_path, 16, 2, 100))[1]
    assert event.entity == f"gpu/{GPU}" and event.message.endswith("5 GT/s instead of 32 GT/s")


def test_a_narrow_gpu_is_a_fault_also_at_rest(tmp_path: Path) -> None:
    write(tmp_path, {"etc/clusterwatch/agent.toml": INVENTORY})
    (event,) = look(PcieSource(), smi(tmp_path, 8, 5, 0))[1]
    assert event.attributes["width"] == 8 and event.attributes["expected_width"] == 16


def test_bridges_have_no_samples(tmp_path: Path) -> None:
    device(tmp_path, bdf="0000:00:01.0")
    write(tmp_path, {"sys/bus/pci/devices/0000:00:01.0/class": "0x060400\n"})
    assert look(PcieSource(), tmp_path)[0] == {}


def test_a_missing_port_and_a_slow_one_are_told(tmp_path: Path) -> None:
    write(tmp_path, {"etc/clusterwatch/agent.toml": INVENTORY})
    (event,) = look(ExpectedSource(), tmp_path)[1]
    assert (event.kind, event.entity, event.severity) == ("port_missing", "port/mlx5_0/1", "critical")
    folder = "sys/class/infiniband/mlx5_0/ports/1"
    write(tmp_path, {f"{folder}/state": "4: ACTIVE\n", f"{folder}/rate": "200 Gb/sec (2X NDR)\n"})
    (event,) = look(ExpectedSource(), tmp_path)[1]
    assert event.kind == "rate_degraded" and event.message.endswith("200 Gb/s instead of 400")
    write(tmp_path, {f"{folder}/rate": "400 Gb/sec (4X NDR)\n"})
    assert look(ExpectedSource(), tmp_path)[1] == []


@pytest.mark.parametrize("text", ["", "rdma = 3", "[[rdma]]\ndevice = 4", "not toml ["])
def test_a_damaged_inventory_expects_nothing(tmp_path: Path, text: str) -> None:
    write(tmp_path, {"etc/clusterwatch/agent.toml": text})
    assert look(ExpectedSource(), tmp_path)[1] == []


def test_a_gpu_that_only_the_kernel_knows_is_judged_by_its_width_alone(tmp_path: Path) -> None:
    """Nobody says whether it works, and one that idles lowers its speed: that would be a fault each night."""
    write(tmp_path, {"etc/clusterwatch/agent.toml": INVENTORY})
    write(tmp_path, {f"proc/driver/nvidia/gpus/{BDF}/information": f"GPU UUID: \t {GPU}\n"})
    assert look(PcieSource(), device(tmp_path, "16", "2.5 GT/s PCIe"))[1] == []
    (event,) = look(PcieSource(), device(tmp_path, "8", "2.5 GT/s PCIe"))[1]
    assert (event.entity, event.message) == (f"gpu/{GPU}", f"GPU {GPU}: PCIe x8 instead of x16")
