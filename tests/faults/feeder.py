"""A node that numbers its records: the real spool and sender, with nothing but counted events to send.

Run as a process: ``feeder.py STATE_DIR GATEWAY_URL TOKEN_FILE NODE RATE_PER_S``. It appends numbered events
until SIGTERM, then prints ``appended N``, delivers the rest and ends when the spool is empty.
"""

from __future__ import annotations

import asyncio
import signal
import sys
import time
from pathlib import Path

from collectors.clock import SystemClock
from collectors.config import AgentConfig
from collectors.sender import Sender
from collectors.spool import Spool
from collectors.wire import codec, records

EMPTY_LIMIT_S = 90.0


def make_config(state_dir: str, gateway_url: str, token_file: str, node: str) -> AgentConfig:
    return AgentConfig(
        state_dir=Path(state_dir),
        gateway_url=gateway_url,
        hook_socket=Path(state_dir) / "hook.sock",
        cluster="default",
        node=node,
        machine_id=f"machine-{node}",
        boot_id="boot",
        token_file=Path(token_file),
    )


def event(number: int) -> records.Event:
    return records.Event(
        t_ns=time.time_ns(),
        source="feeder",
        kind="numbered",
        severity="info",
        text="",
        fields={"n": str(number)},
    )


async def feed(config: AgentConfig, rate_per_s: float) -> None:
    spool = Spool(config.state_dir / "spool")

    def hello(credential: str | None, token: str | None) -> records.Hello:
        return records.Hello(
            version=codec.VERSION,
            cluster=config.cluster,
            node=config.node,
            machine_id=config.machine_id,
            boot_id=config.boot_id,
            epoch=spool.epoch,
            agent_version="test",
            t_ns=time.time_ns(),
            next=spool.next_sequences(),
            credential=credential,
            enrolment_token=token,
        )

    sender = Sender(config, spool, SystemClock(), hello, on_capture=lambda order: None)
    sending = asyncio.create_task(sender.run())
    stop = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, stop.set)
    number = 0
    while not stop.is_set():
        spool.append(event(number))
        number += 1
        sender.wake()
        await asyncio.sleep(1 / rate_per_s)
    print(f"appended {number}", flush=True)
    deadline = time.monotonic() + EMPTY_LIMIT_S
    while spool.pending_records and time.monotonic() < deadline:
        sender.wake()
        await asyncio.sleep(0.1)
    print(f"pending {spool.pending_records}", flush=True)
    await sender.stop()
    await sending
    spool.close()


if __name__ == "__main__":
    asyncio.run(feed(make_config(*sys.argv[1:5]), float(sys.argv[5])))
