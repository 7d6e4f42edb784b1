"""The screens as a browser without scripts gets them."""

from __future__ import annotations

import re
from dataclasses import replace
from html.parser import HTMLParser

import pytest
import redis
from django.http import HttpResponse, HttpResponseBase
from django.test import Client
from django.utils.html import escape
from redis.backoff import NoBackoff
from redis.retry import Retry

from clusterwatch.accounts.models import AuditEntry, Team
from clusterwatch.fleet.models import Cluster
from clusterwatch.incidents.models import Incident
from clusterwatch.jobs import progress
from clusterwatch.jobs.models import Rank
from clusterwatch.jobs.step_notes import StepNote, keep_notes
from tests.web.conftest import SignIn
from tests.web.seed import PASSWORD, Seeded, heartbeat, query_count_of

HOSTILE = "<img src=x onerror=alert(1)>\"'&{{7*7}}"


def pages(seeded: Seeded) -> list[str]:
    job, incident = seeded.job.pk, seeded.incident.pk
    return [
        f"/?cluster={seeded.real.pk}",
        f"/?cluster={seeded.simulated.pk}",
        "/jobs",
        "/jobs?state=all",
        f"/jobs/{job}",
        f"/jobs/{seeded.sim_jobs[0].pk}",
        f"/jobs/{job}/ranks/5",
        f"/jobs/{job}/ranks/7",
        "/incidents",
        "/incidents?state=all",
        f"/incidents/{incident}",
        f"/incidents/{seeded.resolved.pk if seeded.resolved else 0}",
        "/collectors",
        "/drift",
        f"/nodes/node-a?cluster={seeded.real.pk}",
        "/search?q=node",
        "/docs/verdicts/",
        "/docs/verdicts/missing_rank/",
    ]


def text_of(answer: HttpResponseBase) -> str:
    assert isinstance(answer, HttpResponse) and answer.status_code == 200, answer
    return answer.content.decode()


def test_the_sentence_of_the_verdict_is_in_the_html(seeded: Seeded, sign_in: SignIn) -> None:
    html = text_of(sign_in("vera").get(f"/incidents/{seeded.incident.pk}"))
    heading = re.search(r'<h1 id="sentence">(.*?)</h1>', html, re.DOTALL)
    assert heading
    assert re.sub(r"</?em>", "", heading[1]) == escape(seeded.incident.summary)
    assert "<em>rank 5</em>" in heading[1] and "<em>node-c</em>" in heading[1]
    assert html.index(heading[0]) < html.index("Who waits for whom")


def test_the_incident_page_tells_what_a_person_on_call_needs(seeded: Seeded, sign_in: SignIn) -> None:
    html = text_of(sign_in("olga").get(f"/incidents/{seeded.incident.pk}"))
    for part in (
        "confidence 0.94",
        '<b class="b">8</b> of 8 ranks reported',
        "This job only",
        "Look at the data loader of rank 5 on node-c",
        "ssh node-c py-spy dump --pid 41205",
        "train: default, no history of this group yet",
        "1 rank waits",
        "6 ranks wait",
        "get (queue.py:171)",
        "Acknowledge",
        "Sam is looking at shard 118",
        "Rank 5 issues all_reduce #4183",
    ):
        assert part in html, part


def test_evidence_stays_readable_after_the_job_is_gone(
    seeded: Seeded, sign_in: SignIn, valkey: object
) -> None:
    piece = seeded.incident.evidence.get(kind="process")
    seeded.job.delete()
    valkey.flushall()  # type: ignore[attr-defined]
    client = sign_in("vera")
    html = text_of(client.get(f"/incidents/{seeded.incident.pk}"))
    assert "all_reduce #4183" in html and "Processes: 8 running" in html
    raw = client.get(f"/incidents/{seeded.incident.pk}/evidence/{piece.pk}.json")
    assert raw.status_code == 200 and raw.headers["X-Evidence-SHA256"] == piece.sha256
    assert raw.json()["ranks"][5]["pid"] == 41205


class _Inline(HTMLParser):
    """Finds what the policy forbids."""

    def __init__(self) -> None:
        super().__init__()
        self.found: list[str] = []
        self._open = ""

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        names = dict(attrs)
        self.found += [f"{tag} {name}" for name in names if name == "style" or name.startswith("on")]
        inline = tag == "script" and "src" not in names and names.get("type") != "application/json"
        if inline or tag == "style":
            self.found.append(tag)
        for name in ("href", "src", "action"):
            if str(names.get(name) or "").strip().lower().startswith("javascript:"):
                self.found.append(f"{tag} {name}")


def test_no_page_holds_an_inline_script_or_style_and_each_has_the_policy(
    seeded: Seeded, sign_in: SignIn
) -> None:
    client = sign_in("olga")
    for path in [*pages(seeded), "/nothing/here"]:
        answer = client.get(path)
        parser = _Inline()
        parser.feed(answer.content.decode())
        assert parser.found == [], path
        policy = answer.headers["Content-Security-Policy"]
        assert "default-src 'none'" in policy and "unsafe" not in policy, path


def test_hostile_names_are_text_on_every_page(seeded: Seeded, sign_in: SignIn) -> None:
    Rank.objects.filter(job=seeded.job, rank=5).update(
        host=HOSTILE, exception={"type": HOSTILE, "message": HOSTILE, "traceback": HOSTILE}, blind=[HOSTILE]
    )
    seeded.nodes[2].name = HOSTILE
    seeded.nodes[2].save()
    seeded.job.key = seeded.job.name = seeded.job.user = HOSTILE
    seeded.job.save()
    diagnosis = seeded.incident.diagnosis
    diagnosis["culprits"][0]["host"] = HOSTILE
    diagnosis["group"]["desc"] = diagnosis["op"] = diagnosis["why"][0] = diagnosis["recommended_action"] = (
        HOSTILE
    )
    diagnosis["stacks"][0]["frames"][-1] = HOSTILE
    Incident.objects.filter(pk=seeded.incident.pk).update(summary=f"{HOSTILE} rank 5", diagnosis=diagnosis)
    Cluster.objects.filter(pk=seeded.real.pk).update(name=HOSTILE)
    heartbeat(seeded)
    client = sign_in("olga")
    for path in pages(seeded):
        html = text_of(client.get(path))
        assert "<img src=x" not in html, path
        assert "49" not in re.findall(r"\{\{7\*7\}\}|>49<", html), path
    assert "ssh &lt;img" not in text_of(client.get(f"/incidents/{seeded.incident.pk}"))


def test_a_hostile_host_is_never_put_into_a_command(seeded: Seeded, sign_in: SignIn) -> None:
    diagnosis = seeded.incident.diagnosis
    diagnosis["culprits"][0]["host"] = "node; rm -rf ~"
    Incident.objects.filter(pk=seeded.incident.pk).update(diagnosis=diagnosis)
    html = text_of(sign_in("olga").get(f"/incidents/{seeded.incident.pk}"))
    assert "<code>ssh" not in html and "<code>clusterwatch why example-8</code>" in html


def test_counts_sum_to_the_total_with_unknown_its_own_class(seeded: Seeded, sign_in: SignIn) -> None:
    heartbeat(seeded)
    html = text_of(sign_in("vera").get(f"/?cluster={seeded.simulated.pk}"))
    counts = dict(re.findall(r'data-state="(\w+)"><b>([^<]+)</b>', html))
    assert len(counts) == 6 and sum(map(int, counts.values())) == seeded.simulated.slot_count
    assert int(counts["unknown"]) == 16
    assert "is a simulated cluster" in html


def test_a_blind_page_says_so_and_shows_nothing_green(
    seeded: Seeded, sign_in: SignIn, valkey: object
) -> None:
    valkey.flushall()  # type: ignore[attr-defined]
    html = text_of(sign_in("vera").get(f"/?cluster={seeded.real.pk}"))
    counts = dict(re.findall(r'data-state="(\w+)"><b>([^<]+)</b>', html))
    assert counts["unknown"] == "4" and counts["ok"] == "0"
    assert "no live frame was published yet" in html and ">Stale<" in html


def test_every_page_stands_while_valkey_is_away(
    seeded: Seeded, sign_in: SignIn, monkeypatch: pytest.MonkeyPatch
) -> None:
    client = sign_in("olga")
    nowhere = redis.Redis(host="127.0.0.1", port=1, socket_connect_timeout=0.2, retry=Retry(NoBackoff(), 0))
    monkeypatch.setattr("clusterwatch.store.valkey.client", lambda: nowhere)
    for path in pages(seeded):
        text_of(client.get(path))
    html = text_of(client.get(f"/?cluster={seeded.real.pk}"))
    assert "live state is unreachable" in html
    assert client.get("/api/v1/health").json()["reasons"] == ["live state does not answer"]


def test_groups_are_told_by_shape(seeded: Seeded, sign_in: SignIn) -> None:
    html = text_of(sign_in("vera").get(f"/jobs/{seeded.job.pk}"))
    shapes = re.findall(
        r"<summary><b class=\"b\">(\d+ \w+ groups? of \d+)</b>(.*?)</summary>", html, re.DOTALL
    )
    words = {name: re.sub(r"<[^>]+>", " ", rest).split() for name, rest in shapes}
    assert words["4 tp groups of 2"] == ["1", "stuck", "3", "ok"]
    assert words["4 pp groups of 2"] == ["4", "ok"]


def test_a_rank_is_found_by_its_number_when_its_world_has_a_name(seeded: Seeded, sign_in: SignIn) -> None:
    client = sign_in("vera")
    seeded.job.ranks.update(world="node-1:29500")
    assert client.get(f"/jobs/{seeded.job.pk}/ranks/5").status_code == 200
    assert client.get(f"/jobs/{seeded.job.pk}/ranks/node-1:29500/5").status_code == 200
    assert client.get(f"/jobs/{seeded.job.pk}/ranks/other/5").status_code == 404


def test_a_page_about_a_job_is_framed_by_that_jobs_cluster(seeded: Seeded, sign_in: SignIn) -> None:
    client, marked = sign_in("vera"), "demo-512 is a simulated cluster"
    assert marked in text_of(client.get(f"/jobs/{seeded.sim_jobs[0].pk}"))
    client.get(f"/?cluster={seeded.simulated.pk}")
    for path in (
        f"/jobs/{seeded.job.pk}",
        f"/jobs/{seeded.job.pk}/ranks/5",
        f"/incidents/{seeded.incident.pk}",
    ):
        assert marked not in text_of(client.get(path)), path


def test_only_a_rank_that_holds_up_a_stuck_group_is_marked_as_failed(
    seeded: Seeded, sign_in: SignIn, monkeypatch: pytest.MonkeyPatch
) -> None:
    client, path = sign_in("vera"), f"/jobs/{seeded.job.pk}/ranks/5"
    assert "not joined</span>" in text_of(client.get(path))
    read = progress.group_views
    monkeypatch.setattr(progress, "group_views", lambda *a: [replace(view, state="ok") for view in read(*a)])
    html = text_of(client.get(path))
    assert "not yet</span>" in html and "not joined</span>" not in html


def test_a_rank_shows_its_last_calls_and_stacks_or_says_why_not(seeded: Seeded, sign_in: SignIn) -> None:
    client = sign_in("vera")
    culprit = text_of(client.get(f"/jobs/{seeded.job.pk}/ranks/5"))
    assert "4182" in culprit and "1024x256 Float" in culprit and "get (queue.py:171)" in culprit
    silent = text_of(client.get(f"/jobs/{seeded.job.pk}/ranks/7"))
    assert "the hook did not answer within 10 s" in silent


def test_the_step_chart_has_a_table_and_a_csv(seeded: Seeded, sign_in: SignIn) -> None:
    client = sign_in("vera")
    html = text_of(client.get(f"/jobs/{seeded.job.pk}"))
    assert 'type="application/json"' in html and "rank 2" in html
    lines = text_of(client.get(f"/jobs/{seeded.job.pk}/steps.csv")).splitlines()
    assert lines[0].startswith("time_utc,p1_s,p50_s,p99_s") and len(lines) > 40


def test_a_stranger_is_led_to_the_door_and_learns_nothing(seeded: Seeded) -> None:
    for path in pages(seeded):
        answer = Client().get(path)
        assert answer.status_code == 302 and answer.headers["Location"].startswith("/login/"), path


def test_signing_in_opens_the_page_that_was_asked_for(seeded: Seeded) -> None:
    client, path = Client(), f"/incidents/{seeded.incident.pk}"
    answer = client.post("/login/", {"username": "olga", "password": PASSWORD, "next": path})
    assert answer.status_code == 302 and answer.headers["Location"] == path
    wrong = Client().post("/login/", {"username": "olga", "password": "x"})
    assert b"do not go together" in wrong.content


def test_an_operator_acknowledges_assigns_writes_and_resolves(seeded: Seeded, sign_in: SignIn) -> None:
    client, path = sign_in("olga"), f"/incidents/{seeded.incident.pk}"
    client.post(f"{path}/acknowledge")
    client.post(f"{path}/assign", {"assignee": "sam"})
    client.post(f"{path}/notes", {"text": "<b>restarting</b>"})
    html = text_of(client.get(path))
    assert 'Acknowledged by <b class="b">olga</b>' in html and "sam is on it" in html
    assert "&lt;b&gt;restarting&lt;/b&gt;" in html
    client.post(f"{path}/resolve", {"reason": "requeued"})
    seeded.incident.refresh_from_db()
    assert (seeded.incident.state, seeded.incident.resolution) == ("resolved", "requeued")
    actions = set(AuditEntry.objects.filter(actor="olga").values_list("action", flat=True))
    assert actions >= {"incident.acknowledge", "incident.assign", "incident.note", "incident.resolve"}


def test_a_second_acknowledgement_changes_nothing_and_says_so(seeded: Seeded, sign_in: SignIn) -> None:
    path = f"/incidents/{seeded.incident.pk}"
    sign_in("olga").post(f"{path}/acknowledge")
    answer = sign_in("admin").post(f"{path}/acknowledge", follow=True)
    assert b"Nothing changed" in answer.content
    seeded.incident.refresh_from_db()
    assert seeded.incident.acknowledged_by == "olga"


@pytest.mark.parametrize("act", ["acknowledge", "assign", "resolve", "notes"])
def test_a_viewer_may_not_act(seeded: Seeded, sign_in: SignIn, act: str) -> None:
    answer = sign_in("vera").post(f"/incidents/{seeded.incident.pk}/{act}", {"text": "x", "reason": "x"})
    assert answer.status_code == 403 and b"Viewers look" in answer.content
    seeded.incident.refresh_from_db()
    assert seeded.incident.state == "open" and seeded.incident.notes.count() == 1


def test_acting_needs_the_csrf_token(seeded: Seeded, users: dict[str, object]) -> None:
    client = Client(enforce_csrf_checks=True)
    client.force_login(users["olga"])  # type: ignore[arg-type]
    assert client.post(f"/incidents/{seeded.incident.pk}/acknowledge").status_code == 403


def test_a_job_of_another_team_is_not_there_for_a_viewer(seeded: Seeded, sign_in: SignIn) -> None:
    seeded.job.team = Team.objects.create(name="others")
    seeded.job.save()
    client = sign_in("vera")
    for path in (
        f"/jobs/{seeded.job.pk}",
        f"/jobs/{seeded.job.pk}/ranks/5",
        f"/incidents/{seeded.incident.pk}",
    ):
        answer = client.get(path)
        assert answer.status_code == 404 and b"There is nothing here" in answer.content, path
    assert b"example-8" not in client.get(f"/?cluster={seeded.real.pk}").content


def test_theme_and_density_come_from_the_server_without_a_flash(seeded: Seeded, sign_in: SignIn) -> None:
    client = sign_in("vera")
    assert "data-theme" not in text_of(client.get("/jobs")).split("<head>")[0]
    answer = client.post("/preferences", {"theme": "dark", "next": "//evil.example/"})
    assert answer.headers["Location"] == "/"
    assert 'data-theme="dark"' in text_of(client.get("/jobs")).split("<head>")[0]
    client.post("/preferences", {"theme": "system"})
    assert "data-theme" not in text_of(client.get("/jobs")).split("<head>")[0]


@pytest.mark.parametrize("query", ["example-8", "tp2-pp2"])
def test_search_opens_a_single_hit(seeded: Seeded, sign_in: SignIn, query: str) -> None:
    answer = sign_in("vera").get("/search", {"q": query})
    assert answer.status_code == 302 and answer.headers["Location"] == f"/jobs/{seeded.job.pk}"


def test_search_survives_any_text(seeded: Seeded, sign_in: SignIn) -> None:
    client = sign_in("vera")
    for text in ("\0", "%", "9" * 90, HOSTILE, "'; drop table x"):
        assert client.get("/search", {"q": text}).status_code in (200, 302)


def test_pages_take_few_queries_whatever_their_length(seeded: Seeded, sign_in: SignIn) -> None:
    client = sign_in("olga")
    limits = {
        "/jobs": 10,
        "/incidents": 10,
        f"/incidents/{seeded.incident.pk}": 15,
        f"/jobs/{seeded.job.pk}": 18,
    }
    for path, limit in limits.items():
        client.get(path)
        assert query_count_of(lambda p=path: client.get(p)) <= limit, path


def test_map_places_hold_every_slot_once(seeded: Seeded, sign_in: SignIn) -> None:
    found = sign_in("vera").get(f"/clusters/{seeded.simulated.pk}/places.json").json()
    slots = [slot for _, rows in found["tiles"] for _, _, some in rows for slot in some]
    assert sorted(slots) == list(range(seeded.simulated.slot_count))


def test_the_probe_of_the_supervisor_needs_neither_session_nor_database() -> None:
    answer = Client().get("/healthz")
    assert answer.status_code == 200 and answer.json() == {"status": "ok"}


def test_a_job_says_what_its_steps_tell_of_its_own_shape(seeded: Seeded, sign_in: SignIn) -> None:
    path = f"/jobs/{seeded.job.pk}"
    assert "What its steps tell" not in text_of(sign_in("vera").get(path))
    note = StepNote("stage_imbalance", f"Pipeline stage 3 has 20 % more work. {HOSTILE}", [HOSTILE], 0.9)
    keep_notes(seeded.job.pk, [note])
    html = text_of(sign_in("vera").get(path))
    assert "Pipeline stage 3 has 20 % more work" in html and HOSTILE not in html
    assert 'href="/docs/verdicts/stage_imbalance/"' in html
