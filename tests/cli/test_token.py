"""`clusterwatch token create`: the secret is the last word."""

from __future__ import annotations

import pytest

from clusterwatch.accounts.models import Token
from clusterwatch.accounts.services import ensure_admin, verify_token
from clusterwatch.cli import main as cli
from clusterwatch.fleet.models import Cluster

pytestmark = pytest.mark.django_db


def test_prints_a_token_that_works_as_its_last_word(capsys: pytest.CaptureFixture[str]) -> None:
    ensure_admin("a-long-password")
    assert cli.main(["token", "create", "--kind", "user", "--scope", "read", "--name", "pager"]) == 0
    secret = capsys.readouterr().out.split()[-1]
    token = verify_token(secret, ["user"])
    assert (token.scope, token.name) == ("read", "pager")
    assert token.user is not None
    assert token.user.username == "admin"


def test_an_enrolment_token_needs_its_cluster(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["token", "create", "--kind", "enrolment", "--scope", "ingest"]) == 1
    assert "--cluster NAME" in capsys.readouterr().err
    assert not Token.objects.exists()


def test_a_token_of_nobody_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["token", "create", "--user", "stranger"]) == 1
    assert "no user 'stranger'" in capsys.readouterr().err


def test_an_enrolment_token_makes_its_cluster_and_does_not_turn_a_real_one_into_a_simulated(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert cli.main(["token", "create", "--kind", "enrolment", "--cluster", "second"]) == 0
    secret = capsys.readouterr().out.split()[-1]
    assert verify_token(secret, ["enrolment"]).scope == "ingest"
    assert Cluster.objects.get(name="second").simulated is False
    assert cli.main(["token", "create", "--kind", "enrolment", "--cluster", "second", "--simulated"]) == 1
    assert "second is not simulated" in capsys.readouterr().err
