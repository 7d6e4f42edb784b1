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
from tests.collectors.pollers.test_switch_fboss import MODELS
from tests.collectors.pollers.test_switch_fboss import write as write_documents
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
def agent_on(
    tree: Path, gateway: GatewayProcess, enrolment: str, state: Path, **settings: str
) -> Iterator[None]:
    """A real agent of node ``host-b`` whose sources read ``tree``."""
    environment = os.environ | {
        "CLUSTERWATCH_STATE_DIR": str(state),
        "CLUSTERWATCH_GATEWAY_URL": gateway.url,
        "CLUSTERWATCH_TOKEN": enrolment,
        "CLUSTERWATCH_CLUSTER": "alpha",
        "CLUSTERWATCH_NODE": "host-b",
        **{f"CLUSTERWATCH_{name}": value for name, value in settings.items()},
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


def clients() -> tuple[Client, Client]:
    """A viewer's script and browser."""
    viewer = User.objects.create(username="vera", role="viewer")
    _, secret = create_token("user", "read", user=viewer)
    rest, browser = Client(headers={"Authorization": f"Bearer {secret}"}), Client()
    browser.force_login(viewer)
    return rest, browser


Told = dict[tuple[str, str], Any]
"""(entity, metric) -> the value as REST tells it"""


def told_once(client: Client, holds: Callable[[Told], bool], path: str = "nodes/host-b") -> Told:
    """What REST tells of the node or device, as soon as it is as wanted."""
    end = time.monotonic() + 50
    found: Told = {}
    while time.monotonic() < end:
        answer = client.get(f"/api/v1/{path}")
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
    rest, browser = clients()
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


@pytest.mark.limit_s(180)
def test_what_a_switch_told_is_on_its_page_and_in_rest_and_changes_with_it(
    stack: Stack, enrolment: str, gateway_processes: list[GatewayProcess], tmp_path: Path
) -> None:
    gateway = GatewayProcess.start(stack)
    gateway_processes.append(gateway)
    rest, browser = clients()
    documents = tmp_path / "fboss" / "leaf-1"
    write_documents(documents, MODELS)
    pollers = tmp_path / "pollers.toml"
    pollers.write_text(
        '[switch_fboss]\nfolder = "fboss"\nperiod_s = 5\ntargets = [{ name = "leaf-1" }]\n', encoding="utf-8"
    )
    path = "devices/switch/leaf-1"
    with agent_on(tmp_path, gateway, enrolment, tmp_path / "state", POLLERS_FILE=str(pollers)):
        told = told_once(rest, lambda found: any(metric == "rate_gbps" for _, metric in found), path)
        ports = {entity for entity, metric in told if metric == "oper_up_count"}
        assert ports and all(port.startswith("switchport/leaf-1/") for port in ports)
        html = browser.get(f"/{path}").content.decode()
        assert "answers" in html and "switch_fboss" in html and "host-b" in html
        assert [event["kind"] for event in rest.get(f"/api/v1/{path}").json()["events"]] == ["port_down"]
        for file in documents.iterdir():
            file.unlink()
        deadline = time.monotonic() + 50
        while time.monotonic() < deadline and rest.get(f"/api/v1/{path}").json()["device"]["state"] == "ok":
            time.sleep(0.3)
        later = rest.get(f"/api/v1/{path}").json()
        assert later["device"]["state"] != "ok" and later["readings"], "what it told last is kept, and why"
        assert "It gave no answer at the last look" in browser.get(f"/{path}").content.decode()
    assert gateway.terminate() == 0
