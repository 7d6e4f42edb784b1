"""Sends, receives and pipelines: unmatched halves, wrong peers and sizes, healthy schedules; rings."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest

from tests.cases.jobs import Batch, Call, Half, Halt, Job, Program, Sync, recv, send
from tests.cases.judged import judge, named, where
from tests.cases.meshes import interleaved, mesh, one_f_one_b, zero_bubble
from tests.cases.writer import Flavour, Group

Schedule = Callable[[Group, int, int], Program]

SCHEDULES: dict[str, Schedule] = {
    "1f1b": one_f_one_b,
    "interleaved": lambda stage, rank, micro: interleaved(stage, rank, 2, micro),
    "zero_bubble": zero_bubble,
}


def pipeline(stages: int, schedule: Schedule = one_f_one_b, micro: int = 6, prefix: str = "nccl") -> Job:
    job = mesh(pp=stages, flavour=Flavour(prefix, closes_batches=prefix != "xccl"))
    for rank in range(stages):
        job.programs[rank] += schedule(job.groups[1], rank, micro)
    return job


def pair(stages: int = 2) -> tuple[Job, Group]:
    job = mesh(pp=stages)
    job.every(Call(job.default), Sync())
    return job, job.groups[1]


def nth_batch(job: Job, rank: int, nth: int) -> tuple[int, Batch]:
    places = [n for n, move in enumerate(job.programs[rank]) if isinstance(move, Batch)]
    found = job.programs[rank][places[nth]]
    assert isinstance(found, Batch)
    return places[nth], found


class TestPipelines:
    @pytest.mark.parametrize("schedule", SCHEDULES)
    @pytest.mark.parametrize("stages", [2, 3, 4, 8])
    @pytest.mark.parametrize("micro", [2, 6])
    def test_a_healthy_one_is_no_fault(self, schedule: str, stages: int, micro: int) -> None:
        job = pipeline(stages, SCHEDULES[schedule], micro)
        job.every(Call(job.default), Sync())
        found = judge(job.run())
        assert not any(job.open_entries(rank) for rank in range(stages))
        assert named(found) == ("no_fault", [], [])

    @pytest.mark.parametrize("stages", [2, 4])
    def test_without_closing_entries_too(self, stages: int) -> None:
        job = pipeline(stages, prefix="xccl")
        assert named(judge(job.run())) == ("no_fault", [], [])

    @pytest.mark.parametrize("prefix", ["nccl", "xccl"])
    @pytest.mark.parametrize("stages", [2, 3, 4, 8])
    def test_names_the_stage_that_stopped(self, prefix: str, stages: int) -> None:
        job = pipeline(stages, prefix=prefix)
        job.programs[1].insert(9, Halt())
        found = judge(job.run())
        assert named(found) == ("p2p_unmatched", [1], []) and len(found["findings"]) == 1
        assert found["downstream"]["ranks"] == stages - 1

    @pytest.mark.parametrize("stages", [2, 4])
    def test_a_batch_left_out(self, stages: int) -> None:
        job = pipeline(stages)
        del job.programs[1][nth_batch(job, 1, 5)[0]]
        assert named(judge(job.run())) == ("p2p_unmatched", [1], [])

    @pytest.mark.parametrize("stages", [2, 4])
    def test_unequal_sizes_suspect_both_ends(self, stages: int) -> None:
        job = pipeline(stages)
        sender = stages - 2
        place, batch = nth_batch(job, sender, 5)
        halves = tuple(replace(half, size=(32,)) if half.sends else half for half in batch.halves)
        job.programs[sender][place] = Batch(batch.group, halves)
        found = judge(job.run())
        assert named(found) == ("p2p_unmatched", [], [sender, sender + 1])
        assert found["cause"] == "wrong_size" and len(found["findings"]) == 1

    def test_a_batch_to_the_wrong_peer(self) -> None:
        job = pipeline(4)
        place, batch = nth_batch(job, 1, 5)
        halves = tuple(replace(half, peer=3 if half.peer == 2 else half.peer) for half in batch.halves)
        job.programs[1][place] = Batch(batch.group, halves)
        found = judge(job.run())
        assert named(found) == ("p2p_unmatched", [1], []) and found["cause"] == "wrong_peer"

    def test_a_stage_without_a_dump_is_suspected(self) -> None:
        job = pipeline(4)
        job.programs[1].insert(9, Halt())
        assert named(judge(job.run(), without=(1,))) == ("suspect_no_dump", [], [1])


class TestPairs:
    def test_a_send_without_its_receive(self) -> None:
        job, stage = pair()
        job.programs[0].append(send(stage, 1))
        found = judge(job.run())
        assert named(found) == ("p2p_unmatched", [1], []) and where(found) == ("1", 1, "send 0->1")

    @pytest.mark.parametrize(("sends", "receives", "late"), [(4, 3, 1), (3, 4, 0)])
    def test_unequal_counts(self, sends: int, receives: int, late: int) -> None:
        job, stage = pair()
        job.programs[0] += [send(stage, 1), Sync()] * sends
        job.programs[1] += [recv(stage, 0), Sync()] * receives
        found = judge(job.run())
        assert named(found) == ("p2p_unmatched", [late], []) and found["seq"] == 4

    def test_a_peer_that_was_never_addressed_before(self) -> None:
        job, stage = pair(4)
        job.programs[0] += [send(stage, 1), Sync(), send(stage, 2)]
        job.programs[1] += [recv(stage, 0), Sync(), recv(stage, 0)]
        found = judge(job.run())
        assert named(found) == ("p2p_unmatched", [0], []) and found["cause"] == "wrong_peer"

    def test_numbers_are_ranks_of_the_group_in_its_own_order(self) -> None:
        job = Job(8)
        stage = job.group("9", "pp", (6, 2))
        job.every(Call(job.default), Sync())
        job.programs[6].append(send(stage, 2))
        assert named(judge(job.run())) == ("p2p_unmatched", [2], [])

    @pytest.mark.parametrize("other", [{"size": (32,)}, {"dtype": "Half"}])
    def test_halves_that_pass_different_things(self, other: dict[str, object]) -> None:
        job, stage = pair()
        job.programs[0].append(send(stage, 1))
        job.programs[1].append(replace(recv(stage, 0), **other))  # type: ignore[arg-type]
        assert named(judge(job.run())) == ("p2p_unmatched", [], [0, 1])

    @pytest.mark.parametrize(
        ("other", "said"),
        [
            ({"size": (32,)}, "sends 64 elements and rank 5 receives 32"),
            ({"dtype": "Half"}, "sends Float and rank 5 receives Half"),
        ],
    )
    def test_sentence_and_suspects_speak_of_the_same_ranks(self, other: dict[str, object], said: str) -> None:
        """Names of operations hold ranks of the group; people are told those of the job."""
        job = mesh(pp=2, dp=4)
        stage = job.of(1, "mesh_pp")
        job.programs[1].append(send(stage, 5))
        job.programs[5].append(replace(recv(stage, 1), **other))  # type: ignore[arg-type]
        job.every(Sync(), ranks=stage.ranks)
        job.every(Call(job.default), Sync())
        found = judge(job.run())
        assert named(found) == ("p2p_unmatched", [], [1, 5]) and found["op"] == "recv 1<-0"
        assert f"Rank 1 {said}: recv 5<-1" in found["summary"]

    def test_lines_of_evidence_speak_of_the_ranks_of_the_job(self) -> None:
        job = mesh(pp=2, dp=4)
        job.every(Call(job.default), Sync())
        job.programs[2].append(send(job.of(2, "mesh_pp"), 6))
        found = judge(job.run())
        assert named(found) == ("p2p_unmatched", [6], []) and found["op"] == "send 0->1"
        assert "send 2->6" in found["summary"] and "waits in send 2->6" in " ".join(found["why"])

    def test_other_shapes_of_one_count_are_legal(self) -> None:
        job, stage = pair()
        job.programs[0] += [send(stage, 1, (8, 8)), Sync()]
        job.programs[1] += [recv(stage, 0, (64,)), Sync()]
        assert named(judge(job.run())) == ("no_fault", [], [])

    @pytest.mark.parametrize("first", [send, recv])
    def test_both_begin_with_the_same_half(self, first: Callable[[Group, int], Half]) -> None:
        job, stage = pair()
        job.programs[0] += [first(stage, 1), Sync()]
        job.programs[1] += [first(stage, 0), Sync()]
        found = judge(job.run())
        assert named(found) == ("p2p_unmatched", [], [0, 1]) and found["cause"] == "circular_wait"

    def test_a_circle_of_sends(self) -> None:
        job, stage = pair(4)
        for rank in range(4):
            job.programs[rank] += [send(stage, (rank + 1) % 4), Sync(), recv(stage, (rank - 1) % 4), Sync()]
        assert named(judge(job.run())) == ("p2p_unmatched", [], [0, 1, 2, 3])

    @pytest.mark.parametrize("half", [send, recv])
    def test_a_half_left_out_before_a_shared_call_suspects_both_ends(
        self, half: Callable[[Group, int], Half]
    ) -> None:
        """Rank 1 has gone on to the call in which all wait for rank 0: a half too many looks the same."""
        job, stage = pair(4)
        job.programs[0] += [half(stage, 1), Sync()]
        job.every(Call(job.default))
        found = judge(job.run())
        assert named(found) == ("p2p_unmatched", [], [0, 1]) and len(found["findings"]) == 1

    def test_who_waits_in_a_collective_is_not_the_root(self) -> None:
        job, stage = pair(4)
        tensor = job.group("7", "tp", (1, 2))
        job.programs[0].append(recv(stage, 1))
        job.programs[1] += [Call(tensor), Sync()]
        found = judge(job.run())
        assert named(found) == ("missing_rank", [2], []) and found["downstream"]["ranks"] == 2


class TestCycles:
    @pytest.mark.parametrize("world", [2, 4, 8, 64])
    def test_names_who_deviates_from_its_equals(self, world: int) -> None:
        job = Job(world)
        a, b = job.group("1", "a", range(world)), job.group("2", "b", range(world))
        job.repeat(3, Call(job.default), Sync())
        for rank in range(world):
            first, second = (b, a) if rank == 1 else (a, b)
            job.programs[rank] += [Call(first), Sync(), Call(second), Sync()]
        found = judge(job.run())
        tie = world == 2
        assert named(found) == ("cross_group_cycle", [] if tie else [1], [0, 1] if tie else [])
        assert len(found["findings"]) == 1

    def test_a_ring_of_equals_names_nobody(self) -> None:
        job = Job(3)
        edges = [job.group(str(n + 1), f"edge{n}", (n, (n + 1) % 3)) for n in range(3)]
        job.repeat(3, Call(job.default), Sync())
        for rank in range(3):
            job.programs[rank] += [Call(edges[rank]), Sync(), Call(edges[rank - 1]), Sync()]
        assert named(judge(job.run())) == ("cross_group_cycle", [], [0, 1, 2])

    def test_another_order_that_closes_no_ring_is_no_fault(self) -> None:
        job = mesh(tp=2, dp=2)
        for rank in range(4):
            tensor, data = Call(job.of(rank, "mesh_tp")), Call(job.of(rank, "mesh_dp"))
            job.programs[rank] += (
                [data, Sync(), tensor, Sync()] if rank == 1 else [tensor, Sync(), data, Sync()]
            )
        assert named(judge(job.run())) == ("no_fault", [], [])

    def test_a_ring_over_a_mesh_is_one_finding(self) -> None:
        """Ranks 1 and 2 of a 2 x 2 mesh begin with the other dimension: two against two."""
        job = mesh(tp=2, dp=2)
        for rank in range(4):
            tensor, data = Call(job.of(rank, "mesh_tp")), Call(job.of(rank, "mesh_dp"))
            first, second = (data, tensor) if rank in (1, 2) else (tensor, data)
            job.programs[rank] += [first, Sync(), second, Sync()]
        found = judge(job.run())
        assert found["verdict"] == "cross_group_cycle" and len(found["findings"]) == 1
        assert sorted(found["culprit_ranks"] + found["suspect_ranks"]) == [0, 1, 2, 3]
