"""Gateways for tests: one inside the test's own loop, or real processes that can be killed."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass
from urllib.parse import urlsplit, urlunsplit

import django
import pytest
import pytest_asyncio
import redis

django.setup()  # this file is read before the root one's hook that does it

from django.db import connection  # noqa: E402

from clusterwatch.accounts.services import create_token  # noqa: E402
from clusterwatch.fleet.services import ensure_cluster  # noqa: E402
from clusterwatch.ingest.hub import Gateway, GatewayConfig  # noqa: E402
from clusterwatch.store import partitions  # noqa: E402
from tests.ingest.client import Node, hello  # noqa: E402
from tests.stack import Stack  # noqa: E402


@pytest.fixture
def tables(transactional_db: None, valkey: redis.Redis) -> Iterator[None]:
    """Migrated, empty tables, seen by every process; the series too."""
    partitions.ensure_ahead()
    yield
    connection.close()  # the test may have killed the server under it
    with connection.cursor() as cursor:
        cursor.execute(f"TRUNCATE {', '.join(partitions.TABLES)}, node_readings")


@pytest.fixture
def enrolment(tables: None) -> str:
    """The enrolment token of cluster alpha."""
    ensure_cluster("alpha")
    _, secret = create_token("enrolment", "ingest", cluster="alpha")
    return secret


@pytest_asyncio.fixture
async def gateway(tables: None) -> AsyncIterator[Gateway]:
    """A gateway in this test's event loop."""
    running = Gateway(GatewayConfig(port=0))
    await running.start()
    yield running
    await running.stop()


@pytest_asyncio.fixture
async def node(gateway: Gateway, enrolment: str) -> AsyncIterator[Node]:
    """Node n1 of alpha, enrolled and connected."""
    connected = await Node.connect(gateway.url, hello(enrolment_token=enrolment))
    yield connected
    await connected.close()


@dataclass
class GatewayProcess:
    """``python -m clusterwatch.ingest.gateway`` as the process table starts it."""

    process: subprocess.Popen[str]
    url: str

    @classmethod
    def start(cls, stack: Stack, **settings: str) -> GatewayProcess:
        """Returns when it says that it is ready. ``settings``: further environment of the process."""
        parts = urlsplit(stack.database_url)
        url = urlunsplit(parts._replace(path="/" + str(connection.settings_dict["NAME"])))
        environment = os.environ | {
            "CLUSTERWATCH_DATABASE_URL": url,
            "CLUSTERWATCH_GATEWAY_BIND": "127.0.0.1:0",
            **settings,
        }
        log = tempfile.TemporaryFile("w+")  # noqa: SIM115 - lives as long as the process
        process = subprocess.Popen(
            [sys.executable, "-m", "clusterwatch.ingest.gateway"],
            env=environment,
            stdout=subprocess.PIPE,
            stderr=log,
            text=True,
        )
        assert process.stdout is not None
        line = process.stdout.readline()
        if not line.startswith("gateway ready "):
            process.kill()
            log.seek(0)
            raise AssertionError(f"{line}{log.read()}")
        return cls(process, line.split()[-1])

    def kill(self) -> None:
        self.process.kill()
        self.process.wait()

    def terminate(self) -> int:
        """SIGTERM; returns the exit status."""
        self.process.terminate()
        return self.process.wait(20)


@pytest.fixture
def gateway_processes(stack: Stack, tables: None) -> Iterator[list[GatewayProcess]]:
    """A list to put started processes into; what still runs at the end is killed."""
    started: list[GatewayProcess] = []
    yield started
    for one in started:
        if one.process.poll() is None:
            one.kill()
