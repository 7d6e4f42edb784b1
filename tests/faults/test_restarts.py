"""A gateway restarts under 300 nodes, an agent is killed in mid-minute, another falls silent for good."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec
import psycopg
import pytest

from collectors import minute
from collectors.wire import blocks, records
from tests.e2e.product import ROOT, Product, temporary_product, wait_for
from tests.faults.browser import Visitor
from tests.faults.nodes import database_url, feeding, holds_each_once, stored
from tests.faults.table import another, log_lines

pytestmark = [pytest.mark.e2e, pytest.mark.limit_s(300)]

NODES = 300
GPUS = 8 * NODES
SILENT_AFTER_START_S = 25
HEARD_AT_LEAST_S = 10
RING_S = 120
BACK_WITHIN_S = 60.0
AGENT_NODE = "node-361"
"""Its crc32 puts it at the beginning of the spread: its block leaves as soon as the minute is over."""
SECONDS_BEFORE_KILL = 5
MINUTE_S = 60


@pytest.fixture(scope="module")
def product() -> Iterator[Product]:
    with temporary_product("cw-restart-") as running:
        yield running


# --- an agent killed in mid-minute ----------------------------------------------------------------------


@dataclass
class KilledAgent:
    """The real agent with a state folder of its own."""

    product: Product
    root: Path
    minute_ns: int = 0
    seconds: dict[str, set[int]] = field(default_factory=dict)
    """metric -> seconds of ``minute_ns`` that were on the disk when it was killed"""
    process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        environment = self.product.environ | {
            "CLUSTERWATCH_STATE_DIR": str(self.root),
            "CLUSTERWATCH_GATEWAY_URL": f"ws://127.0.0.1:{self.product.gateway_port}",
            "CLUSTERWATCH_TOKEN_FILE": str(self.product.folder / "secrets" / "enrolment_token"),
            "CLUSTERWATCH_NODE": AGENT_NODE,
            "CLUSTERWATCH_MACHINE_ID": f"machine-{AGENT_NODE}",
        }
        agent = Path(sys.executable).with_name("clusterwatch-agent")
        with (self.root / "agent.log").open("ab") as log:
            self.process = subprocess.Popen(
                [str(agent), "run"], cwd=ROOT, env=environment, stdout=log, stderr=log
            )

    def kill(self) -> None:
        assert self.process is not None
        self.process.kill()
        self.process.wait()

    def collects(self) -> bool | None:
        """Some seconds of one minute are on the disk."""
        return any(len(seconds) >= SECONDS_BEFORE_KILL for seconds in self.on_disk()[1].values()) or None

    def on_disk(self) -> tuple[int, dict[str, set[int]]]:
        """The newest open minute and what it holds."""
        files = sorted((self.root / "agent" / "minute").glob("*.open"), key=lambda path: int(path.stem))
        if not files:
            return 0, {}
        found = minute.build(int(files[-1].stem), files[-1].read_bytes())
        return int(files[-1].stem), seconds_of(found) if found is not None else {}


def seconds_of(block: records.Block) -> dict[str, set[int]]:
    """Metric -> seconds of the minute that have a sample in its first series."""
    columns = blocks.decode(block.metrics, block.data)
    return {
        metric.name: {second for second in range(MINUTE_S) if column[second] != blocks.MISSING}
        for metric, column in zip(block.metrics, columns, strict=True)
    }


@pytest.fixture(scope="module")
def killed_agent(product: Product, tmp_path_factory: pytest.TempPathFactory) -> Iterator[KilledAgent]:
    """Killed with -9 some seconds into a minute, and started again; the minute goes on meanwhile."""
    agent = KilledAgent(product, tmp_path_factory.mktemp("agent"))
    agent.start()
    try:
        wait_for(agent.collects, 60, "the agent collects", every_s=0.1)
        agent.kill()
        agent.minute_ns, agent.seconds = agent.on_disk()
        agent.start()
        yield agent
    finally:
        agent.kill()


# --- 300 nodes ------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def cluster(product: Product, killed_agent: KilledAgent) -> Iterator[None]:
    """300 simulated nodes at work, one of which falls silent."""
    fault = f"agent_dead@{SILENT_AFTER_START_S}"
    with another(product, "simulator", "--fault", fault, demo_gpus=GPUS):
        wait_for(lambda: len(connected(product)) >= NODES or None, 120, "every node is connected")
        yield


_CONNECTED = re.compile(r"^(\S+ \d+:\d+:\d+)\S* .*node_connected node=(simulated/\S+) ")


def connected(product: Product, skip: int = 0) -> dict[str, str]:
    """Simulated node -> the second it was last admitted in, by the gateway's log behind ``skip`` lines."""
    lines = log_lines(product.folder / "logs" / "gateway.log", lambda line: True)[skip:]
    found = (_CONNECTED.match(line) for line in lines)
    return {match[2]: match[1] for match in found if match is not None}


def log_length(product: Product) -> int:
    return len(log_lines(product.folder / "logs" / "gateway.log", lambda line: True))


@pytest.mark.usefixtures("cluster")
def test_the_last_minutes_of_a_silent_node_are_in_its_evidence(product: Product) -> None:
    incident = wait_for(lambda: told(product), 120, "the silent agent is told")
    piece = wait_for(lambda: last_minutes(product, incident), 30, "its last minutes are frozen")
    visitor = Visitor(product)
    visitor.sign_in()
    [node] = json.loads(visitor.get(f"/incidents/{incident}/evidence/{piece}.json").text)["nodes"]
    power_w = node["metrics"]["gpu_power_w"]
    known = [second for second, gpus in enumerate(power_w) if None not in gpus]
    assert HEARD_AT_LEAST_S <= len(known) <= RING_S
    assert {len(gpus) for gpus in power_w} == {8}
    newest_ns = node["first_second_ns"] + known[-1] * 10**9
    assert abs(newest_ns - node["last_word_ns"]) <= 2 * 10**9, "the seconds before the silence are not there"


def told(product: Product) -> int | None:
    """The incident of the node whose agent died."""
    found = product.get("/incidents")["results"]
    return next((one["id"] for one in found if one["diagnosis"]["verdict"] == "agents_silent"), None)


def last_minutes(product: Product, incident: int) -> int | None:
    pieces: list[dict[str, Any]] = product.get(f"/incidents/{incident}")["evidence"]
    return next((piece["id"] for piece in pieces if piece["kind"] == "last_minutes"), None)


@pytest.mark.usefixtures("cluster")
@pytest.mark.parametrize("how", [signal.SIGTERM, signal.SIGKILL])
def test_a_gateway_comes_back_under_300_nodes(how: signal.Signals, product: Product, tmp_path: Path) -> None:
    """One of them has no agent any more; the others come back, spread over seconds after a goodbye."""
    node = f"node-beside-{how.name.lower()}"
    with feeding(product, tmp_path, node) as feeder:
        wait_for(lambda: stored(product, node)[0] > 50 or None, 60, "events arrive")
        before = log_length(product)
        os.kill(product.pid("gateway"), how)
        wait_for(lambda: len(connected(product, before)) >= NODES - 1 or None, BACK_WITHIN_S, "all are back")
        per_second = Counter(connected(product, before).values())
        print(f"{how.name}: admitted a second: {[per_second[second] for second in sorted(per_second)]}")
        made = feeder.finish()
    if how is signal.SIGTERM:
        assert max(per_second.values()) < NODES / 2, "they all came at once"
    holds_each_once(product, node, made)
    assert unaccounted(product) == []


def unaccounted(product: Product) -> list[Any]:
    """Lanes whose records are not all stored, refused or expired, each counted once."""
    with psycopg.connect(database_url(product)) as connection:
        return connection.execute(
            "SELECT cluster, node, lane, sequence, stored_count, rejected_count, expired_count"
            " FROM store_ingestcursor WHERE sequence <> stored_count + rejected_count + expired_count"
        ).fetchall()


# --- the end of the minute ------------------------------------------------------------------------------


def test_an_agent_killed_in_mid_minute_keeps_that_minute(product: Product, killed_agent: KilledAgent) -> None:
    query = (
        "SELECT shape.metrics, raw_block.data FROM raw_block JOIN fleet_node ON fleet_node.id = node_id"
        " JOIN block_shape AS shape ON shape.id = shape_id WHERE fleet_node.name = %s AND t_ns = %s"
    )

    def rows() -> list[Any] | None:
        with psycopg.connect(database_url(product)) as connection:
            return connection.execute(query, [AGENT_NODE, killed_agent.minute_ns]).fetchall() or None

    found = wait_for(rows, 2 * MINUTE_S, "the block of the minute is stored")
    assert len(found) == 1, "the minute came twice"
    [(metrics, data)] = found
    headers = msgspec.convert(metrics, list[records.BlockMetric])
    kept = seconds_of(records.Block(killed_agent.minute_ns, blocks.CODEC, headers, data, b""))
    for name, seconds in killed_agent.seconds.items():
        assert seconds <= kept[name], name
    assert any(len(kept[name]) > len(seconds) for name, seconds in killed_agent.seconds.items()), (
        "nothing was added after the kill"
    )
