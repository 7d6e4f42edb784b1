"""Switches over SNMP (2c or 3): ports, counters, pause, neighbours, optics.

In: the table ``switch_snmp`` of pollers.toml. Out: ``DeviceReading`` per switch. Every column is walked in
bulk and bounded; neighbours and optics, which change slowly and cost most, every five minutes. What a switch
does not have is absent. Per-priority pause and bytes of queues come from where SONiC's agent puts them.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from collectors.pollers import switch_snmp_tables as mib
from collectors.pollers.device import ConfigError
from collectors.pollers.switch_facts import SwitchFacts
from collectors.pollers.switch_poller import COMMON_KEYS, Look, SwitchPoller, Target, settings_of
from collectors.pollers.switch_snmp_walk import (
    AUTH_PROTOCOLS,
    PRIVACY_PROTOCOLS,
    Column,
    Credentials,
    Oid,
    Session,
    Snmp,
    whole,
)
from collectors.pollers.tables import Table

NAME: Final = "switch_snmp"
PERIOD_S: Final = 60.0
PORT: Final = 161
SLOW_S: Final = 300.0
ROWS_MAX: Final = 4_096
"""of a table with one row a port"""
PASSWORD_MIN_CHARS: Final = 8
"""RFC 3414 11.2"""
_KEYS: Final = (
    *COMMON_KEYS, "auth_password_file", "auth_protocol", "community_file", "privacy_password_file",
    "privacy_protocol", "user",
)  # fmt: skip


@dataclass(slots=True)
class _Kept:
    """What is walked rarely, and which queues there are."""

    at_s: float | None = None
    tables: dict[Oid, Column] = field(default_factory=dict)
    missing: list[str] = field(default_factory=list)
    queues: list[Oid] = field(default_factory=list)

    def is_due(self, now_s: float) -> bool:
        return self.at_s is None or now_s - self.at_s >= SLOW_S


class SnmpAsker:
    """One look at one switch: its tables, one after the other."""

    def __init__(self, credentials: Credentials, clock: Callable[[], float] = time.monotonic) -> None:
        self._credentials = credentials
        self._clock = clock
        self._snmp: Snmp | None = None
        self._kept: dict[str, _Kept] = {}

    async def ask(self, target: Target, look: Look) -> SwitchFacts:
        if self._snmp is None:
            self._snmp = Snmp(self._credentials)
        session = await self._snmp.session(target.address, target.port)
        uptime = await session.get([mib.SYS_UPTIME])
        tables = await session.columns(mib.PORT_COLUMNS, ROWS_MAX)
        missing: list[str] = []
        wanted = [("counters", mib.COUNTER_COLUMNS), ("pause", mib.PRIORITY_COLUMNS)]
        if mib.lacks_64_bits(tables):
            wanted.insert(0, ("octets", mib.NARROW_COLUMNS))
        for name, columns in wanted:
            tables |= await look.optional(session.columns(columns), name, missing) or {}
        kept = self._kept.setdefault(target.name, _Kept())
        queues = look.optional(self._queues(session, kept), "queues", missing)
        tables[mib.QUEUES] = await queues or {}
        tables |= await self._slow(session, kept, look, missing)
        facts = mib.facts_of(tables, whole(uptime.get(mib.SYS_UPTIME)))
        facts.missing = missing
        return facts

    async def _queues(self, session: Session, kept: _Kept) -> Column:
        """The whole table, of which little is needed, rarely; else what is needed of it."""
        if kept.is_due(self._clock()):
            table = (await session.columns([mib.QUEUES]))[mib.QUEUES]
            kept.queues = [row for row in table if mib.is_wanted_queue(row)]
            return table
        return await session.rows(mib.QUEUES, kept.queues)

    async def _slow(self, session: Session, kept: _Kept, look: Look, missing: list[str]) -> dict[Oid, Column]:
        now_s = self._clock()
        if kept.is_due(now_s):
            kept.tables, kept.missing = {}, []
            for part, columns in (("neighbours", mib.LLDP_COLUMNS), ("sensors", mib.SENSOR_COLUMNS)):
                kept.tables |= await look.optional(session.columns(columns), part, kept.missing) or {}
            kept.at_s = now_s
        missing += kept.missing
        return kept.tables

    async def close(self) -> None:
        if self._snmp is not None:
            self._snmp.close()
            self._snmp = None


def from_config(config: Mapping[str, object], folder: Path) -> SwitchPoller:
    """Raises ``ConfigError`` that names the key, or the extra that is not installed."""
    table = Table(NAME, config, folder)
    table.only(*_KEYS)
    settings = settings_of(table, config, PERIOD_S, PORT)
    credentials = _credentials(table)
    try:
        import pysnmp  # type: ignore[import-untyped]  # noqa: F401 - whether it is there, before the first poll
    except ImportError:
        raise ConfigError(f"{NAME} needs the extra: pip install 'clusterwatch[pollers]'") from None
    return SwitchPoller(NAME, settings, SnmpAsker(credentials))


def _credentials(table: Table) -> Credentials:
    if not table.has("user"):
        community = table.secret("community_file")
        if not community:
            raise ConfigError(f"{NAME} needs community_file (version 2c) or user (version 3)")
        return Credentials(community=community)
    if table.has("community_file"):
        raise ConfigError(f"{NAME}: community_file and user exclude each other")
    passwords = {key: table.secret(key) or None for key in ("auth_password_file", "privacy_password_file")}
    for key, password in passwords.items():
        if password is not None and len(password) < PASSWORD_MIN_CHARS:
            raise ConfigError(
                f"{NAME}.{key}: a password of version 3 has at least {PASSWORD_MIN_CHARS} characters"
            )
    if passwords["privacy_password_file"] and not passwords["auth_password_file"]:
        raise ConfigError(f"{NAME}.privacy_password_file needs auth_password_file")
    return Credentials(
        user=table.text("user"),
        auth_protocol=table.choice("auth_protocol", "SHA256", tuple(AUTH_PROTOCOLS)),
        auth_password=passwords["auth_password_file"],
        privacy_protocol=table.choice("privacy_protocol", "AES128", tuple(PRIVACY_PROTOCOLS)),
        privacy_password=passwords["privacy_password_file"],
    )
