"""The matrix of made training jobs by which detection is judged: kind x size x shape in time.

In: a number of ranks and a seed. Out: ``StepJob`` of each cell. Sizes and shapes are those in which slow
parts are met in practice, down to those that cannot be seen; healthy and uneven jobs stand beside them.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from itertools import product
from typing import Final

from clusterwatch.simulate.step_job import SHAPES, Condition, Fault, Kind, StepJob, When


@dataclass(frozen=True, slots=True)
class Cell:
    """One row of the matrix."""

    kind: str
    size: str
    when: str
    faults: tuple[Fault, ...] = ()
    conditions: frozenset[Condition] = frozenset()
    last_rank: bool = False
    """the fault is on the last rank, so on the last stage"""

    @property
    def name(self) -> str:
        return " ".join(part for part in (self.kind, self.size, self.when) if part)

    def job(self, ranks: int, seed: int) -> StepJob:
        """The job of this cell.

        Raises:
            ValueError: there is no usual job of so many ranks.
        """
        if ranks not in SHAPES:
            raise ValueError(f"{ranks} ranks: there are jobs of {', '.join(map(str, SHAPES))}")
        shape, faults = SHAPES[ranks], self.faults
        if self.last_rank:
            faults = tuple(Fault(f.kind, f.size, f.when, shape.world - 1) for f in faults)
        return StepJob(shape, faults, self.conditions, seed, f"{self.name} {ranks} ranks seed {seed}")


_SLOW: Final[tuple[tuple[Kind, tuple[float, ...], tuple[When, ...]], ...]] = (
    (Kind.GPU, (1.03, 1.06, 1.1, 1.3), tuple(When)),
    (Kind.NIC, (0.8, 0.5, 0.25), tuple(When)),
    (Kind.NVLINK, (0.5, 0.25), tuple(When)),
    (Kind.SWITCH, (0.7, 0.35), tuple(When)),
    (Kind.HOST, (2, 4, 6, 10, 14), (When.START, When.ONSET)),
    (Kind.LOADER, (10, 60, 300), tuple(When)),
    (Kind.STORAGE, (2, 8), (When.START, When.ONSET)),
    (Kind.GC, (0.01, 0.06), (When.START,)),
    (Kind.STAGE, (1.15, 1.4), (When.START,)),
    (Kind.REPLICA, (1.15, 1.3), (When.START,)),
    (Kind.SEQUENCE, (0.2, 0.35), (When.START,)),
)
_HANGS: Final = (Kind.ABSENT, Kind.QUEUED, Kind.INSIDE, Kind.ORDER)
_TWO: Final = (
    (Fault(Kind.GPU, 1.3), Fault(Kind.NIC, 0.25)),
    (Fault(Kind.GPU, 1.1), Fault(Kind.GPU, 1.3)),
    (Fault(Kind.GPU, 1.3), Fault(Kind.LOADER, 60)),
)
_UNEVEN: Final = (
    (Fault(Kind.GPU, 1.1), Fault(Kind.STAGE, 1.3)),
    (Fault(Kind.GPU, 1.3), Fault(Kind.SEQUENCE, 0.35)),
    (Fault(Kind.NIC, 0.25), Fault(Kind.REPLICA, 1.2)),
    (Fault(Kind.LOADER, 60), Fault(Kind.STAGE, 1.3)),
)


@cache
def cells() -> tuple[Cell, ...]:
    """All rows."""
    made = [
        Cell(str(kind), f"{size:g}", str(when), (Fault(kind, size, when),))
        for kind, sizes, shapes in _SLOW
        for size, when in product(sizes, shapes)
    ]
    made += [
        Cell("slow_gpu", f"{size:g}", "last_stage", (Fault(Kind.GPU, size),), last_rank=True)
        for size in (1.06, 1.3)
    ]
    made += [Cell(str(kind), "", str(When.ONSET), (Fault(kind),)) for kind in _HANGS]
    made += [Cell("no_fault", "", "quiet")]
    made += [Cell("no_fault", "", str(one), conditions=frozenset([one])) for one in Condition]
    made += [Cell("two_faults", _sizes(faults), str(When.ONSET), faults) for faults in _TWO]
    made += [Cell("in_uneven_job", _sizes(faults), str(When.ONSET), faults) for faults in _UNEVEN]
    return tuple(made)


def _sizes(faults: tuple[Fault, ...]) -> str:
    return "+".join(f"{fault.kind.removeprefix('slow_')}:{fault.size:g}" for fault in faults)
