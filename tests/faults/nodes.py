"""Nodes that count, as processes, and what the database holds of them afterwards."""

from __future__ import annotations

import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psycopg

from tests.e2e.product import ROOT, Product, wait_for
from tests.faults.feeder import HOT_METRIC

EVENTS = """
    SELECT count(*), count(DISTINCT fields->>'n') FROM event
    JOIN fleet_node ON fleet_node.id = event.node_id WHERE fleet_node.name = %s AND kind = 'numbered'
"""
BLOCKS = """
    SELECT count(*), count(DISTINCT sequence) FROM raw_block
    JOIN fleet_node ON fleet_node.id = raw_block.node_id WHERE fleet_node.name = %s
"""
MORE_EVENTS = 50
ROLLUPS = """
    SELECT count(*), count(DISTINCT last[1]) FROM node_minute
    JOIN fleet_node ON fleet_node.id = node_minute.node_id WHERE fleet_node.name = %s
"""


@dataclass
class Feeder:
    """A node that sends numbered records; see ``tests.faults.feeder``. It may be killed and started again."""

    product: Product
    folder: Path
    node: str
    rate_per_s: float = 100
    gateway_port: int | None = None
    """where it connects; None: the product's own gateway"""
    process: subprocess.Popen[str] | None = None

    def start(self) -> None:
        token = self.product.folder / "secrets" / "enrolment_token"
        gateway = f"ws://127.0.0.1:{self.gateway_port or self.product.gateway_port}"
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
def feeding(
    product: Product, folder: Path, node: str, rate_per_s: float = 100, gateway_port: int | None = None
) -> Iterator[Feeder]:
    """A feeder that is started here and gone afterwards."""
    feeder = Feeder(product, folder, node, rate_per_s, gateway_port)
    feeder.start()
    try:
        yield feeder
    finally:
        if feeder.process is not None and feeder.process.poll() is None:
            feeder.kill()


def database_url(product: Product) -> str:
    return (product.folder / "secrets" / "database_url").read_text().strip()


def stored(product: Product, node: str, query: str = EVENTS) -> tuple[int, int]:
    """(rows, different numbers) of the node's records."""
    with psycopg.connect(database_url(product)) as connection:
        row = connection.execute(query, [node]).fetchone()
    assert row is not None
    return int(row[0]), int(row[1])


def holds_each_once(product: Product, node: str, made: dict[str, int]) -> None:
    """Fails unless every record the node made is stored, and none twice."""
    assert stored(product, node) == (made["events"],) * 2
    assert stored(product, node, BLOCKS) == (made["blocks"],) * 2
    assert stored(product, node, ROLLUPS) == (made["blocks"],) * 2


def cluster_id(product: Product) -> int:
    """The cluster of real nodes."""
    found: list[dict[str, Any]] = product.get("/clusters")["results"]
    return next(int(cluster["id"]) for cluster in found if cluster["name"] == "default")


class Counted:
    """The count of a feeding node as pages show it. It never goes back, whatever gateways it came through."""

    def __init__(self, product: Product, node: str) -> None:
        self._product = product
        self._node = node
        self._cluster = f"/clusters/{cluster_id(product)}"
        self._slot: int | None = None
        self.values: list[float] = []

    def next(self) -> float | None:
        """The newest value shown; None before there is one."""
        if self._slot is None:
            places = self._product.get(f"{self._cluster}/slots")["places"]
            self._slot = next((one["slot"] for one in places if one["node_name"] == self._node), None)
        if self._slot is None:
            return None
        values = self._product.get(f"{self._cluster}/latest?metric={HOT_METRIC}&max_age_s=600")["values"]
        value = values[self._slot] if self._slot < len(values) else None
        assert value is not None or not self.values, "the value vanished"
        if value is None:
            return None
        assert not self.values or value >= self.values[-1], "an older frame is shown over a newer"
        self.values.append(float(value))
        return self.values[-1]

    def follow_until(self, done: Callable[[], bool]) -> None:
        """Looks at the value, again and again, until something else is so."""

        def look() -> bool | None:
            self.next()
            return True if done() else None

        wait_for(look, 60, "the node goes on")

    def follow_until_more_is_stored(self) -> None:
        before = stored(self._product, self._node)[0]
        self.follow_until(lambda: stored(self._product, self._node)[0] > before + MORE_EVENTS)
