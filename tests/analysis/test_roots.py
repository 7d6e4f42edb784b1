"""Which fault is found where: one test per verdict, and a near miss beside it."""

from __future__ import annotations

import pytest

from tests.analysis.looks import look, said
from tests.data.blocking_job import World
from tests.data.recorder import Job


def started(world: int = 4, calls: int = 5, backend: str = "nccl", timing: bool = False) -> Job:
    job = Job(world, backend, timing)
    for _ in range(calls):
        job.all()
    return job


class TestMissingRank:
    def test_names_the_rank_that_never_issued_the_call_its_peers_wait_in(self) -> None:
        job = started()
        job.all(ranks=(0, 1, 3), state="scheduled")
        found = look(job)
        assert said(found) == ("missing_rank", (2,), ())
        worst = found.worst
        assert (worst.seq, worst.op, worst.joined_ranks, worst.missing_ranks) == (
            6,
            "all_reduce",
            (0, 1, 3),
            (2,),
        )
        assert worst.group is not None and worst.group.ranks == (0, 1, 2, 3)

    def test_a_rank_that_has_issued_it_is_not_named(self) -> None:
        job = started()
        job.all(state="scheduled")
        assert said(look(job)) == ("all_joined_not_finished", (), ())

    def test_two_missing_ranks_are_two_findings(self) -> None:
        job = started(6)
        job.all(ranks=(0, 1, 3, 4), state="scheduled")
        found = look(job)
        assert [f.culprit_ranks for f in found.findings] == [(2,), (5,)]
        assert found.to_dict()["culprit_ranks"] == [2, 5]

    def test_many_missing_ranks_are_one_finding(self) -> None:
        job = started(64)
        job.all(ranks=range(8, 64), state="scheduled")
        found = look(job)
        assert len(found.findings) == 1 and found.worst.culprit_ranks == tuple(range(8))

    def test_when_most_are_missing_they_are_suspects_only(self) -> None:
        job = started()
        job.call(0, state="scheduled")
        assert said(look(job)) == ("missing_rank", (), (0, 1, 2, 3))

    def test_a_rank_that_made_no_call_at_all_is_missing_not_unknown(self) -> None:
        job = Job(3)
        job.all(ranks=(1, 2), op="broadcast", state="scheduled")
        assert said(look(job)) == ("missing_rank", (0,), ())

    def test_names_one_root_of_a_chain_over_groups(self) -> None:
        job = Job(6)
        for number in range(5):
            job.group(str(number + 1), f"link{number}", (number, number + 1))
        job.all()
        for number in range(5):
            job.call(number, str(number + 1), state="scheduled")
        found = look(job)
        assert said(found) == ("missing_rank", (5,), ())
        assert len(found.findings) == 1
        assert (found.worst.downstream.groups, found.worst.downstream.ranks) == (5, 5)

    def test_independent_faults_stay_two_findings(self) -> None:
        job = Job(4)
        job.group("1", "tp", (0, 1))
        job.group("2", "tp", (2, 3))
        job.all()
        job.call(0, "1", state="scheduled")
        job.call(3, "2", state="scheduled")
        assert sorted(f.culprit_ranks for f in look(job).findings) == [(1,), (2,)]

    def test_an_evicted_call_is_not_a_missing_one(self) -> None:
        """Rank 2 made the call long ago; its small ring has dropped it while it went on elsewhere."""
        job = Job(3)
        job.group("1", "side", (1, 2))
        job.all(state="scheduled", ranks=(2,))
        job.all(state="scheduled", ranks=(0, 1))
        job.wait(60)
        for _ in range(20):
            job.all(group="1")
        from clusterwatch.analysis import Observation, diagnose
        from tests.analysis.looks import traces

        rings = [t for t in traces(job) if t.rank != 2] + [t for t in traces(job, keep=8) if t.rank == 2]
        assert 2 not in diagnose(Observation(traces=tuple(rings))).worst.culprit_ranks


class TestQueuedNotStarted:
    def test_names_the_rank_whose_kernel_is_queued_while_its_peers_run(self) -> None:
        job = started(timing=True)
        job.all(ranks=(0, 1, 3), state="started")
        job.call(2, state="scheduled")
        assert said(look(job)) == ("queued_not_started", (2,), ())

    def test_without_timing_queued_and_running_cannot_be_told_apart(self) -> None:
        job = started()
        job.all(state="scheduled")
        assert look(job).worst.verdict == "all_joined_not_finished"

    def test_stays_the_root_when_it_also_lacks_later_calls(self) -> None:
        job = started()
        job.all(ranks=(0, 1, 3))
        job.call(2, state="scheduled")
        job.all(ranks=(0, 1, 3), state="scheduled")
        found = look(job)
        assert said(found) == ("queued_not_started", (2,), ()) and found.worst.seq == 6

    def test_a_late_mark_on_the_newest_call_is_no_fault(self) -> None:
        job = started()
        job.all(ranks=(0, 1))
        job.all(ranks=(2, 3), state="scheduled")
        assert said(look(job)) == ("no_fault", (), ())


class TestNoDump:
    def test_suspects_the_rank_without_a_dump(self) -> None:
        job = started()
        job.all(state="scheduled")
        found = look(job, without=(1,))
        assert said(found) == ("suspect_no_dump", (), (1,))
        assert found.worst.confidence <= 0.5

    def test_a_missing_rank_with_a_dump_is_named_before_it(self) -> None:
        job = started()
        job.all(ranks=(0, 1), state="scheduled")
        found = look(job, without=(3,))
        assert said(found) == ("missing_rank", (2,), ())

    def test_without_a_wait_nobody_is_suspected(self) -> None:
        assert look(started(12), without=(1,)).to_dict()["suspect_ranks"] == []

    def test_gloo_suspects_the_silent_rank_and_not_one_that_may_wait_for_it_unseen(self) -> None:
        job = World("killed", 6).run()
        assert said(look(job, without=(6,))) == ("suspect_no_dump", (), (6,))

    def test_gloo_knows_the_last_rank_though_no_dump_tells_the_world(self) -> None:
        job = World("killed", 7).run()
        assert said(look(job, without=(7,))) == ("suspect_no_dump", (), (7,))


class TestGloo:
    @pytest.mark.parametrize("rank", [0, 3, 5, 6])
    def test_names_the_rank_furthest_behind_in_the_pattern(self, rank: int) -> None:
        found = look(World("data_loader", rank).run())
        assert said(found) == ("missing_rank", (rank,), ())
        assert found.worst.group is not None and found.worst.group.desc == "tp" and found.worst.seq == 13

    @pytest.mark.parametrize("rank", [0, 5])
    def test_a_call_retired_without_its_peers_is_still_a_wait(self, rank: int) -> None:
        """The same dumps taken after the time-out: gloo sets ``retired`` on failure too."""
        job = World("data_loader", rank).run()
        for ring in job.rings:
            for entry in ring.entries:
                entry["retired"] = True
        found = look(job)
        assert said(found) == ("missing_rank", (rank,), ())
        assert found.worst.confidence > 0.5

    def test_a_healthy_job_is_no_fault(self) -> None:
        assert said(look(World().run())) == ("no_fault", (), ())

    @pytest.mark.parametrize("rank", [5, 6, 7])
    def test_names_the_rank_with_one_call_too_many(self, rank: int) -> None:
        found = look(World("extra_call", rank).run())
        assert said(found) == ("op_mismatch", (rank,), ()) and found.worst.cause == "extra_call"

    @pytest.mark.parametrize("rank", [0, 5])
    def test_names_it_in_the_gradient_group_too(self, rank: int) -> None:
        found = look(World("extra_dp", rank).run())
        assert said(found) == ("op_mismatch", (rank,), ()) and found.worst.cause == "extra_call"


class TestJoined:
    def test_names_nobody_when_all_joined(self) -> None:
        job = started()
        job.all(state="scheduled")
        found = look(job)
        assert said(found) == ("all_joined_not_finished", (), ())
        assert (found.worst.seq, found.worst.joined_ranks) == (6, (0, 1, 2, 3))

    def test_a_job_between_two_calls_is_no_fault(self) -> None:
        assert said(look(started())) == ("no_fault", (), ())


class TestSoftWaits:
    def test_a_rank_held_up_by_its_partners_older_work_is_not_named(self) -> None:
        """Rank 2 lacks a call of (2, 3): it sits in an exchange with rank 1, which is stuck behind rank 0."""
        job = Job(4)
        job.group("1", "tp", (0, 1))
        job.group("2", "dp", (2, 3))
        job.all()
        job.call(1, "1", state="scheduled")
        job.recv(1, 2, state="scheduled")
        job.send(2, 1, state="scheduled")
        job.call(3, "2", state="scheduled")
        found = look(job)
        assert found.to_dict()["culprit_ranks"] == [0]
