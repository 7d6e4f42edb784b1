"""Who waits for which fault."""

from __future__ import annotations

from tests.analysis.looks import look
from tests.data.recorder import Job


def pairs(count: int) -> Job:
    """Pairs of ranks, each a group; in every pair the second rank is missing from a call."""
    job = Job(2 * count)
    for number in range(count):
        job.group(str(number + 1), f"pair{number}", (2 * number, 2 * number + 1))
    job.all()
    for number in range(count):
        job.call(2 * number, str(number + 1), state="scheduled")
    return job


def test_each_fault_has_its_own_downstream() -> None:
    found = look(pairs(3))
    assert [(f.culprit_ranks, f.downstream.ranks, f.downstream.groups) for f in found.findings] == [
        ((1,), 1, 1),
        ((3,), 1, 1),
        ((5,), 1, 1),
    ]


def test_of_very_many_faults_each_rank_counts_for_the_nearest() -> None:
    job = pairs(20)
    job.group("99", "tail", (0, 40))
    job.world = 41
    job.rings.append(type(job.rings[0])())
    job.call(40, "99", state="scheduled")
    found = look(job)
    assert len(found.findings) == 20
    waiting = {f.culprit_ranks: f.downstream.ranks for f in found.findings}
    assert waiting[(1,)] == 2 and all(count == 1 for ranks, count in waiting.items() if ranks != (1,))
