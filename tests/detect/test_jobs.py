from __future__ import annotations

from tests.detect.fake_job import FakeJob


def test_a_training_job_has_no_incident(fake_job: FakeJob) -> None:
    fake_job.train(20)
    assert fake_job.incidents() == []


def test_a_rank_that_never_joins_is_suspected_within_5_s_and_opened_within_15(fake_job: FakeJob) -> None:
    fake_job.wait_for(3)
    suspected = fake_job.seconds_until("suspected", 5)
    assert fake_job.incident().verdict == "missing_rank"
    assert fake_job.incident().diagnosis["suspect_ranks"] == [3] or fake_job.incident().diagnosis["culprit_ranks"] == [3]
    assert fake_job.seconds_until("open", 15) + suspected <= 15
