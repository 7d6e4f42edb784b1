"""A rank's program as a list of moves, and the faults that edit it.

A move is a call without arguments. Each program knows how its marked move looks with another size and as
another operation; a fault changes one rank's list at the mark, so every fault fits every program.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final, NoReturn

Move = Callable[[], object]

FAULTS: Final = ("absent", "skipped", "wrong_size", "wrong_op", "extra", "killed", "raised")


class Injected(Exception):
    """What the rank of the fault ``raised`` dies of."""


@dataclass
class Program:
    """What one rank does; ``mark`` is the index of the move that a fault changes."""

    moves: list[Move]
    mark: int
    wrong_size: Move | None = None
    wrong_op: Move | None = None
    done: list[int] = field(default_factory=list)
    """indices of the moves that have ended"""

    def run(self) -> None:
        """All moves, one after the other."""
        for number, move in enumerate(self.moves):
            move()
            self.done.append(number)

    def edit(self, fault: str) -> None:
        """Puts one fault into this rank's list. Raises ``ValueError`` if there is no such variant."""
        before, marked, after = self.moves[: self.mark], self.moves[self.mark], self.moves[self.mark + 1 :]
        edited: dict[str, list[Move | None]] = {
            "absent": [*before, stand_still],
            "skipped": [*before, *after],
            "wrong_size": [*before, self.wrong_size, *after],
            "wrong_op": [*before, self.wrong_op, *after],
            "extra": [*before, marked, marked, *after],
            "killed": [*before, die],
            "raised": [*before, fail],
        }
        found = edited[fault]
        if None in found:
            raise ValueError(f"this program has no move for {fault}")
        self.moves = [move for move in found if move is not None]


def stand_still() -> NoReturn:
    """What a rank does that waits for its data, its disk or its user's loop."""
    while True:
        signal.pause()


def die() -> None:
    """As the kernel ends a process that took too much memory: no word, no dump."""
    os.kill(os.getpid(), signal.SIGKILL)


def fail() -> NoReturn:
    """As user code ends a rank; its process leaves, and with it the recorder."""
    raise Injected
