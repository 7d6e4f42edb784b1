"""Which slow part is worth a page, by version of the rule: a change is judged by what it would have done.

In: a finding and what a step of its job usually takes. Out: why it pages, or None: then it is suspected only.
Processes without a GPU share their processors with others: how long they work says nothing of a part.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from clusterwatch.analysis.model import Finding


@dataclass(frozen=True, slots=True)
class PageRule:
    """A part pages when it costs ``cost_min`` of a step and, where they are counted, most steps are bad."""

    version: int
    says: str
    cost_min: float = 0.02
    bad_steps_min: int = 0
    bad_ratio_min: float = 0.0
    """bad steps of those since its onset: bursts of a busy host come and go"""
    needs_gpu: bool = False

    def reason(self, found: Finding, usual_s: float) -> str | None:
        """Why the finding pages. Args: ``usual_s``: own work of a usual step, 0 where it is not known."""
        if (found.lost_s or 0.0) < self.cost_min * usual_s:
            return None
        if self.needs_gpu and any(one.gpu is None for one in found.culprits):
            return None
        if found.seen_steps and (
            found.bad_steps < self.bad_steps_min
            or found.bad_steps < self.bad_ratio_min * found.seen_steps
        ):
            return None
        return f"it costs {found.lost_s or 0:.3g} s a step, and stays"


PAGE_RULES: Final = {
    rule.version: rule
    for rule in (
        PageRule(1, "costs 2 % of a step"),
        PageRule(
            2, "costs 2 % of a step, in 6 bad steps that are 60 % of those since its onset, on GPUs only",
            bad_steps_min=6, bad_ratio_min=0.6, needs_gpu=True,
        ),
    )
}  # fmt: skip
CURRENT: Final = PAGE_RULES[max(PAGE_RULES)]
