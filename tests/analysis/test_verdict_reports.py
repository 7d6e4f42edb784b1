"""The failing input of public reports about other analyzers, in kind; each answered right.

Source: the issues and pull requests of PyTorch and TorchRec that each test names.
"""

from __future__ import annotations

from tests.cases.jobs import Batch, Call, Halt, Job, Parts, Sync, recv, send
from tests.cases.judged import judge, judge_bytes, named
from tests.cases.meshes import mesh, one_f_one_b, train
from tests.cases.writer import Flavour


def steady(world: int = 4, calls: int = 5, flavour: Flavour = Flavour()) -> Job:  # noqa: B008
    job = Job(world, flavour)
    job.repeat(calls, Call(job.default), Sync())
    return job


def test_139280_a_batch_that_begins_with_a_receive() -> None:
    job = mesh(pp=4)
    stage = job.groups[1]
    for rank in range(4):
        before, after = (rank - 1) % 4, (rank + 1) % 4
        batch = Batch(
            stage, (recv(stage, before), send(stage, after), recv(stage, after), send(stage, before))
        )
        job.programs[rank] += [batch, Sync()] * 3
    assert named(judge(job.run())) == ("no_fault", [], [])


def test_140879_entries_without_frames_beside_those_with_some() -> None:
    job = steady()
    job.every(Call(job.default, frames=()), ranks=(0, 1, 3))
    assert named(judge(job.run())) == ("missing_rank", [2], [])


def test_137969_members_of_finished_batches_stay_scheduled() -> None:
    job = mesh(pp=2)
    for rank in range(2):
        job.programs[rank] += one_f_one_b(job.groups[1], rank, 4)
    job.run()
    states = {entry["state"] for entry in job.rings[0].entries if "send" in entry["profiling_name"]}
    assert states == {"scheduled"}
    assert named(judge(job)) == ("no_fault", [], [])


def test_125173_numbers_after_the_ring_has_wrapped_with_coalesced_calls() -> None:
    job = Job(4)
    parts = Parts(
        job.default, "ALLGATHER_coalesced", tuple(Call(job.default, "_broadcast_oop") for _ in range(4))
    )
    job.repeat(9, parts, Call(job.default), Sync())
    job.run()
    cut = {rank: job.rings[rank].pickled(keep=7 + rank) for rank in range(4)}
    assert named(judge_bytes(cut)) == ("no_fault", [], [])
    job.every(parts, ranks=(0, 1, 3))
    job.run()
    cut = {rank: job.rings[rank].pickled(keep=7 + rank) for rank in range(4)}
    assert named(judge_bytes(cut)) == ("missing_rank", [2], [])


def test_196968_the_rank_that_raised_left_no_dump() -> None:
    job = train(mesh(tp=2, dp=4))
    job.programs[5].insert(9, Halt())
    found = judge(job.run(), without=(5,))
    assert named(found) == ("suspect_no_dump", [], [5])
    assert found["findings"][0]["missing_ranks"] == [5]


def test_177076_a_coalesced_call_is_absent_on_some_ranks() -> None:
    job = steady()
    parts = Parts(job.default, "ALLGATHER_coalesced", (Call(job.default, "_broadcast_oop"),) * 2)
    job.programs[2].append(Halt())
    job.every(parts, Sync())
    found = judge(job.run())
    assert named(found) == ("missing_rank", [2], []) and found["op"] == "ALLGATHER_coalesced"


def test_160097_sends_of_a_group_that_is_not_the_world() -> None:
    job = mesh(tp=2, pp=4)
    job.every(Call(job.default), Sync())
    for stage in job.groups_of("mesh_pp"):
        for rank in stage.ranks:
            job.programs[rank] += one_f_one_b(stage, rank, 4)
    job.programs[4].insert(6, Halt())
    found = judge(job.run())
    assert named(found) == ("p2p_unmatched", [4], []) and 4 in found["group"]["ranks"]


def test_165994_an_empty_ring_and_a_rank_without_a_dump() -> None:
    job = Job(4)
    job.every(Call(job.default), ranks=(0, 1))
    found = judge(job.run(), without=(3,))
    assert named(found) == ("missing_rank", [2], []) and found["coverage"]["reported"] == 3


def test_137256_one_swap_over_two_groups_is_one_finding() -> None:
    job = Job(8, one_stream=True)
    a, b = job.group("1", "a", range(8)), job.group("2", "b", range(8))
    job.repeat(3, Call(a), Call(b), Sync())
    for rank in range(8):
        job.programs[rank] += [Call(b), Call(a)] if rank == 6 else [Call(a), Call(b)]
    found = judge(job.run())
    assert named(found) == ("order_mismatch", [6], []) and len(found["findings"]) == 1


def test_150133_no_entry_has_a_frame() -> None:
    job = steady(flavour=Flavour(frames=()))
    job.every(Call(job.default), ranks=(0, 1, 3))
    assert named(judge(job.run())) == ("missing_rank", [2], [])


def test_141924_who_joined_and_who_did_not_is_in_the_result() -> None:
    job = steady()
    job.every(Call(job.default), ranks=(0, 1, 3))
    worst = judge(job.run())["findings"][0]
    assert (worst["joined_ranks"], worst["missing_ranks"]) == ([0, 1, 3], [2])


def test_180268_names_of_other_backends_in_one_job() -> None:
    job = steady(flavour=Flavour("ncclx"))
    for rank in (1, 3):
        job.rings[rank].flavour = Flavour("nccl2")
    job.every(Call(job.default), ranks=(0, 1, 3))
    assert named(judge(job.run())) == ("missing_rank", [2], [])


def test_134833_sends_that_took_a_number_of_the_collectives() -> None:
    """Recorders of that time counted a send as a collective, so ranks that exchange run ahead in numbers."""
    job = steady()
    job.run()
    for rank in (0, 1):
        job.rings[rank]._collectives[job.default] += 1
    for ring in job.rings:
        for _ in range(3):
            ring.finish(ring.collective(job.default, at_ns=job.now_ns), job.now_ns)
    assert judge(job)["culprit_ranks"] == []


def test_torchrec_4149_two_groups_of_64_ranks_wait_in_a_circle() -> None:
    job = Job(64)
    a, b = job.group("1", "a", range(64)), job.group("2", "b", range(64))
    job.repeat(3, Call(a), Sync(), Call(b), Sync())
    for rank in range(64):
        first, second = (b, a) if rank in (17, 40) else (a, b)
        job.programs[rank] += [Call(first), Sync(), Call(second), Sync()]
    found = judge(job.run())
    assert named(found) == ("cross_group_cycle", [17, 40], []) and len(found["findings"]) == 1
