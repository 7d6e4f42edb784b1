"""A real agent process against a real gateway process."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from django.db import connection
from django.test import Client

from clusterwatch.accounts.models import Token, User
from clusterwatch.accounts.services import create_token
from clusterwatch.fleet.models import Node
from clusterwatch.store import hot
from tests.collectors.sources.trees import full_node, write
from tests.ingest.conftest import GatewayProcess
from tests.stack import Stack


def test_an_agent_enrols_and_its_records_arrive(
    stack: Stack, enrolment: str, gateway_processes: list[GatewayProcess], tmp_path: Path
) -> None:
    gateway = GatewayProcess.start(stack)
    gateway_processes.append(gateway)
    environment = os.environ | {
        "CLUSTERWATCH_STATE_DIR": str(tmp_path),
        "CLUSTERWATCH_GATEWAY_URL": gateway.url,
        "CLUSTERWATCH_TOKEN": enrolment,
        "CLUSTERWATCH_CLUSTER": "alpha",
        "CLUSTERWATCH_NODE": "host-a",
    }
    log = (tmp_path / "agent.log").open("wb")
    agent = subprocess.Popen(
        [sys.executable, "-m", "collectors", "run"], env=environment, stdout=log, stderr=log
    )
    try:
        deadline = time.monotonic() + 40
        while time.monotonic() < deadline and not (
            len(hot.read_nodes().node_id)
            and Node.objects.filter(name="host-a", inventory__isnull=False).exists()
        ):
            time.sleep(0.2)
        nodes = hot.read_nodes()
        assert len(nodes.node_id) == 1, (tmp_path / "agent.log").read_text()
        node = Node.objects.get(name="host-a")
        assert node.inventory is not None, (tmp_path / "agent.log").read_text()
        assert Token.objects.get(kind="node").node == "host-a"
        with connection.cursor() as cursor:
            cursor.execute("SELECT kind, text FROM event")
            print(cursor.fetchall())
        print(node.inventory)
    finally:
        agent.terminate()
        agent.wait(20)
        print((tmp_path / "agent.log").read_text())
    assert gateway.terminate() == 0


@contextmanager
def agent_on(tree: Path, gateway: GatewayProcess, enrolment: str, state: Path) -> Iterator[None]:
    """A real agent of node ``host-b`` whose sources read ``tree``."""
    environment = os.environ | {
        "CLUSTERWATCH_STATE_DIR": str(state),
        "CLUSTERWATCH_GATEWAY_URL": gateway.url,
        "CLUSTERWATCH_TOKEN": enrolment,
        "CLUSTERWATCH_CLUSTER": "alpha",
        "CLUSTERWATCH_NODE": "host-b",
    }
    state.mkdir()
    with (state / "agent.log").open("wb") as log:
        command = [sys.executable, "-m", "tests.collectors.agent_on_tree", str(tree)]
        agent = subprocess.Popen(command, env=environment, stdout=log, stderr=log)
        try:
            yield
        finally:
            agent.terminate()
            agent.wait(20)


Told = dict[tuple[str, str], Any]
"""(entity, metric) -> the value as REST tells it"""


def told_once(client: Client, holds: Callable[[Told], bool]) -> Told:
    """What REST tells of the node, as soon as it is as wanted."""
    end = time.monotonic() + 50
    found: Told = {}
    while time.monotonic() < end:
        answer = client.get("/api/v1/nodes/host-b")
        if answer.status_code == 200:
            parts = answer.json()["readings"].items()
            found = {(entity, value["metric"]): value for entity, values in parts for value in values}
            if holds(found):
                return found
        time.sleep(0.3)
    raise AssertionError(f"never so: {found}")


@pytest.mark.limit_s(180)
def test_what_an_agent_reads_is_on_the_page_and_in_rest_and_changes_with_the_node(
    stack: Stack, enrolment: str, gateway_processes: list[GatewayProcess], tmp_path: Path
) -> None:
    gateway = GatewayProcess.start(stack)
    gateway_processes.append(gateway)
    viewer = User.objects.create(username="vera", role="viewer")
    _, secret = create_token("user", "read", user=viewer)
    rest, browser = Client(headers={"Authorization": f"Bearer {secret}"}), Client()
    browser.force_login(viewer)
    tree = full_node(tmp_path / "tree")
    with agent_on(tree, gateway, enrolment, tmp_path / "state"):
        told = told_once(rest, lambda found: ("nic/rnic0", "link_up_count") in found)
        assert {entity.partition("/")[0] for entity, _ in told} >= {
            "gpu", "nic", "port", "pci", "disk", "mount", "host",
        }  # fmt: skip
        gpu = told["gpu/GPU-00000000-0000-0000-0000-000000000000", "temperature_c"]
        assert (gpu["value"], gpu["unit"], gpu["quality"]) == (50, "c", "ok")
        wear = told["disk/nvme0", "media_errors_total"]
        assert (wear["value"], wear["quality"]) == (None, "not_available")
        assert all(value["value"] is not None or value["quality"] != "ok" for value in told.values())
        assert 0 <= gpu["age_s"] < 60 and not gpu["stale"]
        write(tree, {"sys/class/net/rnic0/operstate": "down\n"})
        speed, nothing = ("nic/rnic0", "speed_gbps"), {"quality": "not told"}
        later = told_once(rest, lambda found: found.get(speed, nothing)["quality"] == "link_down")
        assert later["nic/rnic0", "link_up_count"]["value"] == 0
        assert later[speed]["value"] is None
        html = browser.get("/nodes/host-b").content.decode()
        assert "the link is down" in html and "400\u202fGbit/s" in html and "Reports" in html
    with connection.cursor() as cursor:
        cursor.execute("SELECT count(*) FROM node_readings")
        assert cursor.fetchone() == (1,)
    assert gateway.terminate() == 0
