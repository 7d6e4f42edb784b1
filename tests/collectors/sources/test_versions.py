"""Facts of a node: the same text on equal nodes, whatever names one of them."""

from __future__ import annotations

import struct
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from collectors.readings import may_travel
from collectors.sources import versions_job
from collectors.sources.base import Sample
from collectors.sources.tree import Tree
from collectors.sources.versions import VersionsSource
from collectors.sources.versions_drivers import driver_version
from collectors.sources.versions_facts import VALUE_MAX_CHARS, Facts, counted, tidy, without_addresses
from collectors.sources.versions_job import libraries
from collectors.sources.versions_kernel import chosen, chosen_parameters, line_hash, pretty_name
from tests.collectors.sources.trees import write

UUID = "GPU-00000000-0000-0000-0000-000000000001"
BDF = "0000:1b:00.0"
CLOSED = "NVRM version: NVIDIA UNIX x86_64 Kernel Module  550.90.07  Fri May 31 09:35:42 UTC 2024\n"
OPEN = "NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  570.124.06  Release Build  (builder@host)\n"
GPU = (
    f"Model: \t\t NVIDIA H100 80GB HBM3\nIRQ:   \t\t 211\nGPU UUID: \t {UUID}\n"
    f"Video BIOS: \t 96.00.89.00.01\nBus Location: \t {BDF}\nDevice Minor: \t 0\nGPU Firmware: \t 550.90.07\n"
)
CMDLINE = "BOOT_IMAGE=/vmlinuz root=UUID=2b1f9b3a-0000-4000-8000-0123456789ab ro iommu=pt pci=realloc=off"


def told(root: Path, source: VersionsSource | None = None, at_s: float = 0.0) -> dict[tuple[str, str], str]:
    reading = (source or VersionsSource()).read(Tree(root), at_s)
    assert reading.events == ()
    return {(s.entity, s.labels["fact"]): s.labels["value"] for s in reading.samples if s.value == 1}


def unknown(root: Path) -> dict[tuple[str, str], str]:
    samples = VersionsSource().read(Tree(root), 0.0).samples
    return {(s.entity, s.labels["fact"]): s.quality for s in samples if s.value is None}


def bridge(acs: int | None, capability: int = 0x0001) -> bytes:
    """Configuration space with one other capability before that of ACS."""
    space = bytearray(4_096)
    struct.pack_into("<I", space, 0x100, (0x148 if acs is not None else 0) << 20 | 1 << 16 | capability)
    if acs is not None:
        struct.pack_into("<IHH", space, 0x148, 1 << 16 | 0x000D, 0x5F, acs)
    return bytes(space)


def rank(root: Path, maps: str | bytes, pid: int = 100, number: int = 0, state: str = "S") -> Path:
    head = f"{'Limit':<25} {'Soft Limit':<20} {'Hard Limit':<20} Units\n"
    return write(root, {
        f"proc/{pid}/environ": f"RANK={number}\0LOCAL_RANK={number}\0WORLD_SIZE=2\0SLURM_JOB_ID=7\0",
        f"proc/{pid}/stat": f"{pid} (python) {state} 1" + " 0" * 17 + " 5 0 0",
        f"proc/{pid}/maps": maps,
        f"proc/{pid}/limits": f"{head}{'Max locked memory':<25} {'unlimited':<20} {'unlimited':<20} bytes\n"
        f"{'Max open files':<25} {'1048576':<20} {'1048576':<20} files\n",
    })  # fmt: skip


def mapped(path: str, start: int = 0x7F0000000000, *lengths: int) -> str:
    lines = []
    for length in lengths or (0x1000,):
        lines.append(f"{start:x}-{start + length:x} r-xp 00000000 fd:01 4711                       {path}\n")
        start += length
    return "".join(lines)


@pytest.mark.parametrize(
    ("text", "version", "module"), [(CLOSED, "550.90.07", "closed"), (OPEN, "570.124.06", "open")]
)
def test_the_gpu_driver(tmp_path: Path, text: str, version: str, module: str) -> None:
    files = {"proc/driver/nvidia/version": text, "sys/module/nvidia_peermem/version": f"{version}\n"}
    found = told(write(tmp_path, files))
    assert found["host", "nvidia.driver"] == version and found["host", "nvidia.open"] == module
    assert found["host", "module.nvidia_peermem"] == version
    assert found["host", "module.nv_peer_mem"] == "not loaded"


def test_a_gpu_by_the_drivers_own_file(tmp_path: Path) -> None:
    files = {"proc/driver/nvidia/version": CLOSED, f"proc/driver/nvidia/gpus/{BDF}/information": GPU}
    found = told(write(tmp_path, files))
    entity = f"gpu/{UUID}"
    assert {fact: found[entity, fact] for _, fact in found if (entity, fact) in found} == {
        "gpu.model": "NVIDIA H100 80GB HBM3", "gpu.vbios": "96.00.89.00.01", "gpu.firmware": "550.90.07",
    }  # fmt: skip


def test_a_gpu_that_nobody_has_used_yet_says_nothing(tmp_path: Path) -> None:
    text = GPU.replace("96.00.89.00.01", "??.??.??.??.??")
    path = f"proc/driver/nvidia/gpus/{BDF}/information"
    found = told(write(tmp_path, {"proc/driver/nvidia/version": CLOSED, path: text}))
    assert (f"gpu/{UUID}", "gpu.vbios") not in found
    write(tmp_path, {path: text.replace(UUID, "GPU-????????-????-????-????-????????????")})
    assert not any(entity.startswith("gpu/") for entity, _ in told(tmp_path))


class Live(Tree):
    """A recorded folder in the place of the machine itself."""

    is_live = True


def test_the_file_of_a_gpu_is_read_again_only_while_it_is_not_whole(tmp_path: Path) -> None:
    path, entity = f"proc/driver/nvidia/gpus/{BDF}/information", f"gpu/{UUID}"
    write(tmp_path, {"proc/driver/nvidia/version": CLOSED, path: GPU.replace("96.00.89.00.01", "??.??")})
    source = VersionsSource()
    for at_s, text, vbios in (
        (0.0, None, None),
        (3_600.0, GPU, "96.00.89.00.01"),
        (7_200.0, "", "96.00.89.00.01"),
    ):
        write(tmp_path, {path: text} if text is not None else {})
        samples = source.read(Live(tmp_path), at_s).samples
        found = {(s.entity, s.labels["fact"]): s.labels["value"] for s in samples}
        assert found.get((entity, "gpu.vbios")) == vbios


def test_tools_and_links_tell_what_is_installed(tmp_path: Path) -> None:
    root = write(tmp_path, {
        "proc/driver/nvidia/version": CLOSED,
        "commands/nv-fabricmanager_--version.txt": "Fabric Manager version is : 550.90.07\n",
        "commands/ofed_info_-s.txt": "MLNX_OFED_LINUX-24.04-0.6.6.0:\n",
        "sys/class/infiniband/mlx5_0/ports/1/link_layer": "Ethernet\n",
        "usr/lib64/libcuda.so.535.183.01": "",
    })  # fmt: skip
    (root / "usr/lib64/libcuda.so.1").symlink_to("libcuda.so.535.183.01")
    found = told(root)
    assert found["host", "fabricmanager"] == "550.90.07" and found["host", "cuda.driver"] == "535.183.01"
    assert found["host", "ofed"] == "MLNX_OFED_LINUX-24.04-0.6.6.0"


def test_tools_are_not_asked_again_within_the_hour_but_for_another_driver(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Tree, "is_paced", property(lambda _: True))
    source, tool = VersionsSource(), "commands/nv-fabricmanager_--version.txt"
    write(tmp_path, {"proc/driver/nvidia/version": CLOSED, tool: "version is : 1.1.1\n"})
    assert told(tmp_path, source, 0.0)["host", "fabricmanager"] == "1.1.1"
    write(tmp_path, {tool: "version is : 2.2.2\n"})
    assert told(tmp_path, source, 300.0)["host", "fabricmanager"] == "1.1.1"
    write(tmp_path, {"proc/driver/nvidia/version": OPEN})
    assert told(tmp_path, source, 600.0)["host", "fabricmanager"] == "2.2.2"
    write(tmp_path, {tool: "version is : 3.3.3\n"})
    assert told(tmp_path, source, 4_200.0)["host", "fabricmanager"] == "3.3.3"


def test_rdma_devices_and_drives_tell_their_firmware(tmp_path: Path) -> None:
    folder = "sys/class/infiniband/mlx5_3"
    found = told(write(tmp_path, {
        f"{folder}/fw_ver": "28.39.1002\n",
        f"{folder}/board_id": "MT_0000000838\n",
        f"{folder}/hca_type": "MT4129\n",
        f"{folder}/node_guid": "e8eb:d303:0077:1a40\n",
        f"{folder}/ports/1/link_layer": "Ethernet\n",
        f"{folder}/device/net/rnic3/mtu": "9000\n",
        "sys/class/nvme/nvme1/model": "KIOXIA KCD8 E1.S                        \n",
        "sys/class/nvme/nvme1/firmware_rev": "1.2.8   \n",
        "sys/class/nvme/nvme1/serial": "S123\n",
        "sys/module/mlx5_core/version": "24.04-0.6.6\n",
        "sys/module/ib_core/initstate": "live\n",
    }))  # fmt: skip
    assert {key: value for key, value in found.items() if key[0] != "host"} == {
        ("port/mlx5_3/1", "rdma.firmware"): "28.39.1002",
        ("port/mlx5_3/1", "rdma.board_id"): "MT_0000000838",
        ("port/mlx5_3/1", "rdma.type"): "MT4129",
        ("port/mlx5_3/1", "rdma.link_layer"): "Ethernet",
        ("port/mlx5_3/1", "rdma.mtu"): "9000",
        ("disk/nvme1", "nvme.model"): "KIOXIA KCD8 E1.S",
        ("disk/nvme1", "nvme.firmware"): "1.2.8",
    }
    assert found["host", "module.mlx5_core"] == "24.04-0.6.6" and found["host", "module.ib_core"] == "loaded"


def test_the_kernel_and_the_board(tmp_path: Path) -> None:
    found = told(write(tmp_path, {
        "proc/sys/kernel/osrelease": "5.15.0-118-generic\n",
        "proc/sys/net/ipv4/tcp_rmem": "4096\t131072\t6291456\n",
        "proc/cmdline": f"{CMDLINE}\n",
        "proc/cpuinfo": "model name\t: Intel(R) Xeon(R) Platinum 8480C\nmicrocode\t: 0x2b0005c0\n",
        "sys/kernel/mm/transparent_hugepage/enabled": "always [madvise] never\n",
        "sys/class/dmi/id/bios_version": "3A17\n",
        "sys/class/dmi/id/product_serial": "SECRET\n",
        "etc/os-release": 'NAME="Ubuntu"\nPRETTY_NAME="Ubuntu 22.04.4 LTS"\n',
        "sys/bus/platform/devices/ipmi_bmc.0/firmware_revision": "6.29\n",
        "sys/class/ptp/ptp0/clock_name": "mlx5_ptp\n",
        "sys/class/ptp/ptp1/clock_name": "mlx5_ptp\n",
        **{
            f"sys/devices/system/cpu/cpufreq/policy{n}/scaling_governor": word
            for n, word in enumerate(("performance\n", "powersave\n", "performance\n"))
        },
    }))  # fmt: skip
    host = {fact: value for (entity, fact), value in found.items() if entity == "host"}
    assert (
        host["kernel"] == "5.15.0-118-generic" and host["sysctl.net.ipv4.tcp_rmem"] == "4096 131072 6291456"
    )
    assert host["cpu.model"] == "Intel(R) Xeon(R) Platinum 8480C" and host["cpu.microcode"] == "0x2b0005c0"
    assert host["cpu.governor"] == "performance 2, powersave 1" and host["thp.enabled"] == "madvise"
    assert host["os"] == "Ubuntu 22.04.4 LTS" and host["bios.version"] == "3A17"
    assert host["bmc.firmware_revision"] == "6.29" and host["ptp.clocks"] == "mlx5_ptp 2"
    assert host["kernel.param.iommu"] == "pt" and host["kernel.param.pci"] == "realloc=off"
    assert host["kernel.param.intel_pstate"] == "not set"
    assert "SECRET" not in str(host) and "2b1f9b3a" not in str(host)


def test_the_command_lines_of_equal_nodes_are_equal() -> None:
    other = CMDLINE.replace("2b1f9b3a", "99999999").replace("ro iommu=pt", "iommu=pt ro")
    assert line_hash(CMDLINE) == line_hash(f"{other} ip=10.1.2.3::10.1.2.1 systemd.machine_id=0af0")
    assert line_hash(f"{CMDLINE} foo=10.0.0.1") == line_hash(f"{CMDLINE} foo=10.0.0.2")
    assert line_hash(CMDLINE) != line_hash(f"{CMDLINE} nosmt") and line_hash(" \n") is None
    assert chosen_parameters("pci=a nosmt pci=b")["pci"] == "a b"
    assert chosen_parameters("nosmt")["nosmt"] == "set"


def test_bridges_that_redirect(tmp_path: Path) -> None:
    spaces = {"0000:00:01.0": 0x1D, "0000:00:02.0": 0x1, "0000:00:03.0": None}
    files: dict[str, str | bytes] = {}
    for name, acs in spaces.items():
        files[f"sys/bus/pci/devices/{name}/class"] = "0x060400\n"
        files[f"sys/bus/pci/devices/{name}/config"] = bridge(acs)
    files |= {
        f"sys/bus/pci/devices/{BDF}/class": "0x030200\n",
        f"sys/bus/pci/devices/{BDF}/config": bridge(0x1D),
    }
    assert told(write(tmp_path, files))["host", "pci.acs_redirect"] == "on 1 of 2 bridges"


@pytest.mark.parametrize(
    ("space", "quality"),
    [
        (bridge(0x1D)[:300], "eperm"),  # what others than root are given
        (bridge(0x1D)[:256], None),  # a bridge of PCI
        (b"\xff" * 4_096, None),  # it does not answer
        (struct.pack("<I", 0x100 << 20 | 1).rjust(0x104, b"\0").ljust(4_096, b"\0"), None),  # a circle
    ],
)
def test_bridges_that_cannot_be_read(tmp_path: Path, space: bytes, quality: str | None) -> None:
    files: dict[str, str | bytes] = {f"sys/bus/pci/devices/{BDF}/class": "0x060400\n"}
    write(tmp_path, files | {f"sys/bus/pci/devices/{BDF}/config": space})
    assert unknown(tmp_path).get(("host", "pci.acs_redirect")) == quality


def test_libraries_of_a_job_are_those_of_its_lowest_rank(tmp_path: Path) -> None:
    site = "/shared/user with blank/env/lib/python3.11/site-packages"
    maps = mapped(f"{site}/torch/lib/libtorch_cuda.so", 0x7F0000000000, 0x1000, 0x3000)
    maps += mapped(f"{site}/nvidia/nccl/lib/libnccl.so.2", 0x7F1000000000, 0x2000)
    maps += mapped("/usr/lib/x86_64-linux-gnu/libcuda.so.550.90.07")
    maps += mapped("/usr/lib/libmlx5.so.1.24.44.0 (deleted)") + mapped("/usr/lib/libnccl-net-ofi.so")
    maps += "7f2000000000-7f2000001000 rw-p 00000000 00:00 0 \n"
    rank(tmp_path, maps)
    rank(tmp_path, mapped("/opt/libnccl.so.2.99.9"), pid=101, number=1)
    found = {fact: value for (entity, fact), value in told(tmp_path).items() if entity == "job/7"}
    assert found == {
        "torch.library": "libtorch_cuda.so 16384 bytes mapped",
        "nccl.library": "libnccl.so.2 8192 bytes mapped",
        "nccl.net_plugin": "libnccl-net-ofi.so 4096 bytes mapped",
        "cuda.library": "libcuda.so.550.90.07",
        "mlx5.library": "libmlx5.so.1.24.44.0",
        "ulimit.memlock": "unlimited",
        "ulimit.nofile": "1048576",
    }


def test_a_version_in_a_path_or_name_is_told() -> None:
    maps = mapped("/opt/pytorch-2.5.1+cu124/lib/libtorch_cuda.so") + mapped("/opt/nccl/lib/libnccl.so.2.21.5")
    found = libraries([maps.encode()])
    assert found["torch.version"] == "2.5.1+cu124" and found["nccl.library"] == "libnccl.so.2.21.5"


def test_a_map_is_read_until_the_library_is_there_and_a_blocked_process_not_at_all(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Tree, "is_paced", property(lambda _: True))
    source, key = VersionsSource(), ("job/7", "nccl.library")
    rank(tmp_path, mapped("/a/libnccl.so.2.1.1"), state="D")
    assert key not in told(tmp_path, source, 0.0)
    rank(tmp_path, mapped("/a/libcudart.so.12"))
    assert key not in told(tmp_path, source, 300.0)
    rank(tmp_path, mapped("/a/libnccl.so.2.1.1"))
    assert told(tmp_path, source, 600.0)[key] == "libnccl.so.2.1.1"
    rank(tmp_path, mapped("/a/libnccl.so.2.2.2"))
    assert told(tmp_path, source, 900.0)[key] == "libnccl.so.2.1.1"
    never = VersionsSource()
    for at_s in (0.0, 300.0, 600.0):
        rank(tmp_path, "")
        told(tmp_path, never, at_s)
    rank(tmp_path, mapped("/a/libnccl.so.2.1.1"))
    assert key not in told(tmp_path, never, 900.0)


def test_a_map_is_read_in_pieces_and_no_further_than_its_bound(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(versions_job, "_CHUNK_BYTES", 4_096)
    much = mapped("/some/other/file") * 2_000
    rank(tmp_path, much + mapped("/a/libnccl.so.2.1.1") + much)
    assert told(tmp_path)["job/7", "nccl.library"] == "libnccl.so.2.1.1"
    monkeypatch.setattr(versions_job, "MAPS_MAX_BYTES", 50_000)
    assert ("job/7", "nccl.library") not in told(tmp_path)


def test_a_file_that_may_not_be_read_has_its_reason(tmp_path: Path) -> None:
    files = {
        "proc/sys/kernel/osrelease": "5\n",
        "read_errors.json": '{"proc/sys/kernel/osrelease": "EACCES"}',
    }
    assert unknown(write(tmp_path, files)) == {("host", "kernel"): "eacces"}


def test_a_node_without_anything_says_nothing(tmp_path: Path) -> None:
    assert told(tmp_path) == {} and unknown(tmp_path) == {}


def test_an_agent_that_starts_again_tells_the_same(tmp_path: Path) -> None:
    write(tmp_path, {"proc/cmdline": CMDLINE, "proc/driver/nvidia/version": CLOSED})
    rank(tmp_path, mapped("/a/libnccl.so.2.1.1"))
    source = VersionsSource()
    assert told(tmp_path, source) == told(tmp_path, source, 300.0) == told(tmp_path, VersionsSource(), 9.0)


def test_of_two_values_of_a_fact_the_first_is_kept_and_an_empty_one_is_none() -> None:
    facts = Facts()
    facts.tell("a", " \n")
    facts.tell("a", "1")
    facts.tell("a", "2")
    assert facts.samples == [Sample("host", "fact_count", 1, labels={"fact": "a", "value": "1"})]


@given(st.text(max_size=400))
def test_every_text_may_travel_and_different_ones_stay_different(text: str) -> None:
    value = tidy(text)
    assert len(value) <= VALUE_MAX_CHARS and value.isprintable() and tidy(value) == value
    facts = Facts()
    facts.tell("a", text)
    assert all(may_travel(sample) for sample in facts.samples)
    long = "x" * VALUE_MAX_CHARS
    assert tidy(f"{long}1") != tidy(f"{long}2")


@given(st.binary(max_size=300))
def test_garbage_gives_no_error(data: bytes) -> None:
    text = data.decode("utf-8", "replace")
    for parser in (line_hash, chosen_parameters, chosen, pretty_name, driver_version, without_addresses):
        parser(text)
    libraries([data])
    counted(text.split() or ["x"])


@given(st.lists(st.tuples(st.integers(0, 2**47), st.integers(0, 2**40)), min_size=1, max_size=8))
def test_what_is_mapped_is_added_up(pieces: list[tuple[int, int]]) -> None:
    maps = "".join(mapped("/a/libnccl.so.2", start, length) for start, length in pieces)
    total = sum(length for _, length in pieces)
    assert libraries([maps.encode()]) == {"nccl.library": f"libnccl.so.2 {total} bytes mapped"}


@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.binary(max_size=200))
def test_files_of_garbage_cost_themselves(tmp_path: Path, data: bytes) -> None:
    names = ["proc/cmdline", "proc/cpuinfo", "etc/os-release", "proc/driver/nvidia/version", "proc/100/maps"]
    names += [f"proc/driver/nvidia/gpus/{BDF}/information", "sys/class/nvme/nvme0/model", "proc/100/limits"]
    names += [f"sys/bus/pci/devices/{BDF}/config", "commands/nv-fabricmanager_--version.txt"]
    rank(tmp_path, "")
    write(tmp_path, dict.fromkeys(names, data) | {f"sys/bus/pci/devices/{BDF}/class": "0x060400\n"})
    write(tmp_path, {"proc/sys/kernel/osrelease": "5.15\n"})
    assert told(tmp_path)["host", "kernel"] == "5.15"
    assert all(may_travel(one) for one in VersionsSource().read(Tree(tmp_path), 0.0).samples)
