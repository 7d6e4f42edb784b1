"""What nodes of one class must have: parts of the bus by kind, speeds, mounts.

In: the name of a class that ships with the product, or the path of a TOML file: ``CLUSTERWATCH_NODE_CLASS``;
in a recorded tree ``node_class`` of its inventory. Out: ``NodeClass``. A file that cannot be used is a
``ClassError`` of one line that names the key. What the node's own inventory lists goes before its class.
"""

from __future__ import annotations

import functools
import os
import re
import tomllib
from importlib import resources
from typing import Annotated, Any, Final

import msgspec
from msgspec import Meta

from collectors.sources.tree import Tree

SETTING: Final = "CLUSTERWATCH_NODE_CLASS"
FILE_MAX_BYTES: Final = 262_144
_SHIPPED: Final = "node_classes"
_NAME: Final = re.compile(r"[a-z0-9][a-z0-9._-]{0,63}")
_BDF_PATTERN: Final = r"^[0-9a-f]{4}:[0-9a-f]{2}:[0-9a-f]{2}\.[0-7]$"

Count = Annotated[int, Meta(ge=0, le=1_024)]
Address = Annotated[str, Meta(pattern=_BDF_PATTERN)]
Word = Annotated[str, Meta(min_length=1, max_length=64, pattern=r"^[ -~]+$")]
MountPath = Annotated[str, Meta(max_length=4_096, pattern=r"^/[^\x00-\x1f]*$")]


class ClassError(ValueError):
    """A class that cannot be used; the text is one line for people."""


class _Strict(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    pass


class SlotPlace(_Strict, frozen=True):
    """A place of a part. ``address``: of PCI, as the kernel writes it."""

    name: Word
    address: Address


class Parts(_Strict, frozen=True):
    """Parts of one kind. ``None`` and empty: not judged."""

    count: Count | None = None
    """at least so many"""
    count_max: Count | None = None
    """at most so many"""
    slots: Annotated[list[SlotPlace], Meta(max_length=256)] = []
    """where each sits, so that one that is missing has a name; instead of ``count``"""
    ids: Annotated[list[Annotated[str, Meta(pattern="^[0-9a-f]{4}:[0-9a-f]{4}$")]], Meta(max_length=64)] = []
    """``vendor:device`` of PCI: only such parts count; empty: all of the kind"""
    ignore: Annotated[list[Word], Meta(max_length=64)] = []
    """names (``mlx5_0``) or addresses of parts that do not count, such as the drive it boots from"""
    pcie_width: Annotated[int, Meta(ge=1, le=32)] | None = None
    pcie_gen: Annotated[int, Meta(ge=1, le=6)] | None = None

    def __post_init__(self) -> None:
        if self.count is not None and self.count_max is not None and self.count_max < self.count:
            raise ValueError(f"count_max {self.count_max} is below count {self.count}")
        if self.count is not None and self.slots:
            raise ValueError("either count or slots: slots are counted")
        for told in ([slot.name for slot in self.slots], [slot.address for slot in self.slots]):
            if twice := sorted({one for one in told if told.count(one) > 1}):
                raise ValueError(f"two slots are {twice[0]!r}")

    @property
    def wanted(self) -> int | None:
        """How many there must be at least."""
        return len(self.slots) if self.slots else self.count


class Gpus(Parts, frozen=True):
    """GPUs. Their PCIe speed is not judged: one that idles lowers it."""

    nvlinks: Annotated[int, Meta(ge=0, le=64)] | None = None
    """active links of each"""


class RdmaDevices(Parts, frozen=True):
    rate_gbps: Annotated[float, Meta(gt=0, le=100_000)] | None = None
    """of each port"""


class Mount(_Strict, frozen=True):
    path: MountPath


class NodeClass(_Strict, frozen=True):
    """A whole class file."""

    title: Annotated[str, Meta(max_length=255)] = ""
    gpu: Gpus | None = None
    rdma: RdmaDevices | None = None
    nvme: Parts | None = None
    mount: Annotated[list[Mount], Meta(max_length=64)] = []


def chosen(tree: Tree, told: object = None) -> str:
    """The node's class as it is named; empty: none. ``told``: ``node_class`` of a recorded inventory."""
    if tree.is_live:
        return os.environ.get(SETTING, "").strip()
    return told.strip() if isinstance(told, str) else ""


def load(tree: Tree, name: str) -> NodeClass:
    """The class of that name, or of the file at that path. The live machine's is read once, also a wrong one.

    Raises:
        ClassError: there is none, or its file is wrong.
    """
    found = _of_machine(name) if tree.is_live else _read(tree, name)
    if isinstance(found, ClassError):
        raise found
    return found


def with_mounts(tree: Tree, told: dict[str, Any]) -> dict[str, Any]:
    """An inventory with the mounts of the node's class, where it lists none of its own."""
    name = "" if "mount" in told else chosen(tree, told.get("node_class"))
    if not name:
        return told
    try:
        mounts = load(tree, name).mount
    except ClassError:
        return told
    return {**told, "mount": [{"path": mount.path} for mount in mounts]} if mounts else told


def shipped() -> list[str]:
    """Names of the classes that come with the product."""
    files = resources.files("collectors").joinpath(_SHIPPED).iterdir()
    return sorted(file.name.removesuffix(".toml") for file in files if file.name.endswith(".toml"))


def parse(text: str, name: str) -> NodeClass:
    """A class file's text. Raises ``ClassError``."""
    try:
        return msgspec.convert(tomllib.loads(text), NodeClass)
    except (msgspec.ValidationError, tomllib.TOMLDecodeError, RecursionError) as error:
        raise ClassError(f"node class {name}: {' '.join(str(error).split())[:300]}") from None


@functools.lru_cache(maxsize=4)
def _of_machine(name: str) -> NodeClass | ClassError:
    try:
        return _read(Tree(), name)
    except ClassError as error:
        return error


def _read(tree: Tree, name: str) -> NodeClass:
    if "/" in name:
        try:
            return parse(tree.read_text(name.lstrip("/"), FILE_MAX_BYTES), name)
        except OSError as error:
            raise ClassError(f"node class {name}: {error.strerror}") from None
    file = resources.files("collectors").joinpath(_SHIPPED, f"{name}.toml")
    if not _NAME.fullmatch(name) or not file.is_file():
        raise ClassError(f"no node class {name!r}: there are {', '.join(shipped())}, or give a file's path")
    return parse(file.read_text(encoding="utf-8"), name)
