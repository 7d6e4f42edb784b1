"""Drivers, libraries and firmware of GPUs, RDMA devices and NVMe drives.

In: files of /proc/driver/nvidia, /sys/module, /sys/class/infiniband and /sys/class/nvme; ``nv-fabricmanager
--version`` and ``ofed_info -s``. Out: facts of ``host``, ``gpu/<uuid>``, ``port/<dev>/<n>``, ``disk/<dev>``.
The driver is not asked: a GPU's file is read once, since a driver that hangs keeps its readers.
Source: the driver's README, "Using the /proc File System Interface".
"""

from __future__ import annotations

import os
import re
from typing import Final

from collectors.sources.gpu_identity import GPUS_MAX, UUID, normal_bdf
from collectors.sources.tools import output
from collectors.sources.tree import Tree
from collectors.sources.versions_facts import NAME, Facts, digest, field

NVIDIA_VERSION: Final = "proc/driver/nvidia/version"
_GPUS: Final = "proc/driver/nvidia/gpus"
_DRIVER: Final = re.compile(r"Kernel Module(?: for \S{1,16})? {1,8}(\d{1,5}(?:\.\d{1,5}){1,3})")
_OPEN: Final = "Open Kernel Module"
_VERSION: Final = re.compile(r"\d{1,5}(?:\.\d{1,5}){1,4}")
_GPU_FIELDS: Final = {"gpu.model": "Model", "gpu.vbios": "Video BIOS", "gpu.firmware": "GPU Firmware"}
_MODULES: Final = ("gdrdrv", "nv_peer_mem", "nvidia_fs", "nvidia_peermem")
_RDMA_MODULES: Final = ("ib_core", "mlx5_core")
LOADED: Final = "loaded"
NOT_LOADED: Final = "not loaded"
_RDMA: Final = "sys/class/infiniband"
_RDMA_FIELDS: Final = {"rdma.firmware": "fw_ver", "rdma.board_id": "board_id", "rdma.type": "hca_type"}
_RDMA_MAX: Final = 64
_PORTS_MAX: Final = 16
_PORT: Final = re.compile(r"\d{1,3}")
_NVME: Final = "sys/class/nvme"
_NVME_MAX: Final = 64
_NVME_FIELDS: Final = {"nvme.model": "model", "nvme.firmware": "firmware_rev"}
_LIBRARY_FOLDERS: Final = ("usr/lib64", "usr/lib/x86_64-linux-gnu", "usr/lib/aarch64-linux-gnu")
_TOOLS: Final = {
    "fabricmanager": ("nv-fabricmanager_--version.txt", ("nv-fabricmanager", "--version")),
    "ofed": ("ofed_info_-s.txt", ("ofed_info", "-s")),
}
_TOOL_S: Final = 3.0


def tell(facts: Facts, tree: Tree) -> str:
    """What is read at each look. Returns the driver's version text, empty where there is no driver."""
    version = facts.file(tree, "nvidia.driver", NVIDIA_VERSION, driver_version) or ""
    if version:
        facts.tell("nvidia.open", "open" if _OPEN in version else "closed")
        facts.file(tree, "nvidia.params_hash", "proc/driver/nvidia/params", params_hash)
        _modules(facts, tree, _MODULES)
    if tree.exists(_RDMA):
        _modules(facts, tree, _RDMA_MODULES)
        _rdma(facts, tree)
    for name in tree.list(_NVME)[:_NVME_MAX]:
        if NAME.fullmatch(name):
            for fact, file in _NVME_FIELDS.items():
                facts.file(tree, fact, f"{_NVME}/{name}/{file}", entity=f"disk/{name}")
    return version


def driver_version(text: str) -> str | None:
    match = _DRIVER.search(text)
    return match[1] if match else None


def params_hash(text: str) -> str:
    """Parameters of the module in any order."""
    return digest("\n".join(sorted(text.splitlines())))


def _modules(facts: Facts, tree: Tree, names: tuple[str, ...]) -> None:
    for name in names:
        facts.file(tree, f"module.{name}", f"sys/module/{name}/version")
        facts.tell(f"module.{name}", LOADED if tree.exists(f"sys/module/{name}") else NOT_LOADED)


def _rdma(facts: Facts, tree: Tree) -> None:
    for device in tree.list(_RDMA)[:_RDMA_MAX]:
        folder = f"{_RDMA}/{device}"
        if not NAME.fullmatch(device):
            continue
        for port in filter(_PORT.fullmatch, tree.list(f"{folder}/ports")[:_PORTS_MAX]):
            entity = f"port/{device}/{port}"
            for fact, file in _RDMA_FIELDS.items():
                facts.file(tree, fact, f"{folder}/{file}", entity=entity)
            facts.file(tree, "rdma.link_layer", f"{folder}/ports/{port}/link_layer", entity=entity)
            facts.file(tree, "rdma.traffic_class", f"{folder}/tc/{port}/traffic_class", entity=entity)
            for netdev in tree.list(f"{folder}/device/net")[:1]:
                facts.file(tree, "rdma.mtu", f"{folder}/device/net/{netdev}/mtu", entity=entity)


class Drivers:
    """What is read rarely: GPUs' files once for each driver, tools and links."""

    def __init__(self) -> None:
        self._gpus: dict[str, str] = {}
        """file of a GPU -> its text, once it is whole"""
        self._version = ""

    def tell(self, facts: Facts, tree: Tree, version: str) -> None:
        if version != self._version:
            self._version, self._gpus = version, {}
        if version:
            self._gpu_facts(facts, tree)
            facts.tell("cuda.driver", _library(tree))
            self._tool(facts, tree, "fabricmanager")
        if tree.exists(_RDMA):
            self._tool(facts, tree, "ofed")

    def _gpu_facts(self, facts: Facts, tree: Tree) -> None:
        for name in tree.list(_GPUS)[:GPUS_MAX]:
            if normal_bdf(name) is None:
                continue
            path = f"{_GPUS}/{name}/information"
            text = self._gpus.get(path) if tree.is_live else None
            if text is None:
                try:
                    text = tree.read_text(path, 4_096)
                except OSError:
                    continue  # that it does not answer is told by the sources of GPUs
            uuid = UUID.fullmatch((field(text, "GPU UUID") or "").strip())
            if uuid is None:
                continue  # nobody has used it yet
            values = {fact: (field(text, word) or "").strip() for fact, word in _GPU_FIELDS.items()}
            if not any("?" in value for value in values.values()):
                self._gpus[path] = text
            for fact, value in values.items():
                if "?" not in value:
                    facts.tell(fact, value, f"gpu/{uuid[0]}")

    def _tool(self, facts: Facts, tree: Tree, fact: str) -> None:
        name, argv = _TOOLS[fact]
        try:
            text = output(tree, name, argv, _TOOL_S, 4_096).decode("utf-8", "replace")
        except OSError:
            return  # not installed, or of no use
        if fact == "ofed":
            facts.tell(fact, text.splitlines()[0].strip().rstrip(":") if text.strip() else None)
        elif match := _VERSION.search(text):
            facts.tell(fact, match[0])


def _library(tree: Tree) -> str | None:
    """The version in the name of the driver's CUDA library: one that is not the module's does not work."""
    for folder in _LIBRARY_FOLDERS:
        try:
            target = os.readlink(f"{tree.root}/{folder}/libcuda.so.1")  # noqa: PTH115  the text of a link
        except OSError:
            continue
        match = _VERSION.search(target.rpartition("/")[2])
        if match:
            return match[0]
    return None
