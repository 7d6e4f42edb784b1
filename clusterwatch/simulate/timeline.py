"""The time of one world of a job: which step, phase and attempt it is in at any moment, and the way back.

In: when it started, how long a step takes, and what faults do to its pace. Out: closed forms, so a simulator
that is started again, or looks late, tells the same story. Job time runs in seconds of training; a fault
slows it down, stops it, or sets it back to the last checkpoint with a new attempt.
"""

from __future__ import annotations

from bisect import bisect_right
from dataclasses import dataclass, field, replace
from typing import Final

import numpy as np
from numpy.typing import NDArray

from collectors.wire.records import PHASES

_S: Final = 1_000_000_000
STARTUP, TRAIN = PHASES.index("startup"), PHASES.index("train")
CHECKPOINT, EVALUATION = PHASES.index("checkpoint"), PHASES.index("evaluation")
_BETWEEN_CHECKPOINTS_S: Final = 300.0
_CHECKPOINT_S: Final = 8.0
_EVALUATION_S: Final = 20.0
_ALMOST: Final = 0.9995
"""Where in its step a world stands that cannot finish it."""

Floats = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Piece:
    """From ``start_ns`` on job time is ``at_s`` and grows by ``rate`` seconds a second."""

    start_ns: int
    at_s: float
    rate: float
    attempt: int
    first_step: int
    """step with which the attempt began"""
    phase: int | None = None
    """what it is in, whatever job time says"""


@dataclass(frozen=True, slots=True)
class Moment:
    """Where a world is."""

    step: int
    """steps finished, which is also the number of the running one, counted from 0"""
    done_ratio: float
    """of the running step; 0 outside of training"""
    phase: int
    phase_since_ns: int
    attempt: int
    first_step: int
    piece: int


@dataclass
class Timeline:
    """One world's time. ``pieces`` is sorted; times before the first one belong to it."""

    started_ns: int
    step_s: float
    startup_s: float
    attempt: int = 0
    pieces: list[Piece] = field(default_factory=list)

    def __post_init__(self) -> None:
        """Without faults: start-up, then training for ever."""
        self.pieces = [
            Piece(self.started_ns, 0.0, 0.0, self.attempt, 0, STARTUP),
            Piece(self.started_ns + int(self.startup_s * _S), 0.0, 1.0, self.attempt, 0),
        ]

    # --- the cycle of job time ------------------------------------------------------------------------

    @property
    def steps_between(self) -> int:
        """Steps from a checkpoint or evaluation to the next one."""
        return max(4, round(_BETWEEN_CHECKPOINTS_S / self.step_s))

    @property
    def _cycle_s(self) -> float:
        return 2 * self.steps_between * self.step_s + _CHECKPOINT_S + _EVALUATION_S

    def _at(self, job_s: float) -> tuple[int, float, int, float]:
        """Steps finished, part of the running one, phase, and the job time at which the phase began."""
        block_s = self.steps_between * self.step_s
        cycle, rest_s = divmod(job_s, self._cycle_s)
        first, begun_s = 2 * int(cycle) * self.steps_between, cycle * self._cycle_s
        spans = ((block_s, TRAIN), (_CHECKPOINT_S, CHECKPOINT), (block_s, TRAIN), (_EVALUATION_S, EVALUATION))
        for span_s, phase in spans:
            if rest_s < span_s:
                if phase != TRAIN:
                    return first, 0.0, phase, begun_s
                step, part = divmod(rest_s, self.step_s)
                return first + int(step), part / self.step_s, phase, begun_s
            rest_s, begun_s = rest_s - span_s, begun_s + span_s
            first += self.steps_between if phase == TRAIN else 0
        return first, 0.0, TRAIN, begun_s

    def start_of_step(self, steps: Floats) -> Floats:
        """Job time at which steps begin, s; parts of a step are allowed."""
        whole = np.floor(steps)
        cycle, place = np.divmod(whole, 2 * self.steps_between)
        pause = np.where(place >= self.steps_between, _CHECKPOINT_S, 0.0)
        found: Floats = cycle * self._cycle_s + pause + (place + steps - whole) * self.step_s
        return found

    # --- wall time --------------------------------------------------------------------------------------

    def _piece_at(self, t_ns: int) -> int:
        return max(0, bisect_right(self.pieces, t_ns, key=lambda piece: piece.start_ns) - 1)

    def job_s(self, t_ns: int) -> float:
        """Job time at a wall time."""
        piece = self.pieces[self._piece_at(t_ns)]
        return piece.at_s + max(0, t_ns - piece.start_ns) / _S * piece.rate

    def rate(self, t_ns: int) -> float:
        """Seconds of job time that pass in a second."""
        return self.pieces[self._piece_at(t_ns)].rate

    def moment(self, t_ns: int) -> Moment:
        """Where the world is at a wall time."""
        number = self._piece_at(t_ns)
        piece = self.pieces[number]
        step, part, phase, begun_s = self._at(self.job_s(t_ns))
        if piece.phase is not None:
            return Moment(
                step, part if piece.phase == TRAIN else 0.0, piece.phase, piece.start_ns, piece.attempt,
                piece.first_step, number,
            )  # fmt: skip
        return Moment(
            step, part, phase, self.wall_ns(begun_s, number), piece.attempt, piece.first_step, number
        )

    def wall_ns(self, job_s: float, piece: int) -> int:
        """Wall time at which job time was ``job_s``, on the attempt of a piece or at that attempt's start."""
        attempt = self.pieces[piece].attempt
        while piece > 0 and self.pieces[piece].at_s > job_s and self.pieces[piece - 1].attempt == attempt:
            piece -= 1
        found = self.pieces[piece]
        return found.start_ns + (int((job_s - found.at_s) / found.rate * _S) if found.rate > 0 else 0)

    def step_ends(self, start_ns: int, end_ns: int) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Numbers (1 after the first) and wall times of the steps that ended in [start, end)."""
        numbers, ends = [], []
        for number, piece in enumerate(self.pieces):
            last = number + 1 == len(self.pieces)
            until_ns = end_ns if last else min(end_ns, self.pieces[number + 1].start_ns)
            from_ns = max(start_ns, piece.start_ns)
            if piece.rate <= 0 or until_ns <= from_ns:
                continue
            begin = piece.at_s + (from_ns - piece.start_ns) / _S * piece.rate
            end = piece.at_s + (until_ns - piece.start_ns) / _S * piece.rate
            steps = np.arange(max(0, self._at(begin)[0] - 1), self._at(end)[0] + 2, dtype=np.float64)
            over_s = self.start_of_step(steps) + self.step_s
            kept = (over_s >= begin) & (over_s < end)
            numbers.append(steps[kept].astype(np.int64) + 1)
            ends.append(piece.start_ns + ((over_s[kept] - piece.at_s) / piece.rate * _S).astype(np.int64))
        if not numbers:
            return np.zeros(0, np.int64), np.zeros(0, np.int64)
        return np.concatenate(numbers), np.concatenate(ends)

    # --- what faults do -----------------------------------------------------------------------------------

    def slow_down(self, start_ns: int, end_ns: int | None, factor: float) -> None:
        """Every step takes ``factor`` times as long between two moments."""
        self._cut(start_ns)
        if end_ns is not None:
            self._cut(end_ns)
        rates = [
            piece.rate / factor
            if piece.start_ns >= start_ns and (end_ns is None or piece.start_ns < end_ns)
            else piece.rate
            for piece in self.pieces
        ]
        self._retime(rates)

    def stop_in_step(self, t_ns: int, resume_ns: int | None) -> int:
        """The first step that begins at ``t_ns`` or later does not end before ``resume_ns``; returns it.

        A world that starts up or pauses at ``t_ns`` stops in the first step after.
        """
        t_ns = max(t_ns, self.pieces[1].start_ns)
        now = self.moment(t_ns)
        step = now.step + (1 if now.done_ratio > 0 else 0)
        stop_s = float(self.start_of_step(np.array([step + _ALMOST]))[0])
        at_ns = self._first_wall(stop_s, t_ns)
        self._stop(at_ns, resume_ns)
        return step

    def pause(self, t_ns: int, resume_ns: int, phase: int) -> int:
        """The world is in ``phase`` between the end of the step at ``t_ns`` and ``resume_ns``.

        Returns when it begins.
        """
        now = self.moment(t_ns)
        step = now.step + (1 if now.done_ratio > 0 else 0)
        at_ns = self.wall_of(step, 0.0, t_ns) + 1_000_000
        if resume_ns <= at_ns:
            return at_ns
        self._stop(at_ns, resume_ns)
        self.pieces = [
            replace(piece, phase=phase) if at_ns <= piece.start_ns < resume_ns else piece
            for piece in self.pieces
        ]
        return at_ns

    def restart(self, ended_ns: int, resume_ns: int) -> int:
        """The attempt is over at ``ended_ns``; the next one starts at ``resume_ns`` from the last checkpoint.

        Returns the number of the new attempt.
        """
        before = self.moment(ended_ns)
        first = before.step // self.steps_between * self.steps_between
        at_s = float(self.start_of_step(np.array([float(first)]))[0])
        self.pieces = [piece for piece in self.pieces if piece.start_ns < resume_ns]
        attempt = before.attempt + 1
        self.pieces.append(Piece(resume_ns, at_s, 0.0, attempt, first, STARTUP))
        self.pieces.append(Piece(resume_ns + int(self.startup_s * _S), at_s, 1.0, attempt, first))
        return attempt

    def wall_of(self, step: int, done_ratio: float, near_ns: int) -> int:
        """Wall time at which a step was done to ``done_ratio``, at or after ``near_ns``."""
        return self._first_wall(float(self.start_of_step(np.array([step + done_ratio]))[0]), near_ns)

    def _first_wall(self, job_s: float, after_ns: int) -> int:
        for number in range(self._piece_at(after_ns), len(self.pieces)):
            piece = self.pieces[number]
            if piece.rate <= 0:
                continue
            at_ns = piece.start_ns + int((job_s - piece.at_s) / piece.rate * _S)
            ends = number + 1 == len(self.pieces) or at_ns < self.pieces[number + 1].start_ns
            if at_ns >= piece.start_ns and ends:
                return max(at_ns, after_ns)
        return after_ns

    def _stop(self, start_ns: int, end_ns: int | None) -> None:
        self._cut(start_ns)
        if end_ns is not None and end_ns > start_ns:
            self._cut(end_ns)
        self._retime(
            [
                0.0
                if piece.start_ns >= start_ns and (end_ns is None or piece.start_ns < end_ns)
                else piece.rate
                for piece in self.pieces
            ]
        )

    def _cut(self, t_ns: int) -> None:
        """A piece begins at ``t_ns``."""
        number = self._piece_at(t_ns)
        piece = self.pieces[number]
        if piece.start_ns < t_ns:
            at_s = piece.at_s + (t_ns - piece.start_ns) / _S * piece.rate
            self.pieces.insert(
                number + 1, Piece(t_ns, at_s, piece.rate, piece.attempt, piece.first_step, piece.phase)
            )

    def _retime(self, rates: list[float]) -> None:
        """Takes over new rates; job time stays whole inside of each attempt."""
        made: list[Piece] = []
        for piece, rate in zip(self.pieces, rates, strict=True):
            at_s = piece.at_s
            if made and made[-1].attempt == piece.attempt:
                before = made[-1]
                at_s = before.at_s + (piece.start_ns - before.start_ns) / _S * before.rate
            made.append(Piece(piece.start_ns, at_s, rate, piece.attempt, piece.first_step, piece.phase))
        self.pieces = made
