"""docs/sql.md: its examples run, and give the output they show; its tables name the columns there are."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from django.db import connection

from tests.contracts.sql_seed import seed

TEXT = (Path(__file__).resolve().parents[2] / "docs" / "sql.md").read_text(encoding="utf-8")
EXAMPLES = re.findall(r"```sql\n(.*?)```\n\n```text\n(.*?)```", TEXT, re.DOTALL)
VIEWS = ("gpu_minute", "metric_percentile", "node_minute_value", "block_metric")

pytestmark = pytest.mark.django_db


def answered(query: str) -> str:
    """The answer as psql shows it, without its blanks."""
    with connection.cursor() as cursor:
        cursor.execute(query)
        columns = [column.name for column in cursor.description or ()]
        rows = [["" if value is None else _shown(value) for value in row] for row in cursor.fetchall()]
    widths = [max(len(line[i]) for line in (columns, *rows)) for i in range(len(columns))]
    lines = [
        " | ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip()
        for line in (columns, *rows)
    ]
    return "\n".join([lines[0], "-+-".join("-" * width for width in widths), *lines[1:], ""])


def _shown(value: object) -> str:
    return f"{value:g}" if isinstance(value, float) else str(value)


def test_every_example_gives_the_output_it_shows() -> None:
    seed()
    assert len(EXAMPLES) >= 6
    for query, shown in EXAMPLES:
        assert answered(query) == shown, query


@pytest.mark.parametrize("view", VIEWS)
def test_every_column_of_a_view_is_described(view: str) -> None:
    with connection.cursor() as cursor:
        cursor.execute(f"SELECT * FROM {view} LIMIT 0")
        columns = {column.name for column in cursor.description or ()}
    section = re.split(r"^## ", TEXT, flags=re.MULTILINE)
    (described,) = [part for part in section if part.startswith(f"`{view}`")]
    rows = re.findall(r"^\| (`.*?) \|", described, re.MULTILINE)
    assert {name for row in rows for name in re.findall(r"`(\w+)`", row)} == columns


def test_a_condition_on_t_ns_opens_only_the_days_asked_for() -> None:
    from clusterwatch.store import partitions
    from tests.contracts.sql_seed import START_NS

    seed()
    partitions.ensure("node_minute", [START_NS - day * partitions.DAY_NS for day in range(5)])
    with connection.cursor() as cursor:
        cursor.execute(
            "EXPLAIN (ANALYZE, TIMING off, SUMMARY off) SELECT * FROM gpu_minute WHERE node = 'n1'"
            " AND t_ns >= ns_of('2026-12-01 08:00Z') AND t_ns < ns_of('2026-12-01 08:03Z')"
        )
        plan = "\n".join(row[0] for row in cursor.fetchall())
    opened = set(re.findall(r"node_minute_p(\d+)", plan)) - set(
        re.findall(r"node_minute_p(\d+) .*never executed", plan)
    )
    assert opened == {"20261201"}
