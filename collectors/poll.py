"""``clusterwatch-agent poll``: asks devices (switches, BMCs) from one place and prints what they told.

In: ``pollers.toml``, one table for each kind of device. Out: JSON lines as ``once`` prints them, each with
its ``device``; one line of type ``device`` says how each was reached. Each poller has a thread of its own:
one that hangs is told on stderr when its deadline has passed, and the lines of the others are there.
"""

from __future__ import annotations

import json
import queue
import sys
import threading
import time
import tomllib
from collections.abc import Iterator, Mapping
from importlib import import_module
from pathlib import Path
from typing import Any, Final, TextIO

from collectors import once
from collectors.pollers import DEVICE_POLLERS
from collectors.pollers.device import ConfigError, DeviceReading, Poller
from collectors.sources.base import OK

CONFIG_MAX_BYTES: Final = 4 * 1024 * 1024
REACHED: Final = 0
NOT_REACHED: Final = 1
"""Some device, or a whole poller, gave nothing."""

Answer = tuple[str, DeviceReading | Exception | None]
"""Poller, and what it told: a device, why it failed, or None when it has done."""


def load(path: Path) -> list[Poller]:
    """The pollers that the file names.

    Raises:
        ConfigError: the file cannot be read or used; the text names it and the key.
    """
    try:
        with path.open("rb") as file:
            tables = tomllib.loads(file.read(CONFIG_MAX_BYTES).decode("utf-8"))
    except OSError as error:
        raise ConfigError(f"{path} cannot be read: {error.strerror or error}") from None
    except (ValueError, RecursionError) as error:
        raise ConfigError(f"{path} is no TOML: {str(error)[:300]}") from None
    if not tables:
        raise ConfigError(f"{path} names no poller; there are {', '.join(sorted(DEVICE_POLLERS))}")
    return [_made(path, name, table) for name, table in tables.items()]


def _made(path: Path, name: str, table: object) -> Poller:
    if name not in DEVICE_POLLERS:
        known = ", ".join(sorted(DEVICE_POLLERS))
        raise ConfigError(f"{path}: no poller {name[:64]!r}; there are {known}")
    if not isinstance(table, dict):
        raise ConfigError(f"{path}: {name} must be a table")
    try:
        poller: Poller = import_module(DEVICE_POLLERS[name]).from_config(table, path.parent)
    except ConfigError as error:
        raise ConfigError(f"{path}: {error}") from None
    return poller


def run(pollers: list[Poller], looks: int, interval_s: float, out: TextIO) -> int:
    """Prints each look; the last one has changes and rates. Returns the exit code."""
    code = REACHED
    for look in range(looks):
        if look:
            time.sleep(interval_s)
        is_last = look == looks - 1
        code = REACHED
        for poller, told in _answers(pollers):
            if not isinstance(told, DeviceReading):
                print(f"clusterwatch-agent: poller {poller} failed: {told}", file=sys.stderr)
                code = NOT_REACHED
                continue
            code = code if told.state == OK else NOT_REACHED
            if is_last:
                for line in lines(poller, told):
                    print(json.dumps(line, ensure_ascii=False, allow_nan=False), file=out, flush=True)
    return code


def lines(poller: str, told: DeviceReading) -> Iterator[Mapping[str, Any]]:
    """What a device told: first how it was reached, then its samples and events."""
    device = {"kind": told.device.kind, "name": told.device.name}
    yield {
        "type": "device",
        "ts_ns": time.time_ns(),
        "device": device,
        "node": told.node or None,
        "state": told.state,
        "source": poller,
    }
    for sample in told.reading.samples:
        yield once.sample_line(sample, poller, told.node or None) | {"device": device}
    for event in told.reading.events:
        yield once.event_line(event, told.node or None) | {"device": device}


def _answers(pollers: list[Poller]) -> Iterator[tuple[str, DeviceReading | Exception]]:
    """Devices of all pollers as they answer; a poller that is not done by its deadline is told and left."""
    answers: queue.SimpleQueue[Answer] = queue.SimpleQueue()
    began_s = time.monotonic()
    due_s = {poller.name: began_s + poller.deadline_s for poller in pollers}
    for poller in pollers:
        threading.Thread(target=_poll, args=(poller, began_s, answers), daemon=True).start()
    while due_s:
        name, nearest_s = min(due_s.items(), key=lambda one: one[1])
        try:
            said_by, told = answers.get(timeout=max(0.0, nearest_s - time.monotonic()))
        except queue.Empty:
            yield name, TimeoutError(f"not done within {nearest_s - began_s:g} s")
            del due_s[name]
            continue
        if said_by not in due_s:
            continue
        if told is None:
            del due_s[said_by]
        else:
            yield said_by, told


def _poll(poller: Poller, at_s: float, answers: queue.SimpleQueue[Answer]) -> None:
    try:
        for told in poller.poll(at_s):
            answers.put((poller.name, told))
    except Exception as error:  # noqa: BLE001  one poller that fails must not hide what the others see
        answers.put((poller.name, error))
    answers.put((poller.name, None))
