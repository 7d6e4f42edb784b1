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
from collectors.pollers.switch_poller import COMMON_KEYS, SwitchPoller, Target, settings_of
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

    async def ask(self, target: Target) -> SwitchFacts:
        async with self._channel(target) as channel:
            look = _Look(channel, self._login)
            try:
                if self._dialect == "sonic":
                    return await self._sonic(look, target.name)
                return await self._openconfig(look, target.name)
            except _RpcError as error:
                raise SwitchError(error.reason) from None

    async def close(self) -> None:
        """Connections end with each look."""

    async def _openconfig(self, look: _Look, name: str) -> SwitchFacts:
        missing: list[str] = []
        wanted = [path for path in openconfig.OPTIONAL if not self._is_refused(name, path)]
        try:
            said = await look.get((*openconfig.REQUIRED, *wanted))
        except _RpcError as error:
            if not error.is_of_path:
                raise
            said = await look.get(openconfig.REQUIRED)
            for path in wanted:
                said += await self._optional(look, name, path, missing)
        stamps = [notification.timestamp for notification in said]
        facts = openconfig.facts_of(leaves(said), max(stamps, default=0))
        facts.missing = missing
        return facts

    async def _sonic(self, look: _Look, name: str) -> SwitchFacts:
        missing: list[str] = []
        databases = {}
        for database, paths in sonic.PATHS.items():
            if database in sonic.REQUIRED:
                databases[database] = list(leaves(await look.get(paths, database)))
            elif not self._is_refused(name, database):
                said = await self._optional(look, name, paths[0], missing, database)
                databases[database] = list(leaves(said))
        facts = sonic.facts_of(databases)
        facts.missing = missing
        return facts

    async def _optional(
        self, look: _Look, name: str, path: str, missing: list[str], database: str = ""
    ) -> list[Any]:
        try:
            return await look.get((path,), database)
        except _RpcError as error:
            if not error.is_of_path:
                raise
            self._refused[name, database or path] = self._clock()
            missing.append(f"{path}: {error.reason}")
            return []

    def _is_refused(self, name: str, path: str) -> bool:
        since_s = self._refused.get((name, path))
        return since_s is not None and self._clock() - since_s < ASK_AGAIN_S

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


class _RpcError(Exception):
    """``is_of_path``: the switch does not know what it was asked for; others may still be asked."""

    def __init__(self, code: str, details: str) -> None:
        super().__init__(code)
        self.is_of_path = code not in _REASONS
        self.reason = _REASONS.get(code) or f"{code.lower()}: {details}"[:120]


class _Look:
    """Gets over one channel."""

    def __init__(self, channel: Any, login: Sequence[tuple[str, str]]) -> None:
        from pygnmi.spec.v080.gnmi_pb2_grpc import gNMIStub

        self._stub = gNMIStub(channel)
        self._login = login

    async def get(self, paths: Sequence[str], database: str = "") -> list[Any]:
        """Notifications. Raises ``_RpcError``; the deadline is that of the whole look."""
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
            raise _RpcError(error.code().name, str(error.details())) from None
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
