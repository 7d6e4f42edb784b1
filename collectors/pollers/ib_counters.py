"""Counters of switches' ports as the fabric's own tools print them.

In: the text of ``ibqueryerrors`` (errors, or ``--counters``) or of ``perfquery``. Out: ``PortCounters``, from
which a port's values are read when they are needed. ``ibqueryerrors`` leaves out what is not above its
threshold, which its summary names: with a threshold of 0 what is left out is 0. Source: ibqueryerrors(8);
IBA 16.1.3.5: these counters stop at all ones, which then say nothing. An error counter of 64 bits is printed
with its value in words behind it, a narrow one without.
"""

from __future__ import annotations

import io
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Final

from collectors.pollers.ib_fabric import LINES_MAX, guid_of
from collectors.pollers.ib_topology import PORT_MAX
from collectors.pollers.switch_facts import TOO_NARROW
from collectors.sources.counters import SATURATED, Count, Counter, parsed
from collectors.sources.infiniband import WORD_BYTES

BELOW_THRESHOLD: Final = "below_threshold"
PORTS_MAX: Final = 1_000_000
LINE_MAX_CHARS: Final = 4_096
FAILED_MAX: Final = 65_536
_ERRORS: Final = {
    "SymbolErrorCounter": ("symbol_error", 16),
    "LinkErrorRecoveryCounter": ("link_error_recovery", 8),
    "LinkDownedCounter": ("link_downed", 8),
    "PortRcvErrors": ("rx_errors", 16),
    "PortRcvRemotePhysicalErrors": ("port_rcv_remote_physical_errors", 16),
    "PortRcvSwitchRelayErrors": ("port_rcv_switch_relay_errors", 16),
    "PortXmitDiscards": ("tx_discards", 16),
    "PortXmitConstraintErrors": ("port_xmit_constraint_errors", 8),
    "PortRcvConstraintErrors": ("port_rcv_constraint_errors", 8),
    "LocalLinkIntegrityErrors": ("local_link_integrity_errors", 4),
    "ExcessiveBufferOverrunErrors": ("excessive_buffer_overrun_errors", 4),
    "VL15Dropped": ("vl15_dropped", 16),
    "PortXmitWait": ("port_xmit_wait", 32),
}  # fmt: skip
"""The tools' name -> ours and the bits of the narrow one. Other dialects' names where there is one."""
_DATA: Final = {
    "PortXmitData": "tx_bytes",
    "PortRcvData": "rx_bytes",
    "PortXmitPkts": "tx_packets",
    "PortRcvPkts": "rx_packets",
}
_FULL: Final = frozenset({2**32 - 1, 2**64 - 1})
"""All ones of either width: the tool prints both alike."""
_NOT_EVERYWHERE: Final = frozenset({"PortXmitWait"})
"""A switch that does not count it is printed as if it were 0."""
KINDS: Final = {name: Counter(64, saturates=True) for name, _ in _ERRORS.values()}
UNTOLD_ZEROS: Final = frozenset(name for name, _ in _ERRORS.values()) - {
    "symbol_error", "link_downed", "rx_errors", "tx_discards", "port_xmit_wait",
}  # fmt: skip
"""Errors that are told only when there was one: a fabric has a hundred thousand ports."""
_PORT: Final = re.compile(r"\s+GUID 0x([0-9a-fA-F]{1,16}) port (\d{1,3}):")
_VALUE: Final = re.compile(r"\[(\w{1,64}) == (\d{1,20})( \()?")
_THRESHOLD: Final = re.compile(r"\[(\w{1,64}) = (\d{1,20})\]")
_PERFQUERY: Final = re.compile(r"# Port (extended )?counters: Lid (\d{1,5}) port (\d{1,3})\b")
_DOTTED: Final = re.compile(r"(\w{1,64}):\.{1,64}(\d{1,20})\Z")
_FAILURES: Final = re.compile(r"##\s+(\d{1,9}) PMA query failures")
_FAILED: Final = re.compile(r"query failed on .*, Lid (\d{1,5}) port (\d{1,3})")
_ALL_PORTS: Final = frozenset({0, 255})


@dataclass(slots=True)
class PortCounters:
    """What one document tells.

    Attributes:
        lines: GUID of a switch's port 0, or ``lid N`` -> port -> its line, read when it is asked for.
        is_errors: it is a list of errors, which says what it left out.
        is_whole: it has its summary; without one the tool gave up, whatever its exit code says.
        thresholds: up to where an error is left out; what is not here has 0.
        untold: errors that it was told to leave out.
        failures: questions that were not answered.
        failed: (``lid N``, port) of those, as far as the tool's complaints name them.
    """

    lines: dict[str, dict[int, str]] = field(default_factory=dict)
    is_errors: bool = False
    is_whole: bool = False
    thresholds: dict[str, int] = field(default_factory=dict)
    untold: set[str] = field(default_factory=set)
    failures: int = 0
    failed: list[tuple[str, int]] = field(default_factory=list)

    def counts(self, switch: Sequence[str], port: int) -> dict[str, Count]:
        """Our name -> value of a port. ``switch``: all that may name it, its GUIDs and its LID."""
        found: dict[str, Count] = {}
        for key in switch:
            if line := self.lines.get(key, {}).get(port):
                found |= dict(_values(line))
        if self.is_errors and self.is_whole and self._has_answered(switch, port):
            for theirs, (ours, _) in _ERRORS.items():
                if ours not in found and theirs not in self.untold and theirs not in _NOT_EVERYWHERE:
                    is_zero = not self.thresholds.get(theirs)
                    found[ours] = Count(0) if is_zero else Count(None, BELOW_THRESHOLD)
        return found

    def _has_answered(self, switch: Sequence[str], port: int) -> bool:
        """Whether what is left out of the port is known to be small."""
        if len(self.failed) < self.failures:
            return False
        return not any(lid in switch and (at == port or at in _ALL_PORTS) for lid, at in self.failed)


def read(said: bytes, complaints: bytes = b"", is_errors: bool = False) -> PortCounters:
    """A document of either tool, several behind one another too. Cost: linear.

    Args:
        is_errors: of ``ibqueryerrors`` without ``--counters``.
        complaints: what the tool wrote to stderr.
    """
    found = PortCounters(is_errors=is_errors)
    key, is_wide, ports = ("", 0), False, 0
    for number, raw in enumerate(io.BytesIO(said)):
        if number >= LINES_MAX * 4 or ports >= PORTS_MAX:
            break
        line = raw[:LINE_MAX_CHARS].decode("utf-8", "replace").rstrip()
        if port := _PORT.match(line):
            key = guid_of(port[1]), int(port[2])
            ports += _append(found, key, line[port.end() :])
        elif head := _PERFQUERY.match(line):
            key, is_wide = (f"lid {int(head[2])}", int(head[3])), head[1] is not None
            ports += 1
        elif dotted := _DOTTED.match(line):
            _append(found, key, f"[{dotted[1]} == {dotted[2]}{' ()' if is_wide else ''}]")
        elif line.startswith("##"):
            _summary(found, line)
    for raw in io.BytesIO(complaints):
        if len(found.failed) < FAILED_MAX and (
            failed := _FAILED.search(raw[:1_024].decode("utf-8", "replace"))
        ):
            found.failed.append((f"lid {int(failed[1])}", int(failed[2])))
    return found


def _append(found: PortCounters, key: tuple[str, int], text: str) -> int:
    """Adds values to a port's line. Returns whether the port is new."""
    if not 0 < key[1] <= PORT_MAX:
        return 0
    of_switch = found.lines.setdefault(key[0], {})
    before = of_switch.get(key[1])
    if len(before or "") < LINE_MAX_CHARS:
        of_switch[key[1]] = (before or "") + text
    return int(before is None)


def _summary(found: PortCounters, line: str) -> None:
    if line.startswith("## Thresholds:") or line == "## (null)":
        found.is_whole = True
        found.thresholds = {name: int(limit) for name, limit in _THRESHOLD.findall(line)}
    elif line.startswith("## Suppressed:"):
        found.untold = set(line.split()[2:66])
    elif failures := _FAILURES.match(line):
        found.failures = int(failures[1])


def _values(line: str) -> Iterator[tuple[str, Count]]:
    """Our name and value of each counter of a line; of a narrow and a wide one the wide."""
    for theirs, digits, is_wide in sorted(_VALUE.findall(line), key=lambda one: bool(one[2])):
        count = parsed(digits)
        if theirs in _ERRORS:
            ours, bits = _ERRORS[theirs]
            full = count.value is not None and not is_wide and count.value >= 2**bits - 1
            yield ours, Count(None, SATURATED) if full else count
        elif theirs in _DATA:
            yield _DATA[theirs], _data(_DATA[theirs], count, bool(is_wide))


def _data(ours: str, count: Count, is_wide: bool) -> Count:
    if not is_wide:
        return Count(None, TOO_NARROW)
    if count.value is None or count.value in _FULL:
        return count if count.value is None else Count(None, SATURATED)
    return Count(count.value * WORD_BYTES) if ours.endswith("_bytes") else count
