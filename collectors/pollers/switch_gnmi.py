"""Switches over gNMI: OpenConfig (Arista EOS and others), or SONiC's own databases.

In: the table ``switch_gnmi`` of pollers.toml. Out: ``DeviceReading`` per switch. OpenConfig is one Get for
everything; a switch that refuses a branch is asked for the others, and for that one again an hour later.
Library: the messages and paths of pygnmi; its client is not used, since none of its calls has a deadline and
without a client certificate it trusts whatever certificate the switch shows. Source: gNMI 0.8, 2 and 3.3.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from pathlib import Path
from typing import Any, Final

from collectors.pollers import switch_openconfig as openconfig
from collectors.pollers import switch_sonic as sonic
from collectors.pollers.device import ConfigError
from collectors.pollers.switch_facts import SwitchError, SwitchFacts
from collectors.pollers.switch_gnmi_leaves import leaves
from collectors.pollers.switch_poller import COMMON_KEYS, Look, SwitchPoller, Target, settings_of
from collectors.pollers.tables import Table

NAME: Final = "switch_gnmi"
PERIOD_S: Final = 15.0
PORTS: Final = {"openconfig": 6030, "sonic": 50051}
"""where EOS and SONiC listen unless they are told otherwise"""
MESSAGE_MAX_BYTES: Final = 64 * 1024 * 1024
ASK_AGAIN_S: Final = 3_600.0
_JSON_IETF: Final = 4
_KEYS: Final = (*COMMON_KEYS, "ca_file", "dialect", "insecure", "password_file", "server_name", "user")
_REASONS: Final = {
    "UNAUTHENTICATED": "refused",
    "PERMISSION_DENIED": "refused",
    "UNAVAILABLE": "unreachable",
    "DEADLINE_EXCEEDED": "timeout",
}


class GnmiAsker:
    """One connection and one look at a switch."""

    def __init__(
        self,
        dialect: str,
        login: Sequence[tuple[str, str]] = (),
        ca: bytes | None = None,
        server_name: str = "",
        insecure: bool = False,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """``ca``: certificates to trust, instead of this machine's; ``insecure``: no TLS at all."""
        self._dialect, self._login, self._ca = dialect, tuple(login), ca
        self._server_name, self._insecure, self._clock = server_name, insecure, clock
        self._refused: dict[tuple[str, str], float] = {}
        """(switch, path) -> when it was refused"""

    async def ask(self, target: Target, look: Look) -> SwitchFacts:
        self._refused = {key: since for key, since in self._refused.items() if self._is_recent(since)}
        async with self._channel(target) as channel:
            calls = _Calls(channel, self._login)
            if self._dialect == "sonic":
                facts = await self._sonic(calls, target.name, look)
            else:
                facts = await self._openconfig(calls, target.name, look)
        facts.missing += [f"{path}: refused" for name, path in self._refused if name == target.name]
        return facts

    async def close(self) -> None:
        """Connections end with each look."""

    async def _openconfig(self, calls: _Calls, name: str, look: Look) -> SwitchFacts:
        missing: list[str] = []
        wanted = [path for path in openconfig.OPTIONAL if (name, path) not in self._refused]
        try:
            said = await calls.get((*openconfig.REQUIRED, *wanted))
        except _RefusedPath:
            said = await calls.get(openconfig.REQUIRED)
            for path in wanted:
                said += await look.optional(self._part(calls, name, path), path, missing) or []
        stamps = [notification.timestamp for notification in said]
        facts = openconfig.facts_of(leaves(said), max(stamps, default=0))
        facts.missing = missing
        return facts

    async def _sonic(self, calls: _Calls, name: str, look: Look) -> SwitchFacts:
        missing: list[str] = []
        said: dict[str, list[Any]] = {}
        for database, paths in sonic.PATHS.items():
            if database in sonic.REQUIRED:
                said[database] = await calls.get(paths, database)
            elif (name, paths[0]) not in self._refused:
                part = self._part(calls, name, paths[0], database)
                said[database] = await look.optional(part, database, missing) or []
        facts = sonic.facts_of({database: list(leaves(rows)) for database, rows in said.items()})
        facts.missing = missing
        return facts

    async def _part(self, calls: _Calls, name: str, path: str, database: str = "") -> list[Any]:
        try:
            return await calls.get((path,), database)
        except _RefusedPath:
            self._refused[name, path] = self._clock()
            return []

    def _is_recent(self, since_s: float) -> bool:
        return self._clock() - since_s < ASK_AGAIN_S

    def _channel(self, target: Target) -> AbstractAsyncContextManager[Any]:
        import grpc

        where = (
            f"[{target.address}]:{target.port}"
            if ":" in target.address
            else f"{target.address}:{target.port}"
        )
        options: list[tuple[str, Any]] = [
            ("grpc.max_receive_message_length", MESSAGE_MAX_BYTES),
            ("grpc.enable_http_proxy", 0),
        ]
        if self._server_name:
            options.append(("grpc.ssl_target_name_override", self._server_name))
        if self._insecure:
            plain: AbstractAsyncContextManager[Any] = grpc.aio.insecure_channel(where, options=options)
            return plain
        trust = grpc.ssl_channel_credentials(root_certificates=self._ca)
        secure: AbstractAsyncContextManager[Any] = grpc.aio.secure_channel(where, trust, options=options)
        return secure


class _RefusedPath(SwitchError):
    """The switch does not know what it was asked for; other paths may still be asked."""


class _Calls:
    """Gets over one channel."""

    def __init__(self, channel: Any, login: Sequence[tuple[str, str]]) -> None:
        from pygnmi.spec.v080.gnmi_pb2_grpc import gNMIStub

        self._stub = gNMIStub(channel)
        self._login = login

    async def get(self, paths: Sequence[str], database: str = "") -> list[Any]:
        """Notifications. Raises ``SwitchError``; the deadline is that of the whole look."""
        import grpc
        from pygnmi.create_gnmi_path import gnmi_path_generator
        from pygnmi.spec.v080.gnmi_pb2 import GetRequest
        from pygnmi.spec.v080.gnmi_pb2 import Path as GnmiPath

        request = GetRequest(path=[gnmi_path_generator(path) for path in paths], encoding=_JSON_IETF)
        if database:
            request.prefix.CopyFrom(GnmiPath(target=database))
        try:
            answer = await self._stub.Get(request, metadata=self._login)
        except grpc.RpcError as error:
            code = error.code().name
            if code in _REASONS:
                raise SwitchError(_REASONS[code]) from None
            raise _RefusedPath(f"{code.lower()}: {error.details()}"[:120]) from None
        return list(answer.notification)


def from_config(config: Mapping[str, object], folder: Path) -> SwitchPoller:
    """Raises ``ConfigError`` that names the key, or the extra that is not installed."""
    table = Table(NAME, config, folder)
    table.only(*_KEYS)
    dialect = table.choice("dialect", "openconfig", tuple(PORTS))
    settings = settings_of(table, config, PERIOD_S, PORTS[dialect])
    login = [("username", table.text("user", "")), ("password", table.secret("password_file"))]
    ca = table.path("ca_file")
    insecure = table.flag("insecure")
    if insecure and ca is not None:
        raise ConfigError(f"{NAME}: ca_file and insecure exclude each other")
    try:
        import grpc  # noqa: F401 - whether it is there, before the first poll
        import pygnmi  # noqa: F401
    except ImportError:
        raise ConfigError(f"{NAME} needs the extra: pip install 'clusterwatch[pollers]'") from None
    asker = GnmiAsker(
        dialect,
        login if table.has("user") else (),
        ca.read_bytes() if ca is not None else None,
        table.text("server_name", ""),
        insecure,
    )
    return SwitchPoller(NAME, settings, asker)
