"""REST v1: what each endpoint answers, who may ask, how many queries it takes."""

from __future__ import annotations

import json
from typing import Any

import pytest
from django.test import Client
from jsonschema import Draft202012Validator

from clusterwatch.accounts.models import Team
from clusterwatch.accounts.services import create_token
from tests.api.conftest import Caller
from tests.web.seed import Seeded, hang_diagnosis, heartbeat, query_count_of


def get(client: Client, path: str, status: int = 200) -> Any:
    answer = client.get(f"/api/v1{path}")
    assert answer.status_code == status, answer.content[:500]
    return answer.json()


def test_incident_carries_the_diagnosis_as_the_analysis_wrote_it(seeded: Seeded, as_token: Caller) -> None:
    incident = get(as_token(), f"/incidents/{seeded.incident.pk}")
    assert incident["diagnosis"] == json.loads(json.dumps(hang_diagnosis().to_dict()))
    assert incident["summary"] == incident["diagnosis"]["summary"]
    assert (
        incident["cluster"] == "lab"
        and incident["job"] == seeded.job.pk
        and incident["job_key"] == "example-8"
    )
    assert incident["since"].endswith("Z") and incident["opened_at"].endswith("Z")
    assert {piece["kind"] for piece in incident["evidence"]} >= {"progress", "stacks", "process"}


def test_states_filter_repeatedly(seeded: Seeded, as_token: Caller) -> None:
    client = as_token()

    def states(query: str) -> set[str]:
        return {incident["state"] for incident in get(client, f"/incidents?{query}")["results"]}

    assert states("state=open") == {"open"}
    assert states("state=suspected&state=resolved") == {"resolved"}
    assert states("state=open&state=resolved") == {"open", "resolved"}


def test_a_word_that_means_nothing_is_an_error_and_not_ignored(seeded: Seeded, as_token: Caller) -> None:
    for path in (
        "/incidents?state=burning",
        "/jobs?state=fine",
        "/incidents?job=abc",
        "/incidents?cluster=%00",
    ):
        body = get(as_token(), path, 400)
        assert body["code"] == "invalid" and body["fields"]


def test_lists_follow_next_to_the_end_without_doubles(seeded: Seeded, as_token: Caller) -> None:
    client, seen, path = as_token(), [], "/nodes?limit=3"
    for _ in range(10):
        page = get(client, path)
        assert len(page["results"]) <= 3
        seen += [node["id"] for node in page["results"]]
        if page["next"] is None:
            break
        path = page["next"].split("/api/v1")[1]
    assert len(seen) == len(set(seen)) == 8


def test_ranks_carry_live_progress(seeded: Seeded, as_token: Caller) -> None:
    client = as_token()
    heartbeat(seeded)
    ranks = get(client, f"/jobs/{seeded.job.pk}/ranks")["results"]
    assert [rank["rank"] for rank in ranks] == list(range(8))
    culprit, peer = ranks[5], ranks[4]
    assert culprit["state"] == "behind" and culprit["phase"] == "data_loading" and culprit["step"] == 420
    assert peer["state"] == "waiting" and peer["last_progress_at"] is not None and peer["gpu_index"] is None


def test_groups_say_who_joined_and_who_did_not(seeded: Seeded, as_token: Caller) -> None:
    groups = get(as_token(), f"/jobs/{seeded.job.pk}/groups")["results"]
    stuck = {tuple(g["ranks"]): (g["joined"], g["missing"]) for g in groups if g["state"] == "stuck"}
    assert stuck[(4, 5)] == ([4], [5])
    assert len(groups) == 13


def test_a_job_is_found_by_the_scheduler_s_id(seeded: Seeded, as_token: Caller) -> None:
    heartbeat(seeded)
    (job,) = get(as_token(), "/jobs?key=example-8")["results"]
    assert job["id"] == seeded.job.pk and job["step"] == 421 and job["ranks_reported"] == 8


def test_no_token_and_a_wrong_one_are_refused_with_a_code(seeded: Seeded) -> None:
    assert get(Client(), "/incidents", 401)["code"] == "not_authenticated"
    wrong = Client(headers={"Authorization": "Bearer cw_u_nothing"})
    assert get(wrong, "/incidents", 401)["code"] == "token_unknown"


def test_an_enrolment_token_does_not_open_the_api(seeded: Seeded) -> None:
    _, secret = create_token("enrolment", "ingest", cluster="lab")
    client = Client(headers={"Authorization": f"Bearer {secret}"})
    assert get(client, "/jobs", 401)["code"] == "token_wrong_kind"


def test_a_reading_token_changes_nothing(seeded: Seeded, as_token: Caller) -> None:
    answer = as_token().post(f"/api/v1/incidents/{seeded.incident.pk}/acknowledge")
    assert answer.status_code == 403 and answer.json()["code"] == "scope"
    seeded.incident.refresh_from_db()
    assert seeded.incident.state == "open"


def test_a_viewer_with_a_writing_token_changes_nothing(seeded: Seeded, as_token: Caller) -> None:
    answer = as_token("vera", "write").post(f"/api/v1/incidents/{seeded.incident.pk}/acknowledge")
    assert answer.status_code == 403


def test_an_operator_acknowledges_once_and_only_once(seeded: Seeded, as_token: Caller) -> None:
    client = as_token("olga", "write")
    answers = [client.post(f"/api/v1/incidents/{seeded.incident.pk}/acknowledge").json() for _ in range(2)]
    assert answers == [
        {"changed": True, "state": "acknowledged"},
        {"changed": False, "state": "acknowledged"},
    ]


def test_a_job_of_another_team_does_not_exist_for_a_viewer(seeded: Seeded, as_token: Caller) -> None:
    seeded.job.team = Team.objects.create(name="others")
    seeded.job.save()
    client = as_token("vera")
    assert get(client, f"/jobs/{seeded.job.pk}", 404)["code"] == "not_found"
    assert get(client, f"/jobs/{seeded.job.pk}/ranks", 404)["code"] == "not_found"
    assert get(client, f"/incidents/{seeded.incident.pk}", 404)["code"] == "not_found"
    assert seeded.incident.pk not in [i["id"] for i in get(client, "/incidents")["results"]]
    assert get(as_token("admin"), f"/jobs/{seeded.job.pk}")["id"] == seeded.job.pk


def test_a_token_of_one_cluster_sees_that_cluster_only(seeded: Seeded, as_token: Caller) -> None:
    client = as_token(cluster="demo-512")
    assert {c["name"] for c in get(client, "/clusters")["results"]} == {"demo-512"}
    assert {i["cluster"] for i in get(client, "/incidents")["results"]} == {"demo-512"}
    assert get(client, f"/jobs/{seeded.job.pk}", 404)["code"] == "not_found"


@pytest.mark.parametrize("path", ["/incidents", "/jobs", "/nodes", "/clusters"])
def test_a_list_takes_the_same_few_queries_whatever_its_length(
    seeded: Seeded, as_token: Caller, path: str
) -> None:
    client = as_token()
    get(client, path)
    one = query_count_of(lambda: get(client, f"{path}?limit=1"))
    many = query_count_of(lambda: get(client, f"{path}?limit=500"))
    assert one == many <= 4


def test_ranks_take_as_many_queries_for_one_as_for_all(seeded: Seeded, as_token: Caller) -> None:
    client, path = as_token(), f"/jobs/{seeded.job.pk}/ranks"
    get(client, path)
    assert (
        query_count_of(lambda: get(client, f"{path}?limit=1"))
        == query_count_of(lambda: get(client, path))
        <= 5
    )


def test_addresses_with_a_slash_lead_to_the_ones_without(seeded: Seeded, as_token: Caller) -> None:
    answer = as_token().get("/api/v1/incidents/?state=open")
    assert answer.status_code == 308 and answer.headers["Location"] == "/api/v1/incidents?state=open"


def test_an_unknown_address_answers_json(seeded: Seeded, as_token: Caller) -> None:
    answer = as_token().get("/api/v1/nothing")
    assert answer.status_code == 404 and answer.json()["code"] == "not_found"


def test_health_is_ok_while_frames_are_fresh_and_says_why_when_not(seeded: Seeded, valkey: Any) -> None:
    heartbeat(seeded)
    assert get(Client(), "/health")["status"] == "ok"
    valkey.flushall()
    body = get(Client(), "/health", 503)
    assert body["status"] == "stale" and len(body["reasons"]) == 2


def test_the_description_names_every_endpoint(seeded: Seeded) -> None:
    schema = get(Client(), "/schema")
    assert {"/api/v1/incidents", "/api/v1/jobs/{id}/ranks", "/api/v1/health"} <= set(schema["paths"])
    states = {p["name"]: p for p in schema["paths"]["/api/v1/incidents"]["get"]["parameters"]}["state"]
    assert set(states["schema"]["items"]["enum"]) == {
        "suspected",
        "open",
        "acknowledged",
        "probation",
        "resolved",
    }
    Draft202012Validator.check_schema(schema["components"]["schemas"]["Incident"])
