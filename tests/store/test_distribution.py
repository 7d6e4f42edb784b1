"""What spreading over several machines asks of node-keyed tables and of every statement about them."""

from __future__ import annotations

import ast
import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from django.db import connection

from clusterwatch.cli import main
from clusterwatch.store import distribution, partitions

ROOT = Path(__file__).resolve().parents[2]
CITUS_DSN = os.environ.get("CLUSTERWATCH_TEST_CITUS_DSN")


def rows(query: str, *arguments: object) -> list[tuple[object, ...]]:
    with connection.cursor() as cursor:
        cursor.execute(query, arguments)
        return cursor.fetchall()


def statements() -> Iterator[tuple[str, str]]:
    """(place, text) of every string of the product that speaks of a node-keyed table; joined parts as one."""
    tables = re.compile(rf"\b({'|'.join(distribution.NODE_KEYED)})\b")
    for path in sorted((ROOT / "clusterwatch").rglob("*.py")):
        if "migrations" in path.parts:
            continue
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Constant | ast.JoinedStr):
                text = ast.unparse(node) if isinstance(node, ast.JoinedStr) else node.value
                if isinstance(text, str) and tables.search(text):
                    yield f"{path.name}:{node.lineno}", text


# --- the tables -------------------------------------------------------------------------------------------


@pytest.mark.django_db
def test_every_partitioned_table_with_a_node_is_distributed_and_no_other() -> None:
    with_node = rows(
        "SELECT c.relname FROM pg_class c JOIN pg_attribute a ON a.attrelid = c.oid"
        " WHERE c.relkind = 'p' AND a.attname = 'node_id' AND NOT a.attisdropped"
    )
    assert {name for (name,) in with_node} == set(distribution.NODE_KEYED)
    assert set(distribution.NODE_KEYED) <= partitions.TABLES.keys()


@pytest.mark.django_db
@pytest.mark.parametrize("table", (*distribution.NODE_KEYED, *distribution.NODE_STATE))
def test_a_node_keyed_table_keeps_the_rules(table: str) -> None:
    keys = rows(
        "SELECT i.relname, array_agg(a.attname::text) FROM pg_index x JOIN pg_class i ON i.oid = x.indexrelid"
        " JOIN pg_attribute a ON a.attrelid = x.indrelid AND a.attnum = ANY(x.indkey)"
        " WHERE x.indrelid = %s::regclass AND x.indisunique GROUP BY i.relname",
        table,
    )
    assert keys, "without a unique key a record could be stored twice"
    assert all("node_id" in columns for _, columns in keys)  # type: ignore[operator]
    foreign = rows(
        "SELECT conname FROM pg_constraint WHERE contype = 'f' AND %s::regclass IN (conrelid, confrelid)",
        table,
    )
    assert foreign == []
    made_by_a_sequence = rows(
        "SELECT attname FROM pg_attribute a"
        " LEFT JOIN pg_attrdef d ON (d.adrelid, d.adnum) = (a.attrelid, a.attnum)"
        " WHERE a.attrelid = %s::regclass"
        " AND (a.attidentity <> '' OR pg_get_expr(d.adbin, d.adrelid) LIKE 'nextval%%')",
        table,
    )
    assert made_by_a_sequence == [], "numbers of one machine are not numbers of another"
    triggers = rows("SELECT tgname FROM pg_trigger WHERE tgrelid = %s::regclass AND NOT tgisinternal", table)
    assert triggers == []


# --- the statements ---------------------------------------------------------------------------------------


def test_the_search_finds_the_statements_it_judges() -> None:
    assert len([text for _, text in statements() if "FROM raw_block" in text]) >= 1
    assert len([text for _, text in statements() if re.search(r"FROM (trace|stacks|steps)\b", text)]) >= 4


def test_no_statement_changes_or_locks_rows_of_node_keyed_tables() -> None:
    tables = "|".join(distribution.NODE_KEYED)
    forbidden = re.compile(
        rf'\b(UPDATE|DELETE FROM|MERGE INTO|TRUNCATE|LOCK TABLE|INSERT INTO)\s+"?({tables})\b'
        rf"|\bFROM\s+({tables})\b[^;]*\bFOR (UPDATE|SHARE)\b",
        re.IGNORECASE | re.DOTALL,
    )
    assert [place for place, text in statements() if forbidden.search(text)] == []


def test_rows_come_by_copy_into_partitions_made_before() -> None:
    """A missing partition is another error there, so nothing may wait for the error and make one then."""
    caught = re.compile(r"CheckViolation|23514|no partition of relation")
    found = [path for path in (ROOT / "clusterwatch").rglob("*.py") if caught.search(path.read_text())]
    assert found == []


# --- the command ------------------------------------------------------------------------------------------


@pytest.mark.django_db
def test_a_server_without_citus_is_told_what_is_missing(capsys: pytest.CaptureFixture[str]) -> None:
    assert main.main(["distribute"]) == 1
    assert "no Citus extension" in capsys.readouterr().err


def test_an_absurd_number_of_shards_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    assert main.main(["distribute", "--shards", "0"]) == 1
    assert "--shards" in capsys.readouterr().err


# --- a real coordinator with workers ----------------------------------------------------------------------


@pytest.mark.skipif(
    not CITUS_DSN,
    reason="CLUSTERWATCH_TEST_CITUS_DSN names no coordinator; Citus is on neither PyPI nor Debian",
)
@pytest.mark.limit_s(300)
def test_a_distributed_database_stores_and_answers_alike() -> None:
    """The database that the DSN names must be empty, have the extension, and at least one worker."""
    environ = os.environ | {"CLUSTERWATCH_DATABASE_URL": CITUS_DSN or ""}
    done = subprocess.run(
        [sys.executable, "-m", "tests.store.citus_run"],
        cwd=ROOT, env=environ, capture_output=True, text=True, timeout=280, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-3000:]
    seen = json.loads(done.stdout.splitlines()[-1])
    assert seen["placed"] == [
        *distribution.REFERENCE, *distribution.NODE_KEYED, *distribution.NODE_STATE,
    ]  # fmt: skip
    assert seen["placed_again"] == []
    assert seen["stored"] == seen["sent"]
    assert seen["rows_after_sending_twice"] == seen["rows"]
    assert seen["values_are_right"]
    assert set(seen["tasks_of_single_node_reads"]) == {1}
    assert seen["per_minute_aggregate_is_pushed_down"]
    assert seen["partitions_dropped"]
