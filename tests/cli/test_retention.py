"""`clusterwatch retention`: the table and the sentence, for people and for machines."""

from __future__ import annotations

import json
import time
from typing import Any

import pytest
from django.db import connection

from clusterwatch.cli import main as cli
from clusterwatch.cli.retention import sentence
from clusterwatch.store import partitions
from clusterwatch.store.disk import DiskForecast

GIB = 2**30


@pytest.mark.django_db
def test_it_lists_every_class_and_makes_partitions_on_demand(capsys: pytest.CaptureFixture[str]) -> None:
    table = partitions.TABLES["event"]
    name = table.partition_name(table.start_of(time.time_ns()))
    with connection.cursor() as cursor:
        cursor.execute(f'DROP TABLE IF EXISTS "{name}"')
    assert cli.main(["retention"]) == 0
    out = capsys.readouterr().out
    assert all(one in out for one in partitions.TABLES) and "The database takes" in out
    assert cli.main(["retention", "--now"]) == 0
    assert name in capsys.readouterr().out.splitlines()[0]


@pytest.mark.django_db
def test_json_speaks_in_bytes(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["retention", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert {one["table"] for one in found["tables"]} == set(partitions.TABLES)
    assert found["size_bytes"] > 0 and found["free_bytes"] > 0


def forecast(**changes: Any) -> DiskForecast:
    values: dict[str, Any] = {
        "tables": (), "other_bytes": 3 * GIB, "free_bytes": 50 * GIB, "unknown_reason": "",
        "full_bytes": 90.0 * GIB, "days_left": 4.25,
    }  # fmt: skip
    return DiskForecast(**(values | changes))


def test_the_sentence_says_when_the_disk_is_full_that_it_is_enough_or_why_nobody_knows() -> None:
    assert "FULL IN 4.2 DAYS" in sentence(forecast())
    assert sentence(forecast(days_left=None)).endswith("which is enough.")
    away = forecast(days_left=None, free_bytes=None, unknown_reason="PostgreSQL runs on db1")
    assert "not known. PostgreSQL runs on db1." in sentence(away)
    assert "not grown long enough" in sentence(forecast(full_bytes=None, days_left=None))
