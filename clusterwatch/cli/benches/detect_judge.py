"""Whether a verdict on a collective log is right: the rules of its format, version 1.

In: the object of ``truth.json``, the object of a diagnosis. Out: ``Judgement``. The set of culprits must be
one of the acceptable ones, the class must be right, node, link and switch where the truth has them. A fault
named in a healthy job, a software or a workload case is a false alarm.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from clusterwatch.analysis import diagnose
from clusterwatch.readers.observation import observe

BLAMING: Final = frozenset({"hardware", "host", "storage", "hang"})
"""Classes that send somebody to a machine."""
_PARTS: Final = ("node", "link", "switch")


@dataclass(frozen=True, slots=True)
class Judgement:
    """One answer beside its truth."""

    faulty: bool
    """somebody or something is to be named"""
    blames: bool
    """the answer names a fault"""
    ranks_right: bool
    class_right: bool
    parts_right: bool
    onset_error_steps: int | None
    """None where one of both has no onset"""

    @property
    def exact(self) -> bool:
        return self.ranks_right and self.class_right and self.parts_right

    @property
    def false_alarm(self) -> bool:
        return self.blames and not self.faulty

    @property
    def missed(self) -> bool:
        """Nothing is named where something had to be."""
        return self.faulty and not self.blames and not self.exact

    @property
    def wrong_name(self) -> bool:
        """A fault is there, and the answer blames something else for it."""
        return self.faulty and self.blames and not self.exact


def verdict_of(path: Path) -> dict[str, Any]:
    """What ``clusterwatch analyze --json`` says to a folder."""
    return diagnose(observe(path)).to_dict()


def judged(truth: dict[str, Any], answer: dict[str, Any]) -> Judgement:
    """Judges one answer."""
    ranks = {int(rank) for rank in answer.get("culprit_ranks") or ()}
    acceptable = [set(ranks) for ranks in truth["acceptable"]]
    told = answer.get("class")
    nobody = not ranks and told == "none" and truth["culprit_ranks"] and set() in acceptable
    start, onset = truth.get("start_step"), answer.get("onset_step")
    return Judgement(
        faulty=truth["class"] in BLAMING,
        blames=told in BLAMING,
        ranks_right=ranks in acceptable,
        class_right=told in _classes(truth) or bool(nobody),
        parts_right=bool(nobody)
        or all(truth.get(part) is None or answer.get(part) == truth[part] for part in _PARTS),
        onset_error_steps=None if start is None or onset is None else abs(int(onset) - int(start)),
    )


def _classes(truth: dict[str, Any]) -> set[str]:
    """Right classes: of several faults at once, the class of any of them that is to be named."""
    faults = truth.get("severity", {}).get("faults", ())
    several = {fault["class"] for fault in faults if fault["class"] in BLAMING}
    return {truth["class"], *several}


@dataclass(frozen=True, slots=True)
class Score:
    """Many judgements."""

    cases: int
    exact: int
    class_right: int
    false_alarms: int
    healthy: int
    """cases in which nobody is to be blamed"""
    missed: int
    wrong_names: int
    precision: float | None
    """of the answers that blame, the share that is exact; None: no such answer"""
    recall: float | None
    """of the cases with a fault, the share that is named exactly"""
    onset_error_steps: float | None
    """the middle one"""


def score(judgements: Sequence[Judgement]) -> Score:
    """Counts."""
    blaming = [one.exact and one.faulty for one in judgements if one.blames]
    faulty = [one.exact for one in judgements if one.faulty]
    errors = sorted(
        one.onset_error_steps for one in judgements if one.exact and one.onset_error_steps is not None
    )
    return Score(
        cases=len(judgements),
        exact=sum(one.exact for one in judgements),
        class_right=sum(one.class_right for one in judgements),
        false_alarms=sum(one.false_alarm for one in judgements),
        healthy=sum(not one.faulty for one in judgements),
        missed=sum(one.missed for one in judgements),
        wrong_names=sum(one.wrong_name for one in judgements),
        precision=sum(blaming) / len(blaming) if blaming else None,
        recall=sum(faulty) / len(faulty) if faulty else None,
        onset_error_steps=float(errors[len(errors) // 2]) if errors else None,
    )
