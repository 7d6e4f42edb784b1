"""kill -9 of each component under load: nothing acknowledged is lost, nothing is stored twice."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import psycopg
import pytest

from tests.e2e.product import ROOT, Product, wait_for

pytestmark = [pytest.mark.e2e, pytest.mark.limit_s(240)]

COMPONENTS = ("gateway", "postgres", "valkey", "pulse", "worker", "beat", "web")


@pytest.fixture(scope="module")
def product() -> Iterator[Product]:
    with (
        tempfile.TemporaryDirectory(prefix="cw-kill-", ignore_cleanup_errors=True) as folder,
        Product(Path(folder) / "state") as running,
    ):
        yield running


@contextmanager
def feeder(
    product: Product, folder: Path, node: str, rate_per_s: float = 100
) -> Iterator[subprocess.Popen[str]]:
    """A node that sends numbered events; see ``tests.faults.feeder``."""
    token = product.folder / "secrets" / "enrolment_token"
    command = [
        sys.executable,
        "-m",
        "tests.faults.feeder",
        str(folder),
        f"ws://127.0.0.1:{product.gateway_port}",
    ]
    process = subprocess.Popen(
        [*command, str(token), node, str(rate_per_s)],
        cwd=ROOT,
        env=product.environ,
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        yield process
    finally:
        if process.poll() is None:
            process.kill()
        process.wait()


def stored(product: Product, node: str) -> tuple[int, int]:
    """(rows, different numbers) of the node's events."""
    url = (product.folder / "secrets" / "database_url").read_text().strip()
    query = """
        SELECT count(*), count(DISTINCT fields->>'n') FROM event
        JOIN fleet_node ON fleet_node.id = event.node_id WHERE fleet_node.name = %s AND kind = 'numbered'
    """
    with psycopg.connect(url) as connection:
        row = connection.execute(query, [node]).fetchone()
    assert row is not None
    return int(row[0]), int(row[1])


def appended(process: subprocess.Popen[str]) -> int:
    """Stops the feeder; returns how many events it made, after all were acknowledged."""
    process.send_signal(signal.SIGTERM)
    output, _ = process.communicate(timeout=120)
    lines = dict(line.split() for line in output.strip().splitlines())
    assert lines["pending"] == "0", "the spool did not empty"
    return int(lines["appended"])


@pytest.mark.parametrize("component", COMPONENTS)
def test_a_killed_component_loses_and_doubles_nothing(
    component: str, product: Product, tmp_path: Path
) -> None:
    node = f"node-{component}"
    with feeder(product, tmp_path, node) as process:
        wait_for(lambda: stored(product, node)[0] > 50 or None, 30, "events arrive")
        for _round in range(2):
            before = product.pid(component)
            os.kill(before, signal.SIGKILL)
            wait_for(lambda before=before: _restarted(product, component, before), 60, f"{component} is back")
            time.sleep(1.0)
        count = appended(process)
    assert count > 100
    assert stored(product, node) == (count, count)


def _restarted(product: Product, component: str, before: int) -> bool | None:
    try:
        now = product.pid(component)
        os.kill(now, 0)
    except (OSError, KeyError, ValueError, TypeError):
        return None
    return True if now != before else None


def test_a_wiped_spool_starts_anew_and_loses_nothing_new(product: Product, tmp_path: Path) -> None:
    node = "node-wiped"
    with feeder(product, tmp_path / "a", node) as process:
        first = appended_after(process, product, node, 50)
    # same machine, same credential, no spool: what a node looks like after its disk was wiped
    (tmp_path / "b").mkdir()
    (tmp_path / "b" / "credential").write_text((tmp_path / "a" / "credential").read_text())
    with feeder(product, tmp_path / "b", node) as process:
        second = appended_after(process, product, node, first + 50)
    rows, numbers = stored(product, node)
    assert rows == first + second
    assert numbers == max(first, second)


def appended_after(process: subprocess.Popen[str], product: Product, node: str, rows: int) -> int:
    wait_for(lambda: stored(product, node)[0] > rows or None, 30, "events arrive")
    return appended(process)


@pytest.mark.long
@pytest.mark.limit_s(900)
def test_ten_minutes_without_a_server_are_delivered_afterwards(tmp_path: Path) -> None:
    with tempfile.TemporaryDirectory(prefix="cw-away-") as folder:
        product = Product(Path(folder) / "state")
        with product:
            pass
        with feeder(product, tmp_path, "node-away", rate_per_s=20) as process:
            time.sleep(600)
            with product:
                count = appended(process)
                assert stored(product, "node-away") == (count, count)
