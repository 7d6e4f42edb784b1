"""Where devices sit on the bus, and which network and RDMA device are one piece of hardware.

In: ``device`` links of sysfs. In a copied tree such a link may have become a plain file with the link's text.
"""

from __future__ import annotations

from typing import Final

from collectors.sources.gpu_identity import normal_bdf
from collectors.sources.tree import Tree

_NET: Final = "sys/class/net"
_RDMA: Final = "sys/class/infiniband"
_DEVICES_MAX: Final = 256


def device_bdf(tree: Tree, folder: str) -> str | None:
    """PCI address of the device that a folder of sys/class belongs to; None where it has none."""
    name = f"{folder}/device"
    try:
        target = str((tree.root / name).readlink())
    except OSError:
        try:
            target = tree.read_text(name, 4_096)
        except OSError:
            return None
    return normal_bdf(target.strip().rpartition("/")[2])


def rdma_of_netdev(tree: Tree, netdev: str) -> str | None:
    """The RDMA device at the PCI address of a network device."""
    return _peer(tree, f"{_NET}/{netdev}", _RDMA)


def rdma_at(tree: Tree, bdf: str) -> str | None:
    """The RDMA device at a PCI address (``0000:12:00.0``)."""
    return _at(tree, bdf, _RDMA)


def netdev_of_rdma(tree: Tree, device: str) -> str | None:
    """The network device at the PCI address of an RDMA device."""
    return _peer(tree, f"{_RDMA}/{device}", _NET)


def _peer(tree: Tree, folder: str, others: str) -> str | None:
    bdf = device_bdf(tree, folder)
    return None if bdf is None else _at(tree, bdf, others)


def _at(tree: Tree, bdf: str, others: str) -> str | None:
    names = tree.list(others)[:_DEVICES_MAX]
    return next((name for name in names if device_bdf(tree, f"{others}/{name}") == bdf), None)
