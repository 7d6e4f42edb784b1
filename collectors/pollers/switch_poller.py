"""Many switches at once, each with a deadline of its own: one that hangs, refuses or lies costs itself only.

In: settings, and what asks one switch in its dialect. Out: a ``DeviceReading`` per switch as its answer
comes. Switches that failed are asked last, so that they never keep a place from those that answer.
"""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Generator, Mapping
from dataclasses import dataclass, field
from typing import Final, Protocol, TypeVar

from collectors.pollers.device import ConfigError, Device, DeviceReading
from collectors.pollers.switch_facts import PRIORITIES, SwitchError, SwitchFacts, name_of
from collectors.pollers.switch_ports import Rules, SwitchPorts
from collectors.pollers.tables import Table
from collectors.sources.base import OK, Reading
from collectors.sources.tree import printable

TARGETS_MAX: Final = 16_384
LOOK_S: Final = 20.0
CONCURRENCY: Final = 32
OPTIONAL_SHARE: Final = 0.8
"""of a look, after which what is not needed is left out"""
T = TypeVar("T")
COMMON_KEYS: Final = (
    "concurrency",
    "look_s",
    "lossless_priorities",
    "lossy_priorities",
    "period_s",
    "rx_power_min_dbm",
    "targets",
)
TARGET_KEYS: Final = ("address", "name", "port")


@dataclass(frozen=True, slots=True)
class Target:
    """One switch: its name as the site calls it, and where it is asked."""

    name: str
    address: str
    port: int


@dataclass(frozen=True, slots=True)
class Settings:
    """What all switch pollers are told."""

    targets: list[Target]
    period_s: float
    look_s: float = LOOK_S
    concurrency: int = CONCURRENCY
    rules: Rules = field(default_factory=Rules)


class Look:
    """The time of one look: what is not needed ends before it does, so that it costs itself only."""

    def __init__(self, look_s: float) -> None:
        """Inside a running event loop."""
        self._optional_until_s = asyncio.get_running_loop().time() + look_s * OPTIONAL_SHARE

    async def optional(self, part: Awaitable[T], name: str, missing: list[str]) -> T | None:
        """What a part gives; None, and its name in ``missing``, where it fails or takes too long."""
        try:
            async with asyncio.timeout_at(self._optional_until_s):
                return await part
        except TimeoutError:
            missing.append(f"{name}: timeout")
        except SwitchError as error:
            missing.append(f"{name}: {error}")
        return None


class Asker(Protocol):
    """Asks one switch in its dialect; all its calls run in one event loop."""

    async def ask(self, target: Target, look: Look) -> SwitchFacts:
        """Raises ``SwitchError`` with the reason; anything else counts as ``unreadable``."""
        ...

    async def close(self) -> None: ...


@dataclass(frozen=True, slots=True)
class _Answer:
    target: Target
    facts: SwitchFacts | None
    state: str
    after_s: float
    """since the poll began"""


class SwitchPoller:
    """All switches of one dialect."""

    def __init__(
        self, name: str, settings: Settings, asker: Asker, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self.name = name
        self.period_s = settings.period_s
        rounds = -(-len(settings.targets) // settings.concurrency)
        self.deadline_s = rounds * settings.look_s + 10.0
        self._settings = settings
        self._asker = asker
        self._clock = clock
        self._switches = {one.name: SwitchPorts(one.name, settings.rules) for one in settings.targets}
        self._failed: set[str] = set()
        self._loop: asyncio.AbstractEventLoop | None = None

    def poll(self, at_s: float) -> Generator[DeviceReading, None, None]:
        """Each switch as it answers."""
        loop = self._loop = self._loop or asyncio.new_event_loop()
        answers: asyncio.Queue[_Answer] = asyncio.Queue()
        targets = sorted(self._settings.targets, key=lambda one: one.name in self._failed)
        sweep = loop.create_task(self._sweep(targets, answers))
        try:
            for _ in targets:
                yield self._reading(loop.run_until_complete(answers.get()), at_s)
        finally:
            sweep.cancel()
            loop.run_until_complete(asyncio.gather(sweep, return_exceptions=True))

    def close(self) -> None:
        if self._loop is not None:
            self._loop.run_until_complete(self._asker.close())
            self._loop.run_until_complete(self._loop.shutdown_default_executor())
            self._loop.close()
            self._loop = None

    async def _sweep(self, targets: list[Target], answers: asyncio.Queue[_Answer]) -> None:
        began_s = self._clock()
        places = asyncio.Semaphore(self._settings.concurrency)

        async def one(target: Target) -> None:
            async with places:
                facts, state = await self._asked(target)
            await answers.put(_Answer(target, facts, state, self._clock() - began_s))

        async with asyncio.TaskGroup() as group:
            for target in targets:
                group.create_task(one(target))

    async def _asked(self, target: Target) -> tuple[SwitchFacts | None, str]:
        try:
            async with asyncio.timeout(self._settings.look_s):
                facts = await self._asker.ask(target, Look(self._settings.look_s))
        except TimeoutError:
            return None, "timeout"
        except SwitchError as error:
            return None, printable(str(error))[:120]
        except Exception as error:  # noqa: BLE001 - a library fed by a lying switch may raise anything
            return None, f"unreadable: {type(error).__name__}"
        return (facts, OK) if facts.ports else (None, "no_ports")

    def _reading(self, answer: _Answer, at_s: float) -> DeviceReading:
        name = answer.target.name
        device = Device("switch", name)
        if answer.facts is None:
            self._failed.add(name)
            return DeviceReading(device, Reading(), answer.state)
        self._failed.discard(name)
        return DeviceReading(device, self._switches[name].reading(answer.facts, at_s + answer.after_s))


def settings_of(table: Table, config: Mapping[str, object], period_s: float, port: int) -> Settings:
    """The keys that all switch pollers have. Raises ``ConfigError``.

    Args:
        config: what ``table`` is made of.
        period_s: between two looks, where nothing is said.
        port: where switches of this dialect listen.
    """
    targets = [_target(row, port) for row in table.tables("targets", TARGETS_MAX)]
    names = [target.name for target in targets]
    if len(set(names)) < len(names):
        twice = next(name for name, count in Counter(names).items() if count > 1)
        raise ConfigError(f"{table.where}.targets: {twice} is there twice")
    defaults = Rules()
    lossless = _priorities(table, config, "lossless_priorities")
    lossy = _priorities(table, config, "lossy_priorities")
    rules = Rules(
        lossless_priorities=lossless,
        lossy_priorities=defaults.lossy_priorities if lossy is None else lossy,
        rx_power_min_dbm=table.seconds("rx_power_min_dbm", defaults.rx_power_min_dbm, -40.0, 10.0),
    )
    return Settings(
        targets=targets,
        period_s=table.seconds("period_s", period_s, 5.0, 3_600.0),
        look_s=table.seconds("look_s", LOOK_S, 0.1, 300.0),
        concurrency=int(table.seconds("concurrency", CONCURRENCY, 1, 1_024)),
        rules=rules,
    )


def _target(row: Table, port: int) -> Target:
    row.only(*TARGET_KEYS)
    name = row.name("name")
    address = row.text("address", name)
    if not name_of(address) or address.startswith("-"):
        raise ConfigError(f"{row.where}.address must be a host name or an address")
    return Target(name, address, int(row.seconds("port", port, 1, 65_535)))


def _priorities(table: Table, config: Mapping[str, object], key: str) -> frozenset[int] | None:
    said = config.get(key)
    if said is None:
        return None
    if not isinstance(said, list) or not all(type(one) is int and one in PRIORITIES for one in said):
        raise ConfigError(f"{table.where}.{key} must be a list of priorities, 0 to 7")
    return frozenset(said)
