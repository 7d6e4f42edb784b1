"""Every switch of an InfiniBand fabric and what each of its ports is plugged into.

In: the text of ``ibnetdiscover``. Out: ``Fabric``. What a switch sees is believed; adapters are only counted.
The tool lists ports with a cable that trained, and no others. Source: ibnetdiscover(8).
"""

from __future__ import annotations

import io
import re
import sys
from dataclasses import dataclass, field
from typing import Final

from collectors.pollers.ib_fabric import (
    LANE_GBPS,
    LINES_MAX,
    LINK,
    NODE,
    QUOTED,
    guid_of,
    own_words,
    switch_name,
    width_speed,
)

SWITCHES_MAX: Final = 8_192
PORT_MAX: Final = 254
"""IBA 14.2.5.3: a port's number has 8 bits, of which 255 means all of them."""
_SWITCH_GUIDS: Final = re.compile(r"switchguid=0x([0-9a-fA-F]{1,16})\(([0-9a-fA-F]{1,16})\)")
_LID: Final = re.compile(r"\blid (\d{1,5})\b")
_ADAPTER: Final = re.compile(r"([A-Za-z0-9][A-Za-z0-9.-]{0,127}) ([A-Za-z][A-Za-z0-9_.-]{0,63})")
_NOT_IN_NAMES: Final = re.compile(r"[^A-Za-z0-9._:-]+")
_NO_HOSTS: Final = frozenset({"localhost", "node", "host"})
"""What adapters call their host before it has told them its name."""


@dataclass(slots=True)
class End:
    """The far end of a cable. ``guid``: of its node, 16 hex digits; ``words``: what it says of itself."""

    is_switch: bool
    guid: str
    port: int
    words: str | None
    width: int | None
    speed: str | None

    @property
    def gbps(self) -> float | None:
        lane = LANE_GBPS.get(self.speed or "")
        return None if self.width is None or lane is None else self.width * lane


@dataclass(slots=True)
class Switch:
    """One switch. ``ends``: its port's number -> what is there."""

    guid: str
    words: str | None
    ends: dict[int, End] = field(default_factory=dict)


@dataclass(slots=True)
class Fabric:
    """What one scan found.

    Attributes:
        switches: node GUID -> switch.
        adapters: how many host adapters there are.
        of_port_guid: GUID of a switch's own port 0 -> node GUID; other tools name switches by it.
        of_lid: LID -> node GUID.
    """

    switches: dict[str, Switch] = field(default_factory=dict)
    adapters: int = 0
    of_port_guid: dict[str, str] = field(default_factory=dict)
    of_lid: dict[int, str] = field(default_factory=dict)

    def names(self, doubtful: set[str]) -> dict[str, str]:
        """Node GUID -> name, each once: what several call themselves has the GUID behind it.

        Args:
            doubtful: names that several had at some look; those of this one are added.
        """
        wanted = {guid: _fit(switch_name(one.words, guid)) or guid for guid, one in self.switches.items()}
        first: dict[str, str] = {}
        for guid, name in wanted.items():
            if first.setdefault(name, guid) != guid:
                doubtful.add(name)
        return {
            guid: f"{name}-{guid}" if name in doubtful and name != guid else name
            for guid, name in wanted.items()
        }


def parsed(said: bytes) -> Fabric:
    """The fabric, as far as it can be read. Cost: linear; a line at a time, so that memory stays small."""
    fabric = Fabric()
    here: Switch | None = None
    port_guid: tuple[str, str] | None = None
    for number, raw in enumerate(io.BytesIO(said)):
        if number >= LINES_MAX:
            break
        if raw[:1] == b"[":
            if here is not None:
                _add_end(here, raw.decode("utf-8", "replace"))
            continue
        line = raw.decode("utf-8", "replace").strip()
        if node := NODE.match(line):
            here = _switch(fabric, node, line, port_guid) if node[1] == "Switch" else None
            fabric.adapters += node[1] == "Ca"
            port_guid = None
        elif guids := _SWITCH_GUIDS.match(line):
            port_guid = guid_of(guids[1]), guid_of(guids[2])
    return fabric


def _switch(
    fabric: Fabric, node: re.Match[str], line: str, port_guid: tuple[str, str] | None
) -> Switch | None:
    guid = guid_of(node[2])
    if guid not in fabric.switches and len(fabric.switches) >= SWITCHES_MAX:
        return None
    found = fabric.switches.setdefault(guid, Switch(guid, own_words(node[3])))
    fabric.of_port_guid[guid] = guid
    if port_guid is not None and port_guid[0] == guid:
        fabric.of_port_guid.setdefault(port_guid[1], guid)
    lid = _LID.search(line, node.end())
    if lid is not None and int(lid[1]):
        fabric.of_lid[int(lid[1])] = guid
    return found


def _add_end(here: Switch, line: str) -> None:
    link = LINK.match(line.strip())
    if link is None or not 0 < int(link[1]) <= PORT_MAX:
        return
    width, speed = width_speed(link[5])
    here.ends[int(link[1])] = End(
        is_switch=link[2] == "S",
        guid=guid_of(link[3]),
        port=int(link[4]),
        words=own_words(next(iter(QUOTED.findall(link[5])), None)),
        width=width,
        speed=sys.intern(speed) if speed else None,
    )


def adapter_of(words: str | None) -> tuple[str, str] | None:
    """(host, device) of what an adapter calls itself; None where that is no host's word."""
    match = _ADAPTER.fullmatch(words or "")
    if match is None or match[1].lower() in _NO_HOSTS:
        return None
    return match[1], match[2]


def _fit(name: str) -> str:
    """A name as it may be part of an entity."""
    return _NOT_IN_NAMES.sub("-", name).strip("-")[:64]
