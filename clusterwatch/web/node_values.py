"""A node's values in the words of its page: number with unit, reasons as sentences. Pure text, no HTML."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Final

from clusterwatch.web.numbers import MINUS, THIN, grouped, size
from collectors.wire.metrics import Throttle

_WORDS: Final = {
    "blank_sentinel": "the tool left it blank",
    "einval": "the device refuses it (EINVAL)",
    "empty": "its file is empty",
    "eopnotsupp": "not supported (EOPNOTSUPP)",
    "first_sample": "needs a second look",
    "incomplete": "one of its parts gives no answer",
    "link_down": "the link is down",
    "lost": "the device is lost",
    "no_ops": "no operation finished",
    "no_answer": "no answer",
    "no_cuda_told": "no CUDA in use, or its torch does not tell",
    "no_light": "no light",
    "no_traffic": "no traffic",
    "not_available": "not available here",
    "out_of_range": "out of range",
    "paused": "the agent let go of the GPUs",
    "pfc_watchdog": "not counted while the PFC watchdog acts",
    "reset": "the counter was reset",
    "saturated": "the counter stands at its top",
    "too_narrow": "its counter of 32 bits is too narrow",
    "unknown": "its source does not say why",
    "unreadable": "cannot be read",
    "unsynchronised": "nothing keeps the clock",
}
"""Reasons of the agent's sources; any other is shown as its own words."""

_PLAIN: Final = {
    "w": ("W", 1), "c": ("\N{DEGREE SIGN}C", 0), "mhz": ("MHz", 0), "gbps": ("Gbit/s", 0),
    "mbps": ("Mbit/s", 0), "gts": ("GT/s", 1), "percent": ("%", 1), "mib_per_s": ("MiB/s", 1),
    "ms": ("ms", 1), "us": ("\N{MICRO SIGN}s", 0), "per_s": ("/s", 1), "hz": ("Hz", 1), "rpm": ("rpm", 0),
    "dbm": ("dBm", 1), "lpm": ("l/min", 1), "pa": ("Pa", 0), "v": ("V", 2), "a": ("A", 2), "ma": ("mA", 2),
}  # fmt: skip
"""Unit -> how it is written, and digits where the value is not whole."""
FLAGS: Final = frozenset(
    [
        "oper_up_count",
        "admin_up_count",
        "link_up_count",
        "import_up_count",
        "healthy_count",
        "mounted_count",
        "powered_on_count",
        "frontend_connected_count",
        "container_running_count",
        "daemon_running_count",
        "daemon_blocked_count",
        "clock_synchronised_count",
        "kernel_log_readable_count",
        "nvml_readable_count",
        "nccl_inspector_readable_count",
        "latency_monitor_count",
        "dcgm_readable_count",
    ]
)
"""Counts that are 1 for yes and 0 for no."""
_STAMP_MAX_S: Final = 253_402_300_799
"""The end of the year 9999."""
_J_PER_KWH: Final = 3.6e6
_SECONDS: Final = ((1.0, "s"), (1e-3, "ms"), (1e-6, "\N{MICRO SIGN}s"), (1e-9, "ns"))
_LEAST_PERCENT: Final = 1e-4
"""Ratios below this are bit error rates and their like: as powers of ten."""


def reason(quality: str) -> str:
    """Why a value is not known or in doubt."""
    return _WORDS.get(quality, quality.replace("_", " "))


def shown(value: float | int, unit: str | None, metric: str = "") -> str:
    """A number with its unit, as short as it stays true."""
    if metric in FLAGS and value in (0, 1):
        return "yes" if value else "no"
    if metric.endswith("energy_j_total"):
        return f"{_number(value / _J_PER_KWH, 1)}{THIN}kWh"
    if unit == "mask":
        return _mask(int(value), metric)
    if unit == "bytes":
        return size(int(value))
    if unit == "bytes_per_s":
        return f"{size(int(value))}/s"
    if unit == "ratio":
        return _ratio(value)
    if metric.endswith("stamp_s"):
        return f"{datetime.fromtimestamp(min(max(value, 0), _STAMP_MAX_S), UTC):%Y-%m-%d %H:%M:%S} UTC"
    if unit == "s":
        return _seconds(value)
    word, digits = _PLAIN.get(unit or "", ("", 3))
    return f"{_number(value, digits)}{THIN if word else ''}{word}"


def _number(value: float | int, digits: int) -> str:
    """Whole numbers exact; what would round to 0 as a power of ten, so that it is not taken for 0."""
    if value == int(value):
        text = f"{abs(int(value)):,}".replace(",", THIN)
        return f"{MINUS}{text}" if value < 0 else text
    if abs(value) < 0.5 * 10**-digits:
        return f"{value:.1e}"
    return grouped(value, digits)


def _ratio(value: float | int) -> str:
    if value and abs(value) < _LEAST_PERCENT:
        return f"{value:.1e}"
    return f"{_number(round(100 * value, 9), 1 if abs(value) >= 0.01 else 3)}{THIN}%"


def _seconds(value: float | int) -> str:
    if not value:
        return f"0{THIN}s"
    step, word = next((one for one in _SECONDS if abs(value) >= one[0]), _SECONDS[-1])
    return f"{_number(round(value / step, 6), 1)}{THIN}{word}"


def _mask(value: int, metric: str) -> str:
    names = [bit.name.lower().replace("_", " ") for bit in Throttle if value & bit and bit.name]
    if metric != "throttle_reasons_mask" or not names:
        return f"0x{value:x}"
    return f"0x{value:x} {', '.join(names)}"
