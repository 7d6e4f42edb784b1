"""Whether PCIe bridges send traffic between devices up to the processor: access control services (ACS).

In: the configuration space of bridges in sys/bus/pci/devices, of which only root is told the end. Out: a fact
of ``host``. With redirects on, what a GPU and a NIC below one switch exchange goes through the root complex,
and GPUDirect is slow. Source: PCI Express Base Specification, ACS Extended Capability; pci_regs.h of Linux.
"""

from __future__ import annotations

import os
from typing import Final

from collectors.sources.tree import Tree, reason
from collectors.sources.versions_facts import Facts

ROOT: Final = "sys/bus/pci/devices"
DEVICES_MAX: Final = 4_096
FACT: Final = "pci.acs_redirect"
_BRIDGE: Final = "0x0604"
_FIRST: Final = 0x100
_LAST: Final = 0xFFC
_ACS: Final = 0x000D
_CONTROL: Final = 6
_REDIRECTS: Final = 0x4 | 0x8
"""P2P request redirect and P2P completion redirect."""
_STEPS_MAX: Final = 64
_NO_ANSWER: Final = 0xFFFFFFFF


def tell(facts: Facts, tree: Tree) -> None:
    """Reads a few words of each bridge. Cost: each is a transaction on the bus; rarely."""
    controls: list[int] = []
    refused: str | None = None
    for name in tree.list(ROOT)[:DEVICES_MAX]:
        try:
            if not tree.read_text(f"{ROOT}/{name}/class", 16).startswith(_BRIDGE):
                continue
            control = _control(tree, f"{ROOT}/{name}/config")
        except FileNotFoundError:
            continue
        except OSError as error:
            refused = reason(error)
            continue
        if control is not None:
            controls.append(control)
    if controls:
        on = sum(bool(control & _REDIRECTS) for control in controls)
        facts.tell(FACT, f"on {on} of {len(controls)} bridges")
    elif refused is not None:
        facts.unknown(FACT, refused)


def _control(tree: Tree, name: str) -> int | None:
    """The control register of a bridge; None: it has no such capability. Raises ``OSError``."""
    fd = tree.open(name)
    try:
        if os.fstat(fd).st_size <= _FIRST:
            return None  # a bridge of PCI, without any such capability
        place = _FIRST
        for _ in range(_STEPS_MAX):
            head = _word(fd, place)
            if head in (0, _NO_ANSWER):
                return None
            if head & 0xFFFF == _ACS:
                return _word(fd, place + _CONTROL - 2) >> 16
            place = head >> 20
            if not _FIRST <= place <= _LAST or place % 4:
                return None
        return None
    finally:
        os.close(fd)


def _word(fd: int, place: int) -> int:
    """Four bytes. Raises ``PermissionError`` where the kernel gives none, as it does to others than root."""
    data = os.pread(fd, 4, place)
    if len(data) < 4:
        raise PermissionError(1, "no extended configuration space")
    return int.from_bytes(data, "little")
