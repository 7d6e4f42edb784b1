"""Short way from a made training job to its verdict, in memory."""

from __future__ import annotations

from clusterwatch.cli.benches.detect_log import layout_of, log_of, verdict_on
from clusterwatch.simulate.step_job import StepJob
from tests.cases.judged import Verdict

__all__ = ["judged", "layout_of", "log_of"]


def judged(job: StepJob) -> Verdict:
    return verdict_on(log_of(job))
