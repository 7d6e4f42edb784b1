"""A real agent that polls a switch through its child process."""

from __future__ import annotations

import asyncio
import os
import signal
from pathlib import Path

from collectors.wire import readings, records
from tests.collectors.fakes import FakeGateway, start_agent, until
from tests.collectors.pollers.test_switch_fboss import MODELS, write

TARGET = '[switch_fboss]\nfolder = "fboss"\nperiod_s = 5\ntargets = [{ name = "leaf-1" }]\n'


def children(pid: int) -> list[int]:
    """Processes of the agent that poll."""
    told = Path(f"/proc/{pid}/task/{pid}/children").read_text(encoding="ascii").split()
    commands = {int(one): Path(f"/proc/{one}/cmdline").read_bytes() for one in told}
    return [one for one, command in commands.items() if b"collectors.poller_child" in command]


def kinds(gateway: FakeGateway) -> list[str]:
    return [event.kind for event in gateway.stored_records(records.Event)]


async def test_a_switch_arrives_the_child_comes_back_and_a_bad_file_is_told(tmp_path: Path) -> None:
    write(tmp_path / "fboss" / "leaf-1", MODELS)
    file = tmp_path / "pollers.toml"
    file.write_text(TARGET, encoding="utf-8")
    gateway = FakeGateway()
    await gateway.start()
    (tmp_path / "agent.toml").write_text(f'pollers_file = "{file}"\n', encoding="utf-8")
    agent = await start_agent(tmp_path, gateway.url)
    try:
        record = (await until(lambda: gateway.stored_records(records.DeviceReadings), 20))[0]
        assert (record.kind, record.device, record.poller, record.state) == (
            "switch", "leaf-1", "switch_fboss", "ok",
        )  # fmt: skip
        assert "rate_gbps" in readings.unpack(record.data).metrics
        events = gateway.stored_records(records.Event)
        (event,) = [one for one in events if one.fields.get("device") == "switch/leaf-1"]
        assert event.kind == "port_down"
        await until(lambda: gateway.hot[-1].agent.sources["pollers"] == "ok")  # type: ignore[union-attr]
        (pid,) = children(agent.pid)
        os.kill(pid, signal.SIGKILL)
        await until(lambda: "poller_recovered" in kinds(gateway), 20)
        assert kinds(gateway).count("poller_failed") == 1
        file.write_text("[no_such]\n", encoding="utf-8")
        await until(lambda: "no poller 'no_such'" in gateway.hot[-1].agent.sources["pollers"], 20)  # type: ignore[union-attr]
        await until(lambda: kinds(gateway).count("poller_failed") == 2)
    finally:
        agent.send_signal(signal.SIGTERM)
        code = await asyncio.wait_for(agent.wait(), 15)
        await gateway.stop()
    assert code == 0
