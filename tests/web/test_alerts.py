"""The page of receivers: how each does, what was sent, tests by operators only; who heard of an incident."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest

from clusterwatch.alerts import deliver, services
from clusterwatch.alerts.models import Receiver
from clusterwatch.alerts.receivers import Outcome
from clusterwatch.cli import main as cli
from clusterwatch.fleet.models import Cluster
from clusterwatch.incidents.models import Incident, IncidentChange
from tests.web.conftest import SignIn
from tests.web.seed import Seeded


def pager(seeded: Seeded) -> Receiver:
    made = services.add_receiver("pager<b>", "webhook", "https://pager.example.org/hook", None, "test")
    assert made.cluster is None
    return made


def told(seeded: Seeded, outcome: Outcome) -> Incident:
    """The live incident of the seeded job, told to all receivers."""
    incident = Incident.objects.filter(cluster=seeded.real, opened_at__isnull=False).first()
    assert incident is not None
    IncidentChange.objects.create(
        incident=incident, at=datetime.now(UTC), kind="state", before="suspected", after="open", text="Opened"
    )
    now = datetime.now(UTC)
    services.enqueue(now)
    for receiver in Receiver.objects.all():
        delivery = services.claim(receiver.pk, now)
        assert delivery is not None
        services.settle(delivery, outcome, now)
    return incident


def test_without_a_receiver_the_page_says_how_to_make_one(seeded: Seeded, sign_in: SignIn) -> None:
    html = sign_in("olga").get("/alerts").content.decode()
    assert "Nobody is told of incidents" in html and "clusterwatch receiver add" in html


def test_a_receiver_and_what_it_took_are_shown_escaped(seeded: Seeded, sign_in: SignIn) -> None:
    pager(seeded)
    incident = told(seeded, Outcome(True, False, "accepted"))
    html = sign_in("olga").get("/alerts").content.decode()
    assert "pager&lt;b&gt;" in html and "takes notices" in html
    assert f'href="/incidents/{incident.pk}"' in html and "all real ones" in html
    page = sign_in("olga").get(f"/incidents/{incident.pk}").content.decode()
    assert "Who was told" in page and "pager&lt;b&gt;" in page


def test_a_receiver_that_fails_says_since_when_and_why(seeded: Seeded, sign_in: SignIn) -> None:
    pager(seeded)
    incident = told(seeded, Outcome(False, False, "503 <down>"))
    html = sign_in("olga").get("/alerts").content.decode()
    assert "fails for" in html and "503 &lt;down&gt;" in html
    assert "waits: 503" in sign_in("olga").get(f"/incidents/{incident.pk}").content.decode()


def test_operators_send_tests_and_viewers_do_not(
    seeded: Seeded, sign_in: SignIn, monkeypatch: pytest.MonkeyPatch
) -> None:
    made, asked = pager(seeded), []

    def sent(receiver: Receiver, actor: str) -> Outcome:
        asked.append(actor)
        return Outcome(False, True, "404 nothing here")

    monkeypatch.setattr(deliver, "test", sent)
    assert sign_in("vera").post(f"/alerts/{made.pk}/test").status_code == 403 and asked == []
    html = sign_in("olga").post(f"/alerts/{made.pk}/test", follow=True).content.decode()
    assert asked == ["olga"] and "404 nothing here" in html
    assert "Send a test" not in sign_in("vera").get("/alerts").content.decode()


def test_an_observed_cluster_says_so(
    seeded: Seeded, sign_in: SignIn, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.main(["cluster", "observe", seeded.real.name]) == 0
    html = sign_in("olga").get(f"/incidents?cluster={seeded.real.pk}").content.decode()
    assert "observed only" in html
    assert cli.main(["cluster", "list"]) == 0 and "observed only" in capsys.readouterr().out
    assert cli.main(["cluster", "page", seeded.real.name]) == 0
    assert not Cluster.objects.get(pk=seeded.real.pk).observe_only
    assert cli.main(["cluster", "page", "nowhere"]) == 1 and "no cluster" in capsys.readouterr().err


def test_the_command_makes_lists_and_removes_receivers(
    seeded: Seeded, capsys: pytest.CaptureFixture[str]
) -> None:
    hook = ["--kind", "webhook", "--address", "https://pager.example.org/hook"]
    assert cli.main(["receiver", "list"]) == 0 and "nobody is told" in capsys.readouterr().out
    assert cli.main(["receiver", "add", "pager", *hook]) == 0
    key = capsys.readouterr().out.split()[-1]
    assert cli.main(["receiver", "key", "pager"]) == 0 and capsys.readouterr().out.strip() == key
    assert cli.main(["receiver", "add", "pager", *hook]) == 1 and "already" in capsys.readouterr().err
    assert cli.main(["receiver", "list"]) == 0 and "nothing sent yet" in capsys.readouterr().out
    assert cli.main(["receiver", "remove", "pager"]) == 0 and not Receiver.objects.exists()
    assert cli.main(["receiver", "test", "pager"]) == 1 and "no receiver" in capsys.readouterr().err
