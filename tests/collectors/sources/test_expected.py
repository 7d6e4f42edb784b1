"""A node against its class: what is missing has a name, and what cannot be read proves nothing."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from collectors.sources import node_class
from collectors.sources.base import SourceEvent
from collectors.sources.expected import ExpectedSource
from collectors.sources.gpu_identity import inventory
from collectors.sources.node_class import ClassError, NodeClass, parse
from collectors.sources.tree import Tree
from tests.collectors.sources.trees import look, write

GPU = "sys/bus/pci/devices/0000:{0:02x}:00.0"


def node(root: Path, gpus: int = 4, ports: int = 2, drives: int = 2, chosen: str = "etc/class.toml") -> Path:
    """A small node: GPUs at 10, RDMA devices at 40, drives at 60 and up; a BMC's display adapter, too."""
    files = {"etc/clusterwatch/agent.toml": f'node_class = "{chosen}"\n'}
    files |= pci(0x02, "0x030000", "0x1a03", "0x2000")
    for number in range(gpus):
        files |= pci(0x10 + number, "0x030200", "0x10de", "0x2330")
    for number in range(ports):
        files |= pci(0x40 + number, "0x020700", "0x15b3", "0x1021")
        folder = f"sys/class/infiniband/mlx5_{number}"
        files |= {
            f"{folder}/device": f"../../../0000:{0x40 + number:02x}:00.0",
            f"{folder}/ports/1/state": "4: ACTIVE\n",
            f"{folder}/ports/1/rate": "400 Gb/sec (4X NDR)\n",
        }
    for number in range(drives):
        files |= pci(0x60 + number, "0x010802", "0x144d", "0xa80a", width="4")
        files[f"sys/class/nvme/nvme{number}/device"] = f"../../../0000:{0x60 + number:02x}:00.0"
    return write(root, files)


def pci(bus: int, of_class: str, vendor: str, device: str, width: str = "16") -> dict[str, str]:
    folder = GPU.format(bus)
    return {
        f"{folder}/class": f"{of_class}\n",
        f"{folder}/vendor": f"{vendor}\n", f"{folder}/device": f"{device}\n",
        f"{folder}/current_link_width": f"{width}\n", f"{folder}/max_link_width": f"{width}\n",
        f"{folder}/current_link_speed": "32.0 GT/s PCIe\n", f"{folder}/max_link_speed": "32.0 GT/s PCIe\n",
    }  # fmt: skip


def remove(root: Path, folder: str) -> None:
    for path in sorted((root / folder).rglob("*"), reverse=True):
        path.rmdir() if path.is_dir() else path.unlink()
    (root / folder).rmdir()


def judged(root: Path, text: str, source: ExpectedSource | None = None) -> list[SourceEvent]:
    write(root, {"etc/class.toml": text})
    return look(source or ExpectedSource(), root)[1]


def kinds(events: list[SourceEvent]) -> list[tuple[str, str]]:
    return [(event.entity, event.kind) for event in events]


WHOLE = """
[gpu]
count = 4
count_max = 4
pcie_width = 16
[rdma]
count = 2
rate_gbps = 400
pcie_gen = 5
[nvme]
count = 2
pcie_width = 4
"""


def test_a_whole_node_is_silent(tmp_path: Path) -> None:
    assert judged(node(tmp_path), WHOLE) == []


def test_without_a_class_nothing_is_judged(tmp_path: Path) -> None:
    assert judged(node(tmp_path, gpus=1, chosen=""), WHOLE) == []


def test_a_part_that_was_there_before_is_named_and_resolves(tmp_path: Path) -> None:
    source, root = ExpectedSource(), node(tmp_path)
    assert judged(root, WHOLE, source) == []
    remove(root, GPU.format(0x12))
    (event,) = judged(root, WHOLE, source)
    assert (event.entity, event.kind, event.standing) == ("pci/0000:12:00.0", "gpu_missing", True)
    assert event.attributes == {"bdf": "0000:12:00.0", "slot": None, "found": 3, "expected": 4}
    assert judged(node(tmp_path), WHOLE, source) == []


def test_where_parts_sat_is_known_after_a_restart_of_the_agent(tmp_path: Path) -> None:
    state = tmp_path / "state"
    state.mkdir()
    root, source = node(tmp_path / "node"), ExpectedSource()
    source.keep_in(state)
    judged(root, WHOLE, source)
    remove(root, "sys/class/infiniband/mlx5_1")
    again = ExpectedSource()
    again.keep_in(state)
    assert kinds(judged(root, WHOLE, again)) == [("pci/0000:41:00.0", "rdma_missing")]


def test_kept_places_that_are_damaged_are_none(tmp_path: Path) -> None:
    for text in ("", "[]", '{"gpu": ["../../etc", 5, null], "rdma": 7}', "\x00" * 9, "[" * 5_000):
        (tmp_path / "parts-seen.json").write_text(text)
        ExpectedSource().keep_in(tmp_path)


def test_a_slot_of_the_class_names_what_is_missing(tmp_path: Path) -> None:
    slots = '{ name = "E1.S 0", address = "0000:60:00.0" }, { name = "E1.S 7", address = "0000:67:00.0" }'
    (event,) = judged(node(tmp_path), f"[nvme]\nslots = [{slots}]\n")
    assert event.message == "NVMe drive E1.S 7 at 0000:67:00.0 is missing: 1 of 2 are there"


def test_parts_never_seen_are_counted_without_a_guess(tmp_path: Path) -> None:
    events = judged(node(tmp_path, gpus=3), WHOLE)
    assert kinds(events) == [("host", "gpu_missing")]
    assert events[0].attributes == {"found": 3, "expected": 4}


def test_addresses_given_anew_at_boot_name_no_part(tmp_path: Path) -> None:
    source = ExpectedSource()
    judged(node(tmp_path / "a"), WHOLE, source)
    remove(root := node(tmp_path / "b"), GPU.format(0x10))
    remove(root, GPU.format(0x11))
    write(root, pci(0x20, "0x030200", "0x10de", "0x2330"))
    assert kinds(judged(root, WHOLE, source)) == [("host", "gpu_missing")]


def test_a_bus_that_lists_nothing_proves_nothing(tmp_path: Path) -> None:
    assert (
        judged(write(tmp_path, {"etc/clusterwatch/agent.toml": 'node_class = "/etc/class.toml"\n'}), WHOLE)
        == []
    )


def test_a_device_that_cannot_be_read_may_be_the_missing_one(tmp_path: Path) -> None:
    root = node(tmp_path)
    (root / "read_errors.json").write_text(json.dumps({f"{GPU.format(0x12)}/class": "EIO"}))
    assert judged(root, WHOLE) == []


def test_a_machine_without_an_rdma_driver_says_nothing_of_its_ports(tmp_path: Path) -> None:
    assert judged(node(tmp_path, ports=0), WHOLE) == []


def test_an_rdma_driver_without_devices_has_lost_them(tmp_path: Path) -> None:
    root = node(tmp_path, ports=0)
    (root / "sys/class/infiniband").mkdir()
    assert kinds(judged(root, WHOLE)) == [("host", "rdma_missing")]


def test_virtual_functions_are_no_parts(tmp_path: Path) -> None:
    root = node(tmp_path, gpus=5)
    write(root, {f"{GPU.format(0x14)}/physfn": "../0000:10:00.0"})
    assert judged(root, WHOLE) == []


def test_too_many_are_told_with_their_addresses(tmp_path: Path) -> None:
    (event,) = judged(node(tmp_path, gpus=5), WHOLE)
    assert (event.entity, event.kind) == ("host", "gpu_too_many")
    assert event.attributes["found"] == 5
    assert len(event.attributes["bdfs"]) == 5  # type: ignore[arg-type]


def test_parts_of_other_makes_or_that_are_ignored_do_not_count(tmp_path: Path) -> None:
    root = node(tmp_path)
    assert judged(root, '[rdma]\ncount = 0\ncount_max = 0\nids = ["15b3:a2dc"]\n') == []
    assert judged(root, '[nvme]\ncount_max = 1\nignore = ["nvme0"]\n') == []
    assert kinds(judged(root, "[nvme]\ncount_max = 1\n")) == [("host", "nvme_too_many")]


def test_a_narrow_and_a_slow_link_are_named(tmp_path: Path) -> None:
    root = node(tmp_path)
    write(root, {f"{GPU.format(0x11)}/current_link_width": "8\n"})
    write(root, {f"{GPU.format(0x40)}/current_link_speed": "16.0 GT/s PCIe\n"})
    events = judged(root, WHOLE)
    assert kinds(events) == [("pci/0000:11:00.0", "pcie_degraded"), ("pci/0000:40:00.0", "pcie_degraded")]
    assert events[1].message == "RDMA device mlx5_0: PCIe 16 GT/s instead of 32 GT/s"


def test_a_gpu_at_rest_is_not_slow(tmp_path: Path) -> None:
    root = node(tmp_path)
    write(root, {f"{GPU.format(0x11)}/current_link_speed": "2.5 GT/s PCIe\n"})
    assert judged(root, WHOLE) == []
    assert judged(root, "[gpu]\npcie_gen = 5\n") == []


@pytest.mark.parametrize(
    ("name", "text", "kind"),
    [("rate", "200 Gb/sec (4X HDR)\n", "rate_degraded"), ("state", "1: DOWN\n", "link_down")],
)
def test_a_port_without_the_link_of_its_class(tmp_path: Path, name: str, text: str, kind: str) -> None:
    root = node(tmp_path)
    write(root, {f"sys/class/infiniband/mlx5_1/ports/1/{name}": text})
    assert kinds(judged(root, WHOLE)) == [("port/mlx5_1/1", kind)]


def test_a_rate_that_the_kernel_does_not_know_is_not_slow(tmp_path: Path) -> None:
    root = node(tmp_path)
    write(root, {"sys/class/infiniband/mlx5_1/ports/1/rate": "10 Gb/sec (4X SDR)\n"})
    assert judged(root, WHOLE) == []


def test_the_inventory_goes_before_the_class(tmp_path: Path) -> None:
    root = node(tmp_path, gpus=3, ports=1)
    uuid = "GPU-e7a40031-2b6d-4f18-8c53-71d2f6b0a1c0"
    write(root, {
        "etc/clusterwatch/agent.toml": 'node_class = "/etc/class.toml"\n'
        f'[gpu]\nuuids = ["{uuid}"]\npcie_width = 8\n'
        '[[rdma]]\ndevice = "mlx5_0"\nrate_gbps = 200\npcie_gen = 4\n[[mount]]\npath = "/mnt/own"\n',
        f"{GPU.format(0x10)}/current_link_width": "8\n",
        "sys/class/infiniband/mlx5_0/ports/1/rate": "200 Gb/sec (4X HDR)\n",
    })  # fmt: skip
    assert judged(root, WHOLE + '[[mount]]\npath = "/mnt/class"\n') == []
    assert inventory(Tree(root))["mount"] == [{"path": "/mnt/own"}]


def test_mounts_of_the_class_are_expected_where_the_inventory_lists_none(tmp_path: Path) -> None:
    root = node(tmp_path)
    write(root, {"etc/class.toml": '[[mount]]\npath = "/mnt/class"\n'})
    assert inventory(Tree(root))["mount"] == [{"path": "/mnt/class"}]


def test_a_gpu_with_fewer_nvlinks_than_its_class(tmp_path: Path) -> None:
    uuid = "GPU-e7a40031-2b6d-4f18-8c53-71d2f6b0a1c0"
    lines = [f"GPU 0: NVIDIA H100 (UUID: {uuid})"]
    lines += [f"\t Link {link}: Replay Errors: 0" for link in range(17)]
    root = write(node(tmp_path), {"commands/nvidia-smi_nvlink_-e.txt": "\n".join(lines)})
    (event,) = judged(root, "[gpu]\nnvlinks = 18\n")
    assert (event.entity, event.kind) == (f"gpu/{uuid}", "nvlink_missing")
    assert judged(root, "[gpu]\nnvlinks = 17\n") == []


@pytest.mark.parametrize(
    ("text", "named"),
    [
        ("[gpu]\ncount = '8'\n", "$.gpu.count"),
        ("[gpu]\ncuont = 8\n", "cuont"),
        ("[gpu]\ncount = 8\ncount_max = 7\n", "count_max 7 is below count 8"),
        ('[nvme]\nslots = [{name = "a", address = "60:00.0"}]\n', "address"),
        ('[nvme]\ncount = 1\nslots = [{name = "a", address = "0000:60:00.0"}]\n', "either count or slots"),
        (
            '[nvme]\nslots = [{name = "a", address = "0000:60:00.0"}, '
            '{name = "a", address = "0000:61:00.0"}]\n',
            "two slots are 'a'",
        ),
        ("[gpu\n", "node class mine"),
        ('[[mount]]\npath = "mnt"\n', "path"),
        ("[rdma]\nrate_gbps = nan\n", "rate_gbps"),
    ],
)
def test_a_wrong_class_names_its_fault(text: str, named: str) -> None:
    with pytest.raises(ClassError, match=r"^node class mine: [^\n]+$") as caught:
        parse(text, "mine")
    assert named in str(caught.value)


@pytest.mark.parametrize("chosen", ["no-such-class", "../../etc/passwd", "/etc/none.toml"])
def test_a_class_that_is_not_there_is_told_and_the_inventory_is_still_judged(
    tmp_path: Path, chosen: str
) -> None:
    root = node(tmp_path)
    told = f'node_class = "{chosen}"\n[[rdma]]\ndevice = "mlx5_9"\n'
    write(root, {"etc/clusterwatch/agent.toml": told})
    assert kinds(look(ExpectedSource(), root)[1]) == [
        ("port/mlx5_9/1", "port_missing"), ("host", "node_class_invalid"),
    ]  # fmt: skip


@pytest.mark.parametrize("name", node_class.shipped())
def test_every_shipped_class_can_be_used(tmp_path: Path, name: str) -> None:
    assert node_class.load(Tree(tmp_path), name).title


def test_a_live_machine_is_told_its_class_by_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(node_class.SETTING, " grand-teton-h100 ")
    assert node_class.chosen(Tree(), "another") == "grand-teton-h100"
    assert node_class.load(Tree(), "grand-teton-h100").gpu is not None


@given(st.text(max_size=200))
@settings(max_examples=30)
def test_any_text_is_a_class_or_an_error_of_one_line(text: str) -> None:
    try:
        assert isinstance(parse(text, "x"), NodeClass)
    except ClassError as error:
        assert "\n" not in str(error)


def test_the_class_is_a_fact_by_which_a_node_finds_its_peers(tmp_path: Path) -> None:
    assert not ExpectedSource().read(Tree(tmp_path), 0.0).samples
    write(tmp_path, {"etc/clusterwatch/agent.toml": 'node_class = "grand-teton-h100"\n'})
    (told,) = ExpectedSource().read(Tree(tmp_path), 0.0).samples
    assert (told.entity, told.metric, told.value) == ("host", "fact_count", 1)
    assert told.labels == {"fact": "node_class", "value": "grand-teton-h100"}
