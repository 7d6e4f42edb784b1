"""A full disk and a slow database: agents wait, pages stay, nothing acknowledged is lost."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import psycopg
import pytest

from clusterwatch.ops.postgres import ADMIN_ROLE
from tests.e2e.product import Product, temporary_product, wait_for
from tests.faults.browser import Visitor
from tests.faults.nodes import Counted, database_url, feeding, holds_each_once, stored
from tests.faults.small_disk import CannotMount, SmallDisk, small_disk

pytestmark = [pytest.mark.e2e, pytest.mark.limit_s(240)]

DISK_MB = 320
FAST_PER_S = 400
"""So many that an agent soon has in flight what it may, and its spool holds the rest."""
STOPPED_S = 5.0
PAGES = ("/", "/jobs", "/incidents", "/collectors")


@pytest.fixture(scope="module")
def disk() -> Iterator[SmallDisk | str]:
    """A disk for PostgreSQL's data, or why this process cannot have one."""
    with ExitStack() as stack:
        try:
            mounted: SmallDisk | str = stack.enter_context(small_disk(DISK_MB))
        except CannotMount as refusal:
            mounted = str(refusal)
        yield mounted


@pytest.fixture(scope="module")
def product(disk: SmallDisk | str) -> Iterator[Product]:
    with temporary_product("cw-slow-") if isinstance(disk, str) else Product(disk.state) as running:
        yield running


@pytest.fixture(scope="module")
def visitor(product: Product) -> Visitor:
    found = Visitor(product)
    found.sign_in()
    return found


def without_autovacuum(product: Product) -> None:
    """On a disk without one free page PostgreSQL refuses new connections once a vacuum of its catalogues has
    thrown away its cache file, which each new connection tries to write again. Not what is tested here.
    """
    password = (product.folder / "secrets" / "postgres_admin_password").read_text().strip()
    admin = psycopg.conninfo.make_conninfo(
        database_url(product), dbname="postgres", user=ADMIN_ROLE, password=password
    )
    with psycopg.connect(admin, autocommit=True) as connection:
        connection.execute("ALTER SYSTEM SET autovacuum = off")
        connection.execute("SELECT pg_reload_conf()")


def test_a_full_disk_is_told_and_survived(
    product: Product, disk: SmallDisk | str, visitor: Visitor, tmp_path: Path
) -> None:
    if isinstance(disk, str):
        pytest.xfail(f"no disk to fill up ({disk}); tests/ingest/test_writer.py has the gateway's part of it")
    without_autovacuum(product)
    node = "node-full"
    with feeding(product, tmp_path, node) as feeder:
        wait_for(lambda: stored(product, node)[0] > 50 or None, 30, "events arrive")
        disk.fill()
        wait_for(
            lambda: says(visitor, "disk is full"), 60, "the page of collectors says that the disk is full"
        )
        assert "disk is full" in product.cli("status").stdout
        assert [path for path in PAGES if visitor.get(path).status != 200] == []
        goes_on_live(product, node)
        held = stored(product, node)[0]
        disk.free()
        wait_for(lambda: stored(product, node)[0] > held or None, 60, "ingest goes on by itself")
        wait_for(lambda: None if says(visitor, "disk is full") else True, 60, "the warning goes")
        made = feeder.finish()
    assert made["events"] > held
    holds_each_once(product, node, made)


def test_a_slow_database_slows_agents_and_not_the_live_view(
    product: Product, visitor: Visitor, tmp_path: Path
) -> None:
    node = "node-slow"
    with (
        feeding(product, tmp_path, node, rate_per_s=FAST_PER_S) as feeder,
        psycopg.connect(database_url(product)) as connection,
    ):
        wait_for(lambda: stored(product, node)[0] > 50 or None, 30, "events arrive")
        connection.execute("SELECT 1 FROM store_ingestcursor WHERE node = %s FOR UPDATE", [node])
        held = stored(product, node)[0]
        wait_for(lambda: says(visitor, "database is slow"), 60, "the page says that the database is slow")
        goes_on_live(product, node)
        assert [path for path in PAGES if visitor.get(path).status != 200] == []
        assert stored(product, node)[0] == held
        writer = backend_that_waits_for(connection)
        os.kill(writer, signal.SIGSTOP)
        connection.rollback()
        time.sleep(STOPPED_S)
        goes_on_live(product, node)
        os.kill(writer, signal.SIGCONT)
        wait_for(lambda: stored(product, node)[0] > held or None, 60, "ingest goes on by itself")
        made = feeder.finish()
    assert made["events"] > held
    holds_each_once(product, node, made)


def says(visitor: Visitor, words: str) -> bool | None:
    return words in visitor.get("/collectors").text or None


def goes_on_live(product: Product, node: str) -> None:
    """What nodes measure is still shown as it changes, although nothing can be stored."""
    counted = Counted(product, node)
    before = wait_for(counted.next, 30, "the node's count is shown")
    counted.follow_until(lambda: counted.values[-1] > before)


def backend_that_waits_for(connection: psycopg.Connection) -> int:
    """The server process of the gateway's commit, held up by this connection's lock."""
    with psycopg.connect(connection.info.dsn, password=connection.info.password) as beside:
        row = beside.execute(
            "SELECT pid FROM pg_stat_activity WHERE %s = ANY(pg_blocking_pids(pid))",
            [connection.info.backend_pid],
        ).fetchone()
    assert row is not None, "no commit waits"
    return int(row[0])
