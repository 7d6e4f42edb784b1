"""Series by REST: what each resource answers, who may ask, what is refused with which words."""

from __future__ import annotations

import time
from datetime import UTC, datetime
from typing import Any

import numpy as np
import pytest
import redis
from django.test import Client
from django.utils import timezone

from clusterwatch.accounts.models import Team, User
from clusterwatch.cli.benches import query_data
from clusterwatch.cli.benches.query_data import NAMES, Made, Plan
from clusterwatch.fleet.models import Cluster
from clusterwatch.jobs.models import Job, Rank
from tests.api.conftest import Caller

GPUS, POWER = 64, "gpu_power_w"


@pytest.fixture
def made(users: dict[str, User], valkey: redis.Redis) -> Made:
    """An hour of 8 nodes in racks of two, raw for the newest 15 minutes."""
    return query_data.generate(Plan(GPUS, 1, 15, int(time.time() // 60) - 3), lambda text: None)


@pytest.fixture
def job(made: Made) -> Job:
    """Ranks 0 to 15 on the last two nodes, the higher rank on the lower GPU."""
    found = Job.objects.create(
        cluster_id=made.cluster_id, key="heat", attempt=1, started_at=timezone.now(), state="running"
    )
    for rank in range(16):
        Rank.objects.create(
            job=found, attempt=1, rank=rank, world_size=16, node_id=made.node_ids[6 + rank // 8],
            host="h", ref=rank, epoch="e", pid=rank + 1, gpu_index=7 - rank % 8, started_at=timezone.now(),
        )  # fmt: skip
    return found


def iso(made: Made, minutes_before_end: int) -> str:
    minute = made.plan.end_minute - minutes_before_end
    return datetime.fromtimestamp(minute * 60, UTC).isoformat().replace("+00:00", "Z")


def window(made: Made, minutes: int) -> str:
    return f"from={iso(made, minutes)}&to={iso(made, 0)}"


def get(client: Client, path: str, status: int = 200) -> Any:
    answer = client.get(f"/api/v1{path}")
    assert answer.status_code == status, answer.content[:500]
    return answer.json()


def test_one_gpu_comes_by_the_second_with_its_units(made: Made, as_token: Caller) -> None:
    body = get(as_token(), f"/nodes/{made.node_ids[0]}/series?gpu=3&{window(made, 10)}")
    assert (body["resolution_s"], body["count"], body["source"]) == (1, 600, "raw_block")
    assert (body["from"], body["to"]) == (iso(made, 10), iso(made, 0))
    series = {one["metric"]: one for one in body["series"]}
    assert set(series) == set(NAMES)
    power = series[POWER]
    assert (power["unit"], power["kind"], power["low"], power["gaps"]) == ("w", "gauge", None, [])
    wanted = made.truth.power[-10:, 3].reshape(-1)
    assert power["mean"] == [round(value, 1) for value in wanted.tolist()]
    assert power["coverage"] == {"expected": 600, "reported": 600}


def test_a_coarser_resolution_has_low_and_high_and_a_gap_its_reason(made: Made, as_token: Caller) -> None:
    query = f"metric={POWER}&metric=gpu_mood&resolution_s=60&{window(made, 20)}"
    body = get(as_token(), f"/nodes/{made.node_ids[5]}/series?{query}")
    power, mood = body["series"]
    assert body["source"] == "node_minute" and len(power["mean"]) == 20
    assert power["mean"][:5] == [None] * 5  # blocks of that node begin 15 minutes ago
    assert power["gaps"] == [{"from": iso(made, 20), "to": iso(made, 15), "reason": "no_data"}]
    low, mean, high = (np.array(power[name][5:]) for name in ("low", "mean", "high"))
    assert (low < mean).all() and (mean < high).all()
    assert mood["unit"] is None and mood["gaps"][0]["reason"] == "not_collected"


def test_latest_values_of_all_gpus_in_one_answer(made: Made, as_token: Caller) -> None:
    body = get(as_token(), f"/clusters/{made.cluster_id}/latest?metric={POWER}&max_age_s=600")
    assert body["slots"] == list(range(GPUS)) and body["coverage"] == {"expected": GPUS, "reported": GPUS}
    np.testing.assert_allclose(body["values"], made.truth.power[-1, :, -1], rtol=1e-6)
    assert body["missing"] == {} and max(body["age_s"]) < 600
    nothing = get(as_token(), f"/clusters/{made.cluster_id}/latest?metric=gpu_mood")
    assert nothing["missing"] == {"not_collected": GPUS} and set(nothing["values"]) == {None}


def test_latest_says_that_live_state_is_away(
    made: Made, as_token: Caller, monkeypatch: pytest.MonkeyPatch
) -> None:
    from clusterwatch.store import hot

    def away(*arguments: object) -> None:
        raise redis.ConnectionError("gone")

    monkeypatch.setattr(hot, "read_metric", away)
    body = get(as_token(), f"/clusters/{made.cluster_id}/latest?metric={POWER}", 503)
    assert body["code"] == "live_state_away"


def test_percentiles_of_fleet_job_rack_and_node(made: Made, job: Job, as_token: Caller) -> None:
    client, path = as_token(), f"/clusters/{made.cluster_id}/percentiles?metric={POWER}&{window(made, 10)}"
    fleet = get(client, path)
    assert (fleet["scope"], fleet["source"], fleet["resolution_s"]) == ("fleet", "fleet_percentile", 10)
    assert len(fleet["p50"]) == 60 and set(fleet["values"]) == {GPUS}
    rack = get(client, f"{path}&scope=rack&rack=r00001&resolution_s=10")
    samples = made.truth.power[-10:, 16:32].transpose(0, 2, 1).reshape(60, -1)
    np.testing.assert_allclose(rack["p99"], np.percentile(samples, 99, axis=1), rtol=1e-6)
    assert rack["scope"] == "rack:r00001" and rack["source"] == "raw_block"
    node = get(client, f"{path}&scope=node&node={made.node_ids[2]}&resolution_s=60")
    assert node["source"] == "fleet_minute" and node["coverage"] == {"expected": 80, "reported": 80}
    of_job = get(client, f"{path}&scope=job&job={job.pk}")
    assert of_job["scope"] == f"job:{job.pk}"


def test_the_top_names_node_and_gpu(made: Made, job: Job, as_token: Caller) -> None:
    path = f"/clusters/{made.cluster_id}/top?metric={POWER}&limit=3&{window(made, 10)}"
    body = get(as_token(), path)
    means = made.truth.power[-10:].mean(axis=(0, 2))
    best = int(means.argmax())
    first = body["results"][0]
    assert (first["slot"], first["node_name"], first["gpu"]) == (best, f"n{best // 8:05d}", best % 8)
    assert len(body["results"]) == 3 and body["minutes"] == {"expected": 10, "reported": 10}
    of_job = get(as_token(), f"{path}&job={job.pk}&order=smallest")
    lowest = [one["slot"] for one in of_job["results"]]
    assert lowest == sorted(range(48, 64), key=lambda slot: means[slot])[:3]
    growth = get(as_token(), f"/clusters/{made.cluster_id}/top?metric=nic_fec_corrected_total&by=growth")
    assert growth["kind"] == "counter" and growth["results"][0]["value"] > 0


def test_a_heat_map_of_a_job_is_in_rank_order(made: Made, job: Job, as_token: Caller) -> None:
    body = get(as_token(), f"/jobs/{job.pk}/heatmap?metric={POWER}&{window(made, 10)}")
    assert [row["slots"] for row in body["rows"]][:2] == [[55], [54]] and body["ranks"] == 16
    np.testing.assert_allclose(body["rows"][0]["values"], made.truth.power[-10:, 55].mean(axis=1), rtol=1e-6)
    gathered = get(as_token(), f"/jobs/{job.pk}/heatmap?metric={POWER}&rows=4&reduce=high&{window(made, 10)}")
    assert [len(row["slots"]) for row in gathered["rows"]] == [4] * 4


def test_the_map_and_a_rack_as_they_were(made: Made, as_token: Caller) -> None:
    client, path = as_token(), f"/clusters/{made.cluster_id}"
    body = get(client, f"{path}/map-at?at={iso(made, 1)}&mode=state")
    t_ns = (made.plan.end_minute - 1) * 60 * 10**9
    assert body["at"] == iso(made, 1) and body["slots"] == made.truth.frames[t_ns].tolist()
    gone = get(client, f"{path}/map-at?at=2020-01-01T00:00:00Z")
    assert (gone["slots"], gone["reason"]) == (None, "expired")
    second = get(client, f"{path}/second-at?at={iso(made, 1)}&scope=rack&rack=r00000&metric={POWER}")
    assert [node["node"] for node in second["nodes"]] == list(made.node_ids[:2])
    (power,) = second["nodes"][1]["metrics"]
    assert power["values"] == [round(value, 1) for value in made.truth.power[-1, 8:16, 0].tolist()]


def test_slots_and_metrics_are_listed(made: Made, as_token: Caller) -> None:
    slots = get(as_token(), f"/clusters/{made.cluster_id}/slots")["places"]
    assert slots[9] == {"slot": 9, "node": made.node_ids[1], "node_name": "n00001", "gpu": 1}
    metrics = {one["metric"]: one for one in get(as_token(), "/metrics")}
    assert metrics[POWER]["unit"] == "w" and metrics[POWER]["resolution"] == 0.1


REFUSED = (
    ("/nodes/{node}/series?from=yesterday", "ISO 8601"),
    ("/nodes/{node}/series?from=2026-01-01T00:00:00", "time zone"),
    ("/nodes/{node}/series?from=2026-01-02T00:00:00Z&to=2026-01-01T00:00:00Z", "before"),
    ("/nodes/{node}/series?resolution_s=7", "one of 1, 10, 60"),
    ("/nodes/{node}/series?from=2026-01-01T00:00:00Z&to=2026-01-09T00:00:00Z&resolution_s=1", "coarser"),
    ("/nodes/{node}/series?gpu=99999", "less than"),
    ("/nodes/{node}/series?to=0001-01-01T00:00:00Z", "1970"),
    ("/clusters/{cluster}/latest", "GET /metrics"),
    ("/clusters/{cluster}/latest?metric=x&max_age_s=0", "whole number"),
    ("/clusters/{cluster}/percentiles?metric=x&scope=planet", "one of fleet"),
    ("/clusters/{cluster}/percentiles?metric=x&scope=job", "is needed"),
    ("/clusters/{cluster}/percentiles?metric=x&scope=rack&rack=none", "no rack"),
    ("/clusters/{cluster}/top?metric=gpu_throttle_reasons", "bit mask"),
    ("/clusters/{cluster}/top?metric=x&limit=100000", "1 to 1000"),
    ("/clusters/{cluster}/top?metric=x&from=2026-01-01T00:00:00Z&to=2026-01-09T00:00:00Z", "24 h"),
    ("/clusters/{cluster}/map-at", "is needed"),
    ("/jobs/{job}/heatmap?metric=x&reduce=median", "one of mean"),
)


def test_a_question_that_means_nothing_says_what_would(made: Made, job: Job, as_token: Caller) -> None:
    client = as_token()
    for path, words in REFUSED:
        address = path.format(node=made.node_ids[0], cluster=made.cluster_id, job=job.pk)
        assert words in str(get(client, address, 400)), address


def test_a_token_of_another_cluster_and_a_job_of_another_team_see_nothing(
    made: Made, job: Job, as_token: Caller
) -> None:
    Cluster.objects.create(name="elsewhere")
    stranger = as_token(cluster="elsewhere")
    for path in (
        f"/nodes/{made.node_ids[0]}/series",
        f"/clusters/{made.cluster_id}/latest?metric={POWER}",
        f"/clusters/{made.cluster_id}/percentiles?metric={POWER}",
        f"/clusters/{made.cluster_id}/top?metric={POWER}",
        f"/clusters/{made.cluster_id}/map-at?at={iso(made, 1)}",
        f"/clusters/{made.cluster_id}/second-at?at={iso(made, 1)}&node={made.node_ids[0]}",
        f"/clusters/{made.cluster_id}/slots",
        f"/jobs/{job.pk}/heatmap?metric={POWER}",
    ):
        get(stranger, path, 404)
    Job.objects.filter(pk=job.pk).update(team=Team.objects.create(name="others"))
    viewer = as_token("vera")
    get(viewer, f"/jobs/{job.pk}/heatmap?metric={POWER}", 404)
    get(viewer, f"/clusters/{made.cluster_id}/top?metric={POWER}&job={job.pk}", 404)
    get(viewer, f"/clusters/{made.cluster_id}/percentiles?metric={POWER}&scope=job&job={job.pk}", 404)


def test_nobody_without_a_token_is_answered(made: Made) -> None:
    get(Client(), f"/clusters/{made.cluster_id}/latest?metric={POWER}", 401)
