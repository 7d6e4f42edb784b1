"""The kernel's own clock: how well it is kept, and whether it was set.

In: adjtimex(2) without changing anything (modes 0 needs no right); of a recorded tree commands/adjtimex.txt,
what ``adjtimex --print`` prints. Out: ``Kept``, ``Steps``. Source: adjtimex(2), clock_gettime(2).
"""

from __future__ import annotations

import ctypes
import errno
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from collectors.sources.tools import FOLDER
from collectors.sources.tree import Tree

RECORDED: Final = "adjtimex.txt"
STA_PLL: Final = 0x1
STA_UNSYNC: Final = 0x40
STA_NANO: Final = 0x2000
TIME_ERROR: Final = 5
_NS_PER_S: Final = 1e9
_US_PER_S: Final = 1e6
_SPAN_MAX_NS: Final = 10_000_000
_TRIES: Final = 5
_NUMBER_MAX_CHARS: Final = 20


@dataclass(frozen=True, slots=True)
class Kept:
    """What the kernel knows of its clock.

    Attributes:
        offset_s: what is left to be slewed away; None where no daemon leaves that to the kernel.
        error_max_s: it grows by 0.5 ms each second in which no daemon keeps the clock.
    """

    is_synchronised: bool
    offset_s: float | None
    error_max_s: float
    error_estimated_s: float


class _Timex(ctypes.Structure):
    """struct timex of include/uapi/linux/timex.h as far as it is read; ``rest`` has room for what follows."""

    _fields_ = (
        ("modes", ctypes.c_uint),
        ("offset", ctypes.c_long),
        ("frequency", ctypes.c_long),
        ("maxerror", ctypes.c_long),
        ("esterror", ctypes.c_long),
        ("status", ctypes.c_int),
        ("rest", ctypes.c_char * 512),
    )


def kept(tree: Tree) -> Kept | None:
    """None where the kernel does not tell. Raises ``OSError`` for a recording that cannot be read."""
    return _asked() if tree.is_live else _recorded(tree)


def _asked() -> Kept | None:
    told = _Timex()
    try:
        state = ctypes.CDLL(None).adjtimex(ctypes.byref(told))
    except (AttributeError, OSError):
        return None
    if state < 0:
        return None
    return _kept(state, told.status, told.offset, told.maxerror, told.esterror)


def _recorded(tree: Tree) -> Kept | None:
    try:
        text = tree.read_text(f"{FOLDER}/{RECORDED}", 8_192)
    except FileNotFoundError:
        return None
    found = parsed(text)
    if found is None:
        raise OSError(errno.EIO, "no output of adjtimex", RECORDED)
    return found


def parsed(text: str) -> Kept | None:
    """The output of ``adjtimex --print``; None where a line that is needed is missing."""
    found: dict[str, int] = {}
    for line in text.splitlines()[:64]:
        name, colon, value = line.partition(":" if ":" in line else "=")
        word = value.split()[0] if value.split() else ""
        digits = word.removeprefix("-")
        if colon and digits.isascii() and digits.isdigit() and len(digits) < _NUMBER_MAX_CHARS:
            found[name.strip()] = int(word)
    try:
        numbers = found["status"], found["offset"], found["maxerror"], found["esterror"]
    except KeyError:
        return None
    return _kept(found.get("return value", 0), *numbers)


def _kept(state: int, status: int, offset: int, maxerror: int, esterror: int) -> Kept:
    unit = _NS_PER_S if status & STA_NANO else _US_PER_S
    is_synchronised = not status & STA_UNSYNC and state != TIME_ERROR
    slewed = offset / unit if status & STA_PLL and is_synchronised else None
    return Kept(is_synchronised, slewed, maxerror / _US_PER_S, esterror / _US_PER_S)


class Steps:
    """The wall clock against CLOCK_BOOTTIME: slewing moves both alike, setting the clock only one."""

    def __init__(
        self,
        wall_ns: Callable[[], int] = time.time_ns,
        boot_ns: Callable[[], int] = lambda: time.clock_gettime_ns(time.CLOCK_BOOTTIME),
    ) -> None:
        self._wall_ns = wall_ns
        self._boot_ns = boot_ns
        self._last_ns: int | None = None

    def moved_s(self) -> float | None:
        """By how much the wall clock was set since the last call; None: first call, or no time to compare."""
        for _ in range(_TRIES):
            before = self._boot_ns()
            wall = self._wall_ns()
            after = self._boot_ns()
            if after - before <= _SPAN_MAX_NS:  # else this thread was held up between the two clocks
                apart_ns = wall - (before + after) // 2
                last, self._last_ns = self._last_ns, apart_ns
                return None if last is None else (apart_ns - last) / _NS_PER_S
        return None
