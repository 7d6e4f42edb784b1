"""Rings of sends that all come first, their receives issued behind them; and what only looks like one."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tests.cases.jobs import Batch, Call, Half, Job, Sync, recv, send
from tests.cases.judged import Verdict, judge, named
from tests.cases.meshes import mesh
from tests.cases.writer import Flavour, Group

Make = Callable[[Group, int], Half]


def stages(world: int, **options: object) -> tuple[Job, Group]:
    job = mesh(pp=world, **options)  # type: ignore[arg-type]
    job.every(Call(job.default), Sync())
    return job, job.groups[1]


def swap(job: Job, stage: Group, first: Make, second: Make, ranks: tuple[int, int] = (0, 1)) -> None:
    """Both ranks issue the same half first; the host waits for neither."""
    for rank, peer in (ranks, ranks[::-1]):
        job.programs[rank] += [first(stage, peer), second(stage, peer)]


def ring(world: int, batched: bool = False, **options: object) -> Job:
    """Each sends to the next and receives from the one before; ``one_stream``: as blocking sends do."""
    job, stage = stages(world, **options)
    for rank in range(world):
        halves = (send(stage, (rank + 1) % world), recv(stage, (rank - 1) % world))
        job.programs[rank] += [Batch(stage, halves)] if batched else halves
    return job


class TestTwo:
    @pytest.mark.parametrize(("first", "second", "word"), [(send, recv, "send"), (recv, send, "receive")])
    @pytest.mark.parametrize("world", [2, 4])
    def test_who_begin_with_the_same_half_are_told(
        self, first: Make, second: Make, word: str, world: int
    ) -> None:
        job, stage = stages(world)
        swap(job, stage, first, second)
        found = judge(job.run())
        assert named(found) == ("p2p_unmatched", [], [0, 1]) and found["cause"] == "circular_wait"
        assert f"anks 0, 1 both {word} first" in found["summary"] and len(found["findings"]) == 1

    def test_a_call_that_both_issued_behind_it_changes_nothing(self) -> None:
        job, stage = stages(2)
        swap(job, stage, send, recv)
        job.every(Call(job.default))
        found = judge(job.run())
        assert named(found) == ("p2p_unmatched", [], [0, 1]) and len(found["findings"]) == 1

    def test_who_waits_for_them_in_a_collective_is_downstream(self) -> None:
        job, stage = stages(4)
        swap(job, stage, send, recv, (1, 2))
        job.every(Sync(), ranks=(1, 2))
        job.every(Call(job.default), Sync())
        found = judge(job.run())
        assert named(found) == ("p2p_unmatched", [], [1, 2]) and len(found["findings"]) == 1
        assert found["downstream"]["ranks"] == 2

    def test_one_host_that_waits_in_its_send_is_of_the_ring_too(self) -> None:
        job, stage = stages(2)
        job.programs[0] += [send(stage, 1), recv(stage, 1)]
        job.programs[1] += [send(stage, 0), Sync(), recv(stage, 0)]
        found = judge(job.run())
        assert named(found) == ("p2p_unmatched", [], [0, 1]) and "both send first" in found["summary"]

    def test_two_pairs_are_two_findings(self) -> None:
        job, stage = stages(4)
        swap(job, stage, send, recv)
        swap(job, stage, send, recv, (2, 3))
        found = judge(job.run())
        assert [one["suspect_ranks"] for one in found["findings"]] == [[0, 1], [2, 3]]

    def test_a_batch_of_the_same_halves_is_healthy(self) -> None:
        job, stage = stages(2)
        for rank in (0, 1):
            job.programs[rank] += [Batch(stage, (send(stage, 1 - rank), recv(stage, 1 - rank))), Sync()]
        assert named(judge(job.run())) == ("no_fault", [], [])

    def test_batches_that_hold_the_sends_only_are_not(self) -> None:
        job, stage = stages(2)
        for rank in (0, 1):
            job.programs[rank] += [Batch(stage, (move(stage, 1 - rank),)) for move in (send, recv)]
        assert named(judge(job.run())) == ("p2p_unmatched", [], [0, 1])

    def test_other_orders_of_the_two_are_healthy(self) -> None:
        job, stage = stages(2)
        job.programs[0] += [send(stage, 1), recv(stage, 1)]
        job.programs[1] += [recv(stage, 0), send(stage, 0)]
        assert named(judge(job.run())) == ("no_fault", [], [])

    @pytest.mark.parametrize("batched", [True, False])
    def test_an_exchange_in_order_that_the_network_stops_names_no_ring(self, batched: bool) -> None:
        job, stage = stages(2)
        halves = (send(stage, 1), recv(stage, 1)), (recv(stage, 0), send(stage, 0))
        for rank in (0, 1):
            job.programs[rank] += [Batch(stage, halves[rank])] if batched else halves[rank]
        job.stuck_gpus, job.stuck_after = frozenset({0, 1}), 1
        assert judge(job.run())["verdict"] == "all_joined_not_finished"

    def test_who_waits_in_an_older_collective_first_is_of_no_ring(self) -> None:
        """Rank 1 has its own reason: rank 3 never came to their call."""
        job, stage = stages(4, one_stream=True)
        other = job.group("9", "extra", (1, 3))
        job.programs[1].append(Call(other))
        swap(job, stage, send, recv)
        assert named(judge(job.run())) == ("missing_rank", [3], [])


class TestMore:
    @pytest.mark.parametrize("world", [3, 4, 8])
    def test_a_ring_of_blocking_sends_is_told(self, world: int) -> None:
        found = judge(ring(world, one_stream=True).run())
        assert named(found) == ("p2p_unmatched", [], list(range(world)))
        assert "all send first in a ring" in found["summary"] and len(found["findings"]) == 1

    @pytest.mark.parametrize("options", [{}, {"batched": True, "one_stream": True}])
    def test_halves_that_run_side_by_side_are_healthy(self, options: dict[str, bool]) -> None:
        assert named(judge(ring(4, **options).run())) == ("no_fault", [], [])

    def test_less_sure_where_the_order_on_the_gpu_is_not_seen(self) -> None:
        def sure(timing: bool) -> Verdict:
            job = ring(4, one_stream=True, flavour=Flavour(timing=timing))
            return judge(job.run(), known={"live": True, "advanced": False, "stall_s": 60.0})

        seen, unseen = sure(timing=True), sure(timing=False)
        assert seen["confidence"] > unseen["confidence"] and "link" in " ".join(unseen["why"])

    def test_receives_that_run_already_are_no_ring(self) -> None:
        """Each half has a stream of its own and all were seen to start: the network is at fault."""
        job = ring(4, flavour=Flavour(timing=True))
        for rank in range(4):
            for entry in self._halves(job, rank):
                entry["state"] = "started"
        assert judge(job)["verdict"] == "all_joined_not_finished"

    @staticmethod
    def _halves(job: Job, rank: int) -> list[dict[str, object]]:
        """The halves of a rank, made open again after the healthy run."""
        job.run()
        halves = [entry for entry in job.rings[rank].entries if entry["is_p2p"]]
        for entry in halves:
            entry.update(retired=False, time_discovered_completed_ns=None)
        return halves
