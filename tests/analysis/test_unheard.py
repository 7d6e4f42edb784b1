"""Dumps of only some ranks, above all gloo's, which name no members, no size of the job and no exchanges."""

from __future__ import annotations

import random

import pytest

from tests.cases.jobs import Call, Halt, Job, Sync
from tests.cases.judged import Verdict, judge, named
from tests.cases.meshes import mesh, step_of, train
from tests.cases.writer import START_NS, Flavour

GLOO = Flavour("gloo")
UNTOLD = "do not tell how many ranks"


def cube(steps: int = 3, flavour: Flavour = GLOO) -> Job:
    """Eight ranks, tp x dp x pp, that use no other group: the default group has no call."""
    job = train(mesh(tp=2, dp=2, pp=2, flavour=flavour), steps)
    for program in job.programs:
        program[:] = [move for move in program if not (isinstance(move, Call) and move.group is job.default)]
    return job


def held(rank: int, at: int, flavour: Flavour = GLOO) -> Job:
    """The cube whose ``rank`` stops before move ``at`` of its last step."""
    job = cube(flavour=flavour)
    step = len(step_of(job, rank)) - 1
    job.programs[rank].insert(2 * step + at, Halt())
    return job.run()


def size_is_told(verdict: Verdict) -> bool:
    return not any(UNTOLD in line for line in verdict["why"])


class TestHealthy:
    def test_all_dumps_are_no_fault_and_the_size_is_said_to_be_untold(self) -> None:
        found = judge(cube().run())
        assert named(found) == ("no_fault", [], []) and not size_is_told(found)
        assert "8 ranks heard" in found["summary"]

    def test_a_told_size_is_believed(self) -> None:
        found = judge(cube().run(), known={"world_size": 8})
        assert named(found) == ("no_fault", [], []) and size_is_told(found)
        assert found["confidence"] > judge(cube().run())["confidence"]

    @pytest.mark.parametrize("kept", [(0,), (0, 1), (0, 3), (0, 1, 2), (2, 5, 7)])
    def test_a_group_that_shows_one_member_has_another_one_somewhere(self, kept: tuple[int, ...]) -> None:
        found = judge(cube().run(), set(range(8)) - {*kept})
        assert found["verdict"] == "not_enough_data"

    def test_half_of_a_told_world_is_not_enough(self) -> None:
        found = judge(cube().run(), (4, 5, 6, 7), {"world_size": 8})
        assert found["verdict"] == "not_enough_data" and "4 of 8 ranks" in found["summary"]

    def test_nccl_tells_its_size_itself(self) -> None:
        found = judge(cube(flavour=Flavour()).run())
        assert named(found) == ("no_fault", [], []) and size_is_told(found)


class TestNotAllJoined:
    def test_a_rank_alone_waits_for_whom_nobody_knows(self) -> None:
        job = held(1, 2)
        waiting = next(rank for rank in range(8) if rank != 1 and job.open_entries(rank))
        found = judge(job, set(range(8)) - {waiting})
        assert found["verdict"] == "not_enough_data"
        assert f"rank {waiting} waits in" in found["summary"]

    @pytest.mark.parametrize("seed", range(40))
    def test_no_call_is_joined_by_all_while_a_member_may_be_unheard(self, seed: int) -> None:
        chance = random.Random(seed)
        bad = chance.randrange(8)
        job = held(bad, chance.randrange(6))
        others = [rank for rank in range(8) if rank != bad]
        gone = {bad, *chance.sample(others, chance.randint(0, 3))}
        assert judge(job, gone, {"world_size": 8})["verdict"] != "all_joined_not_finished"

    def test_a_network_that_ends_no_call_is_still_told_as_such(self) -> None:
        job = Job(4, GLOO, never=frozenset({("0", 4)}))
        job.repeat(6, Call(job.default), Sync())
        found = judge(job.run(), known={"world_size": 4})
        assert found["verdict"] == "all_joined_not_finished" and "all 4 members" in " ".join(found["why"])
        assert not size_is_told(judge(job))


class TestTies:
    def test_two_that_lack_different_calls_wait_for_somebody_unheard(self) -> None:
        found = judge(held(5, 0), (4, 5, 6, 7))
        assert found["culprit_ranks"] == [] and not {0, 1, 2, 3} & {*found["suspect_ranks"]}

    def test_with_all_dumps_the_same_job_names_the_rank(self) -> None:
        found = judge(held(5, 0))
        assert 5 in found["culprit_ranks"] + found["suspect_ranks"]


def nobody_innocent_is_named(bad: int, at: int, gone: tuple[int, ...], flavour: Flavour) -> None:
    found = judge(held(bad, at, flavour), gone, {"world_size": 8})
    assert set(found["culprit_ranks"]) <= {bad}, found["summary"]


@pytest.mark.parametrize("flavour", [GLOO, Flavour(), Flavour(timing=True)], ids=["gloo", "nccl", "timed"])
@pytest.mark.parametrize("seed", range(40))
def test_no_innocent_is_a_culprit_whatever_dumps_are_lost(seed: int, flavour: Flavour) -> None:
    chance = random.Random(seed)
    gone = tuple(chance.sample(range(8), chance.choice((1, 1, 2, 4))))
    nobody_innocent_is_named(chance.randrange(8), chance.randrange(8), gone, flavour)


class TestLastInThePattern:
    def lagging(self) -> Job:
        """Rank 3 has made one step less than all others, who wait for it."""
        job = train(mesh(tp=2, dp=2, flavour=GLOO), 3)
        step = len(step_of(job, 3))
        job.programs[3].insert(2 * step, Halt())
        return job.run()

    def test_is_a_suspect_beside_a_rank_without_a_dump_that_came_as_far(self) -> None:
        found = judge(self.lagging(), (0,), {"world_size": 4})
        assert found["culprit_ranks"] in ([], [3]) and 3 in found["culprit_ranks"] + found["suspect_ranks"]

    def test_a_dead_rank_without_a_dump_is_suspected_alone(self) -> None:
        job = self.lagging()
        found = judge(job, (3,), {"world_size": 4})
        assert named(found) == ("suspect_no_dump", [], [3])


class TestOlderDump:
    def earlier(self, calls: int) -> Verdict:
        """A healthy job whose rank 3 was dumped so many calls before its peers."""
        job = cube().run()
        del job.rings[3].entries[-calls:]
        return judge(job)

    @pytest.mark.parametrize("calls", [3, 4, 6])
    def test_a_healthy_rank_that_was_dumped_earlier_is_not_to_blame(self, calls: int) -> None:
        found = self.earlier(calls)
        assert found["culprit_ranks"] == [] and found["verdict"] in ("not_enough_data", "no_fault")
        assert any("earlier time" in line for line in found["why"])

    def test_a_rank_that_never_came_before_its_peer_gave_up_is(self) -> None:
        job = Job(4, GLOO)
        pairs = [job.group(str(n), "tp", ranks) for n, ranks in ((1, (0, 1)), (2, (2, 3)))]
        for _ in range(4):
            for pair in pairs:
                job.every(Call(pair), Sync(), ranks=pair.ranks)
        job.programs[3].insert(len(job.programs[3]) - 2, Halt())
        job.run()
        for entry in job.open_entries(2):
            job.rings[2].finish(entry, START_NS)
        assert 3 in judge(job)["culprit_ranks"] + judge(job)["suspect_ranks"]


class TestQueuedBesideUnheard:
    def queued(self) -> Job:
        job = Job(4, Flavour(timing=True), stuck_gpus=frozenset({2}), stuck_after=4)
        job.repeat(6, Call(job.default), Sync())
        return job.run()

    def test_both_are_suspects(self) -> None:
        found = judge(self.queued(), (0,))
        assert named(found) == ("queued_not_started", [], [0, 2])
        assert "rank 2 has queued" in found["summary"] and "rank 0 left no dump" in found["summary"]

    def test_with_its_dump_the_queued_rank_is_named(self) -> None:
        assert named(judge(self.queued())) == ("queued_not_started", [2], [])

    def test_without_the_queued_ranks_dump_only_that_one_is_suspected(self) -> None:
        assert named(judge(self.queued(), (2,))) == ("suspect_no_dump", [], [2])


class TestWords:
    def test_a_group_that_nobody_described_goes_by_its_name(self) -> None:
        job = Job(4)
        pair = job.group("7", "undefined", (0, 1))
        job.repeat(3, Call(pair), Sync(), ranks=pair.ranks)
        job.every(Call(pair), ranks=(0,))
        found = judge(job.run())
        text = " ".join((found["summary"], *found["why"]))
        assert found["culprit_ranks"] == [1] and "of group 7" in text and "undefined" not in text

    def test_a_mismatch_tells_who_had_not_come(self) -> None:
        job = Job(4)
        job.repeat(3, Call(job.default), Sync())
        for rank in (0, 1):
            job.every(Call(job.default, "broadcast" if rank else "all_reduce"), ranks=[rank])
        job.every(Call(job.default), ranks=[2])
        found = judge(job.run())
        assert found["verdict"] == "op_mismatch" and found["missing_ranks"] == [3]

    def test_every_member_is_accounted_for_only_where_that_is_so(self) -> None:
        found = judge(held(5, 0), (0,), {"world_size": 8})
        assert "accounted for" not in " ".join(found["why"])


class TestLoneGroups:
    def subgroups(self) -> Job:
        job = Job(4, GLOO)
        trio, alone = job.group("1", "trio", (0, 1, 2)), job.group("2", "alone", (3,))
        for group in (trio, alone):
            job.repeat(3, Call(group), Sync(), ranks=group.ranks)
        job.repeat(1, Call(job.default, "barrier"), Sync())
        return job.run()

    def test_a_group_of_one_is_whole_where_a_world_group_holds_all_who_are_heard(self) -> None:
        assert named(judge(self.subgroups())) == ("no_fault", [], [])

    def test_without_a_world_group_it_may_have_another_member(self) -> None:
        job = Job(4, GLOO)
        for group in (job.group("1", "trio", (0, 1, 2)), job.group("2", "alone", (3,))):
            job.repeat(3, Call(group), Sync(), ranks=group.ranks)
        assert judge(job.run())["verdict"] == "not_enough_data"


class TestWhatPeersProve:
    """Ranks 1 and 3 raised out of a barrier because rank 2 was killed; rank 0 came one call less far."""

    def killed(self, op: str) -> Job:
        job = Job(4, GLOO)
        job.repeat(3, Call(job.default, op), Sync())
        job.every(Call(job.default, "barrier"), ranks=(1, 3))
        job.run()
        for rank in (1, 3):
            for entry in job.open_entries(rank):
                job.rings[rank].finish(entry, START_NS)
        return job

    def test_the_end_of_a_broadcast_proves_nobody_but_its_root(self) -> None:
        assert named(judge(self.killed("broadcast"), (2,))) == ("suspect_no_dump", [], [2])

    def test_the_end_of_an_all_reduce_proves_all_so_who_came_last_is_suspected_too(self) -> None:
        assert named(judge(self.killed("all_reduce"), (2,))) == ("missing_rank", [], [0, 2])
