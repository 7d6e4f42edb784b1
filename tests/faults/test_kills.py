"""kill -9 of each component under load: nothing acknowledged is lost, nothing is stored twice."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import psycopg
import pytest

from tests.e2e.product import ROOT, Product, wait_for

pytestmark = [pytest.mark.e2e, pytest.mark.limit_s(240)]

AGENT = "agent"
COMPONENTS = ("gateway", "postgres", "valkey", "pulse", "worker", "beat", "web")
ROUNDS = 2
LONG_ROUNDS = 20
LONG_GPUS = 24_576
BACK_WITHIN_S = 90.0


@pytest.fixture(scope="module")
def product() -> Iterator[Product]:
    with (
        tempfile.TemporaryDirectory(prefix="cw-kill-", ignore_cleanup_errors=True) as folder,
        Product(Path(folder) / "state") as running,
    ):
        yield running


@dataclass
class Feeder:
    """A node that sends numbered records; see ``tests.faults.feeder``. It may be killed and started again."""

    product: Product
    folder: Path
    node: str
    rate_per_s: float = 100
    process: subprocess.Popen[str] | None = None

    def start(self) -> None:
        token = self.product.folder / "secrets" / "enrolment_token"
        gateway = f"ws://127.0.0.1:{self.product.gateway_port}"
        command = [sys.executable, "-m", "tests.faults.feeder", str(self.folder), gateway, str(token)]
        self.process = subprocess.Popen(
            [*command, self.node, str(self.rate_per_s)],
            cwd=ROOT,
            env=self.product.environ,
            stdout=subprocess.PIPE,
            text=True,
        )

    def kill(self) -> None:
        assert self.process is not None
        self.process.kill()
        self.process.communicate()

    def finish(self) -> dict[str, int]:
        """Stops it; {"events": how many it made, "blocks": ...}, after all were acknowledged."""
        assert self.process is not None
        self.process.send_signal(signal.SIGTERM)
        output, _ = self.process.communicate(timeout=120)
        lines = {word: int(count) for word, count in (line.split() for line in output.strip().splitlines())}
        assert lines.pop("pending") == 0, "the spool did not empty"
        return lines


@contextmanager
def feeding(product: Product, folder: Path, node: str, rate_per_s: float = 100) -> Iterator[Feeder]:
    feeder = Feeder(product, folder, node, rate_per_s)
    feeder.start()
    try:
        yield feeder
    finally:
        if feeder.process is not None and feeder.process.poll() is None:
            feeder.kill()


EVENTS = """
    SELECT count(*), count(DISTINCT fields->>'n') FROM event
    JOIN fleet_node ON fleet_node.id = event.node_id WHERE fleet_node.name = %s AND kind = 'numbered'
"""
BLOCKS = """
    SELECT count(*), count(DISTINCT sequence) FROM raw_block
    JOIN fleet_node ON fleet_node.id = raw_block.node_id WHERE fleet_node.name = %s
"""
ROLLUPS = """
    SELECT count(*), count(DISTINCT last[1]) FROM node_minute
    JOIN fleet_node ON fleet_node.id = node_minute.node_id WHERE fleet_node.name = %s
"""


def stored(product: Product, node: str, query: str = EVENTS) -> tuple[int, int]:
    """(rows, different numbers) of the node's records."""
    url = (product.folder / "secrets" / "database_url").read_text().strip()
    with psycopg.connect(url) as connection:
        row = connection.execute(query, [node]).fetchone()
    assert row is not None
    return int(row[0]), int(row[1])


def holds_each_once(product: Product, node: str, made: dict[str, int]) -> None:
    assert stored(product, node) == (made["events"],) * 2
    assert stored(product, node, BLOCKS) == (made["blocks"],) * 2
    assert stored(product, node, ROLLUPS) == (made["blocks"],) * 2


@pytest.mark.parametrize("component", COMPONENTS)
def test_a_killed_component_loses_and_doubles_nothing(
    component: str, product: Product, tmp_path: Path
) -> None:
    node = f"node-{component}"
    with feeding(product, tmp_path, node) as feeder:
        wait_for(lambda: stored(product, node)[0] > 50 or None, 30, "events arrive")
        for _round in range(2):
            kill(product, component)
            time.sleep(1.0)
        made = feeder.finish()
    assert made["events"] > 100
    holds_each_once(product, node, made)


def kill(product: Product, component: str) -> None:
    """kill -9, and waits until another process has taken its place."""
    before = product.pid(component)
    os.kill(before, signal.SIGKILL)
    wait_for(lambda: _restarted(product, component, before), BACK_WITHIN_S, f"{component} is back")


def _restarted(product: Product, component: str, before: int) -> bool | None:
    try:
        now = product.pid(component)
        os.kill(now, 0)
    except (OSError, KeyError, ValueError, TypeError):
        return None
    return True if now != before else None


def random_kills(product: Product, folder: Path, rounds: int, seed: int) -> None:
    """Each round at a random moment one or two of everything, the agent too, is killed."""
    chance = random.Random(seed)
    node = f"node-random-{seed}"
    with feeding(product, folder, node) as feeder:
        wait_for(lambda: stored(product, node)[0] > 50 or None, 60, "events arrive")
        for number in range(rounds):
            time.sleep(chance.uniform(0.2, 4.0))
            victims = chance.sample((AGENT, *COMPONENTS), chance.choice((1, 2)))
            print(f"round {number}: {', '.join(victims)}", flush=True)
            for victim in victims:
                if victim == AGENT:
                    feeder.kill()
                    feeder.start()
                else:
                    kill(product, victim)
        made = feeder.finish()
    assert made["events"] > 50 * rounds
    holds_each_once(product, node, made)


@pytest.mark.parametrize("seed", [1])
def test_kills_at_random_moments_lose_and_double_nothing(seed: int, product: Product, tmp_path: Path) -> None:
    random_kills(product, tmp_path, ROUNDS, seed)


@pytest.mark.long
@pytest.mark.limit_s(2400)
def test_twenty_rounds_of_kills_under_the_load_of_the_whole_cluster(tmp_path: Path) -> None:
    with (
        tempfile.TemporaryDirectory(prefix="cw-kill-", ignore_cleanup_errors=True) as folder,
        Product(Path(folder) / "state", demo_gpus=LONG_GPUS) as product,
    ):
        random_kills(product, tmp_path, LONG_ROUNDS, seed=7)


def test_a_wiped_spool_starts_anew_and_loses_nothing_new(product: Product, tmp_path: Path) -> None:
    node = "node-wiped"
    with feeding(product, tmp_path / "a", node) as feeder:
        first = made_after(feeder, 50)
    # same machine, same credential, no spool: what a node looks like after its disk was wiped
    (tmp_path / "b").mkdir()
    (tmp_path / "b" / "credential").write_text((tmp_path / "a" / "credential").read_text())
    with feeding(product, tmp_path / "b", node) as feeder:
        second = made_after(feeder, first + 50)
    rows, numbers = stored(product, node)
    assert rows == first + second
    assert numbers == max(first, second)


def made_after(feeder: Feeder, rows: int) -> int:
    wait_for(lambda: stored(feeder.product, feeder.node)[0] > rows or None, 30, "events arrive")
    return feeder.finish()["events"]


@pytest.mark.long
@pytest.mark.limit_s(900)
def test_ten_minutes_without_a_server_are_delivered_afterwards(tmp_path: Path) -> None:
    with tempfile.TemporaryDirectory(prefix="cw-away-") as folder:
        product = Product(Path(folder) / "state")
        with product:
            pass
        with feeding(product, tmp_path, "node-away", rate_per_s=20) as feeder:
            time.sleep(600)
            with product:
                made = feeder.finish()
                holds_each_once(product, "node-away", made)
