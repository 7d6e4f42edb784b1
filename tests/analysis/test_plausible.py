"""One number that no recorder can have written costs its entry or its dump, by name, and no other rank."""

from __future__ import annotations

import json
import pickle
from typing import Any

import numpy as np
import pytest

from clusterwatch.analysis import Observation, diagnose, plausible
from collectors.formats.columns import NULL
from collectors.formats.flight_recorder import decode
from tests.cases.jobs import Batch, Call, Halt, Job, Sync, recv, send
from tests.cases.judged import named
from tests.cases.meshes import mesh, train

ABSURD = (-5, 0, 2**31, 2**53, 2**62, 2**63 - 1)
NOW = 1_790_000_000_000_000_000
HOUR = 3_600_000_000_000


def stalled() -> Job:
    """Rank 2 stops in its second step; the newest calls of the others are open."""
    job = train(mesh(tp=2, dp=2), steps=3)
    job.programs[2].insert(9, Halt())
    return job.run()


def spoilt(job: Job, rank: int, at: int, key: str, value: object, as_json: bool) -> dict[int, bytes]:
    """Dumps of a job with one value in one entry of one rank."""
    dumps = {ring.rank: ring.as_json() if as_json else ring.pickled() for ring in job.rings}
    dump = json.loads(dumps[rank]) if as_json else job.rings[rank].dump()
    dump["entries"] = [dict(entry) for entry in dump["entries"]]
    dump["entries"][at][key] = value
    dumps[rank] = json.dumps(dump).encode() if as_json else pickle.dumps(dump, protocol=2)
    return dumps


def verdict(dumps: dict[int, bytes]) -> dict[str, Any]:
    traces = tuple(decode(data, rank, f"rank_{rank}") for rank, data in dumps.items())
    return diagnose(Observation(traces=traces)).to_dict()


@pytest.mark.parametrize("as_json", [True, False])
@pytest.mark.parametrize("key", ["collective_seq_id", "pg_id", "time_created_ns", "record_id", "op_id"])
@pytest.mark.parametrize("at", [0, 5, -1])
def test_the_missing_rank_stays_the_one_that_is_named(at: int, key: str, as_json: bool) -> None:
    for value in ABSURD:
        found = verdict(spoilt(stalled(), 1, at, key, value, as_json))
        assert named(found) == ("missing_rank", [2], []) and len(found["findings"]) == 1, value


@pytest.mark.parametrize("value", [2**31, 2**62])
def test_a_sequence_number_is_told_with_the_dump_that_holds_it(value: int) -> None:
    traces = [decode(data, rank, f"file_{rank}") for rank, data in
              spoilt(stalled(), 1, -1, "collective_seq_id", value, True).items()]  # fmt: skip
    told = diagnose(Observation(traces=tuple(traces))).problems
    assert [(problem.source, problem.rank) for problem in told] == [("file_1", 1)]
    assert told[0].reason.startswith("1 call of ")


def test_an_end_of_another_age_finishes_no_call() -> None:
    """Else the others, who still wait in it, would be the late ones."""
    for value in ABSURD[2:]:
        found = verdict(spoilt(stalled(), 1, -1, "time_discovered_completed_ns", value, False))
        assert named(found) == ("missing_rank", [2], []), value


def test_a_lone_call_far_beyond_all_peers_costs_its_dump() -> None:
    job = Job(4)
    job.every(Call(job.default), ranks=(0, 1, 3))
    job.every(Sync(), Halt())
    whole = spoilt(job.run(), 0, 0, "collective_seq_id", 2**31, True)
    found = diagnose(Observation(traces=tuple(decode(d, r, f"file_{r}") for r, d in whole.items())))
    assert found.worst.culprit_ranks == (2,) and len(found.findings) == 1
    assert [(p.source, p.rank) for p in found.problems] == [("file_0", 0)]
    assert "not used" in found.problems[0].reason


@pytest.mark.parametrize("at", range(9))
def test_a_number_that_tears_a_batch_apart_leaves_no_send_unmatched(at: int) -> None:
    job = Job(2)
    for rank, peer in ((0, 1), (1, 0)):
        both = (send(job.default, peer), recv(job.default, peer))
        job.repeat(3, Batch(job.default, both), Sync(), ranks=(rank,))
    job.run()
    for value in ABSURD:
        found = verdict(spoilt(job, 0, at, "p2p_seq_id", value, False))
        assert found["verdict"] == "no_fault", value


class TestTimes:
    def test_those_of_one_ring_stay_as_they_are(self) -> None:
        told = np.array([NOW, NOW + 20 * HOUR, NOW + HOUR])
        assert plausible.times(told) is told

    @pytest.mark.parametrize("at", range(3))
    def test_one_of_another_age_is_unknown(self, at: int) -> None:
        for value in (2**31, 2**53, 2**62, 2**63 - 1, NOW + 2**60):
            told = np.array([NOW, NOW + 1, NOW + 2])
            told[at] = value
            expected = [NULL if place == at else NOW + place for place in range(3)]
            assert plausible.times(told).tolist() == expected, value

    def test_unknown_times_stay_unknown_and_do_no_harm(self) -> None:
        assert plausible.times(np.array([NULL, NOW, NULL])).tolist() == [NULL, NOW, NULL]

    def test_a_clock_that_counts_from_the_start_of_the_host_is_one_too(self) -> None:
        told = [HOUR, 2 * HOUR, 3 * HOUR]
        assert plausible.times(np.array(told)).tolist() == told


class TestNumbers:
    """Of calls, sorted by group."""

    @pytest.mark.parametrize(
        ("values", "odd"),
        [
            ([7, 8, 9, 10], []),
            ([7, 9, 8, 10], []),  # two threads
            ([7, 8, 8, 8, 9], []),  # coalesced
            ([7, 8, 5_000, 5_001], []),  # a captured graph in between
            ([7, 8, 2**31, 10], [2]),
            ([7, 8, 9, 2**53], [3]),
            ([2**62, 8, 9, 10], [0]),
            ([50, 51, 0, 53], [2]),
            ([50, 51, 52, 0], [3]),
            ([50, 700, 52, 53], [1]),
            ([2**41], [0]),
            ([2**31], []),  # nothing beside it tells
            ([0], []),
        ],
    )
    def test_one_that_does_not_fit_is_found(self, values: list[int], odd: list[int]) -> None:
        told = np.array(values)
        assert plausible.numbers(told, np.zeros(len(told), np.int32)) == odd

    def test_each_group_counts_by_itself(self) -> None:
        told = np.array([1_000_000_000, 1_000_000_001, 3, 4])
        assert plausible.numbers(told, np.array([0, 0, 1, 1])) == []

    def test_a_count_that_begins_anew_is_left_as_it_is(self) -> None:
        told = np.array([*range(100, 120), *range(1, 21)])
        assert plausible.numbers(told, np.zeros(len(told), np.int32)) == []


@pytest.mark.parametrize(
    ("ids", "overflow"),
    [
        ([0, 1, 2, 3], False),
        ([5, 6, 7, 8], True),
        ([2**62, 1, 2, 3], False),
        ([0, 1, 2, 2**62], False),
        ([0, 6, 7, 8], True),
        ([], False),
        ([0], False),
        ([9], True),
    ],
)
def test_one_record_number_does_not_tell_an_overflow(ids: list[int], overflow: bool) -> None:
    assert plausible.overflowed(ids) is overflow


class TestOneName:
    """A group made anew under its name, or one entry of it with another pg_id."""

    def rings(self, again: bool) -> dict[int, bytes]:
        job = Job(4)
        first = job.group("7", "tp", (0, 1, 2, 3))
        job.repeat(3, Call(first), Sync())
        second = job.group("7", "tp", (0, 1, 2, 3)) if again else first
        job.every(Call(second), ranks=(0, 1, 3))
        return job.run().pickles()

    @pytest.mark.parametrize(("again", "sequence"), [(True, 1), (False, 4)])
    def test_is_told_by_where_it_begins_to_count(self, again: bool, sequence: int) -> None:
        found = verdict(self.rings(again))
        assert named(found) == ("missing_rank", [2], []) and found["seq"] == sequence
