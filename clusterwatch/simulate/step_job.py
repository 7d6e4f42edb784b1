"""A made training job with its faults, as a collective log (version 1) and the truth about it.

In: sizes, faults, conditions, a seed. Out: columns without any file, or a folder with ``records.jsonl.gz``,
``topology.json`` and ``truth.json``. Deterministic by seed. 16 ranks of 100 steps take half a second, a tenth
of it without the files.

    StepJob(SHAPES[16], (Fault(Kind.GPU, 1.3),), seed=3).write(folder)
    columns, truth = (job := StepJob(SHAPES[64])).columns, job.truth
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any, Final

import numpy as np

from clusterwatch.simulate import step_job_faults, step_job_records, step_job_truth
from clusterwatch.simulate.step_job_effects import Story
from clusterwatch.simulate.step_job_engine import Call, Clockwork, Noise
from clusterwatch.simulate.step_job_faults import Condition, Fault, Kind, Planned, When
from clusterwatch.simulate.step_job_layout import SHAPES, Floats, JobShape
from clusterwatch.simulate.step_job_records import Clocks, StepColumns

__all__ = ["SHAPES", "Condition", "Fault", "JobShape", "Kind", "Noise", "StepJob", "When"]

_NOISY: Final = Noise(work=0.025, hiccup=(4e-3, 3e6), transfer=0.05, jitter_ns=5e3)
_UNEVEN_SILICON: Final = 0.015
_OFFSET_NS: Final = 5e5
_OFFSET_NOISY_NS: Final = 3e6
_DRIFT_RATIO: Final = 2e-5
_JUMP_NS: Final = 30e6
_LOST_RATIO: Final = 0.02


@dataclass(frozen=True)
class StepJob:
    """One job. ``noise`` None: what its conditions ask for."""

    shape: JobShape = SHAPES[16]
    faults: tuple[Fault, ...] = ()
    conditions: frozenset[Condition] = frozenset()
    seed: int = 0
    name: str = ""
    noise: Noise | None = None

    @cached_property
    def planned(self) -> tuple[Planned, ...]:
        """The faults with their places and first steps."""
        return step_job_faults.plan(self.faults, self.shape, self.seed)

    @cached_property
    def calls(self) -> list[Call]:
        """Everything that happened, in true time."""
        return self._run(self.planned)

    @cached_property
    def columns(self) -> StepColumns:
        """The log: what the hosts' clocks said, as far as lines came through."""
        return self._log(step_job_records.columns(self.shape, self.calls, self._clocks))

    @cached_property
    def truth(self) -> dict[str, Any]:
        """The object of ``truth.json``."""
        return step_job_truth.truth(self.name, self.seed, self.shape, self.planned, self.cost_ratio)

    @cached_property
    def cost_ratio(self) -> float | None:
        """How much longer the steps of a slow host took than without it; other faults are not measured."""
        host = next((fault for fault in self.planned if fault.kind is Kind.HOST), None)
        if host is None:
            return None
        others = tuple(fault for fault in self.planned if fault is not host)
        bad = [step for step in range(self.shape.steps) if host.amount(step)]
        with_it, without = (_step_ns(calls)[bad].sum() for calls in (self.calls, self._run(others)))
        return float(with_it / without - 1.0)

    def write(self, folder: Path) -> Path:
        """Writes the three files into a folder, which is made where it is not there."""
        folder.mkdir(parents=True, exist_ok=True)
        step_job_records.write(self.columns, folder / "records.jsonl.gz")
        (folder / "topology.json").write_text(json.dumps(self.shape.topology()))
        (folder / "truth.json").write_text(json.dumps(self.truth, indent=1))
        return folder

    def _run(self, planned: Sequence[Planned]) -> list[Call]:
        story = Story(self.shape, planned, self.conditions, self.seed)
        return Clockwork(self.shape, story, self._noise, self.seed).run()

    @property
    def _noise(self) -> Noise:
        noise = self.noise or (_NOISY if Condition.NOISY in self.conditions else Noise())
        return replace(noise, silicon=_UNEVEN_SILICON) if Condition.SILICON in self.conditions else noise

    @property
    def _clocks(self) -> Clocks:
        random, nodes = np.random.default_rng([self.seed, 31]), self.shape.nodes
        spread = _OFFSET_NOISY_NS if Condition.NOISY in self.conditions else _OFFSET_NS
        clocks = Clocks(spread * random.standard_normal(nodes), _DRIFT_RATIO * random.standard_normal(nodes))
        if Condition.CLOCK_STEP not in self.conditions:
            return clocks
        step = int(random.integers(1, max(self.shape.steps, 2)))
        jump = float(random.choice([-_JUMP_NS, _JUMP_NS]))
        return replace(clocks, jump_node=int(random.integers(nodes)), jump_step=step, jump_ns=jump)

    def _log(self, made: StepColumns) -> StepColumns:
        """What comes through of the lines, and in which order."""
        random = np.random.default_rng([self.seed, 32])
        if Condition.SILENT_RANK in self.conditions:
            made = made.take(made.rank != random.integers(self.shape.world))
        if Condition.DROPPED in self.conditions:
            made = made.take(random.random(len(made)) >= _LOST_RATIO)
        if Condition.DUPLICATED in self.conditions:
            again = np.flatnonzero(random.random(len(made)) < _LOST_RATIO)
            made = made.take(np.sort(np.concatenate([np.arange(len(made)), again])))
        if Condition.SHUFFLED in self.conditions:
            made = made.take(random.permutation(len(made)))
        return made


def _step_ns(calls: Sequence[Call]) -> Floats:
    """Duration of each step, from the end of one norm of the gradients to the next."""
    ends = [float(call.end.max()) for call in calls if call.role == "world" and call.op == "all_reduce"]
    return np.diff(ends, prepend=0.0)
