"""Xid and SXid lines of the NVIDIA driver in every form, GPUs that are lost without one, root against echo.

In: records of the kernel log. Out: events of ``gpu/<uuid>`` (``pci/<bdf>`` where nothing tells the UUID).
Forms: with and without ``PCI:``, pid, name; MIG instances; NVLink5 with its link; the driver's recovery
action (Xid 154), which belongs to the Xid before it and wins over the catalogue.
"""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Final

from collectors.sources.base import Attribute, SourceEvent
from collectors.sources.gpu_identity import UUID, normal_bdf
from collectors.sources.kernel_lines import Place
from collectors.sources.kmsg import Record
from collectors.sources.xid_catalogue import meaning, switch_meaning
from collectors.wire.records import Severity

RECOVERY_ACTION_CHANGED: Final = 154
PREEMPTIVE_CLEANUP: Final = 45
OFF_THE_BUS: Final = 79
ROOT_WITHIN_US: Final = 60_000_000
"""An echo follows its root within a minute."""
LOST_WITHIN_US: Final = 10_000_000
"""Lines about a lost GPU this near to its Xid 79 say the same."""
_REMEMBERED: Final = 1_024
_CHAIN_MAX: Final = 4
"""An echo of an echo: Xid 45 of a 145 of a 149."""
_NEVER_A_ROOT: Final = frozenset({PREEMPTIVE_CLEANUP, RECOVERY_ACTION_CHANGED})
"""They come by the thousand and must not push out what they follow from."""
_BDF: Final = r"(?:PCI:)?((?:[0-9a-fA-F]{4,8}:)?[0-9a-fA-F]{2}:[0-9a-fA-F]{2}(?:\.[0-7])?)"
# All from the start of a line: names that a user chose (of a control group, a process) come later in it.
_XID: Final = re.compile(
    rf"NVRM: (?:GPU\d* )?Xid \({_BDF}(?: GPU-I:(\d{{1,3}}))?(?: GPU-CI:\d{{1,3}})?\)"
    r": (\d{1,5})(?:, ?(.*))?$"
)
_SXID: Final = re.compile(rf"(?:(?:nvidia-)?nvswitch\d*:? )?SXid \({_BDF}\): (\d{{1,6}})(?:, ?(.*))?$")
_SXID_DETAIL: Final = re.compile(r"(?:Severity \d|Data \{)")
"""Further lines of the SXid before them."""
_GPU_AT: Final = re.compile(rf"NVRM: GPU at {_BDF}: (GPU-[0-9a-fA-F-]{{36}})")
_LOST: Final = re.compile(rf"NVRM: .*?{_BDF}.*(?:fallen off the bus|GPU is lost)", re.IGNORECASE)
_LOST_LINE_1: Final = re.compile(rf"NVRM: The NVIDIA (?:probe routine.*|GPU {_BDF})")
_LOST_LINE_3: Final = re.compile(r"NVRM: .*fallen off the bus")
_PID: Final = re.compile(r"pid='?(\d{1,10}|<unknown>)'?(?:, |$)")
_NAME: Final = re.compile(r"(?:pid=[^,]{1,20}, )?name=")
_MESSAGE_BEGINS: Final = re.compile(
    r"(?:Ch [0-9a-f]|Contained|Uncontained|Timeout|GPU|Graphics|MMU|NVLink|Row|An |Channel|Cmd|Error|Fatal|"
    r"[A-Z][A-Z0-9_]{3,}|Nonfatal|Non-fatal|errorString|channel|Preempt|Physical|CTX|Failed|SM )"
)
_NAME_MAX: Final = 64
_LINK: Final = re.compile(r"\b[Ll]ink (-?\d{1,3})\b")
_FATAL: Final = re.compile(r"\b(non-?)?fatal\b", re.IGNORECASE)
_CAUSED_BY: Final = re.compile(r"caused by previous Xid (\d{1,5})")
_ACTION: Final = re.compile(r"\bto 0x([0-9a-fA-F]{1,8}) \(([^)]{1,60})\)")
_ACTIONS: Final = ("NONE", "GPU_RESET", "NODE_REBOOT", "DRAIN_P2P", "DRAIN_AND_RESET")
"""By number: the words beside it differ between drivers (``PF FLR`` and ``GPU Reset Required`` are one)."""
_ACTIONS_INFO: Final = frozenset({"NONE"})
_ACTIONS_CRITICAL: Final = frozenset({"GPU_RESET", "NODE_REBOOT", "DRAIN_AND_RESET"})


@dataclass(frozen=True, slots=True)
class _Seen:
    code: int
    bdf: str
    usec: int


class Memory:
    """What earlier lines of this boot told: UUIDs, Xids that may be roots, a loss told in parts."""

    def __init__(self) -> None:
        self._uuids: dict[str, str] = {}
        self._xids: deque[_Seen] = deque(maxlen=_REMEMBERED)
        self._losing: tuple[str, int] | None = None
        self._lost: dict[str, int] = {}

    def learn(self, records: Iterable[Record], place: Place) -> None:
        """Takes in all lines first: a root may be printed after its echo, and a UUID before both."""
        newest = self._xids[-1].usec if self._xids else -1
        for record in records:
            if match := _GPU_AT.match(record.text):
                bdf = normal_bdf(match[1])
                if bdf is not None and UUID.fullmatch(match[2]):
                    self._uuids[bdf] = match[2]
            elif (match := _XID.match(record.text)) and record.usec > newest:
                code, bdf = int(match[3]), normal_bdf(match[1])
                if bdf is not None and code not in _NEVER_A_ROOT:
                    self._xids.append(_Seen(code, bdf, record.usec))

    def entity(self, bdf: str, place: Place) -> str:
        """``gpu/<uuid>``, or ``pci/<bdf>`` where nothing tells the UUID."""
        uuid = self._uuids.get(bdf) or place.uuid_at(bdf) or place.only_lost_uuid
        return f"gpu/{uuid}" if uuid else f"pci/{bdf}"

    def event(self, record: Record, place: Place) -> SourceEvent | None:
        """What a line of the driver says, if anything."""
        if match := _XID.match(record.text):
            return self._xid(match, record, place)
        if match := _SXID.match(record.text):
            return _sxid(match)
        return self._lost_gpu(record, place)

    def _xid(self, match: re.Match[str], record: Record, place: Place) -> SourceEvent | None:
        bdf = normal_bdf(match[1])
        if bdf is None:
            return None
        code, rest = int(match[3]), match[4] or ""
        row = meaning(code)
        attributes: dict[str, Attribute] = _process(rest)
        attributes["bdf"] = bdf
        if match[2]:
            attributes["gpu_instance"] = int(match[2])
        severity: Severity = row.severity
        if code in range(144, 151) or code == 74:
            linked, severity = _link(rest, severity)
            attributes |= linked
        if code == RECOVERY_ACTION_CHANGED and (found := _ACTION.search(rest)):
            action = recovery_action(int(found[1], 16), found[2])
            attributes["recovery_action"] = action
            severity = severity_of(action)
        if code == OFF_THE_BUS:
            self._lost[bdf] = record.usec
        root = self._root(code, bdf, rest, record.usec)
        if root is not None:
            attributes |= {"root_code": root.code, "root_entity": self.entity(root.bdf, place)}
        message = f"Xid {code}: {row.text or rest[:160]}".rstrip(": ")
        return SourceEvent(self.entity(bdf, place), "xid", message, severity, code, attributes=attributes)

    def _root(self, code: int, bdf: str, rest: str, usec: int) -> _Seen | None:
        """The Xid that this one follows from: what the driver names, else what the catalogue knows.

        What is named may be an echo itself: then its root is the root.
        """
        named = _CAUSED_BY.search(rest)
        row = meaning(code)
        wanted, across = ((int(named[1]),), True) if named else (row.echo_of, row.across_gpus)
        root = None
        for _ in range(_CHAIN_MAX):
            found = None if wanted is None else self._nearest(wanted, bdf, usec, across)
            if found is None or found == root:
                break
            root, row = found, meaning(found.code)
            bdf, usec, wanted, across = found.bdf, found.usec, row.echo_of, row.across_gpus
        return _Seen(int(named[1]), bdf, usec) if named and root is None else root

    def _nearest(self, wanted: tuple[int, ...], bdf: str, usec: int, across: bool) -> _Seen | None:
        """Of the same GPU first, then what came before, then the nearest. Empty ``wanted``: any before it."""
        near = [
            seen
            for seen in reversed(self._xids)
            if abs(seen.usec - usec) <= ROOT_WITHIN_US
            and (seen.bdf == bdf or across)
            and (seen.code in wanted if wanted else seen.usec <= usec)
        ]
        return min(
            near,
            key=lambda seen: (seen.bdf != bdf, seen.usec > usec, abs(seen.usec - usec)),
            default=None,
        )

    def _lost_gpu(self, record: Record, place: Place) -> SourceEvent | None:
        """A GPU off the bus, in one line or in three, where no Xid 79 says it."""
        match = _LOST.match(record.text)
        if match is None:
            if (first := _LOST_LINE_1.match(record.text)) and first[1]:
                self._losing = first[1], record.usec
            elif self._losing and _LOST_LINE_3.match(record.text):
                text, usec = self._losing
                self._losing = None
                if record.usec - usec <= LOST_WITHIN_US:
                    return self._gone(text, record, place)
            return None
        return self._gone(match[1], record, place)

    def _gone(self, bdf_text: str, record: Record, place: Place) -> SourceEvent | None:
        bdf = normal_bdf(bdf_text)
        if bdf is None:
            return None
        by_xid = any(
            seen.code == OFF_THE_BUS and seen.bdf == bdf and abs(seen.usec - record.usec) <= LOST_WITHIN_US
            for seen in self._xids
        )
        told = self._lost.get(bdf)
        self._lost[bdf] = record.usec
        if by_xid or (told is not None and abs(record.usec - told) <= LOST_WITHIN_US):
            return None
        text = f"GPU at {bdf} has fallen off the bus"
        return SourceEvent(self.entity(bdf, place), "gpu_lost", text, "critical", attributes={"bdf": bdf})


def with_recovery(events: list[SourceEvent]) -> list[SourceEvent]:
    """Events with the driver's own recovery action on the Xid it belongs to: the last before it.

    The Xid 154 that told the action is then only its messenger.
    """
    found = list(events)
    causes: dict[str, int] = {}
    """entity -> place of its last Xid that may be a cause"""
    for at, event in enumerate(events):
        if event.kind == "xid" and event.code not in _NEVER_A_ROOT:
            causes[event.entity] = at
        action = event.attributes.get("recovery_action")
        place = causes.get(event.entity)
        if event.code != RECOVERY_ACTION_CHANGED or place is None or action in (None, "NONE"):
            continue
        cause = found[place]
        severity = severity_of(str(action))
        found[place] = replace(
            cause, attributes={**cause.attributes, "recovery_action": action}, severity=severity
        )
        found[at] = replace(event, severity="info")
    return found


def recovery_action(number: int, text: str) -> str:
    """The name of NVML's enumeration; of a number that it does not have, the driver's words."""
    if number < len(_ACTIONS):
        return _ACTIONS[number]
    return re.sub(r"[^A-Za-z0-9]+", "_", text).strip("_").upper()[:40]


def severity_of(action: str) -> Severity:
    if action in _ACTIONS_CRITICAL:
        return "critical"
    return "info" if action in _ACTIONS_INFO else "warning"


def _process(rest: str) -> dict[str, Attribute]:
    """pid and name, where the driver knew them."""
    told: dict[str, Attribute] = {}
    match = _PID.match(rest)
    if match and match[1] != "<unknown>":
        told["pid"] = int(match[1])
    begin = _NAME.match(rest)
    name = None if begin is None else _name(rest[begin.end() :])
    if name and name.strip("'") != "<unknown>":
        told["name"] = name
    return told


def _name(text: str) -> str:
    """The process name before the message. Names may hold commas: a message must follow."""
    ends = [match.start() for match in re.finditer(", ", text) if match.start() <= _NAME_MAX]
    for end in ends:
        if _MESSAGE_BEGINS.match(text[end + 2 :]):
            return text[:end]
    return text[: ends[0]] if ends else text.rstrip(".,")[:_NAME_MAX]


def _link(rest: str, severity: Severity) -> tuple[dict[str, Attribute], Severity]:
    """Link (-1: none) and fatality of an NVLink fault, and its severity."""
    told: dict[str, Attribute] = {}
    if (fatal := _FATAL.search(rest)) is not None:
        told["fatal"] = fatal[1] is None
        severity = "critical" if told["fatal"] else "warning"
    if (link := _LINK.search(rest)) is not None and int(link[1]) >= 0:
        told["link"] = int(link[1])
    return told, severity


def _sxid(match: re.Match[str]) -> SourceEvent | None:
    """A fault of an NVSwitch; the driver says in words whether it is fatal."""
    bdf = normal_bdf(match[1])
    if bdf is None:
        return None
    rest = match[3] or ""
    if _SXID_DETAIL.match(rest):
        return None
    linked, severity = _link(rest, switch_meaning(int(match[2])).severity)
    text = f"SXid {match[2]}: {rest}"[:200].rstrip(": ")
    return SourceEvent(f"pci/{bdf}", "sxid", text, severity, int(match[2]), attributes={"bdf": bdf, **linked})
