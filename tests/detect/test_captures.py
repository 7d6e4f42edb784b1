"""From a suspicion to a name: captures are asked for, answered, analysed, and sharpen the incident."""

from __future__ import annotations

import base64

import pytest

from clusterwatch.incidents.queries import evidence_json
from clusterwatch.jobs.models import Capture
from collectors.formats.columns import unpack
from collectors.ras import RasAnswer
from tests.collectors.formats.test_ras_status import LACKING
from tests.data import recorder
from tests.detect.answers import LOADING, WAITING, answer, captures_of
from tests.detect.fake_job import SECOND, FakeJob, at


def rings(*, odd: int | None = None, **what: object) -> recorder.Job:
    """Eight ranks after five finished calls; all but ``odd`` wait in the sixth, ``odd`` did ``what``."""
    job = recorder.Job(8, "gloo")
    for _ in range(5):
        job.all()
    job.wait(8.0)
    for rank in range(8):
        if rank != odd:
            job.call(rank, state="scheduled")
        elif what:
            job.call(rank, state="scheduled", **what)
    return job


def suspected(job: FakeJob, *missing: int) -> FakeJob:
    job.wait_for(*missing)
    job.seconds_until("suspected", 5)
    return job


def test_a_suspicion_asks_everybody_and_the_suspects_by_name(fake_job: FakeJob) -> None:
    suspected(fake_job, 3)
    asked = captures_of(fake_job)
    assert [(capture.ranks, capture.want) for capture in asked] == [
        ([3], ["ring", "stacks"]),
        (None, ["window", "ring", "stacks"]),
    ]
    fake_job.ticks(8)
    assert len(captures_of(fake_job)) == 2


def test_a_stall_that_lasts_is_captured_again_after_half_a_minute(fake_job: FakeJob) -> None:
    suspected(fake_job, 3)
    fake_job.ticks(28)
    assert len(captures_of(fake_job)) == 2
    fake_job.settle_captures()
    fake_job.ticks(3)
    assert len(captures_of(fake_job)) == 4


def test_ras_is_asked_once_a_stall_of_the_lowest_rank_that_is_no_suspect(fake_job: FakeJob) -> None:
    fake_job.job.ranks.update(backend="cpu:gloo,cuda:nccl")
    suspected(fake_job, 0)
    assert [(capture.ranks, capture.ras_rank) for capture in captures_of(fake_job)] == [
        ([0], None),
        (None, 1),
    ]
    fake_job.settle_captures()
    fake_job.ticks(32)
    later = captures_of(fake_job)[2:]
    assert later and [capture.ras_rank for capture in later] == [None] * len(later)


def test_what_ras_said_is_frozen_with_the_other_evidence(fake_job: FakeJob) -> None:
    fake_job.job.ranks.update(backend="nccl")
    suspected(fake_job, 3)
    said = RasAnswer("localhost:28028", "text", LACKING.encode())
    answer(fake_job, rings(odd=3), stacks={3: LOADING}, ras=said)
    fake_job.tick()
    (piece,) = fake_job.incident().evidence.filter(kind="nccl_ras")
    told = evidence_json(piece)
    assert piece.title.startswith("NCCL RAS: 2 ranks missing, 3 ranks behind")
    assert told["status"]["communicators"][0]["missing"] == [1, 21]
    assert told["answer"] == LACKING


def test_why_ras_gave_no_answer_is_frozen_too(fake_job: FakeJob) -> None:
    fake_job.job.ranks.update(backend="nccl")
    suspected(fake_job, 3)
    answer(fake_job, rings(odd=3), ras=RasAnswer("", "text", error="switched off: NCCL_RAS_ENABLE=0"))
    fake_job.tick()
    (piece,) = fake_job.incident().evidence.filter(kind="nccl_ras")
    assert piece.title == "NCCL RAS gave no answer: switched off: NCCL_RAS_ENABLE=0"


def test_the_rank_in_its_data_loader_is_named_with_call_and_cause(fake_job: FakeJob) -> None:
    suspected(fake_job, 3)
    stacks = {rank: LOADING if rank == 3 else WAITING for rank in range(8)}
    answer(fake_job, rings(odd=3), stacks=stacks)
    fake_job.tick()
    found = fake_job.incident()
    said = found.diagnosis
    assert (found.verdict, said["culprit_ranks"], said["cause"]) == ("missing_rank", [3], "data_loading")
    assert (said["op"], said["seq"]) == ("all_reduce", 6)
    assert said["stacks"][0]["ranks"] == [3]
    assert said["coverage"]["reported"] == 8
    assert said["culprits"][0]["host"] == "host-1"


def test_a_capture_under_way_takes_nothing_back_that_the_one_before_it_showed(fake_job: FakeJob) -> None:
    suspected(fake_job, 3)
    answer(fake_job, rings(odd=3), stacks={rank: LOADING if rank == 3 else WAITING for rank in range(8)})
    fake_job.tick()
    Capture.objects.update(requested_at=at(fake_job.now_ns - 3600 * SECOND))
    said = set()
    for _ in range(45):
        fake_job.tick()
        diagnosis = fake_job.incident().diagnosis
        said.add(
            (diagnosis["verdict"], diagnosis["cause"], diagnosis["op"], tuple(diagnosis["culprit_ranks"]))
        )
    assert len(captures_of(fake_job)) == 4
    assert said == {("missing_rank", "data_loading", "all_reduce", (3,))}


@pytest.mark.parametrize(
    ("verdict", "what"),
    [("op_mismatch", {"op": "all_gather", "out": (8192,)}), ("size_mismatch", {"size": (77,)})],
)
def test_a_mismatch_is_decisive_and_opens_at_once(
    fake_job: FakeJob, verdict: str, what: dict[str, object]
) -> None:
    suspected(fake_job)
    answer(fake_job, rings(odd=5, **what))
    fake_job.tick()
    found = fake_job.incident()
    assert (found.verdict, found.diagnosis["culprit_ranks"], found.state) == (verdict, [5], "open")


def test_a_stopped_process_is_seen_in_its_stacks(fake_job: FakeJob) -> None:
    suspected(fake_job, 3)
    answer(fake_job, rings(odd=3), without=[3], stacks={3: WAITING[:2]}, state={3: "T"})
    fake_job.tick()
    assert (fake_job.incident().diagnosis["culprit_ranks"], fake_job.incident().diagnosis["cause"]) == (
        [3],
        "stopped",
    )


def test_a_partial_answer_is_used_after_three_seconds(fake_job: FakeJob) -> None:
    suspected(fake_job, 3)
    before = fake_job.incident().diagnosis
    answer(fake_job, rings(odd=3))
    for capture in captures_of(fake_job):
        capture.state = "requested"
        capture.save()
    fake_job.tick()
    assert fake_job.incident().diagnosis["op"] == before["op"] is None
    fake_job.ticks(3)
    assert fake_job.incident().diagnosis["op"] == "all_reduce"


def test_a_damaged_ring_is_a_named_problem_and_the_rest_is_used(fake_job: FakeJob) -> None:
    suspected(fake_job, 3)
    answer(fake_job, rings(odd=3), damaged=[6])
    fake_job.tick()
    said = fake_job.incident().diagnosis
    assert 3 in said["culprit_ranks"] + said["suspect_ranks"]
    assert [(p["rank"], "packed trace" in p["reason"]) for p in said["problems"]] == [(6, True)] * len(
        said["problems"]
    )
    assert said["problems"]


def test_evidence_outlives_the_job(fake_job: FakeJob) -> None:
    suspected(fake_job, 3)
    answer(fake_job, rings(odd=3), stacks={3: LOADING, 0: WAITING})
    fake_job.ticks(9)
    incident = fake_job.incident()
    fake_job.job.delete()
    incident.refresh_from_db()
    assert incident.job_id is None
    pieces = {piece.kind: piece for piece in incident.evidence.all()}
    assert {"collective_state", "stacks", "process", "trace"} <= set(pieces)
    assert "data.py:33" in pieces["stacks"].title
    packed = evidence_json(pieces["trace"])["ranks"]["3"]
    assert len(unpack(base64.b64decode(packed)).entries) == 5


def test_captures_of_another_stall_are_not_mixed_in(fake_job: FakeJob) -> None:
    suspected(fake_job, 3)
    answer(fake_job, rings(odd=3))
    fake_job.tick()
    fake_job.train(12)
    assert fake_job.incident().state == "resolved"
    fake_job.wait_for(6)
    fake_job.seconds_until("suspected", 10)
    newest = fake_job.incidents()[-1]
    assert newest.diagnosis["op"] is None
    assert newest.diagnosis["suspect_ranks"] == [6]
    assert newest.since.timestamp() * SECOND > fake_job.now_ns - 11 * SECOND
