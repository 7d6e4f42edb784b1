"""BMCs and power shelves over Redfish: supplies, batteries, fans, temperatures, power, event logs, parts.

In: targets of pollers.toml. Out: one ``DeviceReading`` a BMC, or one for all shelves of a rack, as answers
come. A BMC is a small computer that serves others first: it is asked at most once a minute, by one request at
a time, with a deadline for the whole look; one that fails is asked ever more rarely.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import time
from collections.abc import Callable, Generator, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from collectors.pollers.device import ConfigError, Device, DeviceReading
from collectors.pollers.redfish_log import Mark, events, fresh
from collectors.pollers.redfish_parts import Told
from collectors.pollers.redfish_rack import rack_samples
from collectors.pollers.redfish_walk import LOGS_MAX, Seen, Walk, no_answer
from collectors.pollers.tables import Table
from collectors.sources.base import Reading, Sample, SourceEvent

PERIOD_S: Final = 60.0
"""A BMC is not asked more often, whatever the settings say."""
LOOK_S: Final = 40.0
BACK_OFF_MAX_S: Final = 900.0
INVENTORY_S: Final = 3_600.0
TARGETS_MAX: Final = 16_384
PRESENT_MAX: Final = 4_096
MARKS_FILE: Final = "redfish_logs.json"
MARKS_MAX_BYTES: Final = 16 * 1024 * 1024
_KEYS: Final = (
    "name", "address", "node", "rack", "auth", "user", "password_file", "ca_file", "fingerprint", "insecure",
)  # fmt: skip
_TABLE_KEYS: Final = (
    "period_s", "concurrency", "look_s", "targets", "auth", "user", "password_file", "ca_file", "insecure",
)  # fmt: skip


@dataclass(slots=True)
class Bmc:
    """One BMC and what is remembered of it."""

    name: str
    login: Any
    """a ``redfish_client.Login``"""
    node: str = ""
    rack: str = ""
    asked_s: float | None = None
    failures: int = 0
    state: str = "ok"
    wall_s: float | None = None
    inventory_s: float | None = None
    inventory: dict[Any, Sample] = field(default_factory=dict)
    present: frozenset[str] = frozenset()
    marks: dict[str, Mark] = field(default_factory=dict)
    looks: int = 0

    def is_due(self, at_s: float) -> bool:
        """At most once a minute; from the second failure on after 2, 4, 8 minutes."""
        if self.asked_s is None:
            return True
        doublings = min(max(self.failures - 1, 0), 8)
        return at_s - self.asked_s >= min(PERIOD_S * 2.0**doublings, BACK_OFF_MAX_S)


@dataclass(frozen=True, slots=True)
class _Look:
    """What a look at one BMC gave; ``told`` None: it was not asked, or did not answer."""

    bmc: Bmc
    told: Told | None = None
    samples: tuple[Sample, ...] = ()
    events: tuple[SourceEvent, ...] = ()


class RedfishPoller:
    """All BMCs of the settings."""

    name = "redfish"

    def __init__(
        self,
        bmcs: list[Bmc],
        period_s: float = PERIOD_S,
        concurrency: int = 64,
        look_s: float = LOOK_S,
        wall: Callable[[], float] = time.time,
    ) -> None:
        """``wall``: seconds since 1970, to compare a BMC's clock with."""
        self.period_s = max(period_s, PERIOD_S)
        self._look_s = look_s
        self._concurrency = concurrency
        rounds = -(-len(bmcs) // concurrency)
        self.deadline_s = rounds * (look_s + 10.0) + 10.0
        self._bmcs = bmcs
        self._wall = wall
        self._folder: Path | None = None

    def keep_in(self, folder: Path) -> None:
        """Goes on with the logs where the poller before stopped."""
        self._folder = folder
        with contextlib.suppress(OSError, ValueError, RecursionError):
            with (folder / MARKS_FILE).open("rb") as file:
                kept = json.loads(file.read(MARKS_MAX_BYTES))
            for bmc in self._bmcs:
                bmc.marks = _marks(kept.get(bmc.name) if isinstance(kept, dict) else None)

    def poll(self, at_s: float) -> Generator[DeviceReading, None, None]:
        """A reading of each BMC or rack that is due, as it answers."""
        loop = asyncio.new_event_loop()
        limit = asyncio.Semaphore(self._concurrency)
        tasks = {loop.create_task(self._reading(group, at_s, limit)) for group in self._due(at_s)}
        try:
            while tasks:
                done, tasks = loop.run_until_complete(
                    asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
                )
                for task in done:
                    yield task.result()
        finally:
            for task in tasks:
                task.cancel()
            if tasks:
                loop.run_until_complete(asyncio.wait(tasks))
            loop.run_until_complete(loop.shutdown_asyncgens())
            loop.close()
            self._keep()

    def close(self) -> None:
        """Each look ends its own session; there is nothing to close."""

    def _due(self, at_s: float) -> Iterator[list[Bmc]]:
        """BMCs that make one device, of which one is due or did not answer when it was."""
        groups: dict[tuple[str, str], list[Bmc]] = {}
        for bmc in self._bmcs:
            groups.setdefault(("rack", bmc.rack) if bmc.rack else ("bmc", bmc.name), []).append(bmc)
        return (group for group in groups.values() if any(bmc.is_due(at_s) or bmc.failures for bmc in group))

    async def _reading(self, group: list[Bmc], at_s: float, limit: asyncio.Semaphore) -> DeviceReading:
        looks = await asyncio.gather(*(self._limited(bmc, at_s, limit) for bmc in group))
        first = group[0]
        samples = [sample for look in looks for sample in look.samples]
        found = [event for look in looks for event in look.events]
        answered = [look for look in looks if look.told is not None]
        state = "ok" if answered else first.state
        if not first.rack:
            return DeviceReading(Device("bmc", first.name), Reading(samples, found), state, first.node)
        if answered:
            samples += rack_samples(first.rack, [look.told for look in looks])
            found += [no_answer(look.bmc.name, look.bmc.state) for look in looks if look.told is None]
        return DeviceReading(Device("rack", first.rack), Reading(samples, found), state)

    async def _limited(self, bmc: Bmc, at_s: float, limit: asyncio.Semaphore) -> _Look:
        if not bmc.is_due(at_s):
            return _Look(bmc)
        async with limit:
            bmc.asked_s = at_s
            bmc.looks += 1
            look = await self._look(bmc, at_s)
        bmc.failures = 0 if look.told is not None else bmc.failures + 1
        return look

    async def _look(self, bmc: Bmc, at_s: float) -> _Look:
        """One look, whatever the BMC does."""
        from collectors.pollers import redfish_client as client

        wants_inventory = bmc.inventory_s is None or at_s - bmc.inventory_s >= INVENTORY_S
        began_s = time.monotonic()
        told = Told(bmc.name, bmc.present)
        seen, cut = Seen(told), False
        try:
            async with asyncio.timeout(self._look_s), client.opened(bmc.login) as (asking, root):
                walk = Walk(asking.get_or_none, told, bmc.marks, wants_inventory, bmc.looks * 16)
                seen = walk.seen
                await walk.run(root)
        except TimeoutError:
            cut = True
            if not told.samples:
                bmc.state = "timeout"
                return _Look(bmc)
        except client.BmcError as error:
            bmc.state = str(error)
            return _Look(bmc)
        bmc.state = "ok"
        entity = f"bmc/{bmc.name}"
        told.add(entity, "answer_s", time.monotonic() - began_s)
        told.add(entity, "unreadable_count", asking.failed + cut)
        found = self._logs(bmc, seen)
        self._remember(bmc, seen, at_s)
        return _Look(bmc, told, tuple(told.samples.values()), (*told.events.values(), *found))

    def _logs(self, bmc: Bmc, seen: Seen) -> list[SourceEvent]:
        """What is new in the logs, and how far the BMC's clock is off."""
        now_s = self._wall()
        entity = f"bmc/{bmc.name}"
        offset_s = None if seen.clock_s is None else seen.clock_s - now_s
        if offset_s is not None:
            seen.told.add(entity, "clock_offset_s", offset_s)
        found: list[SourceEvent] = []
        for path, read in seen.logs:
            new, mark = fresh(read, bmc.marks.get(path, Mark()))
            if path in bmc.marks or len(bmc.marks) < 4 * LOGS_MAX:
                bmc.marks[path] = mark
            found += events(entity, read.name, new, offset_s, bmc.wall_s or now_s, now_s)
            if read.count is not None:
                seen.told.add(entity, "log_entries_count", read.count, log=read.name)
        bmc.wall_s = now_s
        return found

    def _remember(self, bmc: Bmc, seen: Seen, at_s: float) -> None:
        """Parts that were there, and the inventory that is told at each look but asked once an hour."""
        if len(bmc.present) < PRESENT_MAX:
            bmc.present |= seen.told.present
        if seen.has_inventory:
            bmc.inventory_s = at_s
            bmc.inventory = {
                key: sample for key, sample in seen.told.samples.items() if sample.metric == "part_count"
            }
        for key, sample in bmc.inventory.items():
            seen.told.samples.setdefault(key, sample)

    def _keep(self) -> None:
        """Writes the marks of the logs beside the old ones, then in their place."""
        if self._folder is None:
            return
        kept = {
            bmc.name: {path: mark.kept() for path, mark in bmc.marks.items() if mark.kept() is not None}
            for bmc in self._bmcs
        }
        new = self._folder / f"{MARKS_FILE}.new"
        with contextlib.suppress(OSError):
            new.write_text(json.dumps(kept), encoding="utf-8")
            new.replace(self._folder / MARKS_FILE)


def from_config(config: Mapping[str, object], folder: Path) -> RedfishPoller:
    """The poller of a table ``[redfish]``. Raises ``ConfigError``."""
    try:
        from collectors.pollers.redfish_client import Login
    except ImportError:
        raise ConfigError("redfish: needs the extra: pip install 'clusterwatch[pollers]'") from None
    table = Table("redfish", config, folder)
    table.only(*_TABLE_KEYS)
    bmcs = [_bmc(row, Login) for row in table.tables("targets", TARGETS_MAX)]
    for what, values in (
        ("name", [bmc.name for bmc in bmcs]),
        ("address", [bmc.login.address for bmc in bmcs]),
    ):
        twice = (
            sorted({value for value in values if values.count(value) > 1})
            if len(values) != len(set(values))
            else []
        )
        if twice:
            raise ConfigError(f"redfish.targets: {what} {twice[0]!r} is there twice")
    return RedfishPoller(
        bmcs,
        table.seconds("period_s", PERIOD_S, 1.0, 86_400.0),
        int(table.seconds("concurrency", 64, 1, 512)),
        table.seconds("look_s", LOOK_S, 1.0, 55.0),
    )


def _bmc(row: Table, login: Callable[..., Any]) -> Bmc:
    row.only(*_KEYS)
    name, node, rack = row.name("name"), row.name("node", ""), row.name("rack", "")
    if node and rack:
        raise ConfigError(f"{row.where}: node and rack exclude each other")
    user = row.text("user", "")
    auth = row.choice("auth", "basic" if user else "none", ("basic", "session", "none"))
    password = row.secret("password_file")
    if auth != "none" and not (user and password):
        raise ConfigError(f"{row.where}: auth {auth!r} needs user and password_file")
    address, insecure = row.address("address"), row.flag("insecure")
    if address.startswith("http:") and not insecure:
        raise ConfigError(f"{row.where}.address has no TLS: say insecure = true if that is meant")
    made = login(address, auth, user, password, row.path("ca_file"), row.fingerprint("fingerprint"), insecure)
    return Bmc(name, made, node, rack)


def _marks(kept: Any) -> dict[str, Mark]:
    found: dict[str, Mark] = {}
    for path, mark in kept.items() if isinstance(kept, dict) else ():
        with contextlib.suppress(ValueError):
            if len(found) < 4 * LOGS_MAX and len(path) <= 512:
                found[path] = Mark.of_kept(mark)
    return found
