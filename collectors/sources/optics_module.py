"""One pluggable module as its tools describe it, and what is told of it.

In: a ``Module`` of any dialect. Out: samples and events of the port it is in. Copper has no light: nothing is
told of its power. Only the module's own thresholds judge it; one whose lanes are all dark is not judged by
its light. Power is dBm, and no light is null with the reason ``no_light``.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Final

from collectors.sources.base import OK, Attribute, Sample, SourceEvent
from collectors.sources.tree import printable
from collectors.sources.versions_facts import FACT, tidy
from collectors.wire.records import Severity

PART: Final = "part_count"
LANES_MAX: Final = 16
WORD_MAX_CHARS: Final = 64
NO_LIGHT_DBM: Final = -40.0
"""What tools print for no light; the least that a module measures is 0.1 uW."""
LIGHT_DBM_MAX: Final = 20.0
NO_LIGHT: Final = "no_light"
OUT_OF_RANGE: Final = "out_of_range"
_NUMBER: Final = re.compile(r"[-+]?\d{1,12}(?:\.\d{1,12})?|-inf", re.ASCII)
_POWERS: Final = {"rx": "rx_power_dbm", "tx": "tx_power_dbm"}
_RANGES: Final = {"temperature": (-60.0, 150.0), "voltage": (0.0, 20.0), "bias": (0.0, 1.0)}
"""Degrees Celsius, volts and amperes beyond which a number is no measurement."""
COMPARED: Final = ("vendor", "part_number", "firmware")
"""Words that are alike on equal nodes; a serial number is of one module only."""


@dataclass(slots=True)
class Limits:
    """Thresholds of one quantity, in its own unit. None: not told."""

    low_alarm: float | None = None
    low_warning: float | None = None
    high_warning: float | None = None
    high_alarm: float | None = None

    @property
    def is_set(self) -> bool:
        """Whether they say anything: a module that has none gives 0, or no light, for all."""
        return any(one not in (None, 0.0, -math.inf) for one in (*self.lows, *self.highs))

    @property
    def lows(self) -> tuple[float | None, float | None]:
        return self.low_warning, self.low_alarm

    @property
    def highs(self) -> tuple[float | None, float | None]:
        return self.high_warning, self.high_alarm


@dataclass(slots=True)
class Module:
    """What one look at a module gave.

    Attributes:
        values: ``temperature`` in degrees Celsius and ``voltage`` in volts.
        powers: ``rx`` and ``tx`` -> lane -> dBm, minus infinity for no light.
        bias_a: lane -> current of the laser.
        limits: quantity (``rx``, ``tx``, ``temperature``, ``voltage``, ``bias``) -> thresholds.
        flags: alarms and warnings that are on, by name; None: the module or its tool tells none.
        words: vendor, part_number, serial, revision, firmware, length_m.
    """

    values: dict[str, float] = field(default_factory=dict)
    powers: dict[str, dict[str, float]] = field(default_factory=dict)
    bias_a: dict[str, float] = field(default_factory=dict)
    limits: dict[str, Limits] = field(default_factory=dict)
    flags: set[str] | None = None
    words: dict[str, str] = field(default_factory=dict)
    is_copper: bool = False

    def add_power(self, direction: str, lane: str, power_dbm: float | None) -> None:
        lanes = self.powers.setdefault(direction, {})
        if power_dbm is not None and len(lanes) < LANES_MAX:
            lanes[lane] = power_dbm

    def add_bias(self, lane: str, bias_ma: float | None) -> None:
        if bias_ma is not None and len(self.bias_a) < LANES_MAX:
            self.bias_a[lane] = bias_ma / 1_000

    def add_limit(self, quantity: str, name: str, value: float | None) -> None:
        setattr(self.limits.setdefault(quantity, Limits()), name, value)

    def add_word(self, name: str, text: object) -> None:
        """The first that is told; what says nothing is left out."""
        told = printable(str(text)[: 4 * WORD_MAX_CHARS]).strip()[:WORD_MAX_CHARS].strip(" _")
        if told and told.upper() not in ("N/A", "NA", "NONE", "UNKNOWN") and name not in self.words:
            self.words[name] = told

    @property
    def is_told(self) -> bool:
        return bool(self.values or self.powers or self.words)


def number(raw: object) -> float | None:
    """The first number of a text, or a number; minus infinity may be one. None: there is none."""
    if isinstance(raw, bool):
        return None
    if isinstance(raw, int | float):
        return float(raw) if -1e12 < raw < 1e12 else None
    match = _NUMBER.search(raw[:200]) if isinstance(raw, str) else None
    return None if match is None else float(match[0])


def dbm(power_mw: float | None) -> float | None:
    """Milliwatts as dBm."""
    if power_mw is None or power_mw < 0:
        return None
    return 10 * math.log10(power_mw) if power_mw > 0 else -math.inf


# --- what is told -----------------------------------------------------------------------------------------


def samples(entity: str, module: Module) -> Iterator[Sample]:
    """Values of the module, and who made it."""
    for quantity, metric in (("temperature", "module_temperature_c"), ("voltage", "module_voltage_v")):
        value = module.values.get(quantity)
        if value is not None and not (module.is_copper and value == 0):
            yield Sample(entity, metric, *_bounded(quantity, value))
    if not module.is_copper:
        for direction, metric in _POWERS.items():
            for lane, power in module.powers.get(direction, {}).items():
                yield Sample(entity, metric, *_light(power), {"lane": lane})
        for lane, bias in module.bias_a.items():
            yield Sample(entity, "tx_bias_a", *_bounded("bias", bias), {"lane": lane})
    if module.flags is not None:
        for kind in ("alarm", "warning"):
            count = sum(name.endswith(kind) for name in module.flags)
            yield Sample(entity, f"module_{kind}s_count", count)
    yield from _words(entity, module.words)


def _words(entity: str, words: Mapping[str, str]) -> Iterator[Sample]:
    if words:
        yield Sample(entity, PART, 1, OK, {"part": "module", **words})
    for name in COMPARED:
        if name in words:
            yield Sample(entity, FACT, 1, OK, {"fact": f"optics.{name}", "value": tidy(words[name])})


def _light(power_dbm: float) -> tuple[float | None, str]:
    if power_dbm <= NO_LIGHT_DBM:
        return None, NO_LIGHT
    return (power_dbm, OK) if power_dbm <= LIGHT_DBM_MAX else (None, OUT_OF_RANGE)


def _bounded(quantity: str, value: float) -> tuple[float | None, str]:
    low, high = _RANGES[quantity]
    return (value, OK) if low <= value <= high else (None, OUT_OF_RANGE)


def events(entity: str, name: str, module: Module) -> Iterator[SourceEvent]:
    """``optics_weak`` and ``optics_hot`` while the module's own thresholds are passed.

    Args:
        name: the port, in words.
    """
    if not module.is_copper:
        yield from _weak(entity, name, module)
    limits = module.limits.get("temperature")
    heat_c = module.values.get("temperature")
    if limits is None or not limits.is_set or heat_c is None or _bounded("temperature", heat_c)[0] is None:
        return
    passed = [one for one in limits.highs if one is not None and one > 0 and heat_c >= one]
    if passed:
        is_alarm = limits.high_alarm in passed
        text = f"{name}: the module has {heat_c:.0f} degrees, its own limit is {max(passed):.0f}"
        told: dict[str, Attribute] = {"threshold_c": max(passed)}
        severity: Severity = "critical" if is_alarm else "warning"
        yield SourceEvent(entity, "optics_hot", text, severity, attributes=told, standing=True)


def _weak(entity: str, name: str, module: Module) -> Iterator[SourceEvent]:
    """Lanes below the threshold. All dark is a port without a link, or lasers that are off."""
    lanes: dict[str, list[str]] = {}
    for direction in _POWERS:
        powers, limits = module.powers.get(direction, {}), module.limits.get(direction)
        floor = None if limits is None or not limits.is_set else _floor(limits)
        if floor is None or all(_light(power)[0] is None for power in powers.values()):
            continue
        weak = [lane for lane, power in powers.items() if power < floor]
        if weak:
            lanes[direction] = weak
    if lanes:
        what = "; ".join(
            f"{direction} "
            + ", ".join(f"lane {lane} {_spoken(module.powers[direction][lane])}" for lane in weak)
            for direction, weak in lanes.items()
        )
        text = f"{name}: light below the module's own limit: {what}"
        told: dict[str, Attribute] = {f"{direction}_lanes": weak for direction, weak in lanes.items()}
        yield SourceEvent(entity, "optics_weak", text, "warning", attributes=told, standing=True)


def _floor(limits: Limits) -> float | None:
    known = [one for one in limits.lows if one is not None and one > -math.inf]
    return max(known, default=None)


def _spoken(power_dbm: float) -> str:
    return "none" if power_dbm <= NO_LIGHT_DBM else f"{power_dbm:.1f} dBm"
