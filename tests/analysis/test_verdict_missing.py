"""missing_rank, queued_not_started, ranks without a dump or with an old one; and what looks like them."""

from __future__ import annotations

from typing import Any

import pytest

from tests.cases.jobs import Call, Half, Halt, Job, Pause, Sync, recv, send
from tests.cases.judged import judge, judge_bytes, named, where
from tests.cases.meshes import DIMENSIONS, mesh, train
from tests.cases.writer import Flavour

TIMED = Flavour(timing=True)
PREFIXES = ("nccl", "nccl2", "ncclx", "xccl", "rccl", "hccl", "gloo", "c10d", "mccl", "vendor9")
VERSIONS = ("1.5", "2.0", "2.2", "2.3", "2.4", "2.5", "2.7", "2.8", "2.9", "2.10")


def flat(world: int = 4, calls: int = 5, flavour: Flavour = Flavour()) -> Job:  # noqa: B008
    job = Job(world, flavour)
    job.repeat(calls, Call(job.default), Sync())
    return job


def lacking(rank: int, world: int = 4, calls: int = 5, flavour: Flavour = Flavour()) -> Job:  # noqa: B008
    """All but ``rank`` wait in one more call."""
    job = flat(world, calls, flavour)
    job.programs[rank].append(Halt())
    job.every(Call(job.default))
    return job.run()


class TestMissing:
    @pytest.mark.parametrize("world", [2, 3, 4, 16])
    @pytest.mark.parametrize("prefix", ["nccl", "gloo"])
    def test_names_the_rank_and_the_call(self, world: int, prefix: str) -> None:
        found = judge(lacking(1, world, flavour=Flavour(prefix)))
        assert named(found) == ("missing_rank", [1], [])
        assert where(found) == ("0", 6, "all_reduce")
        assert found["downstream"]["ranks"] == world - 1

    @pytest.mark.parametrize("prefix", PREFIXES)
    @pytest.mark.parametrize("place", [3, 9, 15])
    def test_whatever_the_library_calls_itself(self, prefix: str, place: int) -> None:
        job = train(mesh(tp=2, pp=2, dp=2, flavour=Flavour(prefix)))
        job.programs[5].insert(place, Halt())
        assert named(judge(job.run())) == ("missing_rank", [5], [])

    @pytest.mark.parametrize("version", VERSIONS)
    def test_whatever_the_dump_version(self, version: str) -> None:
        assert named(judge(lacking(2), version=version)) == ("missing_rank", [2], [])

    @pytest.mark.parametrize("how", [{"keep": 8}, {"keep": 1}, {"only_active": True}])
    def test_in_rings_that_do_not_hold_everything(self, how: dict[str, Any]) -> None:
        found = judge(lacking(2, calls=30), **how)
        assert named(found) == ("missing_rank", [2], []) and found["seq"] == 31

    def test_in_json(self) -> None:
        job = lacking(0)
        found = judge_bytes({ring.rank: ring.as_json() for ring in job.rings})
        assert named(found) == ("missing_rank", [0], []) and where(found) == ("0", 6, "all_reduce")

    def test_an_operation_nobody_knows(self) -> None:
        job = flat()
        job.programs[2].append(Halt())
        job.every(Call(job.default, "frobnicate"))
        assert where(judge(job.run())) == ("0", 6, "frobnicate")

    @pytest.mark.parametrize("rank", [0, 13, 31])
    @pytest.mark.parametrize("place", [0, 6, 13, 22, 33])
    def test_one_root_on_a_mesh_of_five_dimensions(self, rank: int, place: int) -> None:
        job = train(mesh(tp=2, cp=2, ep=2, dp=2, pp=2))
        job.programs[rank].insert(place, Halt())
        found = judge(job.run())
        assert found["culprit_ranks"] == [rank] and len(found["findings"]) == 1
        assert found["downstream"]["ranks"] == 31

    @pytest.mark.parametrize("one_name", [True, False])
    def test_groups_that_share_a_name_stay_apart(self, one_name: bool) -> None:
        job = train(mesh(tp=2, dp=4, one_name=one_name))
        job.programs[5].insert(3, Halt())
        found = judge(job.run())
        assert named(found) == ("missing_rank", [5], []) and found["group"]["ranks"] == [4, 5]

    def test_two_faults_at_once_stay_two_findings(self) -> None:
        job = train(mesh(tp=4, dp=4))
        job.programs[2].insert(9, Halt())
        job.programs[13].insert(9, Halt())
        found = judge(job.run())
        assert found["culprit_ranks"] == [2, 13] and len(found["findings"]) == 2

    def test_a_chain_over_groups_has_one_root(self) -> None:
        job = Job(5)
        links = [job.group(str(n + 1), f"link{n}", (n, n + 1)) for n in range(4)]
        for rank in range(4):
            job.programs[rank] += [Call(links[rank]), Sync()]
        found = judge(job.run())
        assert named(found) == ("missing_rank", [4], []) and found["downstream"]["ranks"] == 4

    def test_a_time_out_that_stays_retired_proves_the_stall(self) -> None:
        job = lacking(2)
        young = judge(job)["confidence"]
        for rank in (0, 1, 3):
            job.rings[rank].time_out(job.open_entries(rank)[0])
        found = judge(job)
        assert named(found) == ("missing_rank", [2], []) and found["confidence"] > young

    def test_calls_that_the_ring_has_dropped_are_not_missing(self) -> None:
        job = flat()
        side = job.group("1", "side", (2, 3))
        job.never = frozenset({("0", 6)})
        job.every(Call(job.default))
        job.repeat(30, Call(side), ranks=(2, 3))
        job.run()
        dumps = job.pickles() | {rank: job.rings[rank].pickled(keep=10) for rank in (2, 3)}
        assert named(judge_bytes(dumps)) == ("all_joined_not_finished", [], [])

    def test_who_has_issued_everything_is_no_fault(self) -> None:
        assert named(judge(flat().run())) == ("no_fault", [], [])

    @pytest.mark.parametrize("dimension", DIMENSIONS)
    def test_a_healthy_mesh_is_no_fault(self, dimension: str) -> None:
        lengths: dict[str, Any] = {**dict.fromkeys(DIMENSIONS, 2), dimension: 3}
        assert named(judge(train(mesh(**lengths)).run())) == ("no_fault", [], [])

    def test_process_ids_of_groups_differ_between_ranks(self) -> None:
        job = train(mesh(tp=2, pp=2, dp=2))
        for ring in job.rings:
            ring.first_pg_id = 100 * ring.rank
        job.programs[5].insert(9, Halt())
        assert named(judge(job.run())) == ("missing_rank", [5], [])


class TestQueued:
    def stuck(self, flavour: Flavour, ranks: set[int], world: int = 4) -> Job:
        job = flat(world, flavour=flavour)
        job.stuck_gpus, job.stuck_after = frozenset(ranks), 5
        job.every(Call(job.default))
        return job.run()

    @pytest.mark.parametrize("world", [2, 3, 4, 8])
    def test_with_timing_the_rank_whose_call_is_queued_is_named(self, world: int) -> None:
        found = judge(self.stuck(TIMED, {1}, world))
        assert named(found) == ("queued_not_started", [1], []) and where(found) == ("0", 6, "all_reduce")

    def test_without_timing_nobody_is_and_the_evidence_says_why(self) -> None:
        found = judge(self.stuck(Flavour(), {1}))
        assert named(found) == ("all_joined_not_finished", [], [])
        assert any("timing" in line for line in found["why"])

    def test_when_all_have_started_nobody_is_named(self) -> None:
        job = flat(flavour=TIMED)
        job.never = frozenset({("0", 6)})
        job.every(Call(job.default))
        assert named(judge(job.run())) == ("all_joined_not_finished", [], [])

    def test_when_most_are_queued_they_are_suspects(self) -> None:
        assert named(judge(self.stuck(TIMED, {1, 2, 3}))) == ("queued_not_started", [], [1, 2, 3])

    def test_who_is_held_behind_a_call_of_another_group_is_not_the_root(self) -> None:
        job = Job(4, TIMED, one_stream=True)
        pair = job.group("1", "tp", (0, 1))
        job.repeat(4, Call(job.default), Sync())
        job.programs[1].append(Call(pair))
        job.every(Call(job.default))
        found = judge(job.run())
        assert named(found) == ("missing_rank", [0], []) and found["group"]["name"] == "1"


class TestNoDump:
    def test_the_silent_rank_is_suspected(self) -> None:
        found = judge(lacking(2), without=(2,))
        assert named(found) == ("suspect_no_dump", [], [2]) and found["confidence"] <= 0.5

    def test_not_where_a_rank_with_a_dump_lacks_the_call(self) -> None:
        found = judge(lacking(2), without=(1,))
        assert named(found) == ("missing_rank", [2], [])
        assert found["confidence"] < judge(lacking(2))["confidence"]

    def test_the_last_rank_of_an_unknown_world(self) -> None:
        assert named(judge(lacking(3), without=(3,))) == ("suspect_no_dump", [], [3])

    def test_a_partner_of_sends_without_a_dump(self) -> None:
        job = mesh(pp=3)
        stage = job.groups[1]
        moves: list[Half] = [send(stage, 1)]
        job.programs[0] += moves
        job.programs[2] += [recv(stage, 1)]
        found = judge(job.run(), without=(1,))
        assert named(found) == ("suspect_no_dump", [], [1]) and found["op"] == "send 0->1"

    def test_one_dump_of_many_is_not_enough(self) -> None:
        assert named(judge(lacking(2), without=(1, 2, 3))) == ("not_enough_data", [], [])

    def test_nobody_waits_and_one_of_four_is_silent(self) -> None:
        assert named(judge(flat().run(), without=(1,))) == ("not_enough_data", [], [])

    def test_nobody_waits_and_one_of_sixteen_is_silent(self) -> None:
        assert named(judge(flat(16).run(), without=(1,))) == ("no_fault", [], [])


class TestStale:
    def later(self, job: Job, seconds: float = 3600) -> Job:
        fresh = flat()
        fresh.now_ns = job.now_ns + int(seconds * 1e9)
        return fresh

    def test_a_dump_of_an_earlier_run_is_suspected_not_believed(self) -> None:
        old = flat().run()
        fresh = self.later(old)
        fresh.every(Call(fresh.default), ranks=(0, 1, 3))
        found = judge_bytes(fresh.run().pickles() | {2: old.pickles()[2]})
        assert named(found) == ("suspect_stale_dump", [], [2]) and found["coverage"]["stale"] == 1

    def test_a_dump_of_an_earlier_moment_of_the_run(self) -> None:
        job = flat().run()
        old = job.pickles()[2]
        job.wait(300).repeat(5, Call(job.default), Sync())
        job.run().every(Call(job.default), ranks=(0, 1, 3))
        found = judge_bytes(job.run().pickles() | {2: old})
        assert named(found) == ("suspect_stale_dump", [], [2])

    def test_a_rank_that_stopped_long_ago_is_missing_not_stale(self) -> None:
        job = flat()
        job.programs[2].append(Halt())
        job.every(Pause(300), Call(job.default))
        assert named(judge(job.run())) == ("missing_rank", [2], [])
