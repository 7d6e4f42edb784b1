"""What ``ethtool -m`` (as text or JSON) and ``mlxlink -m --json`` say of a module.

In: a tool's output. Out: ``Module``. Alarm and warning flags of single lanes are not taken from a module with
CMIS: ethtool prints others' bits there. Source: ethtool(8) up to 6.15 with its module_info.json, whose JSON
names value and thresholds alike; mlxlink of mstflint 4.3x and MFT.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Final

from collectors.sources.optics_module import LANES_MAX, Module, dbm, number

LINES_MAX: Final = 1_024
_LANE: Final = re.compile(r"\s*\(chan(?:nel)? (\d{1,2})\)\Z", re.ASCII)
_THRESHOLD: Final = re.compile(r"(?:laser |module )?(.+?)[ _](high|low) (alarm|warning) threshold\Z")
_FLAG: Final = re.compile(r"(?:laser|module) .*(?:high|low) (?:alarm|warning)\Z")
_CMIS: Final = frozenset({0x18, 0x19, 0x1B, 0x1E, 0x1F, 0x20})
"""SFF-8024 identifiers of modules with the common management interface."""
_COPPER: Final = re.compile(r"copper|\bDAC\b|base-?CR|passive electrical", re.IGNORECASE)
_COPPER_FIELDS: Final = (
    "transmitter technology",
    "transceiver type",
    "cable technology",
    "extended identifier",
)
_RX: Final = frozenset({
    "rcvr signal avg optical power", "receiver signal oma", "receiver signal average optical power",
})  # fmt: skip
_TX: Final = frozenset({"transmit avg optical power", "laser output power"})
_BIAS: Final = frozenset({"laser tx bias current", "laser bias current"})
_QUANTITIES: Final = {
    "bias current": "bias",
    "output power": "tx",
    "rx power": "rx",
    "temperature": "temperature",
    "voltage": "voltage",
}
_WORDS: Final = {
    "vendor name": "vendor",
    "vendor pn": "part_number",
    "vendor sn": "serial",
    "vendor rev": "revision",
    "active firmware version": "firmware",
}
_LENGTHS: Final = ("cable assembly length", "length (copper or active cable)", "length (copper)")


def parse(data: bytes) -> Module:
    """A module from whatever dialect. Raises ``ValueError`` where it is none."""
    text = data.decode("utf-8", "replace")
    if text.lstrip()[:1] not in ("{", "["):
        return of_text(text)
    said = json.loads(text, object_pairs_hook=_pairs)
    if isinstance(said, list):
        said = said[0] if said else None
    if not isinstance(said, dict):
        raise ValueError("no object")
    return _of_mlxlink(said) if "result" in said else _of_json(said)


# --- ethtool as text --------------------------------------------------------------------------------------


def of_text(text: str) -> Module:
    """``ethtool -m DEV``. Raises ``ValueError`` where no line is one of its own."""
    module, is_cmis = Module(), False
    for line in text.splitlines()[:LINES_MAX]:
        name, colon, value = line.partition(" : ")
        if not colon:
            name, colon, value = line.partition(":")
        name, value = name.strip().lower(), value.strip()
        if not colon or not value:
            continue
        if name == "identifier":
            is_cmis = _hex(value) in _CMIS
        _of_line(module, name, value, is_cmis)
    if not module.is_told:
        raise ValueError("not a module")
    return module


def _of_line(module: Module, name: str, value: str, is_cmis: bool) -> None:
    """One line of the text; lines of no interest are passed over."""
    lane = _LANE.search(name)
    bare = name[: lane.start()] if lane is not None else name
    number_of_lane = lane[1] if lane is not None else "1"
    if bare in _RX:
        module.add_power("rx", number_of_lane, _power(value))
    elif bare in _TX:
        module.add_power("tx", number_of_lane, _power(value))
    elif bare in _BIAS:
        module.add_bias(number_of_lane, number(value))
    elif bare in ("module temperature", "module voltage"):
        _set(module, bare.removeprefix("module "), number(value))
    elif match := _THRESHOLD.fullmatch(bare):
        _limit(module, match, value)
    elif _FLAG.fullmatch(bare):
        _flag(module, bare, number_of_lane if lane else "", value.lower() == "on", is_cmis)
    else:
        _word(module, bare, value)


def _power(value: str) -> float | None:
    """``0.5012 mW / -3.00 dBm``, or either alone."""
    for part in value.split("/"):
        if "dbm" in part.lower():
            return number(part)
    return dbm(number(value))


def _set(module: Module, quantity: str, value: float | None) -> None:
    if value is not None and abs(value) < float("inf"):
        module.values.setdefault(quantity, value)


def _limit(module: Module, match: re.Match[str], value: str) -> None:
    quantity = _QUANTITIES.get(match[1])
    if quantity in ("rx", "tx"):
        module.add_limit(quantity, f"{match[2]}_{match[3]}", _power(value))
    elif quantity is not None:
        told = number(value)
        scaled = told / 1_000 if told is not None and quantity == "bias" else told
        module.add_limit(quantity, f"{match[2]}_{match[3]}", scaled)


def _flag(module: Module, name: str, lane: str, is_on: bool, is_cmis: bool) -> None:
    if lane and is_cmis:
        return
    if module.flags is None:
        module.flags = set()
    if is_on:
        module.flags.add(f"lane {lane} {name}" if lane else name)


def _word(module: Module, name: str, value: str) -> None:
    if name in _WORDS:
        module.add_word(_WORDS[name], value)
    elif name in _LENGTHS:
        length = number(value)
        if length:
            module.add_word("length_m", f"{length:g}")
    elif name in _COPPER_FIELDS and _COPPER.search(value):
        module.is_copper = True


def _hex(value: str) -> int | None:
    match = re.match(r"0x([0-9a-fA-F]{1,2})\b", value)
    return int(match[1], 16) if match else None


# --- ethtool as JSON --------------------------------------------------------------------------------------


def _pairs(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """Of two fields of one name, a value and its thresholds, both."""
    found: dict[str, Any] = {}
    for name, value in pairs:
        is_limits = isinstance(value, dict) and any("threshold" in str(key) for key in value)
        found.setdefault(f"{name} thresholds" if is_limits else name, value)
    return found


def _of_json(said: Mapping[str, Any]) -> Module:
    module = Module()
    is_cmis = _plain(said.get("identifier")) in _CMIS
    for name in ("transmit_avg_optical_power", "laser_output_power"):
        _lanes(said.get(name), lambda lane, mw: module.add_power("tx", lane, dbm(mw)))
    received = said.get("rx_power")
    if isinstance(received, dict):
        values = received.get("values", received.get("value"))
        _lanes(values, lambda lane, mw: module.add_power("rx", lane, dbm(mw)))
    for name in ("laser_tx_bias_current", "laser_bias_current"):
        _lanes(said.get(name), module.add_bias)
    for quantity in ("temperature", "voltage"):
        _set(module, quantity, _plain(said.get(f"module_{quantity}")))
    for name, value in list(said.items())[:LINES_MAX]:
        spoken = name[:128].replace("_", " ")
        if name.endswith(" thresholds"):
            _json_limits(module, spoken.removesuffix(" thresholds"), value)
        elif _FLAG.fullmatch(spoken):
            lanes = value if isinstance(value, list) else None
            for at, is_on in enumerate(lanes[:LANES_MAX] if lanes is not None else [value], 1):
                _flag(module, spoken, str(at) if lanes is not None else "", is_on is True, is_cmis)
        else:
            _json_word(module, spoken, value)
    if not module.is_told:
        raise ValueError("not a module")
    return module


def _lanes(told: object, add: Callable[[str, float | None], None]) -> None:
    """A list of a value per lane, or the value of the only one."""
    values: Iterable[object] = told[:LANES_MAX] if isinstance(told, list) else [told]
    for lane, value in enumerate(values, 1):
        add(str(lane), _plain(value))


def _plain(value: object) -> float | None:
    return number(value) if isinstance(value, int | float) else None


def _json_limits(module: Module, name: str, value: object) -> None:
    if not isinstance(value, dict):
        return
    for limit, told in list(value.items())[:16]:
        unit = " mW" if name.endswith("power") else ""
        if (plain := _plain(told)) is not None:
            _of_line(module, f"{name} {str(limit)[:64].replace('_', ' ')}", f"{plain}{unit}", False)


def _json_word(module: Module, name: str, value: object) -> None:
    if isinstance(value, dict):  # a firmware's version in two numbers
        value = f"{value.get('major')}.{value.get('minor')}" if "major" in value else None
    if name.endswith(" description"):
        name = name.removesuffix(" description")
    if isinstance(value, str | int | float) and not isinstance(value, bool):
        _word(module, name, str(value)[:256])


# --- mlxlink ----------------------------------------------------------------------------------------------

_MLX_LANES: Final = {
    "rx power current [dbm]": "rx",
    "tx power current [dbm]": "tx",
    "bias current [ma]": "bias",
}
_MLX_VALUES: Final = {"temperature [c]": ("temperature", 1.0), "voltage [mv]": ("voltage", 1_000.0)}
_MLX_WORDS: Final = {
    "vendor name": "vendor",
    "vendor part number": "part_number",
    "vendor serial number": "serial",
    "rev": "revision",
    "fw version": "firmware",
    "transfer distance [m]": "length_m",
}
_RANGE: Final = re.compile(r"\[\s*(-?[\d.]{1,16})\s*\.\.\s*(-?[\d.]{1,16})\s*\]")


def _of_mlxlink(said: Mapping[str, Any]) -> Module:
    """The group ``Module Info``; a value has its limits behind it: ``54 [-5..75]``."""
    module = Module()
    output = _group(_group(said, "result"), "output")
    fields = {str(name).lower(): value for name, value in list(_group(output, "Module Info").items())[:256]}
    for name, quantity in _MLX_LANES.items():
        _mlx_lanes(module, quantity, _text(fields.get(name)))
    for name, (quantity, parts) in _MLX_VALUES.items():
        text = _text(fields.get(name))
        value = number(text.partition("[")[0])
        _set(module, quantity, None if value is None else value / parts)
        _mlx_limits(module, quantity, text, parts)
    for name, word in _MLX_WORDS.items():
        module.add_word(word, _text(fields.get(name)))
    module.is_copper = bool(_COPPER.search(_text(fields.get("cable technology"))))
    if not module.is_told:
        raise ValueError("not a module")
    return module


def _group(said: object, name: str) -> Mapping[str, Any]:
    found = said.get(name) if isinstance(said, Mapping) else None
    return found if isinstance(found, Mapping) else {}


def _text(value: object) -> str:
    """A field; one of several values is an object in newer versions."""
    if isinstance(value, Mapping) and isinstance(value.get("values"), list):
        value = ",".join(str(one) for one in value["values"][:LANES_MAX])
    return str(value)[:512] if isinstance(value, str | int | float) else ""


def _mlx_lanes(module: Module, quantity: str, text: str) -> None:
    told = text.partition("[")[0]
    values = [number(part) for part in told.split(",")[:LANES_MAX]] if number(told) is not None else []
    for lane, value in enumerate(values, 1):
        if quantity == "bias":
            module.add_bias(str(lane), value)
        else:
            module.add_power(quantity, str(lane), value)
    _mlx_limits(module, quantity, text, 1_000.0 if quantity == "bias" else 1.0)


def _mlx_limits(module: Module, quantity: str, text: str, parts: float) -> None:
    match = _RANGE.search(text)
    low, high = (number(match[1]), number(match[2])) if match else (None, None)
    if low is not None and high is not None and low < high:
        module.add_limit(quantity, "low_alarm", low / parts)
        module.add_limit(quantity, "high_alarm", high / parts)
