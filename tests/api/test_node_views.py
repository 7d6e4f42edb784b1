"""One node over REST: what it knows with its reasons and ages, and who may see it."""

from __future__ import annotations

from typing import Any

import msgspec
from django.test import Client

from clusterwatch.accounts.models import Team
from clusterwatch.fleet.models import Node
from tests.api.conftest import Caller
from tests.collectors.wire.samples import TABLE
from tests.web.seed import Seeded, query_count_of
from tests.web.seed_nodes import happen, know


def get(client: Client, path: str, status: int = 200) -> Any:
    answer = client.get(f"/api/v1{path}")
    assert answer.status_code == status, answer.content[:500]
    return answer.json()


def test_a_node_tells_what_it_knows_with_unit_reason_source_and_age(seeded: Seeded, as_token: Caller) -> None:
    know(seeded.nodes[0], TABLE, 4)
    told = get(as_token(), "/nodes/node-a")
    assert (told["name"], told["cluster"], told["state"]) == ("node-a", "lab", "ok")
    assert told["cpu_count"] == 16 and told["records"]["stored"] == 824
    power, lost = told["readings"]["gpu/GPU-0"]
    assert (power["value"], power["unit"], power["quality"], power["source"]) == (
        312.5,
        "w",
        "ok",
        "gpu_nvml",
    )
    assert lost["value"] is None and lost["quality"] == "lost" and lost["labels"] == {"gpu_instance": "3"}
    assert 75 <= power["age_s"] < 90 and not power["stale"]
    total, link = told["readings"]["nic/eth2"]
    assert total["value"] == 2**63 + 5, "a counter of 64 bits is not rounded"
    assert link["value"] == 0 and link["quality"] == "ok"
    assert [source["state"] for source in told["sources"]] == ["ok", "hangs since 5 s or more", "starting"]
    assert told["sources"][2]["age_s"] is None
    assert 4 <= told["readings_age_s"] < 15 and told["readings_left_out"] == 2


def test_old_values_are_said_to_be_old(seeded: Seeded, as_token: Caller) -> None:
    know(seeded.nodes[0], TABLE, 600)
    told = get(as_token(), "/nodes/node-a")
    assert 600 <= told["readings_age_s"] < 620
    assert all(value["stale"] for values in told["readings"].values() for value in values)


def test_a_node_that_sent_nothing_has_no_made_up_values(seeded: Seeded, as_token: Caller) -> None:
    told = get(as_token(), "/nodes/node-b")
    assert told["readings"] == {} and told["readings_age_s"] is None and told["sources"] == []


def test_events_of_the_node_come_newest_first(seeded: Seeded, as_token: Caller) -> None:
    node, other = seeded.nodes[:2]
    for age_s, kind in ((30, "xid"), (10, "link_down"), (9 * 86_400, "oom_kill")):
        happen(node, kind, age_s)
    happen(other, "mount_stall", 5)
    told = get(as_token(), "/nodes/node-a")["events"]
    assert [event["kind"] for event in told] == ["link_down", "xid"]
    assert told[0]["fields"] == {"code": "79"} and told[0]["severity"] == "critical"


def test_jobs_and_events_of_another_team_are_not_told_to_a_viewer(seeded: Seeded, as_token: Caller) -> None:
    seeded.job.team = Team.objects.create(name="others")
    seeded.job.save()
    happen(seeded.nodes[0], "process_state", 5, job_id=seeded.job.pk)
    happen(seeded.nodes[0], "xid", 6)
    kinds = {
        name: [event["kind"] for event in get(as_token(name), "/nodes/node-a")["events"]]
        for name in ("olga", "vera")
    }
    assert kinds == {"olga": ["process_state", "xid"], "vera": ["xid"]}
    assert [job["id"] for job in get(as_token("olga"), "/nodes/node-a")["jobs"]] == [seeded.job.pk]
    assert get(as_token("vera"), "/nodes/node-a")["jobs"] == []


def test_a_token_of_another_cluster_a_stranger_and_a_wrong_name_get_nothing(
    seeded: Seeded, as_token: Caller
) -> None:
    get(as_token(cluster="demo-512"), "/nodes/node-a", 404)
    get(as_token(cluster="lab"), "/nodes/node-a")
    get(as_token("vera"), "/nodes/node-a")
    get(Client(), "/nodes/node-a", 401)
    for name in ("node-z", "%00", "..%2F", "99999999999999999999999", "a/b"):
        get(as_token(), f"/nodes/{name}", 404)


def test_a_name_wins_over_an_id_and_an_id_is_understood(seeded: Seeded, as_token: Caller) -> None:
    first, second = seeded.nodes[:2]
    assert get(as_token(), f"/nodes/{first.pk}")["name"] == "node-a"
    second.name = str(first.pk)
    second.save()
    assert get(as_token(), f"/nodes/{first.pk}")["id"] == second.pk


def test_a_name_of_two_clusters_is_asked_back(seeded: Seeded, as_token: Caller) -> None:
    twin = Node.objects.create(cluster=seeded.simulated, name="node-a", machine_id="twin")
    refused = get(as_token(), "/nodes/node-a", 400)
    assert "lab, demo-512" in refused["fields"]["cluster"][0]
    assert get(as_token(), "/nodes/node-a?cluster=demo-512")["id"] == twin.pk
    assert get(as_token(cluster="lab"), "/nodes/node-a")["cluster"] == "lab"


def test_the_number_of_queries_does_not_grow_with_what_a_node_knows(seeded: Seeded, as_token: Caller) -> None:
    client = as_token()
    know(seeded.nodes[0], TABLE, 4)
    get(client, "/nodes/node-a")  # notes when the token was used
    few = query_count_of(lambda: get(client, "/nodes/node-a"))
    names = [f"gpu/GPU-{n}" for n in range(2_000)]
    same = [0] * 2_000
    wide = msgspec.structs.replace(
        TABLE, entities=names, entity=list(range(2_000)), metric=same, source=same, quality=same,
        value=[float(n) for n in range(2_000)], labels=[], label=[],
    )  # fmt: skip
    know(seeded.nodes[0], wide)
    assert query_count_of(lambda: get(client, "/nodes/node-a")) == few <= 12
    assert len(get(client, "/nodes/node-a")["readings"]) == 2_000
