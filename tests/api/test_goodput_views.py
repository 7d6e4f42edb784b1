"""REST of time: what a job and a cluster spent, and what is not known."""

from __future__ import annotations

from typing import Any

import pytest
import redis

from clusterwatch.accounts.models import Team, User
from clusterwatch.detect import goodput
from clusterwatch.jobs.models import Job
from tests.api.conftest import Caller
from tests.jobs.goodput_run import Run


@pytest.fixture
def run(users: dict[str, User], valkey: redis.Redis) -> Run:
    """Ten minutes of four ranks with two saves, a stall and a silent host."""
    run = Run()
    run.start(late={3: 30.0})
    everybody = dict.fromkeys(range(4), 3.0)
    run.train(60.0, 100, saves={21: everybody, 61: {**everybody, 2: 9.0}})
    run.incident(172.0, 232.0, "dead_rank")
    run.train(232.0, 100, first=102, silent=(0, 1))
    run.end(332.0)
    while goodput.look(run.job.pk, run.now_ns):
        pass
    return run


def get(call: Caller, path: str, **query: str) -> Any:
    answer = call().get(f"/api/v1/{path}", query)
    assert answer.status_code == 200, answer.content
    return answer.json()


def test_a_jobs_classes_add_up_and_its_goodput_has_two_bounds(run: Run, as_token: Caller) -> None:
    told = get(as_token, f"jobs/{run.job.pk}/goodput")
    total = told["total"]
    assert sum(one["gpu_s"] for one in total["classes"]) == pytest.approx(total["gpu_s"]) == 4 * 332.0
    by_kind = {one["kind"]: one["gpu_s"] for one in total["classes"]}
    assert by_kind["stalled"] == 240.0 and by_kind["unknown"] == 200.0 and by_kind["checkpoint"] == 48.0
    assert total["goodput_low_ratio"] == pytest.approx(by_kind["productive"] / 1328, abs=1e-6)
    assert total["goodput_high_ratio"] == pytest.approx((by_kind["productive"] + 200) / 1328, abs=1e-6)
    assert told["causes"] == [{"kind": "stalled", "cause": "dead_rank", "gpu_s": 240.0}]
    assert told["naming"] == {"count": 1, "named_count": 1, "to_name_s": 4.0, "to_move_s": 60.0}
    assert (told["unit"], told["reason"], told["simulated"]) == ("gpu", None, False)
    best = told["recommended_checkpoint"]
    assert (best["step"], best["proven_by_load"]) == (60, False) and "not proven by a load" in best["why"]


def test_a_job_nobody_counted_has_a_reason_and_no_zeros(run: Run, as_token: Caller) -> None:
    other = Job.objects.create(cluster=run.cluster, key="new", started_at=run.began)
    told = get(as_token, f"jobs/{other.pk}/goodput")
    assert told["total"] is None and "not counted yet" in told["reason"]
    assert told["recommended_checkpoint"] is None and told["naming"]["to_name_s"] is None
    assert get(as_token, f"jobs/{other.pk}/startup") == {"results": [], "next": None}


def test_start_ups_tell_what_nobody_told(run: Run, as_token: Caller) -> None:
    (one,) = get(as_token, f"jobs/{run.job.pk}/startup")["results"]
    parts = {part["part"]: part for part in one["parts"]}
    assert one["sentence"] == "first step after 1 min 0 s"  # of four ranks one is no outlier yet
    assert parts["container"]["told_count"] == 0 and parts["container"]["p50_s"] is None
    assert parts["process_start"]["slowest"][0] == {"rank": 3, "host": "host-1", "s": 30.0}


def test_checkpoints_come_newest_first_in_pages(run: Run, as_token: Caller) -> None:
    page = get(as_token, f"jobs/{run.job.pk}/checkpoints", limit="1")
    assert [one["step"] for one in page["results"]] == [60] and page["next"]
    newest = page["results"][0]
    assert (newest["longest_s"], newest["slowest"][0]["rank"], newest["cost_gpu_s"]) == (9.0, 2, 36.0)
    assert newest["bytes"] is None and newest["bytes_reason"]


def test_a_cluster_is_summed_by_month_user_and_partition(run: Run, as_token: Caller) -> None:
    Job.objects.update(labels={"partition": "h100"})
    told = get(as_token, f"clusters/{run.cluster.pk}/goodput")
    assert told["total"]["gpu_s"] == 1328.0 and told["job_count"] == 1
    assert [one["name"] for one in told["users"]] == ["sam"]
    assert [one["name"] for one in told["partitions"]] == ["h100"]
    (month,) = told["months"]
    assert month["month"] == run.began.date().replace(day=1).isoformat()
    assert month["causes"] == [{"kind": "stalled", "cause": "dead_rank", "gpu_s": 240.0}]
    none = get(as_token, f"clusters/{run.cluster.pk}/goodput", to=run.began.isoformat())
    assert none["total"]["gpu_s"] == 0 and none["total"]["goodput_low_ratio"] is None


def test_time_of_a_foreign_teams_job_is_not_in_a_viewers_sums(run: Run, as_token: Caller) -> None:
    Job.objects.update(team=Team.objects.create(name="secret"))
    viewer = as_token("vera")
    assert viewer.get(f"/api/v1/jobs/{run.job.pk}/goodput").status_code == 404
    assert viewer.get(f"/api/v1/jobs/{run.job.pk}/checkpoints").status_code == 404
    assert viewer.get(f"/api/v1/clusters/{run.cluster.pk}/goodput").json()["total"]["gpu_s"] == 0


@pytest.mark.parametrize(
    "query",
    [
        {"from": "2026-02-01T00:00:00Z", "to": "2026-01-01T00:00:00Z"},
        {"from": "1990-01-01T00:00:00Z"},
        {"to": "yesterday"},
    ],
)
def test_times_that_mean_nothing_are_refused(run: Run, as_token: Caller, query: dict[str, str]) -> None:
    assert as_token().get(f"/api/v1/clusters/{run.cluster.pk}/goodput", query).status_code == 400
