"""The mail server's address is read whole, or refused with the variable's name."""

from __future__ import annotations

import pytest

from clusterwatch.project.environment import EnvironmentFault, Smtp, smtp, webhooks_anywhere

FROM = {"CLUSTERWATCH_MAIL_FROM": "cw@example.org"}


@pytest.mark.parametrize(
    ("url", "told"),
    [
        ("smtp://mail", Smtp("mail", 25, "", "", False, False, "cw@example.org")),
        ("smtp://u:p%40ss@mail?starttls=1", Smtp("mail", 587, "u", "p@ss", False, True, "cw@example.org")),
        ("smtps://u:p@mail", Smtp("mail", 465, "u", "p", True, False, "cw@example.org")),
        ("smtps://mail:2465?starttls=1", Smtp("mail", 2465, "", "", True, False, "cw@example.org")),
    ],
)
def test_a_mail_server_is_read(url: str, told: Smtp) -> None:
    assert smtp({"CLUSTERWATCH_SMTP_URL": url} | FROM) == told


def test_without_one_there_is_no_mail() -> None:
    assert smtp({}) is None


@pytest.mark.parametrize("url", ["http://mail", "mail.example.org", "smtp://", "smtp://mail:many"])
def test_another_address_is_refused_by_name(url: str) -> None:
    with pytest.raises(EnvironmentFault, match="CLUSTERWATCH_SMTP_URL"):
        smtp({"CLUSTERWATCH_SMTP_URL": url} | FROM)


def test_mail_needs_a_sender() -> None:
    with pytest.raises(EnvironmentFault, match="CLUSTERWATCH_MAIL_FROM"):
        smtp({"CLUSTERWATCH_SMTP_URL": "smtp://mail"})


@pytest.mark.parametrize(
    ("word", "told"), [("1", True), ("yes", True), ("0", False), ("", False), ("no", False)]
)
def test_webhooks_go_anywhere_only_when_told(word: str, told: bool) -> None:
    assert webhooks_anywhere({"CLUSTERWATCH_WEBHOOKS_ANYWHERE": word}) is told
