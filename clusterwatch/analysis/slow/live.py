"""A running job, step by step: what is kept from look to look, and what is said when somebody is slow.

In: whole steps as ``Batch``es in order, a ``Layout``, the members of the job's groups. Out: ``Kept``, which
a caller stores, and findings. A look costs what its new steps cost; the last steps are looked at as a whole
only while somebody stands out.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Final

import msgspec
import numpy as np
from numpy.typing import NDArray

from clusterwatch.analysis.model import Finding, RankFacts
from clusterwatch.analysis.slow import alarm, judge, phases, quantiles, work
from clusterwatch.analysis.slow.layout import UNKNOWN, Layout, Members, derived
from clusterwatch.analysis.slow.ranks import UNIT_MIN, Watched, centred
from clusterwatch.analysis.slow.steps import StepTable

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]

WINDOW_STEPS: Final = 64
"""Steps that are looked at as a whole while somebody stands out."""
HELD_ROWS: Final = 24
"""The same where work is told of some steps only, as where waits are measured on the GPU's stream: 64 of
those are hours of steps, so their rows are kept instead of being read again."""
UNTOLD_RUN: Final = 3
"""So many steps in a row of which no rank tells its work make it a job that tells it of some steps."""
VERSION: Final = 3
_TENSOR: Final = frozenset({"tp", "tensor", "mp", "model", "cp", "context", "ep", "expert"})
_PIPELINE: Final = frozenset({"pp", "pipe", "pipeline"})


@dataclass(frozen=True, slots=True)
class Batch:
    """S whole steps of R ranks, seconds, NaN where unknown.

    Attributes:
        steps: (S,) numbers, rising.
        work_s: (S, R) own work, without waiting, input and checkpoint.
        input_s: (S, R) waiting for the data loader.
        checkpoint_s: (S, R) in a checkpoint's write.
        late_launch: (S, R) share of the waiting in calls that the host launched too late.
        step_s: (S,) the job's step.
    """

    steps: Ints
    work_s: Floats
    input_s: Floats
    checkpoint_s: Floats
    late_launch: Floats
    step_s: Floats

    def rows(self, which: NDArray[np.bool_] | slice) -> Batch:
        """The steps chosen."""
        return Batch(*(getattr(self, name)[which] for name in Batch.__slots__))

    def judged(self) -> Batch:
        """Without the input of ranks whose work is not told in steps in which that of others is: it is by
        the host's clock, which says nothing of the GPU's, and the others' by the stream's."""
        known = np.isfinite(self.work_s)
        some = known.any(axis=1, keepdims=True)
        return replace(self, input_s=np.where(known | ~some, self.input_s, np.nan))


@dataclass(slots=True)
class Kept:
    """One world of a job between two looks.

    Attributes:
        newest: number of the last step taken.
        steps: numbers of the last ``WINDOW_STEPS`` taken.
        usual_s: (stages,) work of a step when the job was first seen.
        watched: sums of the ranks' own work.
        inputs: sums of the ranks' waits for input.
        written: last row with a checkpoint, so that writes are compared when there are new ones.
        untold: steps in a row, up to the newest, of which no rank told its work.
        held: the rows of ``steps``, where work is told of some steps only; None where it is told of each.
    """

    watched: Watched
    inputs: alarm.Sums
    usual_s: Floats
    newest: int = -1
    steps: list[int] = field(default_factory=list)
    written: int = -1
    onsets: dict[int, int] = field(default_factory=dict)
    """rank that is named -> step at which it was seen to begin, which may have left the window since"""
    untold: int = 0
    held: Batch | None = None

    @classmethod
    def of(cls, layout: Layout) -> Kept:
        stages = int(layout.stage.max(initial=0)) + 1
        ranks = layout.rank_count
        return cls(Watched.of(ranks), alarm.Sums.of(ranks), np.full(stages, np.nan))

    def take(self, batch: Batch, layout: Layout) -> None:
        """Adds steps; what is not newer than the newest is left out. Cost: O(steps x ranks log ranks)."""
        new = batch.rows(batch.steps > self.newest)
        if not len(new.steps):
            return
        self.newest = int(new.steps[-1])
        told = self._told(new.judged())
        if not len(told.steps):
            return
        self._learn_usual(told.work_s, layout)
        model = work.fit(told.work_s, self._usual(told.work_s, layout), layout.stage, layout.replica)
        waits = self._waits(told.input_s, model, layout)
        written = _any(np.nan_to_num(told.checkpoint_s) > 0)
        for row, number in enumerate(told.steps.tolist()):
            self.inputs.add(self.watched.rows, waits[row], phases.INPUT_RULE)
            self.watched.add(model.residual[row])
            self.steps.append(number)
            self.written = number if written[row] else self.written
        del self.steps[: -(WINDOW_STEPS if self.held is None else HELD_ROWS)]

    def _told(self, new: Batch) -> Batch:
        """The steps to judge: all, or those with work and with checkpoints where not every step has any."""
        has_work = _any(np.isfinite(new.work_s))
        for known in has_work.tolist():
            self.untold = 0 if known else self.untold + 1
            if self.held is None and self.untold >= UNTOLD_RUN and (has_work.any() or self._knows_work):
                self.held, self.steps = new.rows(slice(0, 0)), []
        if self.held is None:
            return new
        told = new.rows(has_work | _any(np.nan_to_num(new.checkpoint_s) > 0))
        self.held = Batch(*(
            np.concatenate((getattr(self.held, name), getattr(told, name)))[-HELD_ROWS:]
            for name in Batch.__slots__
        ))  # fmt: skip
        return told

    @property
    def _knows_work(self) -> bool:
        return bool(np.isfinite(self.usual_s).any())

    def _learn_usual(self, work_s: Floats, layout: Layout) -> None:
        for stage in np.flatnonzero(np.isnan(self.usual_s)).tolist():
            known = work_s[:, layout.stage == stage]
            known = known[np.isfinite(known) & (known > 0)]
            if len(known):
                self.usual_s[stage] = float(np.median(known))

    def _usual(self, work_s: Floats, layout: Layout) -> Floats:
        return np.broadcast_to(self.usual_s[layout.stage], work_s.shape)

    def _waits(self, input_s: Floats, model: work.Model, layout: Layout) -> Floats:
        """(S, R) input beyond the peers' of a rank's stage, in units of what matters."""
        scale = float(np.nan_to_num(quantiles.median(self.usual_s)))
        if scale <= 0:
            return np.full_like(input_s, np.nan)
        share = phases.input_excess(input_s, model, layout) / scale
        unit = np.maximum(phases.INPUT_UNIT_MIN, np.nan_to_num(quantiles.spread(share)))
        return share / unit[:, None]

    def close(self) -> None:
        """Forgets episodes that are over."""
        sums = (self.watched.peers, self.watched.own, self.inputs)
        for one in sums:
            one.close()
        still = {rank for one in sums for rank in one.columns.tolist()}
        if self.written not in self.steps:
            self.onsets = {rank: step for rank, step in self.onsets.items() if rank in still}

    @property
    def stands_out(self) -> bool:
        """Somebody is slow or fed late now, or a checkpoint was written in the last steps."""
        opened = (self.watched.peers, self.watched.own, self.inputs)
        return any(len(sums.columns) for sums in opened) or self.written in self.steps[-WINDOW_STEPS:]


def _any(flags: NDArray[np.bool_]) -> NDArray[np.bool_]:
    """By step: of any rank."""
    found: NDArray[np.bool_] = np.asarray(flags.any(axis=1))
    return found


def findings(
    kept: Kept, window: Batch, layout: Layout, paths: Members, names: tuple[str, ...],
    facts: Mapping[int, RankFacts],
) -> list[Finding]:  # fmt: skip
    """What the last steps show of those that stand out.

    Args:
        window: the steps of ``kept.steps``, the newest last; what ``kept`` holds, where it holds any.
        paths, names: the job's groups, for who waits for whom.
    """
    table = _table(kept, window.judged(), layout, paths, names)
    if len(table.steps) < judge.STEPS_MIN:
        return []
    model = work.fit(table.work, table.usual, layout.stage, layout.replica)
    noise = np.full(len(table.steps), max(UNIT_MIN, kept.watched.noise))
    slow = kept.watched.told(centred(model.residual), noise)
    return [_since_first(kept, one) for one in judge.of_case(judge.case_of(table, model, slow, facts))]


def _since_first(kept: Kept, found: Finding) -> Finding:
    """The finding with the step at which its part was first seen to be slow."""
    if found.onset_step is None or not found.culprit_ranks:
        return found
    first = min(kept.onsets.setdefault(rank, found.onset_step) for rank in found.culprit_ranks)
    told = found.summary.replace(f"since step {found.onset_step}", f"since step {first}")
    return replace(found, onset_step=first, summary=told)


def _table(kept: Kept, window: Batch, layout: Layout, paths: Members, names: tuple[str, ...]) -> StepTable:
    shape = window.work_s.shape
    usual = np.broadcast_to(kept.usual_s[layout.stage], shape)
    written = np.where(window.checkpoint_s > 0, window.checkpoint_s, np.nan)
    return StepTable(
        steps=window.steps, work=window.work_s, usual=usual, first_gap=window.input_s, rare_gap=written,
        late_launch=window.late_launch, step_s=window.step_s, stage_work=np.nan_to_num(kept.usual_s),
        transfers=(), layout=layout, paths=paths, path_names=names,
    )  # fmt: skip


# --- layout ----------------------------------------------------------------------------------------------


def layout_of(
    rank_count: int,
    groups: Iterable[tuple[str, tuple[int, ...]]],
    node: Ints,
    gpu: Ints,
    hosts: tuple[str, ...],
) -> tuple[Layout, Members, tuple[str, ...]]:
    """(layout, members, names) from a job's groups as their descriptions call them.

    Tensor, context and expert groups lie in one replica and one stage; the place in a pipeline group is the
    stage. Where no description says so, every rank is a replica of its own and all are of one stage.
    """
    told = [(name, ranks) for name, ranks in groups if ranks and max(ranks) < rank_count]
    flat = np.array([rank for _, ranks in told for rank in ranks], np.int64)
    number = np.repeat(np.arange(len(told)), [len(ranks) for _, ranks in told])
    members = Members.of(number, flat, len(told))
    words = [_words(name) for name, _ in told]
    stage = np.full(rank_count, UNKNOWN)
    for said, (_, ranks) in zip(words, told, strict=True):
        if said & _PIPELINE:
            stage[list(ranks)] = np.arange(len(ranks))
    inner = [bool(said & (_TENSOR | _PIPELINE)) for said in words]
    world = [len(ranks) == rank_count for _, ranks in told]
    stages, replica = derived(rank_count, members, stage, inner, world)
    empty = ("",) * rank_count
    layout = Layout(stages, replica, node, gpu, empty, empty, hosts, is_declared=False)
    return layout, members, tuple(name for name, _ in told)


def _words(name: str) -> frozenset[str]:
    return frozenset("".join(c if c.isalpha() else " " for c in name.lower()).split())


# --- what is kept, as bytes ------------------------------------------------------------------------------


class _Stored(msgspec.Struct, array_like=True):
    version: int
    rank_count: int
    newest: int
    written: int
    steps: list[int]
    onsets: dict[int, int]
    rows: int
    units: tuple[float, float, float]
    usual_s: bytes
    untold: int
    held_rows: int
    """-1: none are held"""
    held: bytes
    """float64: step_s, then float16: work, input, checkpoint and late launch"""
    first_rows: int
    floats: bytes
    """float32: remembered, base, first, then total and highest of each of the sums"""
    ints: bytes
    """int32: zero_at, opened and onset of each of the sums"""


def pack(kept: Kept) -> bytes:
    """For ``unpack``; about 100 bytes a rank, three times that while the first steps are kept."""
    watched = kept.watched
    sums = (watched.peers, watched.own, kept.inputs)
    floats = [watched.remembered, watched.base, watched.first.reshape(-1)]
    floats += [column for one in sums for column in (one.total, one.highest)]
    ints = [column for one in sums for column in (one.zero_at, one.opened, one.onset)]
    stored = _Stored(
        VERSION, len(watched.base), kept.newest, kept.written, kept.steps, kept.onsets, watched.rows,
        (watched.noise, watched.peer_unit, watched.own_unit), kept.usual_s.tobytes(),
        kept.untold, -1 if kept.held is None else len(kept.held.steps), _held_bytes(kept.held),
        len(watched.first), np.concatenate(floats).astype(np.float32).tobytes(),
        np.concatenate(ints).astype(np.int32).tobytes(),
    )  # fmt: skip
    return msgspec.msgpack.encode(stored)


_HALVES: Final = ("work_s", "input_s", "checkpoint_s", "late_launch")
_HALF_MAX_S: Final = 60_000.0


def _held_bytes(held: Batch | None) -> bytes:
    """Halves are exact to a thousandth: less than the noise of a step."""
    if held is None:
        return b""
    halves = [np.clip(getattr(held, name), 0.0, _HALF_MAX_S).astype(np.float16).tobytes() for name in _HALVES]
    return held.step_s.astype(np.float64).tobytes() + b"".join(halves)


def _held(stored: _Stored) -> Batch | None:
    rows, ranks = stored.held_rows, stored.rank_count
    if rows < 0:
        return None
    if rows > HELD_ROWS or rows > len(stored.steps) or len(stored.held) != 8 * rows + 8 * rows * ranks:
        raise ValueError("kept steps are damaged: what they hold is not of their size")
    step_s = np.frombuffer(stored.held, np.float64, rows).copy()
    halves = np.frombuffer(stored.held, np.float16, offset=8 * rows).astype(np.float64)
    halves = halves.reshape(len(_HALVES), rows, ranks)
    steps = np.array(stored.steps[len(stored.steps) - rows :], np.int64)
    return Batch(steps, halves[0], halves[1], halves[2], halves[3], step_s)


def unpack(data: bytes) -> Kept:
    """Raises ``ValueError`` for bytes that ``pack`` of this version did not make."""
    try:
        stored = msgspec.msgpack.decode(data, type=_Stored)
    except msgspec.MsgspecError as error:
        raise ValueError(f"no kept steps: {error}") from error
    count = stored.rank_count
    floats = np.frombuffer(stored.floats, np.float32).astype(np.float64)
    ints = np.frombuffer(stored.ints, np.int32).astype(np.int64)
    if stored.version != VERSION or len(floats) != count * (8 + stored.first_rows) or len(ints) != 9 * count:
        raise ValueError(f"kept steps of version {stored.version}, or damaged")
    remembered, base = floats[:count], floats[count : 2 * count]
    first = floats[2 * count : count * (2 + stored.first_rows)].reshape(stored.first_rows, count)
    rest = floats[count * (2 + stored.first_rows) :].reshape(6, count)
    marks = ints.reshape(9, count)
    sums = [
        alarm.Sums(
            rest[2 * n].copy(), rest[2 * n + 1].copy(), *(row.copy() for row in marks[3 * n : 3 * n + 3])
        )
        for n in range(3)
    ]
    watched = Watched(stored.rows, *stored.units, remembered.copy(), base.copy(), first, sums[0], sums[1])
    usual = np.frombuffer(stored.usual_s, np.float64).copy()
    return Kept(
        watched, sums[2], usual, stored.newest, stored.steps, stored.written, stored.onsets, stored.untold,
        _held(stored),
    )  # fmt: skip
