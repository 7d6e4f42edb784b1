"""Nodes that count, as processes, and what the database holds of them afterwards."""

from __future__ import annotations

import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import psycopg

from tests.e2e.product import ROOT, Product

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
