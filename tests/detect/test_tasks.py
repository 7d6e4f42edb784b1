from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
import redis
from celery.exceptions import SoftTimeLimitExceeded

from clusterwatch.detect import jobs, schedule, tasks
from clusterwatch.incidents.models import Incident
from clusterwatch.store import hot
from tests.detect.fake_job import SECOND, FakeJob
from tests.stack import Stack

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture
def looked(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Ids of jobs that were looked at, without looking."""
    seen: list[int] = []
    monkeypatch.setattr(jobs, "detect_job", lambda job_id, now_ns: seen.append(job_id))
    return seen


def test_a_job_is_looked_at_by_one_task_at_a_time(valkey: redis.Redis, looked: list[int]) -> None:
    hot.take_lease("detect:job:7", "another task", 5)
    assert tasks.detect_job(7) is False
    hot.drop_lease("detect:job:7", "another task")
    assert tasks.detect_job(7) is True
    assert tasks.detect_job(7) is True
    assert looked == [7, 7]


def test_a_look_that_fails_gives_its_lease_back(valkey: redis.Redis, monkeypatch: pytest.MonkeyPatch) -> None:
    def too_long(job_id: int, now_ns: int) -> None:
        raise SoftTimeLimitExceeded

    monkeypatch.setattr(jobs, "detect_job", too_long)
    with pytest.raises(SoftTimeLimitExceeded):
        tasks.detect_job(7)
    assert hot.take_lease("detect:job:7", "the next", 5)


def test_a_look_broken_off_by_hot_state_is_left_to_the_next_tick(
    valkey: redis.Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    def away(job_id: int, now_ns: int) -> None:
        raise redis.ConnectionError("away")

    monkeypatch.setattr(jobs, "detect_job", away)
    assert tasks.detect_job(7) is True


def test_without_hot_state_a_tick_does_nothing(monkeypatch: pytest.MonkeyPatch, looked: list[int]) -> None:
    def away(*_: object) -> bool:
        raise redis.ConnectionError("away")

    monkeypatch.setattr(hot, "take_lease", away)
    assert tasks.tick() == 0
    assert tasks.detect_job(7) is False
    assert looked == []


def test_a_tick_hands_every_watched_job_to_a_task_that_expires(
    fake_job: FakeJob, monkeypatch: pytest.MonkeyPatch
) -> None:
    ended = FakeJob(name="run-2")
    ended.now_ns = time.time_ns() - 120 * SECOND
    ended.end_job()
    sent: list[tuple[object, object]] = []
    monkeypatch.setattr(tasks.detect_job, "apply_async", lambda args, expires: sent.append((args, expires)))
    assert tasks.tick() == 1
    assert sent == [((fake_job.job.pk,), schedule.JOB_EXPIRES_S)]


def test_a_tick_that_overlaps_another_starts_nothing(fake_job: FakeJob) -> None:
    hot.take_lease("detect:tick", "another tick", 5)
    assert tasks.tick() == 0


@pytest.fixture
def celery(stack: Stack, fake_job: FakeJob) -> Iterator[None]:
    """A real worker and a real beat on the embedded servers."""
    from django.db import connection

    schedule.install()
    folder = Path(os.environ["CLUSTERWATCH_STATE_DIR"])
    url = os.environ["CLUSTERWATCH_DATABASE_URL"]
    name = str(connection.settings_dict["NAME"])
    environment = os.environ | {"CLUSTERWATCH_DATABASE_URL": url.replace("/clusterwatch?", f"/{name}?")}
    command = [sys.executable, "-m", "celery", "-A", "clusterwatch.project.celery_app"]
    worker = [*command, "worker", "--concurrency", "1", "--without-gossip", "--without-mingle"]
    with (folder / "celery.log").open("wb") as log:
        running = [
            subprocess.Popen(one, cwd=ROOT, env=environment, stdout=log, stderr=log)
            for one in (worker, [*command, "beat", "--pidfile="])
        ]
        try:
            yield
        finally:
            for process in running:
                process.terminate()
            for process in running:
                process.wait(20)


@pytest.mark.stack
def test_worker_and_beat_find_a_hang_by_themselves(celery: None, fake_job: FakeJob) -> None:
    fake_job.now_ns = time.time_ns()
    fake_job.do_step()
    fake_job.wait_for(3)
    started_s = time.monotonic()
    deadline_s = started_s + 60
    while time.monotonic() < deadline_s:
        fake_job.now_ns = time.time_ns()
        fake_job.write()
        if Incident.objects.filter(job=fake_job.job, state="open").exists():
            break
        time.sleep(1)
    found = fake_job.incident()
    assert (found.state, found.verdict) == ("open", "missing_rank")
    assert found.diagnosis["suspect_ranks"] == [3]
