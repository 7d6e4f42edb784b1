"""A whole InfiniBand fabric from one place: every switch with its ports, their far ends and their errors.

In: the table ``ib_cluster`` of pollers.toml. Out: a ``DeviceReading`` of the fabric and one per switch. The
fabric's own tools are asked (``ib_documents``); no counter is ever reset. A port that had a cable and has
none now is down; a switch that was there and is not any more is ``not_in_fabric`` for a day; both are known
also to a poller that starts again (``ib_memory``).
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from collectors.pollers import ib_documents
from collectors.pollers.device import Device, DeviceReading
from collectors.pollers.ib_counters import KINDS, UNTOLD_ZEROS
from collectors.pollers.ib_documents import Ask, Scan
from collectors.pollers.ib_fabric import WHOLE_WIDTH
from collectors.pollers.ib_link_states import LinkState
from collectors.pollers.ib_memory import FORGET_S, FabricMemory, Remembered
from collectors.pollers.ib_topology import End, Fabric, Switch, adapter_of
from collectors.pollers.switch_facts import Neighbour, Port, SwitchFacts
from collectors.pollers.switch_ports import Rules, SwitchPorts
from collectors.pollers.tables import Table
from collectors.sources.base import Attribute, Reading, Sample, SourceEvent
from collectors.sources.tree import printable

NAME: Final = "ib_cluster"
PERIOD_S: Final = 300.0
LOOK_S: Final = 120.0
"""for each of the tools: a fabric of 26,000 nodes is walked in about a minute"""
NOT_IN_FABRIC: Final = "not_in_fabric"
LOST_S: Final = FORGET_S
DISABLED: Final = "Disabled"
_KEYS: Final = (*ib_documents.KEYS, "lanes", "name", "period_s")


@dataclass(slots=True)
class _Known:
    """What is remembered of one switch. ``seen``: its ports that had a link, a bit for each."""

    name: str
    ports: SwitchPorts
    at_s: float = 0.0
    seen: int = 0


class IbClusterPoller:
    """All switches of one fabric."""

    def __init__(
        self,
        fabric: str,
        ask: Ask,
        period_s: float = PERIOD_S,
        look_s: float = LOOK_S,
        lanes: int = WHOLE_WIDTH,
        clock: Callable[[], float] = time.monotonic,
        name: str = NAME,
        wall: Callable[[], float] = time.time,
    ) -> None:
        """``lanes``: of a link that lacks none; 2 where ports are split on purpose."""
        self.name = name
        self.period_s = period_s
        self.deadline_s = look_s * len(ib_documents.DOCUMENTS) + 60.0
        self._fabric = fabric
        self._ask = ask
        self._lanes = lanes
        self._clock = clock
        self._known: dict[str, _Known] = {}
        self._doubtful: set[str] = set()
        self._wall = wall
        self._memory: FabricMemory | None = None
        self._is_recalled = False

    def keep_in(self, folder: Path) -> None:
        """Goes on where a poller before stopped."""
        self._memory = FabricMemory(folder / f"{self.name}.json", self._fabric)

    def poll(self, at_s: float) -> Iterator[DeviceReading]:
        """The fabric, then each switch.

        Raises:
            CommandError: there is no topology, so that nothing is known.
        """
        scan = self._ask(self._clock)
        if scan is None:
            return
        self._recall(scan.at_s)
        names = scan.fabric.names(self._doubtful)
        yield DeviceReading(Device("fabric", self._fabric), self._summary(scan))
        for guid, switch in scan.fabric.switches.items():
            yield self._switch(scan, names, guid, switch)
        yield from self._lost(scan.fabric, set(names.values()), scan.at_s)
        self._remember(scan.at_s)

    def close(self) -> None:
        """Nothing stays open."""

    def _recall(self, at_s: float) -> None:
        """Once, at the first look: only then it is known what time it is by the clock of looks."""
        if self._memory is None or self._is_recalled:
            return
        self._is_recalled = True
        now_s = self._wall()
        for one in self._memory.load(now_s):
            ports = SwitchPorts(one.name, Rules(untold_zeros=UNTOLD_ZEROS))
            self._known[one.guid] = _Known(one.name, ports, at_s - (now_s - one.seen_s), one.ports)

    def _remember(self, at_s: float) -> None:
        if self._memory is not None:
            now_s = self._wall()
            self._memory.save(
                Remembered(guid, known.name, round(now_s - (at_s - known.at_s), 3), known.seen)
                for guid, known in self._known.items()
            )

    def _switch(self, scan: Scan, names: Mapping[str, str], guid: str, switch: Switch) -> DeviceReading:
        name = names[guid]
        known = self._known.get(guid)
        if known is None or known.name != name:
            rules = Rules(untold_zeros=UNTOLD_ZEROS)
            known = self._known[guid] = _Known(name, SwitchPorts(name, rules))
        known.at_s = scan.at_s
        if guid in scan.silent:
            return DeviceReading(Device("switch", name), Reading(), printable(scan.silent[guid])[:120])
        states = scan.states_of(guid)
        facts = _facts(scan, names, switch, known, states)
        told = known.ports.reading(facts, scan.at_s)
        weak = list(self._degraded(name, switch, facts, states or {}))
        return DeviceReading(Device("switch", name), Reading(told.samples, [*told.events, *weak]))

    def _degraded(
        self, name: str, switch: Switch, facts: SwitchFacts, states: Mapping[int, LinkState]
    ) -> Iterator[SourceEvent]:
        """Links that are narrower or slower than both their ends can be."""
        for number, end in switch.ends.items():
            lacks = _lacks(end, states.get(number), self._lanes)
            port = facts.ports.get(str(number))
            if not lacks or port is None or port.oper_up is False:
                continue
            peers = port.neighbours
            runs = f"{end.width}x{end.speed}" if end.width is not None else None
            attributes: dict[str, Attribute] = {
                "switch": name,
                "switch_port": str(number),
                "width_speed": runs,
                "could_be": lacks,
                "peer": peers[0].peer if peers else None,
                "peer_port": peers[0].peer_port if peers else None,
            }
            to = f" to {peers[0].peer} {peers[0].peer_port}".rstrip() if peers else ""
            text = f"{name} {number}{to} runs at {runs or 'an unknown rate'} and could be {lacks}"
            yield SourceEvent(
                f"switchport/{name}/{number}", "link_degraded", text[:300], "warning",
                attributes=attributes, standing=True,
            )  # fmt: skip

    def _lost(self, fabric: Fabric, names: set[str], at_s: float) -> Iterator[DeviceReading]:
        for guid, known in list(self._known.items()):
            if guid in fabric.switches:
                continue
            if known.name in names or at_s - known.at_s > LOST_S:
                del self._known[guid]
                continue
            text = f"{known.name} is not in the fabric any more"
            event = SourceEvent(
                f"switch/{known.name}", "switch_lost", text, "critical",
                attributes={"switch": known.name, "guid": guid}, standing=True,
            )  # fmt: skip
            yield DeviceReading(Device("switch", known.name), Reading((), [event]), NOT_IN_FABRIC)

    def _summary(self, scan: Scan) -> Reading:
        entity = f"fabric/{self._fabric}"
        switches = scan.fabric.switches
        ends = [end for one in switches.values() for end in one.ends.values()]
        between = sum(end.is_switch for end in ends)
        samples = [
            Sample(entity, "switches_count", len(switches)),
            Sample(entity, "adapters_count", scan.fabric.adapters),
            Sample(entity, "adapter_links_count", len(ends) - between),
            Sample(entity, "switch_links_count", between // 2),
        ]
        if not scan.missing:
            return Reading(samples, scan.events)
        text = f"the fabric is not told in whole: {'; '.join(scan.missing)}"[:300]
        event = SourceEvent(
            entity, "fabric_incomplete", text, "warning",
            attributes={"missing": [one.partition(":")[0] for one in scan.missing]}, standing=True,
        )  # fmt: skip
        return Reading(samples, [*scan.events, event])


def _facts(
    scan: Scan,
    names: Mapping[str, str],
    switch: Switch,
    known: _Known,
    states: Mapping[int, LinkState] | None,
) -> SwitchFacts:
    """One switch in the form of every dialect."""
    facts = SwitchFacts(kinds=KINDS)
    keys = scan.keys_of(switch.guid)
    seen = {number for number in range(known.seen.bit_length()) if known.seen >> number & 1}
    for number in sorted({*switch.ends, *(states or ()), *seen}):
        port = facts.port(str(number))
        if port is None:
            break
        end, state = switch.ends.get(number), (states or {}).get(number)
        port.oper_up = end is not None if state is None else state.is_up
        port.admin_up = None if state is None else state.physical != DISABLED
        port.counters = scan.counts(keys, number)
        port.is_meant_up = number in seen
        if end is not None:
            known.seen |= 1 << number
            _plug(port, end, names)
    return facts


def _plug(port: Port, end: End, names: Mapping[str, str]) -> None:
    port.rate_gbps = end.gbps
    if end.width is not None:
        port.values["lanes_count"] = float(end.width)
    if end.is_switch:
        port.add_neighbour(Neighbour(names.get(end.guid, end.guid), str(end.port)))
        return
    guid = f"{end.guid}/{end.port}"
    told = adapter_of(end.words)
    if told is None:
        port.add_neighbour(Neighbour(end.guid, str(end.port), "", guid))
        return
    host, device = told
    port.add_neighbour(Neighbour(host, device if end.port == 1 else f"{device}/{end.port}", "", guid))


def _lacks(end: End, state: LinkState | None, lanes: int) -> str:
    """What a link could be and is not; empty where nothing is wrong or known."""
    if state is None:
        return f"{lanes}X" if end.width is not None and end.width < lanes else ""
    is_wide = end.width is not None and end.width >= lanes
    return " ".join(one for one in state.could_be if not (is_wide and one.endswith("X")))


def from_config(config: Mapping[str, object], folder: Path) -> IbClusterPoller:
    """Raises ``ConfigError`` that names the key."""
    table = Table(NAME, config, folder)
    table.only(*_KEYS)
    look_s = table.seconds("look_s", LOOK_S, 1.0, 600.0)
    period_s = table.seconds("period_s", PERIOD_S, 60.0, 3_600.0)
    return IbClusterPoller(
        table.name("name", "ib"),
        ib_documents.from_table(table, folder, look_s, 3 * period_s),
        period_s,
        look_s,
        int(table.seconds("lanes", WHOLE_WIDTH, 1, 12)),
    )
