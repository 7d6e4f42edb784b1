"""Periods, positions, and the one call too many."""

from __future__ import annotations

import pytest

from clusterwatch.analysis import Observation
from clusterwatch.analysis.groups import build
from clusterwatch.analysis.pattern import breaks, next_role, period_of, positions
from tests.analysis.looks import traces
from tests.data.blocking_job import World
from tests.data.recorder import name_of, parallel, steps

A, B = ("tp", "all_reduce", (), ""), ("dp", "all_reduce", (), "")


@pytest.mark.parametrize(
    ("tokens", "period"),
    [([A, A, B] * 3, 3), ([A] * 3, 1), ([A, A, B] * 2, None), ([A, A, B] * 3 + [B], None), ([], None)],
)
def test_the_period_is_the_shortest_kept_three_times(
    tokens: list[tuple[str, str, tuple[()], str]], period: int
) -> None:
    assert period_of(list(tokens)) == period


def test_positions_count_calls_of_shared_roles() -> None:
    job = parallel("gloo")
    steps(job, 3)
    job.call(5, name_of(job, "tp", 5))
    world = build(Observation(traces=traces(job)))
    reached = positions(world, [4, 5])
    assert reached == {4: 9.0, 5: 10.0}


@pytest.mark.parametrize("rank", [4, 5, 7])
def test_finds_the_extra_call_in_the_ranks_own_sequence(rank: int) -> None:
    world = build(Observation(traces=traces(World("extra_call", rank).run())))
    assert [(b.rank, b.extra) for b in breaks(world)] == [(rank, True)]


def test_finds_the_call_left_out() -> None:
    job = parallel("gloo")
    steps(job, 4)
    steps(job, 1, ranks=[r for r in range(8) if r != 2])
    job.call(2, name_of(job, "tp", 2))
    job.call(2, name_of(job, "dp", 2), size=(4096,))
    steps(job, 2)
    world = build(Observation(traces=traces(job)))
    assert [(b.rank, b.extra) for b in breaks(world)] == [(2, False)]


@pytest.mark.parametrize("fault", ["", "data_loader", "spin"])
def test_a_rank_that_only_stops_breaks_no_pattern(fault: str) -> None:
    assert breaks(build(Observation(traces=traces(World(fault, 5).run())))) == []


def test_an_evaluation_that_all_ranks_run_breaks_no_pattern() -> None:
    job = parallel("gloo")
    steps(job, 4)
    for rank in range(8):
        job.call(rank, name_of(job, "tp", rank), size=(77,))
    steps(job, 4)
    assert breaks(build(Observation(traces=traces(job)))) == []


def test_the_line_of_code_tells_an_extra_call_that_looks_like_the_next_one() -> None:
    """Rank 0's extra call stands where its second one would: only the call site differs."""
    job = World("extra_call", 0).run()
    for rank in range(8):
        lines = {"tp": 0, "dp": 0, "default_pg": 0}
        for entry in job.rings[rank].entries:
            kind = entry["process_group"][1]
            lines[kind] += 1
            line = 10 + (lines[kind] % 2 if kind == "tp" else 5)
            extra = rank == 0 and kind == "tp" and lines[kind] == 14
            entry["frames"] = [{"name": "step", "filename": "job.py", "line": 99 if extra else line}]
    world = build(Observation(traces=traces(job)))
    assert [(b.rank, b.extra, b.sequence) for b in breaks(world)] == [(0, True, 14)]


def test_an_extra_call_that_its_partner_made_too_is_legal() -> None:
    job = parallel("gloo")
    steps(job, 4)
    for rank in (6, 7):
        job.call(rank, name_of(job, "tp", rank))
    steps(job, 4)
    assert breaks(build(Observation(traces=traces(job)))) == []


def test_the_next_call_is_told_by_the_ranks_own_pattern() -> None:
    job = parallel("gloo")
    steps(job, 4)
    world = build(Observation(traces=traces(job)))
    assert next_role(world, 5) == "tp"
    job.call(5, name_of(job, "tp", 5))
    job.call(5, name_of(job, "tp", 5))
    assert next_role(build(Observation(traces=traces(job))), 5) == "dp"


@pytest.mark.parametrize("every", [2, 3])
def test_checkpoint_barriers_in_between_do_not_hide_the_extra_call(every: int) -> None:
    job = parallel("gloo")
    for number in range(1, 9):
        for rank in range(8):
            if rank == 5 and number == 8:
                job.call(5, name_of(job, "tp", 5))
        steps(job, 1)
        if number % every == 0:
            job.all(op="barrier", size=None)
    world = build(Observation(traces=traces(job)))
    assert [(b.rank, b.extra, b.group.desc) for b in breaks(world)] == [(5, True, "tp")]


def test_an_evaluation_long_ago_does_not_hide_it_either() -> None:
    job = parallel("gloo")
    steps(job, 30)
    for rank in range(8):
        for _ in range(7):
            job.call(rank, name_of(job, "tp", rank))
    steps(job, 45)
    job.call(5, name_of(job, "tp", 5))
    steps(job, 1)
    world = build(Observation(traces=traces(job)))
    assert [(b.rank, b.extra) for b in breaks(world)] == [(5, True)]
