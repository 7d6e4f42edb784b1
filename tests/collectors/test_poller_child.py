"""A poller that hangs costs its own values for a while: it is made anew, and not for ever."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

import pytest

from collectors import poller_child
from collectors.poller_child import LEFT_MAX, Child
from collectors.poller_messages import PollerWord, Reader
from collectors.pollers.device import ConfigError, Poller
from collectors.wire import records
from tests.collectors.test_poll import Fake, told

STEPS_MAX = 2_000


@dataclass
class Site:
    """A child whose pollers are made by the test, and what it told its agent."""

    make: Callable[[int], Poller]
    made: int = 0
    stop: threading.Event = field(default_factory=threading.Event)

    def __post_init__(self) -> None:
        self._in, out = os.pipe()
        os.set_blocking(self._in, False)
        self._reader = Reader()
        self.words: list[str] = []
        self.devices: list[str] = []
        self.child = Child([self._next("switch_snmp")], out, self.stop, self._next)
        self._out = out

    def _next(self, name: str) -> Poller:
        self.made += 1
        return self.make(self.made)

    def steps(self, until: Callable[[], bool]) -> None:
        for _ in range(STEPS_MAX):
            self.goes_on = self.child.step(0.005)
            self._hear()
            if until():
                return
        raise AssertionError(f"never: {self.words} {self.devices} {self.made}")

    def _hear(self) -> None:
        try:
            data = os.read(self._in, 1 << 16)
        except BlockingIOError:
            return
        for message in self._reader.feed(data):
            if isinstance(message, PollerWord):
                self.words.append(message.state)
            elif isinstance(message, records.DeviceReadings):
                self.devices.append(message.device)

    def close(self) -> None:
        self.stop.set()
        os.close(self._in)
        os.close(self._out)


@pytest.fixture
def gate() -> Iterator[threading.Event]:
    """What hanging pollers wait for."""
    event = threading.Event()
    yield event
    event.set()


def test_a_poller_that_hangs_is_made_anew_and_what_the_old_one_tells_later_does_not_count(
    gate: threading.Event,
) -> None:
    def make(number: int) -> Poller:
        first = Fake("switch_snmp", (gate, told("old")), deadline_s=0.02)
        return first if number == 1 else Fake("switch_snmp", (told("new"),))

    site = Site(make)
    site.child.start()
    site.steps(lambda: "new" in site.devices and site.words[-1:] == ["ok"])
    assert site.made == 2 and site.words == ["not done within 0.02 s", "ok"] and site.goes_on
    gate.set()
    for _ in range(20):
        site.child.step(0.005)
    site.steps(lambda: True)
    assert "old" not in site.devices
    site.close()


def test_one_that_is_only_late_is_waited_for(
    gate: threading.Event, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(poller_child, "HANGS_AFTER", 10_000.0)
    site = Site(lambda number: Fake("switch_snmp", (gate, told("slow")), deadline_s=0.05))
    site.child.start()
    site.steps(lambda: site.words == ["not done within 0.05 s"])
    gate.set()
    site.steps(lambda: "slow" in site.devices)
    assert site.made == 1
    site.close()


def test_after_so_many_hung_threads_the_process_gives_up(gate: threading.Event) -> None:
    site = Site(lambda number: Fake("switch_snmp", (gate,), deadline_s=0.01))
    site.child.start()
    site.steps(lambda: not site.goes_on)
    assert site.made == LEFT_MAX + 2
    site.close()


def test_a_file_that_has_become_bad_leaves_the_poller_as_it_is(gate: threading.Event) -> None:
    def make(number: int) -> Poller:
        if number > 1:
            raise ConfigError("bad")
        return Fake("switch_snmp", (gate,), deadline_s=0.01)

    site = Site(make)
    site.child.start()
    site.steps(lambda: site.made > 2)
    assert site.goes_on and site.words == ["not done within 0.01 s"]
    site.close()
