"""InfiniBand: which switch port each of a node's ports is plugged into, and how wide and fast that link runs.

In: ``ibnetdiscover`` (commands/ibnetdiscover.txt), sys/class/infiniband. Out: an event ``ib_peer`` for each
port of the node, a warning where the link lost lanes or speed. A port is known by its adapter's GUID; what an
adapter says of itself may be out of date. Source: ibnetdiscover(8).
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from collectors.sources import tools
from collectors.sources.base import HOST, Attribute, Reading, SourceEvent
from collectors.sources.hostlist import short
from collectors.sources.infiniband import DEVICES_MAX, ROOT, expected_ports
from collectors.sources.tree import Tree, printable

RECORDED: Final = "ibnetdiscover.txt"
FABRIC_MAX_BYTES: Final = 64 * 1024 * 1024
TIMEOUT_S: Final = 60.0
LINES_MAX: Final = 1_000_000
WHOLE_WIDTH: Final = 4
"""Lanes of a cable; a link of fewer lost some, unless the inventory says that it is a split one."""
_RATE_SHARE_MIN: Final = 0.95
LANE_GBPS: Final = {
    "SDR": 2.5, "DDR": 5.0, "QDR": 10.0, "FDR10": 10.0, "FDR": 14.0, "EDR": 25.0, "HDR": 50.0,
    "NDR": 100.0, "XDR": 200.0,
}  # fmt: skip
"""Gb/s of one lane as the kernel counts them: 4xHDR is 200."""
NODE: Final = re.compile(r'(Switch|Ca|Rt)\s+\d{1,5}\s+"[SHR]-([0-9a-fA-F]{1,16})"(?:\s*#\s*"([^"]{0,128})")?')
LINK: Final = re.compile(
    r'\[(\d{1,3})\](?:\([0-9a-fA-F]{1,16}\))?\s+"([SHR])-([0-9a-fA-F]{1,16})"\[(\d{1,3})\]'
    r"(?:\([0-9a-fA-F]{1,16}\))?([^\n]{0,512})"
)
QUOTED: Final = re.compile(r'"([^"]{0,128})"')
_WIDTH: Final = re.compile(r"\s(\d{1,2})x([A-Z]{3}\d{0,2})\s*$")
_MANAGED: Final = re.compile(r"MF\d;([^:;]+)(?::.*)?")
RDMA_DEVICE: Final = re.compile(r"[A-Za-z][A-Za-z0-9_.-]{0,63}")


@dataclass(frozen=True, slots=True)
class Link:
    """One cable, seen from an adapter's port.

    Attributes:
        guid: the adapter's node GUID, 16 hex digits.
        peer: what the adapter says of itself, such as ``gtn-0101 mlx5_4``; None where it says nothing.
        switch: None where the cable goes to another adapter.
    """

    guid: str
    port: int
    peer: str | None
    switch: str | None
    switch_port: int | None
    width: int | None
    speed: str | None

    @property
    def width_speed(self) -> str | None:
        return None if self.width is None else f"{self.width}x{self.speed}"

    @property
    def gbps(self) -> float | None:
        lane = LANE_GBPS.get(self.speed or "")
        return None if self.width is None or lane is None else self.width * lane


class IbFabricPoller:
    """The fabric, as it concerns the node of the tree."""

    name = "ib_fabric"
    period_s = 300.0
    deadline_s = 90.0
    metrics = ()

    def read(self, tree: Tree, at_s: float) -> Reading:
        try:
            said = tools.output(tree, RECORDED, ["ibnetdiscover"], TIMEOUT_S, FABRIC_MAX_BYTES)
        except FileNotFoundError:
            return Reading()
        except OSError as error:
            text = f"ibnetdiscover: {error.strerror}"[:300]
            return Reading((), [SourceEvent(HOST, "fabric_unreadable", text, "warning", standing=True)])
        return Reading((), list(_events(tree, links(said.decode("utf-8", "replace")))))


def links(text: str) -> list[Link]:
    """The cable of each adapter's port: as a switch tells it, else as the adapter does."""
    of_switch: dict[tuple[str, int], Link] = {}
    of_adapter: dict[tuple[str, int], Link] = {}
    kind = guid = ""
    name: str | None = None
    for line in text.split("\n", LINES_MAX)[:LINES_MAX]:
        line = line.strip()
        if node := NODE.match(line):
            kind, guid, name = node[1], guid_of(node[2]), own_words(node[3])
        elif link := LINK.match(line):
            port, far_kind, far_guid, far_port = int(link[1]), link[2], guid_of(link[3]), int(link[4])
            width, speed = width_speed(link[5])
            far_name = own_words(next(iter(QUOTED.findall(link[5])), None))
            if kind == "Switch" and far_kind == "H":
                of_switch[far_guid, far_port] = Link(
                    far_guid, far_port, far_name, switch_name(name, guid), port, width, speed
                )
            elif kind == "Ca":
                is_switch = far_kind == "S"
                of_adapter[guid, port] = Link(
                    guid, port, name, switch_name(far_name, far_guid) if is_switch else None,
                    far_port if is_switch else None, width, speed,
                )  # fmt: skip
    return list({**of_adapter, **of_switch}.values())


def _events(tree: Tree, found: list[Link]) -> Iterator[SourceEvent]:
    host = short(tree.host_name())
    devices = _devices_by_guid(tree)
    expected = expected_ports(tree)
    for link in found:
        device = devices.get(link.guid) or _device_it_names(link, host, set(devices.values()))
        if device is None:
            continue
        fault = _fault(link, expected.get((device, link.port)))
        place = f"port {link.switch_port} of {link.switch}" if link.switch else "another adapter"
        text = f"{device} port {link.port} is plugged into {place}, {link.width_speed or 'width unknown'}"
        attributes: dict[str, Attribute] = {
            "switch": link.switch,
            "switch_port": link.switch_port,
            "width_speed": link.width_speed,
            "peer": link.peer,
        }
        yield SourceEvent(
            f"port/{device}/{link.port}", "ib_peer", f"{text}{fault}", "warning" if fault else "info",
            attributes=attributes, standing=True,
        )  # fmt: skip


def _fault(link: Link, expected_gbps: float | None) -> str:
    """What is wrong with a link's width and speed; empty where nothing is."""
    if link.width is None:
        return ""
    if expected_gbps is not None and link.gbps is not None:
        slow = link.gbps < expected_gbps * _RATE_SHARE_MIN
        return f": {link.gbps:g} Gb/s instead of {expected_gbps:g}" if slow else ""
    return f": {link.width} of {WHOLE_WIDTH} lanes" if link.width < WHOLE_WIDTH else ""


def _devices_by_guid(tree: Tree) -> dict[str, str]:
    found = {}
    for device in tree.list(ROOT)[:DEVICES_MAX]:
        try:
            guid = tree.read_text(f"{ROOT}/{device}/node_guid", 64).strip().replace(":", "")
        except OSError:
            continue
        if re.fullmatch(r"[0-9a-fA-F]{16}", guid) and int(guid, 16) and RDMA_DEVICE.fullmatch(device):
            found[guid_of(guid)] = device
    return found


def _device_it_names(link: Link, host: str, present: set[str]) -> str | None:
    """The device of this host that an adapter says to be; not one that is there under another GUID."""
    words = (link.peer or "").split()
    if len(words) != 2 or short(words[0]) != host or not RDMA_DEVICE.fullmatch(words[1]):
        return None
    return None if words[1] in present else words[1]


def width_speed(rest: str) -> tuple[int | None, str | None]:
    match = _WIDTH.search(rest)
    return (int(match[1]), match[2]) if match else (None, None)


def switch_name(text: str | None, guid: str) -> str:
    """A switch's own name: ``ib-leaf-02`` of ``MF0;ib-leaf-02:MQM9700/U1``; its GUID where it has none."""
    match = _MANAGED.fullmatch(text or "")
    return (match[1].strip() if match else text) or guid


def guid_of(text: str) -> str:
    return text.lower().zfill(16)


def own_words(text: str | None) -> str | None:
    return printable(text).strip() or None if text else None
