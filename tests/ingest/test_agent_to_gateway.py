"""A real agent process against a real gateway process."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

from django.db import connection

from clusterwatch.accounts.models import Token
from clusterwatch.fleet.models import Node
from clusterwatch.store import hot
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
