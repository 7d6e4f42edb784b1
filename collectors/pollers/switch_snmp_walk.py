"""SNMP as the switch poller needs it: a few values and whole columns of tables, each bounded.

In: a ``Target`` of SNMP. Out: plain numbers and bytes by their index. MIB files are not needed: object
identifiers are numbers here. A column ends where the agent leaves it, goes backwards or has told too many
rows. Source: RFC 3416 (GETBULK), RFC 3414 (USM). Library: pysnmp, imported when the first switch is asked.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import ModuleType
from typing import Any, Final

from collectors.pollers.switch_facts import SwitchError

Oid = tuple[int, ...]
Value = int | bytes | Oid
Column = dict[Oid, Value]
"""index of a row -> value"""

ROWS_MAX: Final = 16_384
"""per column"""
REPETITIONS: Final = 24
VARBINDS_MAX: Final = 144
"""asked for in one request: what an agent can answer in a few packets"""
TEXT_MAX_BYTES: Final = 1_024
REQUEST_TIMEOUT_S: Final = 3.0
RETRIES: Final = 1
AUTH_PROTOCOLS: Final = {
    "MD5": "USM_AUTH_HMAC96_MD5",
    "SHA": "USM_AUTH_HMAC96_SHA",
    "SHA224": "USM_AUTH_HMAC128_SHA224",
    "SHA256": "USM_AUTH_HMAC192_SHA256",
    "SHA384": "USM_AUTH_HMAC256_SHA384",
    "SHA512": "USM_AUTH_HMAC384_SHA512",
}
PRIVACY_PROTOCOLS: Final = {
    "DES": "USM_PRIV_CBC56_DES",
    "AES128": "USM_PRIV_CFB128_AES",
    "AES192": "USM_PRIV_CFB192_AES",
    "AES256": "USM_PRIV_CFB256_AES",
}


@dataclass(frozen=True, slots=True)
class Credentials:
    """A community (version 2c), or a user of version 3 with passwords where it has them."""

    community: str | None = None
    user: str | None = None
    auth_protocol: str = "SHA256"
    auth_password: str | None = None
    privacy_protocol: str = "AES128"
    privacy_password: str | None = None


class Snmp:
    """The engine that all switches share; lives in one event loop."""

    def __init__(self, credentials: Credentials) -> None:
        """Raises ``ImportError`` where pysnmp is not installed."""
        from pysnmp.hlapi.v3arch import asyncio as hlapi  # type: ignore[import-untyped]

        self._hlapi: ModuleType = hlapi
        self._engine = hlapi.SnmpEngine()
        self._auth = _auth_data(hlapi, credentials)
        self._targets: dict[tuple[str, int], Any] = {}

    async def session(self, address: str, port: int) -> Session:
        """Raises ``SwitchError`` for a name that has no address."""
        from pysnmp.error import PySnmpError  # type: ignore[import-untyped]

        if (address, port) not in self._targets:
            kind = self._hlapi.Udp6TransportTarget if _is_ipv6(address) else self._hlapi.UdpTransportTarget
            try:
                target = await kind.create((address, port), timeout=REQUEST_TIMEOUT_S, retries=RETRIES)
            except (PySnmpError, OSError):
                raise SwitchError("no such address") from None
            self._targets[address, port] = target
        return Session(self._hlapi, self._engine, self._auth, self._targets[address, port])

    def close(self) -> None:
        self._engine.close_dispatcher()


class Session:
    """Questions to one switch."""

    def __init__(self, hlapi: ModuleType, engine: Any, auth: Any, target: Any) -> None:
        self._hlapi, self._engine, self._auth, self._target = hlapi, engine, auth, target

    async def get(self, oids: Sequence[Oid]) -> dict[Oid, Value]:
        """Those of some single values that the switch has. Raises ``SwitchError``."""
        error, status, _, rows = await self._hlapi.get_cmd(
            self._engine,
            self._auth,
            self._target,
            self._hlapi.ContextData(),
            *self._asked(oids),
            lookupMib=False,
        )
        _check(error, status)
        return dict(pair for row in rows if (pair := _pair(row)) is not None)

    async def rows(self, column: Oid, indices: Sequence[Oid]) -> Column:
        """Some rows of a column, as far as the switch has them. Raises ``SwitchError``."""
        found: Column = {}
        for at in range(0, len(indices), VARBINDS_MAX):
            said = await self.get([(*column, *index) for index in indices[at : at + VARBINDS_MAX]])
            found |= {
                oid[len(column) :]: value for oid, value in said.items() if oid[: len(column)] == column
            }
        return found

    async def columns(self, columns: Sequence[Oid], rows_max: int = ROWS_MAX) -> dict[Oid, Column]:
        """Columns of tables, walked side by side; one that the switch does not have is empty.

        Raises:
            SwitchError: the switch does not answer, or answers with an error.
        """
        found: dict[Oid, Column] = {column: {} for column in columns}
        last: dict[Oid, Oid] = {column: column for column in columns}
        while last:
            rows = await self._bulk(list(last.values()))
            heads = list(last)
            moved = set()
            for at, row in enumerate(rows):
                head = heads[at % len(heads)]
                pair = _pair(row) if head in last else None
                if pair is None or pair[0][: len(head)] != head or pair[0] <= last[head]:
                    last.pop(head, None)  # the end, or an agent that goes in circles
                    continue
                found[head][pair[0][len(head) :]] = pair[1]
                last[head] = pair[0]
                moved.add(head)
                if len(found[head]) >= rows_max:
                    del last[head]
            last = {head: oid for head, oid in last.items() if head in moved}
        return found

    async def _bulk(self, oids: Sequence[Oid]) -> Sequence[Any]:
        repetitions = max(1, min(REPETITIONS, VARBINDS_MAX // len(oids)))
        error, status, _, rows = await self._hlapi.bulk_cmd(
            self._engine,
            self._auth,
            self._target,
            self._hlapi.ContextData(),
            0,
            repetitions,
            *self._asked(oids),
            lookupMib=False,
        )
        _check(error, status)
        asked: Sequence[Any] = rows[: repetitions * len(oids)]
        return asked

    def _asked(self, oids: Sequence[Oid]) -> list[Any]:
        h = self._hlapi
        return [h.ObjectType(h.ObjectIdentity(oid)) for oid in oids]


def whole(value: Value | None) -> int | None:
    """A number of a table; None for anything else."""
    return value if isinstance(value, int) else None


def text(value: Value | None) -> str:
    """A text of a table, bad bytes replaced; empty for anything else."""
    return value.decode("utf-8", "replace").rstrip("\x00") if isinstance(value, bytes) else ""


def _pair(row: Any) -> tuple[Oid, Value] | None:
    """One variable as plain values; None where the agent says that there is none."""
    name, value = row[0], row[1]
    kind = type(value).__name__
    if kind in ("NoSuchObject", "NoSuchInstance", "EndOfMibView", "Null"):
        return None
    oid = tuple(int(part) for part in tuple(name))
    if kind in ("ObjectIdentifier", "ObjectName", "ObjectIdentity"):
        return oid, tuple(int(part) for part in tuple(value))
    if hasattr(value, "asOctets"):
        return oid, bytes(value.asOctets()[:TEXT_MAX_BYTES])
    try:
        return oid, int(value)
    except (TypeError, ValueError):
        return None


def _check(error: Any, status: Any) -> None:
    if error:
        kind = type(error).__name__
        words = {"RequestTimedOut": "timeout", "UnknownUserName": "refused", "WrongDigest": "refused"}
        raise SwitchError(words.get(kind) or f"snmp: {error}"[:120])
    if int(status or 0):
        names = getattr(status, "prettyPrint", lambda: str(status))()
        raise SwitchError(f"snmp: {names}"[:120])


def _auth_data(hlapi: ModuleType, credentials: Credentials) -> Any:
    if credentials.user is None:
        return hlapi.CommunityData(credentials.community or "public", mpModel=1)
    chosen: dict[str, Any] = {}
    if credentials.auth_password:
        chosen["authKey"] = credentials.auth_password
        chosen["authProtocol"] = getattr(hlapi, AUTH_PROTOCOLS[credentials.auth_protocol])
    if credentials.auth_password and credentials.privacy_password:
        chosen["privKey"] = credentials.privacy_password
        chosen["privProtocol"] = getattr(hlapi, PRIVACY_PROTOCOLS[credentials.privacy_protocol])
    return hlapi.UsmUserData(credentials.user, **chosen)


def _is_ipv6(address: str) -> bool:
    try:
        return isinstance(ipaddress.ip_address(address), ipaddress.IPv6Address)
    except ValueError:
        return False


Tables = Mapping[Oid, Column]
