"""Blocks through a real gateway, at the pace of the whole cluster: what a websocket and small groups add."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Sequence
from typing import Any, Final

from websockets.asyncio.client import ClientConnection, connect

from clusterwatch.accounts.services import create_token
from clusterwatch.cli.benches.cpu_time import cpu_s, tree_cpu_s
from clusterwatch.cli.benches.query_signals import GPUS, Signals
from clusterwatch.cli.benches.store_ours import EPOCH, NODE_VALUES, Say, checkpoint, encoded, postmaster_pid
from clusterwatch.fleet.services import ensure_cluster
from clusterwatch.ops.errors import OpsError
from clusterwatch.ops.postgres import PostgresServer
from collectors.wire import codec, records

CONNECTIONS: Final = 64
BLOCKS_PER_S: Final = 3_072 / 60
ACK_WITHIN_S: Final = 30.0
IDLE_S: Final = 5.0
CLUSTER: Final = "gateway"


def measure(seconds: int, server: PostgresServer, say: Say) -> dict[str, Any]:
    """Sends 51 blocks a second over 64 connections for some seconds, and waits for every acknowledgement."""
    total = max(CONNECTIONS, round(seconds * BLOCKS_PER_S))
    minutes = -(-total // CONNECTIONS)
    end_minute = int(time.time() // 60)
    signals = Signals(CONNECTIONS, end_minute - minutes)
    payloads = [list(encoded(signals, minute)) for minute in range(end_minute - minutes, end_minute)]
    say(f"Gateway: {total} blocks at {BLOCKS_PER_S:.0f} a second over {CONNECTIONS} connections")
    ensure_cluster(CLUSTER, simulated=True)
    _, token = create_token("enrolment", "ingest", cluster=CLUSTER)
    process = subprocess.Popen(
        [sys.executable, "-m", "clusterwatch.ingest.gateway"],
        env=os.environ | {"CLUSTERWATCH_GATEWAY_BIND": "127.0.0.1:0"},
        stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True,
    )  # fmt: skip
    try:
        assert process.stdout is not None
        line = process.stdout.readline()
        if not line.startswith("gateway ready "):
            raise OpsError("The gateway did not start.")
        load = _Load(line.split()[-1], token, payloads, total)
        figures = asyncio.run(load.run(process.pid, server))
    finally:
        process.terminate()
        process.wait(ACK_WITHIN_S)
    for name, value in figures.items():
        say(f"  {name}: {value}")
    return figures


def _beyond_idle(begun: Sequence[float], loaded: Sequence[float], ended: Sequence[float], part: int) -> float:
    """CPU seconds of the load: what the seconds before it cost belongs to the hot state's rounds."""
    idle_ratio = (loaded[part] - begun[part]) / (loaded[0] - begun[0])
    return ended[part] - loaded[part] - idle_ratio * (ended[0] - loaded[0])


class _Load:
    """Nodes that have nothing but blocks to send."""

    def __init__(self, url: str, token: str, payloads: list[list[bytes]], total: int) -> None:
        self._url, self._token, self._payloads, self._total = url, token, payloads, total
        self._acked: Counter[int] = Counter()
        self._sent_s: dict[tuple[int, int], float] = {}
        self._waits_s: list[float] = []

    async def run(self, gateway_pid: int, server: PostgresServer) -> dict[str, Any]:
        links = [await self._open(number) for number in range(CONNECTIONS)]
        readers = [asyncio.create_task(self._read(number, link)) for number, link in enumerate(links)]
        postgres = postmaster_pid(server)
        begun = time.monotonic(), cpu_s(gateway_pid), tree_cpu_s(postgres)
        await asyncio.sleep(IDLE_S)
        loaded = time.monotonic(), cpu_s(gateway_pid), tree_cpu_s(postgres)
        await self._send(links)
        await self._wait_for_acks()
        await asyncio.to_thread(checkpoint, server)
        ended = time.monotonic(), cpu_s(gateway_pid), tree_cpu_s(postgres)
        gateway_s, server_s = (_beyond_idle(begun, loaded, ended, part) for part in (1, 2))
        for reader, link in zip(readers, links, strict=True):
            reader.cancel()
            await link.close()
        values = self._total * NODE_VALUES
        waits = sorted(self._waits_s)
        return {
            "blocks": self._total,
            "gateway_idle_core_ratio": round((loaded[1] - begun[1]) / (loaded[0] - begun[0]), 4),
            "gateway_us_per_block": round(gateway_s / self._total * 1e6),
            "postgresql_us_per_block": round(server_s / self._total * 1e6),
            "cpu_s_per_million_values": round((gateway_s + server_s) / values * 1e6, 4),
            "ack_p50_s": round(waits[len(waits) // 2], 3),
            "ack_p99_s": round(waits[len(waits) * 99 // 100], 3),
        }

    async def _open(self, number: int) -> ClientConnection:
        link = await connect(self._url, compression=None, max_size=None)
        hello = records.Hello(
            version=codec.VERSION, cluster=CLUSTER, node=f"n{number:05d}", machine_id=f"m{number}",
            boot_id="b", epoch=EPOCH, agent_version="bench", t_ns=time.time_ns(), simulated=True,
            next=records.LaneNext(1, 1), enrolment_token=self._token,
            gpus=[records.GpuIdentity(index=gpu) for gpu in range(GPUS)],
        )  # fmt: skip
        await link.send(codec.encode(hello))
        answer = codec.decode_from_gateway(bytes(await link.recv(decode=False)))
        if not isinstance(answer, records.Welcome):
            raise OpsError(f"The gateway does not welcome the bench: {answer}")
        return link

    async def _send(self, links: list[ClientConnection]) -> None:
        begun_s = time.monotonic()
        for number in range(self._total):
            await asyncio.sleep(max(0.0, begun_s + number / BLOCKS_PER_S - time.monotonic()))
            minute, node = divmod(number, CONNECTIONS)
            put = records.Put("bulk", [records.PutItem(minute + 1, self._payloads[minute][node])])
            self._sent_s[node, minute + 1] = time.monotonic()
            await links[node].send(codec.encode(put))

    async def _read(self, node: int, link: ClientConnection) -> None:
        async for message in link:
            said = codec.decode_from_gateway(message if isinstance(message, bytes) else message.encode())
            if isinstance(said, records.Reject):
                raise OpsError(f"A block was rejected: {said.reason}")
            if isinstance(said, records.Ack):
                for sequence in range(self._acked[node] + 1, said.sequence + 1):
                    self._waits_s.append(time.monotonic() - self._sent_s[node, sequence])
                self._acked[node] = said.sequence

    async def _wait_for_acks(self) -> None:
        deadline = time.monotonic() + ACK_WITHIN_S
        while len(self._waits_s) < self._total:
            if time.monotonic() > deadline:
                raise OpsError(f"{self._total - len(self._waits_s)} blocks were not acknowledged.")
            await asyncio.sleep(0.01)
