"""The whole way: order never matters, coverage is honest, nothing is drawn green without data."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from clusterwatch.analysis import CATALOGUE, Observation, diagnose, exit_code
from clusterwatch.analysis.model import InputProblem, KnownGroup
from collectors.formats.columns import TraceColumns
from tests.analysis.looks import SPINNING, WAITING, facts, killed, look, said, stack, traces
from tests.data.blocking_job import World
from tests.data.recorder import Job

FAULTS = ["", "data_loader", "spin", "wrong_op", "wrong_size", "extra_call", "extra_dp"]


@pytest.mark.parametrize("fault", FAULTS)
@given(seed=st.integers(0, 2**32), gone=st.sets(st.integers(0, 7), max_size=2))
@settings(max_examples=12, suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
def test_the_order_of_everything_given_does_not_matter(fault: str, seed: int, gone: set[int]) -> None:
    dumps = list(traces(World(fault, 5).run(), without=gone))
    stacks = [stack(r, SPINNING if r == 5 else WAITING) for r in range(8)]
    known = facts({next(iter(gone)): killed(0)} if gone else None)
    first = diagnose(
        Observation(traces=tuple(dumps), stacks=tuple(stacks), facts=known, live=True, advanced=False)
    )
    source = random.Random(seed)
    source.shuffle(dumps)
    source.shuffle(stacks)
    mixed = dict(source.sample(sorted(known.items()), len(known)))
    renamed = tuple(replace(t, source=f"other{source.random()}") for t in dumps)
    again = diagnose(
        Observation(traces=renamed, stacks=tuple(stacks), facts=mixed, live=True, advanced=False)
    )
    assert again.to_dict() == first.to_dict()


@given(st.data())
@settings(max_examples=40, deadline=None)
def test_cut_rings_and_dropped_dumps_never_break_it(data: st.DataObject) -> None:
    job = World(data.draw(st.sampled_from(FAULTS)), data.draw(st.integers(0, 7))).run()
    gone = data.draw(st.sets(st.integers(0, 7), max_size=8))
    keep = data.draw(st.integers(1, 40))
    found = diagnose(Observation(traces=traces(job, without=gone, keep=keep)))
    for finding in found.findings:
        assert finding.verdict in CATALOGUE
        assert 0 <= finding.confidence <= 1 and len(finding.summary) <= 200
        assert not set(finding.culprit_ranks) & set(finding.suspect_ranks)
        assert not set(finding.culprit_ranks) & gone


def test_a_duplicate_dump_changes_nothing() -> None:
    dumps = traces(World("data_loader", 5).run())
    assert (
        diagnose(Observation(traces=dumps + dumps)).to_dict() == diagnose(Observation(traces=dumps)).to_dict()
    )


def test_nothing_at_all_is_not_enough_data() -> None:
    found = diagnose(Observation())
    assert said(found) == ("not_enough_data", (), ()) and found.worst.confidence == 0


def test_rings_without_a_call_are_not_enough_data() -> None:
    assert look(Job(4)).worst.verdict == "not_enough_data"


def test_too_few_dumps_are_not_enough_data() -> None:
    job = Job(8)
    job.all()
    assert look(job, without=range(2, 8)).worst.verdict == "not_enough_data"
    job.all(state="scheduled")
    assert look(job, without=range(2, 8)).worst.verdict == "not_enough_data"


def test_a_known_world_size_counts_ranks_that_no_dump_tells_of() -> None:
    job = Job(4)
    job.all()
    assert look(job, world_size=4).worst.verdict == "no_fault"
    found = look(job, world_size=16)
    assert found.worst.verdict == "not_enough_data" and found.coverage.expected == 16


def test_problems_are_handed_on() -> None:
    problem = InputProblem("rank_3", "cut off", 3)
    assert look(Job(2), problems=(problem,)).problems == (problem,)


def test_the_hooks_groups_beat_what_gloo_dumps_say() -> None:
    """Rank 1 never called in its group, so only the hook knows that it is a member."""
    job = Job(4, "gloo")
    job.group("7", "odd", (0, 1))
    job.all()
    job.call(0, "7", state="scheduled")
    assert 1 not in look(job).worst.culprit_ranks
    found = look(job, groups=(KnownGroup("7", "odd", (0, 1)),))
    assert said(found) == ("missing_rank", (1,), ())


def test_groups_of_one_name_stay_two() -> None:
    job = Job(4)
    job.all()
    dumps: list[TraceColumns] = []
    for pair in ((0, 1), (2, 3)):
        half = Job(4)
        half.group("1", "tp", pair)
        half.all()
        for _ in range(pair[0]):
            half.all(group="1")
        half.call(pair[1], "1", state="scheduled")
        dumps += [t for t in traces(half) if t.rank in pair]
    found = diagnose(Observation(traces=tuple(dumps)))
    assert sorted(f.culprit_ranks for f in found.findings) == [(0,), (2,)]


def test_truncated_rings_are_counted() -> None:
    job = Job(4)
    for _ in range(10):
        job.all()
    assert diagnose(Observation(traces=traces(job, keep=3))).coverage.truncated == 4


@pytest.mark.parametrize(("fault", "code"), [("", 0), ("data_loader", 2)])
def test_exit_codes_follow_the_verdict(fault: str, code: int) -> None:
    worst = look(World(fault, 5).run()).worst
    assert exit_code(worst.verdict, worst.fault_class, worst.severity) == code


def test_live_and_offline_give_one_answer_from_the_same_dumps() -> None:
    dumps = traces(World("wrong_op", 3).run())
    offline = diagnose(Observation(traces=dumps)).worst
    live = diagnose(Observation(traces=dumps, live=True, advanced=False, facts=facts())).worst
    assert (offline.verdict, offline.culprit_ranks, offline.seq) == (
        live.verdict,
        live.culprit_ranks,
        live.seq,
    )
