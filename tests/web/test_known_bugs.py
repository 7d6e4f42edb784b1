"""An incident beside the catalogue of known bugs: by its nodes' versions and its job's lines; its page."""

from __future__ import annotations

import time
from itertools import count

import pytest
from django.http import HttpResponse
from psycopg.types.json import Jsonb
from pytest_django import DjangoAssertNumQueries

from clusterwatch.detect import known_bugs
from clusterwatch.incidents.models import Incident
from clusterwatch.incidents.services import moment
from clusterwatch.jobs.models import Rank
from clusterwatch.store import series
from tests.web.conftest import SignIn
from tests.web.seed import Seeded
from tests.web.seed_drift import rank_facts, tell

pytestmark = pytest.mark.stack
_numbers = count(1)


def say(seeded: Seeded, text: str, entity: str) -> None:
    """A line of a log, stored as an agent would have sent it."""
    at_ns = int(seeded.incident.since.timestamp() * 1e9) + 10**9
    rows = series.Rows()
    head = (seeded.real.pk, seeded.nodes[0].pk, at_ns, "known", next(_numbers))
    fields = Jsonb({"entity": entity})
    rows.add("event", (*head, "job_logs", "log_nccl_warn", "warning", text, fields, None, None, None, None))
    series.PartitionCache().prepare([("event", at_ns)])
    rows.write()


def ids(incident: Incident) -> list[tuple[str, bool]]:
    found = known_bugs.of_incident(incident, time.time_ns())
    return [(one.bug.id, one.fits) for one in found.rows]


def test_versions_of_its_nodes_and_lines_of_its_log_name_the_rows(
    seeded: Seeded, django_assert_max_num_queries: DjangoAssertNumQueries
) -> None:
    job = seeded.job.key
    Incident.objects.filter(pk=seeded.incident.pk).update(
        diagnosis=seeded.incident.diagnosis | {"verdict": "all_joined_not_finished", "findings": []}
    )
    seeded.incident.refresh_from_db()
    tell(seeded.nodes[0], rank_facts(job, 0, nccl_version="2.28.7+cuda12.9"))
    say(seeded, "NET/IB : mlx5_1:1 Got async event : GID table change", f"job/{job}/rank/3")
    say(seeded, "socketFinalizeAccept: wrong magic 74656d2f != 7970663b", "job/another/rank/3")
    with django_assert_max_num_queries(3):
        assert ids(seeded.incident) == [("nccl-gid-changes", True), ("nccl-proxy-order-hang", True)]


def test_the_page_tells_them_escaped_with_their_source(seeded: Seeded, sign_in: SignIn) -> None:
    hostile = '<b onclick="x">wrong magic 0a != 1b</b>'
    say(seeded, hostile, f"job/{seeded.job.key}")
    answer = sign_in("vera").get(f"/incidents/{seeded.incident.pk}")
    assert isinstance(answer, HttpResponse)
    html = answer.content.decode()
    assert 'id="known-bugs"' in html and "NVIDIA/nccl issue 1808" in html and hostile not in html
    said = "Keep scanners away from the hosts of the job; restart it. <span"
    assert said in html and "A line says: &lt;b onclick" in html


def test_an_incident_without_a_job_has_the_facts_of_its_node(seeded: Seeded) -> None:
    node = seeded.nodes[1]
    tell(node, {"host": {"nvidia.driver": "525.85.12"}})
    now = moment(time.time_ns())
    incident = Incident.objects.create(
        cluster=seeded.real, node=node, fingerprint="health:x", state="open", severity="critical",
        verdict="gpu_fault", fault_class="health", summary="", since=now, checked_at=now,
        diagnosis={"verdict": "gpu_fault", "cause": "xid_119", "culprits": []},
    )  # fmt: skip
    assert ids(incident) == [("driver-525-gsp-timeout", True)]
    Rank.objects.all().delete()
    incident.diagnosis = {}
    assert ids(incident) == []
