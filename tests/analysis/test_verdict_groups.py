"""Groups that were never made, made again, destroyed or reset; recorders that do not tell the whole."""

from __future__ import annotations

import pytest

from tests.cases.jobs import Call, Halt, Job, Pause, Sync
from tests.cases.judged import judge, named, where
from tests.cases.writer import Flavour


def steady(calls: int = 3, world: int = 4, flavour: Flavour = Flavour()) -> Job:  # noqa: B008
    job = Job(world, flavour)
    job.repeat(calls, Call(job.default), Sync())
    return job


class TestInit:
    def unmade(self, called: bool) -> Job:
        """Rank 2 hangs before it has the group that the others have."""
        job = steady()
        group = job.group("1", "tp", range(4))
        job.rings[2].groups.remove(group)
        job.programs[2].append(Halt())
        job.every(Call(group), ranks=(0, 1, 3) if called else ())
        return job.run()

    def test_a_rank_that_never_made_its_peers_group(self) -> None:
        found = judge(self.unmade(called=True))
        assert named(found) == ("stuck_in_init", [2], []) and where(found) == ("1", 1, "all_reduce")

    def test_also_before_anybody_calls(self) -> None:
        found = judge(self.unmade(called=False))
        assert named(found) == ("stuck_in_init", [2], []) and found["confidence"] <= 0.5

    def test_a_rank_without_any_group(self) -> None:
        job = Job(4)
        job.rings[2].groups.clear()
        job.every(Call(job.default), ranks=(0, 1, 3))
        assert named(judge(job.run())) == ("stuck_in_init", [2], [])

    def test_a_rank_that_has_the_group_and_never_called_is_missing(self) -> None:
        job = Job(4)
        job.every(Call(job.default), ranks=(0, 1, 3))
        assert named(judge(job.run())) == ("missing_rank", [2], [])

    def test_gloo_lists_no_groups_so_it_is_missing_there(self) -> None:
        job = steady(flavour=Flavour("gloo"))
        group = job.group("1", "tp", range(4))
        job.every(Call(group), ranks=(0, 1, 3))
        assert judge(job.run())["verdict"] in ("missing_rank", "not_enough_data", "all_joined_not_finished")


class TestDestroyed:
    @pytest.mark.parametrize("name", ["0", "1"])
    def test_a_rank_whose_group_is_gone_while_peers_wait_in_it(self, name: str) -> None:
        job = Job(4)
        group = job.default if name == "0" else job.group("1", "tp", range(4))
        job.repeat(3, Call(group), Sync())
        job.every(Call(group), ranks=(0, 1, 3))
        job.run().rings[2].destroyed.add(name)
        found = judge(job)
        assert named(found) == ("destroyed_on_one_side", [2], []) and found["seq"] == 4

    def test_with_its_calls_gone_from_the_ring_too(self) -> None:
        job = Job(4)
        group = job.group("1", "tp", range(4))
        job.repeat(3, Call(group), Sync())
        job.run().rings[2].reset()
        job.rings[2].destroyed.add("1")
        job.every(Call(job.default), Sync())
        job.run().every(Call(group), ranks=(0, 1, 3))
        assert named(judge(job.run())) == ("destroyed_on_one_side", [2], [])

    def test_destroyed_on_all_sides_is_no_fault(self) -> None:
        job = Job(4)
        group = job.group("1", "tp", range(4))
        job.repeat(3, Call(group), Sync())
        job.every(Call(job.default), Sync())
        for ring in job.run().rings:
            ring.destroyed.add("1")
        assert named(judge(job)) == ("no_fault", [], [])


class TestLives:
    def again(self, first: int, second: int, last: tuple[int, ...]) -> Job:
        """A group made again under its name after ``first`` calls."""
        job = Job(4)
        old = job.group("1", "tp", range(4))
        job.repeat(first, Call(old), Sync())
        new = job.group("1", "tp", range(4))
        job.repeat(second, Call(new), Sync())
        job.every(Call(new), ranks=last)
        return job.run()

    def test_the_newest_life_counts(self) -> None:
        found = judge(self.again(6, 2, (0, 1, 3)))
        assert named(found) == ("missing_rank", [2], []) and where(found) == ("1", 3, "all_reduce")

    def test_a_rank_still_in_the_old_life_lacks_the_new_ones_first_call(self) -> None:
        found = judge(self.again(6, 0, (0, 1, 3)))
        assert named(found) == ("missing_rank", [2], []) and where(found) == ("1", 1, "all_reduce")

    def test_a_healthy_new_life_is_no_fault(self) -> None:
        assert named(judge(self.again(6, 2, ()))) == ("no_fault", [], [])

    def test_a_ring_that_has_dropped_the_old_life_is_not_in_it(self) -> None:
        job = self.again(6, 3, ())
        from tests.cases.judged import judge_bytes

        dumps = job.pickles() | {2: job.rings[2].pickled(keep=2)}
        assert named(judge_bytes(dumps)) == ("no_fault", [], [])

    def test_one_name_with_other_members_is_another_group(self) -> None:
        job = Job(4)
        low, high = job.group("1", "tp", (0, 1)), job.group("1", "tp", (2, 3))
        job.repeat(6, Call(low), Sync(), ranks=(0, 1))
        job.repeat(2, Call(high), Sync(), ranks=(2, 3))
        job.every(Call(high), ranks=(2,))
        found = judge(job.run())
        assert named(found) == ("missing_rank", [3], []) and found["group"]["ranks"] == [2, 3]

    @pytest.mark.parametrize("ranks", [(2,), (0, 1, 2, 3)])
    def test_a_reset_ring_goes_on_with_the_groups_numbers(self, ranks: tuple[int, ...]) -> None:
        job = steady(5).run()
        for rank in ranks:
            job.rings[rank].reset()
        job.repeat(3, Call(job.default), Sync())
        job.programs[2].append(Halt())
        job.every(Call(job.default))
        found = judge(job.run())
        assert named(found) == ("missing_rank", [2], []) and found["seq"] == 9

    def test_a_ring_reset_just_now_is_no_fault(self) -> None:
        job = steady(5).run()
        job.rings[2].reset()
        assert named(judge(job)) == ("no_fault", [], [])

    def test_ranks_renumbered_after_a_restart_are_told_by_the_new_groups(self) -> None:
        """Three of four ranks go on as a world of three; files of the old world lie beside."""
        old = steady(5).run()
        new = Job(3)
        new.now_ns = old.now_ns + 120_000_000_000
        new.repeat(5, Call(new.default), Sync())
        new.programs[1].append(Halt())
        new.every(Call(new.default))
        from tests.cases.judged import judge_bytes

        found = judge_bytes(new.run().pickles() | {3: old.pickles()[3]})
        assert named(found) == ("missing_rank", [1], [])


class TestBlind:
    def test_numbers_missing_between_calls(self) -> None:
        """What a CUDA graph captures takes numbers and leaves no entry."""
        job = steady(5).run()
        for ring in job.rings:
            ring._collectives[job.default] += 7
        job.repeat(3, Call(job.default), Sync())
        found = judge(job.run())
        assert named(found) == ("recorder_blind", [], []) and found["class"] == "blind"

    def test_a_rank_that_is_missing_is_named_all_the_same(self) -> None:
        job = steady(5).run()
        for ring in job.rings:
            ring._collectives[job.default] += 7
        job.every(Call(job.default), ranks=(0, 1, 3))
        assert named(judge(job.run())) == ("missing_rank", [2], [])

    def test_a_ring_that_has_dropped_its_oldest_calls_is_not_blind(self) -> None:
        assert named(judge(steady(30).run(), keep=7)) == ("no_fault", [], [])

    def late(self, unretired: int) -> Job:
        job = steady()
        job.repeat(8, Pause(0.5), Call(job.default), Sync())
        job.run()
        for entry in job.rings[2].entries[-unretired:]:
            entry["retired"] = False
        return job

    def test_calls_that_are_over_and_stay_on_the_watchdogs_list(self) -> None:
        found = judge(self.late(8))
        assert named(found) == ("watchdog_stuck", [], [2]) and found["class"] == "blind"

    def test_the_newest_call_may_not_be_retired_yet(self) -> None:
        assert named(judge(self.late(1))) == ("no_fault", [], [])

    def test_marks_that_peers_have_long_passed(self) -> None:
        job = steady(9).run()
        for entry in job.rings[2].entries[-4:]:
            entry.update(state="scheduled", time_discovered_completed_ns=None, retired=False)
        assert named(judge(job)) == ("watchdog_stuck", [], [2])

    def test_late_marks_do_not_hide_the_call_that_is_missing(self) -> None:
        job = steady(9).run()
        for entry in job.rings[2].entries[-4:]:
            entry.update(state="scheduled", time_discovered_completed_ns=None, retired=False)
        job.every(Call(job.default), ranks=(0, 1, 3))
        found = judge(job.run())
        assert named(found) == ("missing_rank", [2], []) and found["seq"] == 10
