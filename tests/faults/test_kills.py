"""kill -9 of each component under load: nothing acknowledged is lost, nothing is stored twice."""

from __future__ import annotations

import os
import random
import signal
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.e2e.product import Product, temporary_product, wait_for
from tests.faults.nodes import Feeder, feeding, holds_each_once, stored

pytestmark = [pytest.mark.e2e, pytest.mark.limit_s(240)]

AGENT = "agent"
COMPONENTS = ("gateway", "postgres", "valkey", "pulse", "worker", "beat", "web")
ROUNDS = 2
LONG_ROUNDS = 20
LONG_GPUS = 24_576
BACK_WITHIN_S = 90.0


@pytest.fixture(scope="module")
def product() -> Iterator[Product]:
    with temporary_product("cw-kill-") as running:
        yield running


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
    with temporary_product("cw-kill-", LONG_GPUS) as product:
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
    with tempfile.TemporaryDirectory(prefix="cw-away-", ignore_cleanup_errors=True) as folder:
        Path(folder).chmod(0o711)  # as in temporary_product
        product = Product(Path(folder) / "state")
        with product:
            pass
        with feeding(product, tmp_path, "node-away", rate_per_s=20) as feeder:
            time.sleep(600)
            with product:
                made = feeder.finish()
                holds_each_once(product, "node-away", made)
