"""A job whose time is worth looking at: two attempts, saves, a stall, an evaluation, late, silent ranks."""

from __future__ import annotations

from clusterwatch.detect import goodput
from clusterwatch.incidents.models import Incident
from tests.jobs.goodput_run import Run


def seed_time(ranks: int = 16) -> tuple[Run, Incident]:
    """The run, counted to its end, and the incident that ended its first attempt."""
    run = Run(ranks=ranks, key="time-16", hours_ago=3)
    everybody = dict.fromkeys(range(ranks), 4.0)
    run.start(late={5: 95.0, 4: 93.0})
    run.phase(160.0, "startup", "compile", 40.0)
    run.phase(252.0, "train", "startup", 252.0)
    now = run.train(252.0, 1_200, saves={301: everybody, 601: everybody, 901: {**everybody, 7: 11.0}})
    now = run.train(now, 1, first=1_202, step_s=61.0)
    run.phase(now - 60.5, "evaluation", "train", 900.0)
    run.phase(now - 0.5, "train", "evaluation", 60.0)
    now = run.train(now, 200, first=1_203, step_s=1.4)
    stall = run.incident(now, now + 400.0, "dead_rank")
    run.end(now + 300.0)
    run.start(1, at_s=now + 360.0)
    now = run.train(now + 420.0, 1_500, attempt=1, saves={400: everybody}, silent=(14, 15))
    run.end(now, attempt=1)
    while goodput.look(run.job.pk, run.now_ns):
        pass
    return run, stall
