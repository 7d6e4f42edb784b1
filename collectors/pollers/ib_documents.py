"""What the fabric's own tools say at one look, or what something of the site has written down of it.

In: a way to get each document. Out: ``Scan``. Only the topology is needed; what else is missing is named.
The tools need /dev/infiniband/umad* and a port in the fabric. None is run so that it resets counters.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from collectors.pollers import command, ib_counters, ib_link_states, ib_topology
from collectors.pollers.command import CommandError, Said
from collectors.pollers.device import ConfigError
from collectors.pollers.ib_counters import PortCounters
from collectors.pollers.ib_link_states import LinkState, States
from collectors.pollers.ib_topology import Fabric
from collectors.pollers.tables import Table
from collectors.sources.base import SourceEvent
from collectors.sources.counters import Count

TOPOLOGY: Final = "ibnetdiscover"
STATES: Final = "iblinkinfo"
ERRORS: Final = "ibqueryerrors"
DATA: Final = "counters"
PERFQUERY: Final = "perfquery"
COMMANDS: Final[Mapping[str, tuple[str, ...]]] = {
    TOPOLOGY: ("ibnetdiscover",),
    STATES: ("iblinkinfo", "--switches-only"),
    ERRORS: ("ibqueryerrors", "--switch", "--threshold-file", "/dev/null"),
    DATA: ("ibqueryerrors", "--switch", "--counters"),
}
DOCUMENTS: Final = (TOPOLOGY, STATES, ERRORS, DATA, PERFQUERY)
"""``perfquery`` asks one port, so that it is only read from a file."""
FILE_ENDING: Final = ".txt"
KEYS: Final = ("ca", "ca_port", "documents", "folder", "look_s", "prefix", "skip_sl")
_GOOD_CODES: Final = frozenset({0, 1})
"""ibqueryerrors ends with 1 where a port has an error, and with 0 where it gave up: its summary tells."""

Get = Callable[[str], tuple[Said, float]]
"""A document's name -> its text, and when that was true, of one clock for all. Raises ``CommandError``."""


@dataclass(slots=True)
class Scan:
    """One look.

    Attributes:
        at_s: when its counters were read.
        missing: what could not be had, and why.
        events: what the fabric as a whole tells of itself.
        silent: node GUID of a switch whose ports could not be asked for -> why.
    """

    fabric: Fabric
    states: States | None = None
    counters: list[PortCounters] = field(default_factory=list)
    at_s: float = 0.0
    missing: list[str] = field(default_factory=list)
    events: list[SourceEvent] = field(default_factory=list)
    silent: dict[str, str] = field(default_factory=dict)
    _keys: dict[str, list[str]] = field(init=False)

    def __post_init__(self) -> None:
        self._keys = {guid: [guid] for guid in self.fabric.switches}
        for port_guid, guid in self.fabric.of_port_guid.items():
            if port_guid != guid and guid in self._keys:
                self._keys[guid].append(port_guid)
        for lid, guid in self.fabric.of_lid.items():
            self._keys[guid].append(f"lid {lid}")

    def keys_of(self, guid: str) -> Sequence[str]:
        """All that names a switch in other documents: its GUIDs, its LID."""
        return self._keys[guid]

    def states_of(self, guid: str) -> Mapping[int, LinkState] | None:
        """States of its ports; None where they were not asked for or are not told."""
        found = self.states or {}
        return next((found[key] for key in self._keys[guid] if key in found), None)

    def counts(self, keys: Sequence[str], port: int) -> dict[str, Count]:
        """Counters of a port, of all documents; of two values one that is known."""
        merged: dict[str, Count] = {}
        for document in self.counters:
            for name, count in document.counts(keys, port).items():
                if name not in merged or merged[name].value is None:
                    merged[name] = count
        return merged


Ask = Callable[[Callable[[], float]], Scan | None]
"""Takes a clock, gives a look; None where nothing is new since the last."""


def scan(get: Get, documents: Sequence[str]) -> Scan:
    """One look. Raises ``CommandError`` where there is no topology."""
    said, at_s = get(TOPOLOGY)
    found = Scan(ib_topology.parsed(said.output), at_s=at_s)
    del said  # of a large fabric it is 30 MB
    if not found.fabric.switches:
        raise CommandError(f"{TOPOLOGY}: no switch")
    for name in documents:
        if name == TOPOLOGY:
            continue
        try:
            said, at_s = get(name)
        except CommandError as error:
            found.missing.append(f"{name}: {error}")
            continue
        if name == STATES:
            found.states = ib_link_states.parsed(said.output)
            continue
        counters = ib_counters.read(said.output, said.complaints, is_errors=name == ERRORS)
        if not counters.is_whole and name != PERFQUERY:
            found.missing.append(f"{name}: it gave up")
        found.counters.append(counters)
        found.at_s = at_s
        del said
    return found


def from_commands(
    prefix: Sequence[str],
    options: Sequence[str],
    documents: Sequence[str],
    look_s: float,
    skip_sl: bool = False,
) -> Ask:
    """Runs the tools, each for ``look_s`` at most.

    Args:
        prefix: what is put before each, such as ``sudo -n``.
        skip_sl: ``ibqueryerrors`` does not ask the subnet manager for a path to everybody first.
    """

    def ask(clock: Callable[[], float]) -> Scan:
        def get(name: str) -> tuple[Said, float]:
            good = _GOOD_CODES if name in (ERRORS, DATA) else frozenset({0})
            more = ["--skip-sl"] if skip_sl and name in (ERRORS, DATA) else []
            said = command.run([*prefix, *COMMANDS[name], *more, *options], look_s, good_codes=good)
            return said, clock()

        return scan(get, documents)

    return ask


def from_files(folder: Path, stale_s: float, wall: Callable[[], float] = time.time) -> Ask:
    """``<folder>/<document>.txt``; one that is not there is not wanted, an old one is no answer."""
    last: list[float] = []

    def ask(clock: Callable[[], float]) -> Scan | None:
        times = {name: _written_s(folder / f"{name}{FILE_ENDING}") for name in DOCUMENTS}
        there = {name: at_s for name, at_s in times.items() if at_s is not None}
        if TOPOLOGY in there and sorted(there.values()) == last:
            return None if wall() - max(last) <= stale_s else scan(get_of(there), list(there))
        last[:] = sorted(there.values())
        return scan(get_of(there), list(there))

    def get_of(there: Mapping[str, float]) -> Get:
        def get(name: str) -> tuple[Said, float]:
            if name not in there:
                raise CommandError(f"{name}{FILE_ENDING} is not there")
            if wall() - there[name] > stale_s:
                raise CommandError(f"{name}{FILE_ENDING} is stale")
            return Said(_whole(folder / f"{name}{FILE_ENDING}")), there[name]

        return get

    return ask


def _written_s(path: Path) -> float | None:
    try:
        return path.stat().st_mtime
    except OSError:
        return None


def _whole(path: Path) -> bytes:
    try:
        with path.open("rb") as file:
            said = file.read(command.OUTPUT_MAX_BYTES + 1)
    except OSError as error:
        raise CommandError(f"{path.name}: {error.strerror}") from None
    if len(said) > command.OUTPUT_MAX_BYTES:
        raise CommandError(f"{path.name}: too large")
    return said


def from_table(table: Table, folder: Path, look_s: float, stale_s: float) -> Ask:
    """What the settings say. Raises ``ConfigError`` that names the key."""
    if table.has("folder"):
        if any(table.has(key) for key in KEYS if key not in ("folder", "look_s")):
            raise ConfigError(f"{table.where}: folder and what the tools are told exclude each other")
        documents = folder / table.text("folder")
        if not documents.is_dir():
            raise ConfigError(f"{table.where}.folder: {table.text('folder')} is no folder")
        return from_files(documents, stale_s)
    wanted = table.texts("documents", tuple(COMMANDS))
    if not set(wanted) <= set(COMMANDS):
        raise ConfigError(f"{table.where}.documents: known are {', '.join(COMMANDS)}")
    options: list[str] = []
    if adapter := table.name("ca", ""):
        options = ["-C", adapter, "-P", str(int(table.seconds("ca_port", 1, 1, 254)))]
    return from_commands(table.texts("prefix", ()), options, wanted, look_s, table.flag("skip_sl"))
