"""Time on a job's page: in the HTML, in words, with what is not known."""

from __future__ import annotations

import re
from datetime import UTC, datetime

import pytest

from clusterwatch.incidents.models import Incident
from clusterwatch.jobs.models import Checkpoint, Job, Rank, StartUp
from clusterwatch.web import job_phases
from tests.web.conftest import SignIn
from tests.web.seed import Seeded, query_count_of
from tests.web.seed_time import seed_time
from tests.web.test_pages import HOSTILE, text_of


def words(html: str) -> str:
    return re.sub(r"\s+", " ", re.sub(r"<[^>]+>", " ", html)).replace("\u202f", " ")


def test_the_page_tells_the_time_the_start_up_and_the_checkpoints(seeded: Seeded, sign_in: SignIn) -> None:
    run, stall = seed_time()
    client = sign_in("olga")
    html = text_of(client.get(f"/jobs/{run.job.pk}"))
    said = words(html)
    for part in (
        "first step after 1 min 0 s",
        "first step after 4 min 12 s; 2 ranks of host-2 were up to 1 min 35 s later at process start",
        "Not told by any rank: allocation, container",
        "Go on from the checkpoint after step 900",
        "all 16 ranks wrote it; not proven by a load; the one after step 399 of attempt 1 may be whole",
        "14 of 16 ranks wrote it, 2 told nothing of it",
        "Hooks tell no sizes, so bandwidth is not known",
        "rank 7 on host-3 11 s",
        "1 of 1 named a culprit",
        "What counts as what",
    ):
        assert part in said, part
    assert re.search(r'<rect class="k-stalled" x="[\d.]+" width="[\d.]+"', html)
    assert "style=" not in html.split('id="time"')[1].split('id="ranks"')[0]
    incident = words(text_of(client.get(f"/incidents/{stall.pk}")))
    assert "Go on from the checkpoint after step 900 , attempt 0" in incident
    assert "of work are done again" in incident


def test_a_job_nobody_counted_says_so(seeded: Seeded, sign_in: SignIn) -> None:
    said = words(text_of(sign_in("vera").get(f"/jobs/{seeded.job.pk}")))
    assert "Not counted yet" in said and "No rank told of a checkpoint yet" in said
    assert "Goodput" not in said.split("What counts")[0].split("Where its time went")[1][:200]


def test_bounds_are_shown_where_time_is_unknown(seeded: Seeded, sign_in: SignIn) -> None:
    run, _ = seed_time()
    said = words(text_of(sign_in("olga").get(f"/jobs/{run.job.pk}")))
    assert re.search(r"Goodput \d+(\.\d)? % to \d+(\.\d)? %", said)


def test_processes_without_a_gpu_have_process_hours(seeded: Seeded, sign_in: SignIn) -> None:
    run, _ = seed_time()
    Rank.objects.filter(job=run.job).update(gpu_index=None)
    assert "process-hours" in text_of(sign_in("olga").get(f"/jobs/{run.job.pk}"))


def test_names_from_nodes_are_escaped(seeded: Seeded, sign_in: SignIn) -> None:
    run, _ = seed_time()
    slowest = [{"rank": 1, "host": HOSTILE, "s": 3.0}]
    Checkpoint.objects.filter(job=run.job).update(world=HOSTILE, slowest=slowest)
    StartUp.objects.filter(job=run.job).update(sentence=HOSTILE)
    assert "<img src=x" not in text_of(sign_in("olga").get(f"/jobs/{run.job.pk}"))


def test_the_queries_of_a_jobs_time_do_not_grow_with_ranks_or_saves(seeded: Seeded) -> None:
    run, _ = seed_time()

    def count() -> int:
        return query_count_of(lambda: job_phases.build(run.job, Incident.objects.all(), datetime.now(UTC)))

    few = count()
    saves = list(Checkpoint.objects.filter(job=run.job))
    for number in range(200):
        one = saves[0]
        one.pk, one.step = None, 5_000 + number
        one.save()
    assert count() == few <= 8


def test_the_trend_of_saves_is_said_in_words() -> None:
    assert (
        job_phases._trend(0.5, 60)
        == "The newest third of the last 60 took 50 % longer than the oldest third."
    )
    assert "12 % less" in job_phases._trend(-0.12, 9) and job_phases._trend(None, 3) == ""


@pytest.mark.parametrize("verdict", ["missing_rank", "slow_gpu"])
def test_only_a_standstill_has_a_checkpoint_to_go_on_from(
    seeded: Seeded, sign_in: SignIn, verdict: str
) -> None:
    run, _ = seed_time()
    incident = run.incident(700.0, 800.0, verdict, "hang" if verdict == "missing_rank" else "hardware")
    html = text_of(sign_in("olga").get(f"/incidents/{incident.pk}"))
    assert ('id="go-on"' in html) is (verdict == "missing_rank")
    assert Job.objects.filter(pk=run.job.pk).exists()
