from __future__ import annotations

import time

import pytest
import redis

from clusterwatch.incidents import services
from clusterwatch.incidents.report import find_jobs, job_report
from clusterwatch.jobs.models import Job
from clusterwatch.store import hot
from tests.detect.fake_job import FakeJob, at
from tests.incidents.sightings import sighting

pytestmark = pytest.mark.django_db(transaction=True)


@pytest.fixture
def job(valkey: redis.Redis) -> FakeJob:
    found = FakeJob()
    found.write()
    return found


def test_a_job_that_moves_is_reported_with_its_step_and_no_incident(job: FakeJob) -> None:
    found = job_report(job.job, time.time_ns())
    assert (found["job"]["key"], found["job"]["step"], found["job"]["reported"]) == ("run-1", 5, 8)
    assert (found["incident"], found["stale"]) == (None, [])


def test_the_live_incident_comes_before_one_that_is_over(job: FakeJob) -> None:
    old, _ = services.suspect(sighting("a", job_id=job.job.pk), job.now_ns)
    services.resolve(old.pk, job.now_ns, "moved again")
    assert job_report(job.job, time.time_ns())["incident"]["id"] == old.pk
    live, _ = services.suspect(sighting("b", job_id=job.job.pk), job.now_ns)
    found = job_report(job.job, time.time_ns())["incident"]
    assert (found["id"], found["state"], found["diagnosis"]["verdict"]) == (
        live.pk,
        "suspected",
        "missing_rank",
    )


def test_silence_of_every_gateway_is_stale_and_says_for_how_long(job: FakeJob) -> None:
    assert job_report(job.job, job.now_ns + 40_000_000_000)["stale"] == ["no gateway has written for 40 s"]


def test_no_hot_state_is_stale(job: FakeJob, monkeypatch: pytest.MonkeyPatch) -> None:
    def away() -> None:
        raise redis.ConnectionError("away")

    monkeypatch.setattr(hot, "newest_gateway_word_ns", away)
    assert job_report(job.job, time.time_ns())["stale"] == ["hot state does not answer"]


def test_a_job_is_found_by_the_schedulers_id_first_and_then_by_ours(job: FakeJob) -> None:
    named_like_an_id = Job.objects.create(cluster=job.cluster, key=str(job.job.pk), started_at=at(job.now_ns))
    assert find_jobs("run-1") == [job.job]
    assert find_jobs(str(job.job.pk)) == [named_like_an_id]
    assert find_jobs(str(named_like_an_id.pk)) == [named_like_an_id]
    assert find_jobs("nothing") == find_jobs("²") == find_jobs("9" * 40) == []


def test_the_newest_run_of_a_key_is_meant(job: FakeJob) -> None:
    job.end_job()
    again = Job.objects.create(cluster=job.cluster, key="run-1", started_at=at(job.now_ns))
    assert find_jobs("run-1") == [again]
