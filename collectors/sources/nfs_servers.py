"""RPCs that wait, per NFS server: the only sight of a pNFS data server, which no mount's statistics show.

In: sys/kernel/debug/sunrpc/rpc_clnt/ID/tasks and the address of its transport, readable for root where
debugfs is mounted. Out: samples of ``nfs_server/<address>``: RPCs under way, and how long the oldest has been
seen to wait; a standing event ``nfs_server_stalled``. A task is known again by its client and its numbers.
Source: net/sunrpc/debugfs.c of Linux (tasks_show, xprt_info_show).
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from collectors.minute import MetricSpec
from collectors.sources.base import Attribute, Reading, Sample, SourceEvent
from collectors.sources.tree import Tree

ROOT: Final = "sys/kernel/debug/sunrpc/rpc_clnt"
CLIENTS_MAX: Final = 512
TASKS_MAX: Final = 4_096
STALLED_S: Final = 30.0
_TASK: Final = re.compile(
    r"\s*(?P<pid>\d{1,10}) [0-9a-f]{1,8} +-?\d{1,6} 0x(?P<client>[0-9a-f]{1,8}) "
    r"0x(?P<xid>[0-9a-f]{1,8}) +-?\d{1,20} \S{1,64}(?: \[\w{1,32}\])? \w{1,16}v\d{1,3} (?P<proc>\S{1,32})"
)
_ADDRESS: Final = re.compile(r"addr:\s*([0-9A-Fa-f.:%_a-z]{2,64})")
_ASYNC_LOOPS: Final = frozenset({"BIND_CONN_TO_SESSION"})
"""Procedures that may wait for ever by design."""


@dataclass(frozen=True, slots=True)
class Task:
    """One RPC under way."""

    client: int
    number: int
    """of this client's tasks"""
    xid: int
    """0 for one that has no request yet"""
    procedure: str


@dataclass(slots=True)
class _Server:
    """What waits for one server."""

    waiting: int = 0
    oldest_s: float = 0.0
    procedure: str = ""


class NfsServersSource:
    """Every server that this node has an RPC client for."""

    name = "nfs_servers"
    period_s = 15.0
    deadline_s = 5.0
    metrics = (MetricSpec("rpc_tasks_count", "count", 1.0), MetricSpec("rpc_oldest_wait_s", "s", 1.0))

    def __init__(self) -> None:
        self._seen_s: dict[Task, float] = {}
        """task -> when it was seen first"""
        self._addresses: dict[str, str] = {}

    def read(self, tree: Tree, at_s: float) -> Reading:
        clients = tree.list(ROOT)[:CLIENTS_MAX]
        servers: dict[str, _Server] = {}
        seen: dict[Task, float] = {}
        for client in clients:
            address = self._address(tree, client)
            try:
                tasks = parse_tasks(tree.read_text(f"{ROOT}/{client}/tasks"))
            except OSError:
                continue
            if address is None:
                continue
            server = servers.setdefault(address, _Server())
            for task in tasks:
                if task.procedure in _ASYNC_LOOPS:
                    continue
                seen[task] = self._seen_s.get(task, at_s)
                server.waiting += 1
                if at_s - seen[task] >= server.oldest_s:
                    server.oldest_s, server.procedure = at_s - seen[task], task.procedure
        self._seen_s = seen
        self._addresses = {client: known for client, known in self._addresses.items() if client in clients}
        return Reading(list(_samples(servers)), list(_events(servers)))

    def _address(self, tree: Tree, client: str) -> str | None:
        """The server of a client, asked for once: its transport is a link, or the first of several."""
        if client not in self._addresses or not tree.is_paced:
            for transport in ("xprt", "xprt-0"):
                try:
                    text = tree.read_text(f"{ROOT}/{client}/{transport}/info", 4_096)
                except OSError:
                    continue
                if (address := address_of(text)) is not None:
                    self._addresses[client] = address
                break
        return self._addresses.get(client)


def parse_tasks(text: str) -> list[Task]:
    """The RPCs of a client, at most ``TASKS_MAX``. Lines that are none are passed over."""
    found = []
    for line in text.splitlines()[:TASKS_MAX]:
        if match := _TASK.match(line):
            found.append(task_of(match))
    return found


def task_of(match: re.Match[str]) -> Task:
    client, xid = int(match["client"], 16), int(match["xid"], 16)
    return Task(client, int(match["pid"]), xid, match["proc"].upper())


def address_of(info: str) -> str | None:
    """The address of a transport; None where it has none, as that to this machine's own portmapper."""
    match = _ADDRESS.search(info)
    return match[1] if match else None


def _samples(servers: dict[str, _Server]) -> Iterator[Sample]:
    for address, server in servers.items():
        yield Sample(f"nfs_server/{address}", "rpc_tasks_count", server.waiting)
        yield Sample(f"nfs_server/{address}", "rpc_oldest_wait_s", server.oldest_s)


def _events(servers: dict[str, _Server]) -> Iterator[SourceEvent]:
    for address, server in servers.items():
        if server.oldest_s >= STALLED_S:
            text = f"{server.waiting} RPCs wait for the NFS server {address}, one for {server.oldest_s:.0f} s"
            told: dict[str, Attribute] = {"server": address, "procedure": server.procedure}
            entity = f"nfs_server/{address}"
            yield SourceEvent(entity, "nfs_server_stalled", text, "critical", attributes=told, standing=True)
