"""The gateway's edges: TLS, more connections than it takes, a node that never reads its answers."""

from __future__ import annotations

import asyncio
import os
import socket
import subprocess
import sys
import time
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import pytest_asyncio
import trustme
from websockets.asyncio.client import connect
from websockets.exceptions import ConnectionClosed

from clusterwatch.fleet.models import Node as FleetNode
from clusterwatch.ingest import link
from clusterwatch.ingest.hub import Gateway, GatewayConfig
from collectors.wire import codec, records
from tests.ingest.client import Node, event, hello
from tests.ingest.conftest import GatewayProcess
from tests.stack import Stack


@pytest.fixture(scope="module")
def authority() -> trustme.CA:
    return trustme.CA()


def files(authority: trustme.CA, folder: Path, name: str) -> tuple[Path, Path, Path]:
    """Authority, certificate chain and key of a server called ``name``."""
    made = authority.issue_cert(name)
    chain, key, root = folder / "chain.pem", folder / "key.pem", folder / "authority.pem"
    made.private_key_pem.write_to_path(key)
    chain.write_bytes(b"".join(part.bytes() for part in made.cert_chain_pems))
    authority.cert_pem.write_to_path(root)
    return root, chain, key


def agent(gateway: GatewayProcess, enrolment: str, folder: Path, authority: Path) -> subprocess.Popen[bytes]:
    """A real agent that trusts ``authority`` only."""
    environment = os.environ | {
        "CLUSTERWATCH_STATE_DIR": str(folder / "agent"),
        "CLUSTERWATCH_GATEWAY_URL": gateway.url,
        "CLUSTERWATCH_GATEWAY_CA": str(authority),
        "CLUSTERWATCH_TOKEN": enrolment,
        "CLUSTERWATCH_CLUSTER": "alpha",
        "CLUSTERWATCH_NODE": "host-tls",
    }
    with (folder / "agent.log").open("wb") as log:
        return subprocess.Popen(
            [sys.executable, "-m", "collectors", "run"], env=environment, stdout=log, stderr=log
        )


def wait_for(condition: object, log: Path, limit_s: float = 40) -> None:
    deadline = time.monotonic() + limit_s
    while not condition():  # type: ignore[operator]
        assert time.monotonic() < deadline, log.read_text()
        time.sleep(0.2)


def test_an_agent_enrols_over_tls(
    stack: Stack,
    enrolment: str,
    gateway_processes: list[GatewayProcess],
    tmp_path: Path,
    authority: trustme.CA,
) -> None:
    root, chain, key = files(authority, tmp_path, "127.0.0.1")
    settings = {"CLUSTERWATCH_GATEWAY_CERT": str(chain), "CLUSTERWATCH_GATEWAY_KEY": str(key)}
    gateway = GatewayProcess.start(stack, **settings)
    gateway_processes.append(gateway)
    assert gateway.url.startswith("wss://")
    running = agent(gateway, enrolment, tmp_path, root)
    try:
        wait_for(FleetNode.objects.filter(name="host-tls").exists, tmp_path / "agent.log")
    finally:
        running.terminate()
        running.wait(20)


@pytest.mark.parametrize("fault", ["foreign authority", "certificate of another host"])
def test_an_agent_gives_its_token_to_no_server_it_cannot_verify(
    stack: Stack,
    enrolment: str,
    gateway_processes: list[GatewayProcess],
    tmp_path: Path,
    authority: trustme.CA,
    fault: str,
) -> None:
    host = "127.0.0.1" if fault == "foreign authority" else "elsewhere.invalid"
    root, chain, key = files(authority, tmp_path, host)
    if fault == "foreign authority":
        trustme.CA().cert_pem.write_to_path(root)
    settings = {"CLUSTERWATCH_GATEWAY_CERT": str(chain), "CLUSTERWATCH_GATEWAY_KEY": str(key)}
    gateway = GatewayProcess.start(stack, **settings)
    gateway_processes.append(gateway)
    running = agent(gateway, enrolment, tmp_path, root)
    log = tmp_path / "agent.log"
    try:
        wait_for(lambda: "certificate verify failed" in log.read_text(), log)
        assert not FleetNode.objects.filter(name="host-tls").exists()
    finally:
        running.terminate()
        running.wait(20)


@pytest_asyncio.fixture
async def narrow_gateway(tables: None) -> AsyncIterator[Gateway]:
    """Takes two connections."""
    running = Gateway(GatewayConfig(port=0, connections_max=2))
    await running.start()
    yield running
    await running.stop()


async def test_a_connection_too_many_is_told_to_come_back_and_harms_nobody(
    narrow_gateway: Gateway, enrolment: str
) -> None:
    def greeting(name: str) -> records.Hello:
        return hello(enrolment_token=enrolment, node=name, machine_id=name)

    first, second = [await Node.connect(narrow_gateway.url, greeting(name)) for name in ("n1", "n2")]
    async with connect(narrow_gateway.url, compression=None) as third:
        with pytest.raises(ConnectionClosed) as closed:
            await third.recv()
    assert closed.value.rcvd is not None
    assert (closed.value.rcvd.code, "too many connections" in closed.value.rcvd.reason) == (1013, True)
    await first.put("urgent", 1, [event(1)])
    await first.acked("urgent", 1)
    await second.close()
    again = await Node.connect(narrow_gateway.url, greeting("n3"))
    await again.close()
    await first.close()


async def test_a_node_that_never_reads_is_cut_off_and_loses_nothing(
    gateway: Gateway, enrolment: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(link, "SEND_TIMEOUT_S", 0.5)
    host, port = gateway.url.removeprefix("ws://").split(":")
    plain = socket.socket()
    plain.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    plain.setblocking(False)
    await asyncio.get_running_loop().sock_connect(plain, (host, int(port)))
    deaf = await connect(gateway.url, sock=plain, compression=None, max_queue=1, ping_interval=None)
    await deaf.send(codec.encode(hello(enrolment_token=enrolment)))
    welcome = codec.decode_from_gateway(await deaf.recv(decode=False))
    assert isinstance(welcome, records.Welcome)
    deaf.transport.pause_reading()
    # Each record is refused with words, so that answers pile up which nobody reads.
    sequence = 1
    async with asyncio.timeout(60):
        while gateway._links:
            wrong = [records.PutItem(sequence + place, b"\xc1" * 8) for place in range(256)]
            sequence += 256
            try:
                await deaf.send(codec.encode(records.Put("urgent", wrong)))
            except ConnectionClosed:
                break
            await asyncio.sleep(0)
    deaf.transport.abort()
    assert "slow_reader_closed node=alpha/n1" in caplog.text
    again = await Node.connect(
        gateway.url, hello(credential=welcome.credential, next=records.LaneNext(sequence, 1))
    )
    reached = again.welcome.acked.urgent
    await again.put("urgent", reached + 1, [event(7)])
    await again.acked("urgent", reached + 1)
    await again.close()
