"""Parts behind a BMC: power supplies, batteries, fans, sensors; what they measure and which are at fault.

In: Redfish resources of the old schemas (Power, Thermal) and the new ones (PowerSubsystem, ThermalSubsystem,
Sensor, EnvironmentMetrics, Battery). Out: samples and standing faults in ``Told``. Pure: no I/O.
Source: DMTF DSP2046; a threshold of 0 is what many BMCs write for "none".
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Final

from collectors.pollers.redfish_values import (
    Resource,
    child,
    identity,
    number,
    reason,
    rows,
    status,
    word,
)
from collectors.sources.base import OK, Attribute, Sample, SourceEvent
from collectors.sources.counters import OUT_OF_RANGE
from collectors.wire.records import Severity

NAME_MAX_CHARS: Final = 128
SAMPLES_MAX: Final = 8_192
_BOUNDS: Final = {
    "w": (0.0, 1_000_000.0), "c": (-60.0, 250.0), "v": (-1_000.0, 50_000.0), "a": (-1_000.0, 20_000.0),
    "rpm": (0.0, 100_000.0), "ratio": (0.0, 1.0), "total": (0.0, 2.0**63), "hz": (0.0, 1_000.0),
    "pa": (0.0, 1e9), "lpm": (0.0, 100_000.0),
}  # fmt: skip
"""metric's last word -> what a real part can measure; a BMC that does not know says something else"""
_KINDS: Final = {
    "Temperature": ("temperature_c", 1.0),
    "Power": ("power_w", 1.0),
    "Voltage": ("voltage_v", 1.0),
    "Current": ("current_a", 1.0),
    "Rotational": ("speed_rpm", 1.0),
    "EnergyJoules": ("energy_j_total", 1.0),
    "EnergykWh": ("energy_j_total", 3.6e6),
    "EnergyWh": ("energy_j_total", 3.6e3),
    "Percent": ("reading_ratio", 0.01),
    "Humidity": ("humidity_ratio", 0.01),
    "LiquidFlowLPM": ("flow_lpm", 1.0),
    "PressurekPa": ("pressure_pa", 1e3),
}
"""ReadingType of a Sensor -> (metric, factor)"""
_BAD: Final[dict[str, Severity]] = {"Critical": "critical", "Warning": "warning"}
_GONE: Final = frozenset({"Absent", "UnavailableOffline"})


@dataclass(slots=True)
class Told:
    """What one look at one BMC gives; the first value of a name is kept.

    Attributes:
        present: parts that are there now; ``before``: those that were at an earlier look.
    """

    bmc: str
    before: frozenset[str] = frozenset()
    samples: dict[tuple[str, str, tuple[tuple[str, str], ...]], Sample] = field(default_factory=dict)
    events: dict[tuple[str, str], SourceEvent] = field(default_factory=dict)
    present: set[str] = field(default_factory=set)

    def add(self, entity: str, metric: str, value: float | None, why: str = OK, **labels: str) -> None:
        """A value out of its metric's bounds is unknown; one that is known is not overwritten."""
        if value is not None:
            low, high = _BOUNDS.get(metric.rpartition("_")[2], (float("-inf"), float("inf")))
            value, why = (value, OK) if low <= value <= high else (None, OUT_OF_RANGE)
        elif why == OK:
            why = "not_available"
        key = entity, metric, tuple(sorted(labels.items()))
        known = self.samples.get(key)
        if (known is None and len(self.samples) < SAMPLES_MAX) or (known is not None and known.value is None):
            self.samples[key] = Sample(entity, metric, value, why, labels)

    def fault(self, entity: str, kind: str, text: str, severity: Severity, **told: Attribute) -> None:
        """A fault that stands; of two of a kind the worse."""
        known = self.events.get((entity, kind))
        if known is not None and known.severity == "critical":
            return
        message = f"{self.bmc}: {text}"[:300]
        self.events[entity, kind] = SourceEvent(
            entity, kind, message, severity, attributes=told, standing=True
        )

    def part(self, entity: str, resource: Resource, **labels: str) -> None:
        """Which piece of hardware this is: ``part_count`` 1 with its serial, model and firmware."""
        facts = {
            "name": word(resource.get("Name")),
            "serial": word(resource.get("SerialNumber")),
            "model": word(resource.get("Model")),
            "part_number": word(resource.get("PartNumber")),
            "manufacturer": word(resource.get("Manufacturer")),
            "firmware": word(resource.get("FirmwareVersion") or resource.get("Version")),
        }
        told = {name: text for name, text in facts.items() if text} | labels
        if set(told) - {"name", "part"}:
            self.add(entity, "part_count", 1, **told)


def entities(told: Told, kind: str, place: str, found: Iterable[Resource]) -> Iterator[tuple[str, Resource]]:
    """(entity, resource) of parts in one place; a name that is there twice has its number behind it."""
    used: set[str] = set()
    for at, resource in enumerate(found):
        name = identity(resource, str(at))
        if name in used:
            name = f"{name}.{word(resource.get('MemberId')) or at}"
        used.add(name)
        yield f"{kind}/{told.bmc}/{place}.{name}"[:NAME_MAX_CHARS], resource


def power_supply(told: Told, entity: str, supply: Resource, metrics: Resource) -> None:
    """One PSU of either schema; ``metrics`` is empty for the old one."""
    state, health = status(supply)
    told.part(entity, supply)
    _presence(told, entity, state, "psu_failed", "power supply")
    told.add(entity, "healthy_count", _healthy(state, health), reason(state))
    if state == "Absent":
        return
    of_input = _first(metrics.get("InputVoltage"), supply.get("LineInputVoltage"))
    why = reason(state)
    values = {
        "input_power_w": _first(metrics.get("InputPowerWatts"), supply.get("PowerInputWatts")),
        "output_power_w": _first(
            metrics.get("OutputPowerWatts"),
            supply.get("PowerOutputWatts"),
            supply.get("LastPowerOutputWatts"),
        ),
        "input_voltage_v": of_input,
        "input_current_a": number(metrics.get("InputCurrentAmps")),
        "temperature_c": number(metrics.get("TemperatureCelsius")),
        "capacity_w": number(supply.get("PowerCapacityWatts")),
    }
    for metric, value in values.items():
        if value is not None or metric in ("input_power_w", "output_power_w"):
            told.add(entity, metric, value, why)
    rails = rows(metrics, "RailVoltage")
    if rails and (volts := number(rails[0])) is not None:
        told.add(entity, "output_voltage_v", volts)
    if health in _BAD:
        told.fault(entity, "psu_failed", f"power supply {_said(supply)} is {health.lower()}", _BAD[health])
    _input_lost(told, entity, supply, state, of_input)


def _input_lost(told: Told, entity: str, supply: Resource, state: str, volts: float | None) -> None:
    line = word(supply.get("LineInputStatus"), 32)
    if line == "LossOfInput" or (line in ("", "Normal") and volts == 0 and state not in _GONE):
        told.fault(entity, "power_lost", f"power supply {_said(supply)} gets no input", "critical")
    elif line == "OutOfRange":
        told.fault(entity, "power_lost", f"power supply {_said(supply)}: input out of range", "warning")


def battery(told: Told, entity: str, unit: Resource, metrics: Resource) -> None:
    """One battery backup unit."""
    state, health = status(unit)
    told.part(entity, unit)
    _presence(told, entity, state, "bbu_failed", "battery")
    told.add(entity, "healthy_count", _healthy(state, health), reason(state))
    if state == "Absent":
        return
    charge = _first(metrics.get("ChargePercent"), unit.get("ChargePercent"))
    wear = _first(unit.get("StateOfHealthPercent"), metrics.get("StateOfHealthPercent"))
    told.add(entity, "charge_ratio", None if charge is None else charge / 100, reason(state))
    values = {
        "state_of_health_ratio": None if wear is None else wear / 100,
        "input_power_w": number(metrics.get("InputPowerWatts")),
        "output_power_w": number(metrics.get("OutputPowerWatts")),
        "temperature_c": number(metrics.get("TemperatureCelsius")),
        "discharge_cycles_total": number(metrics.get("DischargeCycles")),
    }
    for metric, value in values.items():
        if value is not None:
            told.add(entity, metric, value)
    charging = word(unit.get("ChargeState"), 32)
    if health in _BAD:
        told.fault(entity, "bbu_failed", f"battery {_said(unit)} is {health.lower()}", _BAD[health])
    if charging == "Discharging":
        told.fault(entity, "on_battery", f"battery {_said(unit)} is discharging", "warning")


def fan(told: Told, entity: str, unit: Resource) -> None:
    """One fan of either schema."""
    state, health = status(unit)
    told.part(entity, unit)
    _presence(told, entity, state, "fan_failed", "fan")
    told.add(entity, "healthy_count", _healthy(state, health), reason(state))
    if state == "Absent":
        return
    speed = child(unit, "SpeedPercent")
    percent, rpm = number(unit.get("SpeedPercent")), number(speed.get("SpeedRPM"))
    value = _first(unit.get("Reading"), unit.get("ReadingRPM"))
    if word(unit.get("ReadingUnits"), 16) == "Percent":
        percent = _first(percent, value)
    else:
        rpm = _first(rpm, value)
    if percent is not None:
        told.add(entity, "speed_ratio", percent / 100, reason(state))
    if rpm is not None or percent is None:
        told.add(entity, "speed_rpm", rpm, reason(state))
    floors = [_threshold(unit, name) for name in ("LowerThresholdFatal", "LowerThresholdCritical")]
    floor = max((limit for limit in floors if limit), default=None)
    is_slow = floor is not None and value is not None and value <= floor and state in ("Enabled", "")
    if health in _BAD or is_slow:
        turning = "" if value is None else f" at {value:g} {word(unit.get('ReadingUnits'), 16) or 'RPM'}"
        said = health.lower() if health in _BAD else "too slow"
        severity: Severity = "critical" if is_slow else _BAD.get(health, "warning")
        told.fault(entity, "fan_failed", f"fan {_said(unit)} is {said}{turning}", severity)


def temperature(told: Told, entity: str, sensor: Resource) -> None:
    """One entry of the old Thermal schema."""
    state, health = status(sensor)
    if state == "Absent":
        return
    value = number(sensor.get("ReadingCelsius"))
    told.add(entity, "temperature_c", value, reason(state))
    limits = [_threshold(sensor, f"UpperThreshold{name}") for name in ("NonCritical", "Critical", "Fatal")]
    _hot(told, entity, sensor, value, limits, health)


def sensor(told: Told, entity: str, found: Resource) -> None:
    """One Sensor of the new schema; kinds of reading that nobody needs are left out."""
    metric, factor = _KINDS.get(word(found.get("ReadingType"), 32), ("", 1.0))
    state, health = status(found)
    if not metric or state == "Absent":
        return
    value = number(found.get("Reading"))
    told.add(entity, metric, None if value is None else value * factor, reason(state))
    if metric == "temperature_c":
        limits = [
            number(child(found, "Thresholds", name))
            for name in ("UpperCaution", "UpperCritical", "UpperFatal")
        ]
        _hot(told, entity, found, value, limits, health)


def _hot(
    told: Told, entity: str, sensor: Resource, value: float | None, limits: list[float | None], health: str
) -> None:
    """``limits``: caution, critical, fatal. A limit that is not above 0 is none."""
    if value is None or not _BOUNDS["c"][0] <= value <= _BOUNDS["c"][1]:
        return
    known = [(at, limit) for at, limit in enumerate(limits) if limit is not None and limit > 0]
    reached = [at for at, limit in known if value >= limit]
    if not known and health in _BAD:
        text = f"{_said(sensor)} is {health.lower()} at {value:g} C"
        told.fault(entity, "over_temperature", text, _BAD[health])
    if not reached:
        return
    severity: Severity = "critical" if max(reached) > 0 or health == "Critical" else "warning"
    limit = limits[max(reached)]
    told.fault(
        entity, "over_temperature", f"{_said(sensor)} is at {value:g} C, limit {limit:g} C", severity,
        limit_c=limit,
    )  # fmt: skip


def _presence(told: Told, entity: str, state: str, kind: str, noun: str) -> None:
    """Remembers that a part is there; one that was and is not is a fault, until it comes back."""
    if state not in _GONE:
        told.present.add(entity)
    elif entity in told.before:
        told.present.add(entity)
        told.fault(entity, kind, f"{noun} {entity.rpartition('.')[2]} is gone", "warning")


def _healthy(state: str, health: str) -> float | None:
    """1 or 0; None for a part that is not there or does not tell."""
    if state in _GONE or not health:
        return None
    return float(health == "OK")


def _threshold(resource: Resource, name: str) -> float | None:
    value = number(resource.get(name))
    return value if value is not None and value > 0 else None


def _first(*values: object) -> float | None:
    return next((found for value in values if (found := number(value)) is not None), None)


def _said(resource: Resource) -> str:
    return word(resource.get("Name"), 64) or identity(resource, "without a name")
