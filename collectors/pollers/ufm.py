"""A fabric that NVIDIA UFM manages: its switches, ports, far ends, alarms and the counters of its telemetry.

In: the table ``ufm`` of pollers.toml. Out: the same devices and names as ``ib_cluster`` gives of the same
fabric, which UFM then walks for us. Ports are asked for one switch at a time, since a list of all of them is
hundreds of megabytes. Only the list of switches is needed; what else is missing is named.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Final

from collectors.pollers import ufm_model
from collectors.pollers.command import CommandError
from collectors.pollers.device import ConfigError
from collectors.pollers.ib_cluster import IbClusterPoller
from collectors.pollers.ib_documents import Ask, Scan
from collectors.pollers.ib_fabric import WHOLE_WIDTH
from collectors.pollers.ib_topology import Fabric
from collectors.pollers.tables import Table

NAME: Final = "ufm"
PERIOD_S: Final = 300.0
LOOK_S: Final = 240.0
AT_ONCE: Final = 4
TELEMETRY_PATH: Final = "/csv/metrics"
_KEYS: Final = (
    "address", "ca_file", "fingerprint", "insecure", "lanes", "look_s", "name", "password_file", "period_s",
    "telemetry_address", "telemetry_path", "token_file", "user",
)  # fmt: skip

Client = Any
"""a ``ufm_client.UfmClient``"""


def from_rest(
    ufm: Callable[[], Client], telemetry: Callable[[], Client] | None, path: str, look_s: float
) -> Ask:
    """Asks UFM, and the telemetry where there is one."""

    def ask(clock: Callable[[], float]) -> Scan:
        return asyncio.run(_look(ufm(), telemetry() if telemetry is not None else None, path, look_s, clock))

    return ask


async def _look(
    ufm: Client, telemetry: Client | None, path: str, look_s: float, clock: Callable[[], float]
) -> Scan:
    """Raises ``CommandError`` where there is no list of switches."""
    try:
        async with asyncio.timeout(look_s):
            await ufm.open()
            found = Scan(ufm_model.switches(await ufm.rows("/resources/systems")), at_s=clock())
            if not found.fabric.switches:
                raise CommandError("UFM: no switch")
            await _ports(ufm, found)
            await _optional(_alarms(ufm, found), "alarms", found)
            if telemetry is not None:
                await telemetry.open()
                await _optional(_counters(telemetry, path, found), "telemetry", found)
                found.at_s = clock()
            return found
    except TimeoutError:
        raise CommandError("UFM: timeout") from None
    finally:
        for client in (ufm, telemetry):
            if client is not None:
                await client.close()


async def _optional(part: Any, name: str, found: Scan) -> None:
    try:
        await part
    except CommandError as error:
        found.missing.append(f"{name}: {error}")


async def _ports(ufm: Client, found: Scan) -> None:
    """Ports of every switch; one that UFM does not tell is silent."""
    fabric: Fabric = found.fabric
    places = asyncio.Semaphore(AT_ONCE)
    found.states = {}

    async def one(guid: str) -> None:
        async with places:
            try:
                rows = await ufm.rows("/resources/ports", system=guid)
            except CommandError as error:
                found.silent[guid] = str(error)
                return
        states = found.states
        assert states is not None
        states[guid] = ufm_model.add_ports(fabric, guid, rows)

    async with asyncio.TaskGroup() as group:
        for guid in fabric.switches:
            group.create_task(one(guid))
    adapters = {
        end.guid for one in fabric.switches.values() for end in one.ends.values() if not end.is_switch
    }
    fabric.adapters = len(adapters)
    if found.silent:
        why = next(iter(found.silent.values()))
        if len(found.silent) == len(fabric.switches):
            raise CommandError(why)
        found.missing.append(f"ports: of {len(found.silent)} switches: {why}")


async def _alarms(ufm: Client, found: Scan) -> None:
    found.events = ufm_model.alarms(await ufm.rows("/app/alarms"))


async def _counters(telemetry: Client, path: str, found: Scan) -> None:
    rows = ufm_model.CounterRows(found.fabric)
    async for line in telemetry.lines(path):
        rows.add(line)
    if not rows.rows:
        raise CommandError("no row of a switch")
    found.counters.append(rows.found)


def from_config(config: Mapping[str, object], folder: Path) -> IbClusterPoller:
    """Raises ``ConfigError`` that names the key."""
    try:
        from collectors.pollers.redfish_client import Login
        from collectors.pollers.ufm_client import UfmClient
    except ImportError:
        raise ConfigError(f"{NAME}: install the extra: pip install 'clusterwatch[pollers]'") from None
    table = Table(NAME, config, folder)
    table.only(*_KEYS)
    token, user = table.secret("token_file"), table.text("user", "")
    if bool(token) == bool(user):
        raise ConfigError(f"{NAME} needs token_file, or user with password_file, and not both")
    password = table.secret("password_file") if user else ""
    if user and not password:
        raise ConfigError(f"{NAME}.user needs password_file")
    address, insecure = table.address("address"), table.flag("insecure")
    if address.startswith("http:") and not insecure:
        raise ConfigError(f"{NAME}.address: over http everybody reads the secret: https, or insecure = true")
    login, telemetry = _logins(table, Login, address, user, password)
    path = table.text("telemetry_path", TELEMETRY_PATH)
    if not path.startswith("/"):
        raise ConfigError(f"{NAME}.telemetry_path must begin with /")
    look_s = table.seconds("look_s", LOOK_S, 1.0, 1_800.0)
    return IbClusterPoller(
        table.name("name", "ib"),
        from_rest(
            lambda: UfmClient(login, token),
            (lambda: UfmClient(telemetry)) if telemetry is not None else None,
            path,
            look_s,
        ),
        table.seconds("period_s", PERIOD_S, 60.0, 3_600.0),
        look_s,
        int(table.seconds("lanes", WHOLE_WIDTH, 1, 12)),
        time.monotonic,
        NAME,
    )


def _logins(
    table: Table, login: Callable[..., Any], address: str, user: str, password: str
) -> tuple[Any, Any | None]:
    """Of UFM and of its telemetry, which gets no secret; None where there is none."""
    trusted: dict[str, Any] = {
        "ca_file": table.path("ca_file"),
        "fingerprint": table.fingerprint("fingerprint"),
        "insecure": table.flag("insecure"),
    }
    ufm = login(address, user=user, password=password, **trusted)
    where = table.text("telemetry_address", "")
    if not where:
        return ufm, None
    return ufm, login(
        table.address("telemetry_address", where), **(trusted if where.startswith("https:") else {})
    )
