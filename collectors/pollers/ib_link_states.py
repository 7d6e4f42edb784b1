"""The state of every port of every switch, also of those without a link.

In: the text of ``iblinkinfo``, in lines of its own or below each node's name. Out: ``LinkState`` by the GUID
that the tool names a switch by, and port. Source: iblinkinfo(8); IBA C14-24.2.1: of a port that is down
nothing else is true.
"""

from __future__ import annotations

import io
import re
import sys
from dataclasses import dataclass
from typing import Final

from collectors.pollers.ib_fabric import LINES_MAX, guid_of
from collectors.pollers.ib_topology import PORT_MAX, SWITCHES_MAX

ACTIVE: Final = "Active"
_HEAD: Final = re.compile(r"(Switch|CA|Router|\?\?): (?:0x([0-9a-fA-F]{1,16}) )?")
_LINE_GUID: Final = re.compile(r'0x([0-9a-fA-F]{1,16}) "')
_PORT: Final = re.compile(
    r"\s(\d{1,3})\[[ \d]{0,4}\] ==\([^/\n]{0,64}?\s*(\w{1,16})/\s*([\w ]{1,32})\)(.{0,512})"
)
_COULD_BE: Final = re.compile(r"Could be (\d{1,2}X|\d{1,3}(?:\.\d{1,8})? Gbps)")


@dataclass(frozen=True, slots=True)
class LinkState:
    """One port. ``could_be``: what both ends can do and the link does not, such as ``4X``."""

    state: str
    physical: str
    could_be: tuple[str, ...] = ()

    @property
    def is_up(self) -> bool:
        return self.state == ACTIVE


States = dict[str, dict[int, LinkState]]
"""GUID of a switch's port 0 -> port -> its state"""


def parsed(said: bytes) -> States:
    """States of switches' ports, as far as they can be read. Cost: linear."""
    found: States = {}
    same: dict[LinkState, LinkState] = {}
    guid = ""
    for number, raw in enumerate(io.BytesIO(said)):
        if number >= LINES_MAX:
            break
        line = raw.decode("utf-8", "replace")
        if head := _HEAD.match(line):
            guid = guid_of(head[2]) if head[1] == "Switch" and head[2] else ""
            continue
        own = _LINE_GUID.match(line)
        owner = guid_of(own[1]) if own else guid
        port = _PORT.search(line, own.end() if own else 0) if owner else None
        if port is None or not 0 < int(port[1]) <= PORT_MAX:
            continue
        if owner not in found and len(found) >= SWITCHES_MAX * 8:
            continue
        state = LinkState(sys.intern(port[2]), sys.intern(port[3].strip()), _could_be(port[4]))
        found.setdefault(owner, {})[int(port[1])] = same.setdefault(state, state)
    return found


def _could_be(rest: str) -> tuple[str, ...]:
    return tuple(_COULD_BE.findall(rest.rpartition('"')[2]))
