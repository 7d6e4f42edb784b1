"""How a process ended: the one decision behind rank states, job states and crash verdicts.

In: exit status as far as anybody knows it, and what the hook saw. Out: ``Ending``. A launcher such as
torchrun is the parent of the ranks, so signal and code are often unknown.
"""

from __future__ import annotations

from enum import StrEnum
from typing import Final

TOLD_TO_END: Final = frozenset({1, 2, 15})
"""SIGHUP, SIGINT and SIGTERM: a scheduler, a launcher or a person; never the kernel on its own."""


class Ending(StrEnum):
    ALIVE = "alive"
    CLEAN = "clean"
    TOLD = "told to end"
    VANISHED = "gone without a word"
    FAILED = "failed"


def of_process(
    ended: bool, *, signal: int | None, code: int | None, clean: bool | None, raised: str = ""
) -> Ending:
    """The exit status beats what the hook saw, but for an exception: a launcher may hide its status.

    Args:
        ended: whether it has ended at all.
        signal: that ended it.
        code: its exit code; a shell says 128 + signal, Python's own exit after Ctrl-C too.
        clean: the hook saw its interpreter end without an exception.
        raised: type of the exception that ended it.
    """
    if not ended:
        return Ending.ALIVE
    if raised and raised not in ("KeyboardInterrupt", "SystemExit"):
        return Ending.FAILED
    if signal or code:
        by = signal or (code or 0) - 128
        return Ending.TOLD if by in TOLD_TO_END or raised == "KeyboardInterrupt" else Ending.FAILED
    if raised == "KeyboardInterrupt":
        return Ending.TOLD
    if code == 0 or clean:
        return Ending.CLEAN
    return Ending.FAILED if raised else Ending.VANISHED
