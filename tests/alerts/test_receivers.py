"""Mail and webhooks against real servers that take, refuse, stall, redirect and lie."""

from __future__ import annotations

import hashlib
import hmac
import json
import ssl
import time
from typing import Any

import pytest
import trustme

from clusterwatch.alerts import notice
from clusterwatch.alerts.notice import Notice
from clusterwatch.alerts.receivers import BadAddress, Target
from clusterwatch.alerts.receivers import webhook as webhook_module
from clusterwatch.alerts.receivers.email import Email
from clusterwatch.alerts.receivers.webhook import Webhook
from clusterwatch.incidents import services as incidents
from clusterwatch.incidents.models import Incident
from tests.alerts.servers import Answer, Hook, Mailbox, drip, reset, slow, status, webhook
from tests.incidents.sightings import T0, sighting

KEY = "3f6f7d4e-0000-4000-8000-000000000001"


def told(event: str = notice.OPENED, **changes: Any) -> Notice:
    made, _ = incidents.suspect(sighting(), T0)
    Incident.objects.filter(pk=made.pk).update(**changes)
    return notice.of_incident(Incident.objects.get(pk=made.pk), event, "", "https://cw.example.org")


def to(hook: Hook) -> Target:
    return Target("pager", hook.url, "s3cret")


@pytest.mark.django_db
def test_a_webhook_gets_signed_json(hook: Hook) -> None:
    assert Webhook().send(to(hook), told(), KEY).is_sent
    (headers,), (body,) = hook.headers, hook.bodies
    stamp, _, given = headers["X-Clusterwatch-Signature"].partition(",v1=")
    signed = hmac.new(b"s3cret", stamp.removeprefix("t=").encode() + b"." + body, hashlib.sha256).hexdigest()
    assert given == signed and headers["Idempotency-Key"] == KEY
    sent = json.loads(body)
    assert (sent["version"], sent["event"]) == (1, "opened")
    assert sent["incident"]["url"] == f"https://cw.example.org/incidents/{sent['incident']['id']}"
    assert (sent["incident"]["verdict"], sent["incident"]["culprit_ranks"]) == ("missing_rank", [3])


@pytest.mark.django_db
@pytest.mark.parametrize(
    ("answer", "permanent", "said", "again_s"),
    [
        (lambda h: status(h, 500, b"broken\n here"), False, "500 broken here", None),
        (lambda h: status(h, 503, Retry_After="7"), False, "503", 7.0),
        (lambda h: status(h, 429, Retry_After="999999"), False, "429", 3_600.0),
        (lambda h: status(h, 429, Retry_After="soon"), False, "429", None),
        (lambda h: status(h, 404), True, "404", None),
        (lambda h: status(h, 302, Location="http://127.0.0.1:1/"), True, "302", None),
        (lambda h: status(h, 500, b"x" * 10_000_000), False, "500 xxx", None),
        (reset, False, "", None),
    ],
)
def test_what_fails_is_tried_again_or_not(
    hook: Hook, answer: Answer, permanent: bool, said: str, again_s: float | None
) -> None:
    hook.answer = answer
    outcome = Webhook().send(to(hook), told(), KEY)
    assert not outcome.is_sent and outcome.is_permanent is permanent and outcome.again_s == again_s
    assert outcome.said.startswith(said) and len(outcome.said) <= 255


@pytest.mark.django_db
def test_a_slow_one_is_left(hook: Hook, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(webhook_module, "TIMEOUT_S", 0.1)
    hook.answer = slow
    outcome = Webhook().send(to(hook), told(), KEY)
    assert not outcome.is_sent and not outcome.is_permanent and "Timeout" in outcome.said


@pytest.mark.django_db
def test_one_that_drips_is_left_in_time(hook: Hook, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(webhook_module, "TIMEOUT_S", 0.3)
    hook.answer = drip
    began_s = time.monotonic()
    assert not Webhook().send(to(hook), told(), KEY).is_sent
    assert time.monotonic() - began_s < 3


@pytest.mark.django_db
def test_a_certificate_that_nobody_vouches_for_is_refused(settings: Any) -> None:
    settings.WEBHOOKS_ANYWHERE = True
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    trustme.CA().issue_cert("127.0.0.1").configure_cert(context)
    with webhook(context) as hook:
        outcome = Webhook().send(to(hook), told(), KEY)
    assert not outcome.is_sent and not outcome.is_permanent and hook.bodies == []


@pytest.mark.django_db
@pytest.mark.parametrize(
    "host",
    [
        "127.0.0.1", "localhost", "169.254.169.254", "0.0.0.0", "[::1]", "[::ffff:169.254.169.254]",
        "[fd00:ec2::254]", "100.100.100.200",
    ],
)  # fmt: skip
def test_addresses_of_this_machine_and_of_links_are_refused(host: str, settings: Any) -> None:
    settings.WEBHOOKS_ANYWHERE = False
    outcome = Webhook().send(Target("pager", f"http://{host}:9/", "s"), told(), KEY)
    assert outcome.is_permanent and "not allowed" in outcome.said


@pytest.mark.parametrize(
    "address", ["", "ftp://a.example.org/", "https://", "https://u:pw@a.example.org/", "http://[::1", "a b"]
)
def test_what_is_no_webhook_is_refused(address: str) -> None:
    with pytest.raises(BadAddress):
        Webhook().check(address)


@pytest.mark.django_db
def test_a_mail_has_the_sentence_and_threads_by_incident(mailbox: Mailbox) -> None:
    target = Target("night", "oncall@example.org, two@example.org", "s")
    assert Email().send(target, told(), KEY).is_sent
    (mail,) = mailbox.mails
    assert mail["Subject"] == "[Open] tiny: missing_rank of (3,)"
    assert mail["Message-ID"].startswith(f"<{KEY}@") and mail["In-Reply-To"].startswith("<incident-")
    assert mail["To"] == "oncall@example.org, two@example.org"
    plain, html = (mail.get_body((kind,)) for kind in ("plain", "html"))
    assert plain is not None and "https://cw.example.org/incidents/" in plain.get_content()
    assert "confidence 0.90; 8 of 8 ranks reported" in plain.get_content()
    assert html is not None and "<p>missing_rank of (3,)</p>" in html.get_content()


@pytest.mark.django_db
def test_words_of_a_node_begin_no_header_and_no_tag(mailbox: Mailbox) -> None:
    hostile = told(summary="slow\r\nBcc: all@example.org\r\n\r\n<script>alert(1)</script>")
    assert Email().send(Target("n", "a@example.org", "s"), hostile, KEY).is_sent
    (mail,) = mailbox.mails
    assert mail["Bcc"] is None and "Bcc: all@example.org" in mail["Subject"]
    html = mail.get_body(("html",))
    assert html is not None and "<script>" not in html.get_content()


@pytest.mark.django_db
@pytest.mark.parametrize(
    ("refuse", "permanent"), [("550 no such user", True), ("451 try again later", False)]
)
def test_a_refused_mail_is_tried_again_or_not(mailbox: Mailbox, refuse: str, permanent: bool) -> None:
    mailbox.refuse = refuse
    outcome = Email().send(Target("night", "a@example.org", "s"), told(), KEY)
    assert not outcome.is_sent and outcome.is_permanent is permanent and outcome.said.startswith(refuse[:3])


@pytest.mark.django_db
def test_without_a_mail_server_it_is_said(settings: Any) -> None:
    settings.SMTP = None
    outcome = Email().send(Target("night", "a@example.org", "s"), told(), KEY)
    assert (outcome.is_sent, outcome.is_permanent) == (False, False) and "SMTP_URL" in outcome.said


@pytest.mark.parametrize("address", ["", ",", "nobody", "a@b, x", ",".join(["a@example.org"] * 21)])
def test_what_is_no_mail_address_is_refused(address: str) -> None:
    with pytest.raises(BadAddress):
        Email().check(address)


def test_addresses_are_stored_as_they_are_used() -> None:
    assert Email().check(" Ann <a@example.org>,b@example.org ") == "a@example.org, b@example.org"
