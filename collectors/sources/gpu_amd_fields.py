"""What amd-smi says of a GPU, in the names and units of the other sources of GPUs.

In: the JSON of ``amd-smi list``, ``static`` and ``metric``: a list of GPUs (ROCm 6) or that list as
``gpu_data`` (ROCm 7); a number bare (6.0), with its unit as an object (later) or as one text. Out: ``Row``
per field. "N/A", a block that is one "N/A", and a key that is not there are no value, each with its reason.
Source: AMD SMI's documentation (command line, violations), its changelog, ``amdsmi.h`` of ROCm 6 and 7.
"""

from __future__ import annotations

import functools
import itertools
import json
import re
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Final

from collectors.sources.base import OK
from collectors.sources.counters import NOT_AVAILABLE, OUT_OF_RANGE, UNREADABLE
from collectors.sources.gpu_identity import GPUS_MAX
from collectors.sources.gpu_metrics import NVML, SMI, Field
from collectors.sources.gpu_table import Row

Cell = tuple[float | None, str]
"""(number in the unit of ``UNITS``, why there is none)"""
Entry = Mapping[str, Any]

NO_REASON: Final = "reason_not_told"
"""The GPU says that its clocks are held down, and not why."""
UNITS: Final = {
    "": 1.0, "N/A": 1.0, "W": 1.0, "mW": 1e-3, "C": 1.0, "°C": 1.0, "%": 1.0, "MHz": 1.0, "GHz": 1_000.0,
    "J": 1.0, "GT/s": 1.0, "B": 2.0**-20, "KB": 2.0**-10, "KiB": 2.0**-10, "MB": 1.0, "MiB": 1.0,
    "GB": 1_024.0, "GiB": 1_024.0,
}  # fmt: skip
"""Unit -> factor to W, C, %, MHz, J, GT/s and MiB. What amd-smi calls MB is 2**20 bytes."""
PCIE_GENERATIONS: Final = {2.5: 1, 5.0: 2, 8.0: 3, 16.0: 4, 32.0: 5, 64.0: 6}
"""GT/s of a lane -> generation."""
XGMI_STATES: Final = ("NO_ERRORS", "ERROR", "MULTIPLE_ERRORS")
"""By number. Source: amdsmi_xgmi_status_t."""
VIOLATIONS: Final = {
    "ppt": 0x4,
    "socket_thermal": 0x20,
    "vr_thermal": 0x20,
    "hbm_thermal": 0x20,
    "prochot": 0x40,
}
"""Cause -> bit of ``gpu_metrics.REASONS``: power limit, slowdown by temperature, emergency."""
LOCKED: Final = 0x2
_THERMAL: Final = ("socket_thermal", "vr_thermal", "hbm_thermal", "prochot")
_COUNT: Final = 2.0**62
_NUMBER: Final = re.compile(r"(-?\d{1,20}(?:\.\d{1,9})?) ?([A-Za-z%°/]{0,8})")
_NUMBER_MAX: Final = 2**64
_BEGIN: Final = re.compile(r"^[\[{]", re.MULTILINE)
_DIE: Final = re.compile(r"(gfx|mem)(?:_\d{1,2})?", re.IGNORECASE)
_FLAGS: Final = {
    "ACTIVE": True, "ENABLED": True, "THROTTLED": True, "TRUE": True,
    "NOT ACTIVE": False, "DISABLED": False, "UNTHROTTLED": False, "FALSE": False,
}  # fmt: skip
_ANSWERS_MAX: Final = 16
"""Lines that may begin the answer: warnings come before it, and some begin with a bracket."""

MARGIN: Final = Field("temperature_margin_c", 150, -150)
EDGE: Final = Field("edge_temperature_c", 150, 1)
ENERGY: Final = Field("energy_joules", _COUNT, 1, counts=True)
"""0 J is what GPUs without that counter say."""
DEFERRED: Final = Field("ecc_deferred", _COUNT, counts=True)
RECOVERIES: Final = Field("pcie_recovery", _COUNT, counts=True)
XGMI: Final = Field("xgmi_error_state_count", 2)
THROTTLED: Final = Field("throttled_count", 1)
POWER_SHARE: Final = Field("power_violation_ratio", 100, divisor=100)
THERMAL_SHARE: Final = Field("thermal_violation_ratio", 100, divisor=100)

PLAIN: Final[tuple[tuple[Field, tuple[str, ...]], ...]] = (
    (SMI["power.draw"], ("power.socket_power", "power.current_socket_power", "power.average_socket_power")),
    (SMI["temperature.gpu"], ("temperature.hotspot", "temperature.edge")),
    (EDGE, ("temperature.edge",)),
    (SMI["temperature.memory"], ("temperature.mem",)),
    (SMI["utilization.gpu"], ("usage.gfx_activity",)),
    (SMI["utilization.memory"], ("usage.umc_activity",)),
    (SMI["memory.used"], ("mem_usage.used_vram",)),
    (SMI["memory.free"], ("mem_usage.free_vram",)),
    (SMI["ecc.errors.corrected.volatile.total"], ("ecc.total_correctable_count",)),
    (SMI["ecc.errors.uncorrected.volatile.total"], ("ecc.total_uncorrectable_count",)),
    (DEFERRED, ("ecc.total_deferred_count",)),
    (SMI["pcie.link.width.current"], ("pcie.width", "pcie.current_lanes")),
    (NVML["pcie.replays"], ("pcie.replay_count",)),
    (RECOVERIES, ("pcie.l0_to_recovery_count",)),
    (ENERGY, ("energy.total_energy_consumption",)),
    (POWER_SHARE, ("throttle.ppt_violation_activity",)),
)
"""Field -> where it may stand; the first that is a number counts."""
LIMITS: Final = ("limit.socket_power", "limit.ppt0.socket_power_limit", "limit.current_power")
"""The power limit that holds now, in three dialects."""
SLOWDOWN: Final = "limit.slowdown_hotspot_temperature"


def entries(said: bytes) -> dict[int, Entry]:
    """GPUs of an answer, by amd-smi's index. Empty where it is none."""
    told = _decoded(said.decode("utf-8", "replace"))
    if isinstance(told, dict):
        told = told.get("gpu_data", [told])
    found: dict[int, Entry] = {}
    for entry in told[:GPUS_MAX] if isinstance(told, list) else ():
        index = entry.get("gpu") if isinstance(entry, dict) else None
        if isinstance(index, int) and not isinstance(index, bool) and 0 <= index < 4 * GPUS_MAX:
            found.setdefault(index, entry)
    return found


def _decoded(text: str) -> Any:
    """The first JSON that begins a line; None where there is none."""
    for begin in itertools.islice(_BEGIN.finditer(text), _ANSWERS_MAX):
        try:
            return json.JSONDecoder().raw_decode(text, begin.start())[0]
        except (ValueError, RecursionError):
            continue
    return None


def cell(value: Any, unit: Any = "") -> Cell:
    """The number of a value in any dialect."""
    if isinstance(value, dict):
        inner = value.get("value")
        return (None, UNREADABLE) if isinstance(inner, dict) else cell(inner, value.get("unit", ""))
    if isinstance(value, str):
        text = value.strip()
        match = _NUMBER.fullmatch(text)
        if match is None:
            return None, NOT_AVAILABLE if text.upper() in ("N/A", "") else UNREADABLE
        value, unit = (float(match[1]) if "." in match[1] else int(match[1])), match[2] or unit
    if value is None:
        return None, NOT_AVAILABLE
    factor = UNITS.get(unit) if isinstance(unit, str) else None
    if isinstance(value, bool) or not isinstance(value, int | float) or factor is None:
        return None, UNREADABLE
    if not abs(value) <= _NUMBER_MAX:
        return None, OUT_OF_RANGE
    return (value if factor == 1 else value * factor), OK


def at(entry: Entry, path: str) -> Any:
    """The value at a dotted path; None where it, or a block on the way, is not there."""
    value: Any = entry
    for name in _names(path):
        value = value.get(name) if isinstance(value, dict) else None
    return value


@functools.cache
def _names(path: str) -> tuple[str, ...]:
    """Paths are ours, and few."""
    return tuple(path.split("."))


def first(cells: Iterable[Cell]) -> Cell:
    """The first that is a number, else why the first is none."""
    kept: Cell | None = None
    for one in cells:
        if one[0] is not None:
            return one
        kept = kept or one
    return kept or (None, NOT_AVAILABLE)


def metric_rows(uuid: str, bdf: str | None, entry: Entry, slowdown_c: float | None) -> Iterator[Row]:
    """Rows of what ``amd-smi metric`` says of one GPU.

    Args:
        slowdown_c: the temperature of its hottest spot at which its clocks go down, where that is known.
    """
    found: list[tuple[Field, Cell]] = [
        (
            field,
            cell(at(entry, paths[0])) if len(paths) == 1 else first(cell(at(entry, one)) for one in paths),
        )
        for field, paths in PLAIN
    ]
    hotspot, why = cell(at(entry, "temperature.hotspot"))
    margin = None if hotspot is None or slowdown_c is None else slowdown_c - hotspot
    throttled, mask = _throttle(entry)
    clocks = _clocks(entry)
    found += [
        (MARGIN, (margin, why if hotspot is None else NOT_AVAILABLE if margin is None else OK)),
        (SMI["clocks.sm"], _lowest(clocks["gfx"])),
        (SMI["clocks.mem"], _lowest(clocks["mem"])),
        (SMI["pcie.link.gen.current"], _generation(entry)),
        (THERMAL_SHARE, _highest(cell(at(entry, f"throttle.{one}_violation_activity")) for one in _THERMAL)),
        (THROTTLED, throttled),
        (SMI["clocks_event_reasons.active"], mask),
        (XGMI, _xgmi(at(entry, "xgmi_err"))),
    ]
    for field, (raw, quality) in found:
        yield Row(uuid, bdf, field, raw, quality)


def limit_row(uuid: str, bdf: str | None, entry: Entry) -> Row:
    """The power limit that ``amd-smi static`` tells."""
    raw, quality = first(cell(at(entry, path)) for path in LIMITS)
    return Row(uuid, bdf, SMI["enforced.power.limit"], raw, quality)


def _clocks(entry: Entry) -> dict[str, list[Cell]]:
    """Clocks of the dies of each kind: ``gfx_0`` and on, in 6.0 ``gfx``."""
    found: dict[str, list[Cell]] = {"gfx": [], "mem": []}
    for name, clock in _named(entry.get("clock")):
        if match := _DIE.fullmatch(name):
            found[match[1].lower()].append(first((cell(clock.get("clk")), cell(clock.get("cur_clk")))))
    return found


def _lowest(cells: Iterable[Cell]) -> Cell:
    """Of several dies the slowest: all of them wait for it."""
    told = list(cells)
    numbers = [value for value, _ in told if value is not None]
    return (min(numbers), OK) if numbers else first(told)


def _highest(cells: Iterable[Cell]) -> Cell:
    told = list(cells)
    numbers = [value for value, _ in told if value is not None]
    return (max(numbers), OK) if numbers else first(told)


def _generation(entry: Entry) -> Cell:
    speed, quality = first(cell(at(entry, path)) for path in ("pcie.speed", "pcie.current_speed"))
    if speed is None:
        return None, quality
    generation = PCIE_GENERATIONS.get(speed)
    return (generation, OK) if generation else (None, OUT_OF_RANGE)


def _flag(value: Any) -> bool | None:
    """A state in words; None where it is not told."""
    if isinstance(value, bool):
        return value
    return _FLAGS.get(value.strip().upper()) if isinstance(value, str) else None


def _throttle(entry: Entry) -> tuple[Cell, Cell]:
    """(whether clocks are held down, why as a mask): by the causes from MI300 on, by one word before."""
    causes = {one: _flag(at(entry, f"throttle.{one}_violation_status")) for one in VIOLATIONS}
    by_word = _flag(at(entry, "power.throttle_status"))
    if by_word is None and all(flag is None for flag in causes.values()):
        return (None, NOT_AVAILABLE), (None, NOT_AVAILABLE)
    mask = 0
    for cause, flag in causes.items():
        mask |= VIOLATIONS[cause] if flag else 0
    is_on = bool(mask) or bool(by_word)
    if is_on and not mask:
        return (1, OK), (None, NO_REASON)
    locked = any(
        _flag(clock.get("clk_locked"))
        for name, clock in _named(entry.get("clock"))
        if name.lower().startswith("gfx")
    )
    return (int(is_on), OK), (mask | (LOCKED if locked else 0), OK)


def _named(block: Any) -> list[tuple[str, dict[str, Any]]]:
    pairs = block.items() if isinstance(block, dict) else ()
    return [(name, one) for name, one in pairs if isinstance(one, dict)]


def _xgmi(value: Any) -> Cell:
    """The state of the links to the other GPUs, by its name with or without its prefix."""
    if not isinstance(value, str):
        return None, NOT_AVAILABLE if value is None else UNREADABLE
    word = value.strip().upper().removeprefix("AMDSMI_XGMI_STATUS_")
    if word in XGMI_STATES:
        return XGMI_STATES.index(word), OK
    return None, NOT_AVAILABLE if word in ("N/A", "") else UNREADABLE
