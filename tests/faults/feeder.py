"""A node that numbers its records: the real spool and sender, with nothing but counted records to send.

Run as a process: ``feeder.py STATE_DIR GATEWAY_URL TOKEN_FILE NODE RATE_PER_S``. It appends events, and a
block for every twentieth of them, until SIGTERM; then it delivers the rest, prints ``events N``, ``blocks N``
and ``pending N`` and ends. Each record carries its own sequence number, taken from the spool: after a kill it
goes on where the spool's files end, so numbers run from 1 without a gap whatever happened.

Twice a second a hot frame says how far the count is, as the value of one metric of its one GPU: whoever shows
a smaller number after a larger one shows an older frame over a newer.
"""

from __future__ import annotations

import asyncio
import signal
import sys
import time
from array import array
from collections.abc import Callable
from pathlib import Path

from collectors.clock import SystemClock
from collectors.config import AgentConfig
from collectors.sender import Sender
from collectors.spool import Spool
from collectors.wire import blocks, codec, hot_values, records

EMPTY_LIMIT_S = 90.0
HOT_EVERY_S = 0.5
HOT_METRIC = "nic_out_of_sequence_total"
"""A counter of the catalogue; here it counts the frames."""
EVENTS_PER_BLOCK = 20
MINUTE_NS = 60 * 10**9
MINUTES = 600
"""Blocks are spread over so many past minutes."""
_HEADER = records.BlockMetric("number", "count", 1.0, 1, 60)


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


def block(number: int) -> records.Block:
    """A past minute whose every value is the number."""
    minute_ns = (time.time_ns() // MINUTE_NS - 1 - number % MINUTES) * MINUTE_NS
    return records.Block(
        minute_ns=minute_ns,
        codec=blocks.CODEC,
        metrics=[_HEADER],
        data=blocks.encode([_HEADER], [array("q", [number] * 60)]),
        rollup=blocks.pack_rollups([blocks.rollup([number] * 60, 1.0)]),
    )


async def feed(config: AgentConfig, rate_per_s: float) -> None:
    spool = Spool(config.state_dir / "spool")
    sender = Sender(config, spool, SystemClock(), _hello(config, spool), on_capture=lambda order: None)
    sending = asyncio.create_task(sender.run())
    stop = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, stop.set)
    counting = asyncio.create_task(_count_frames(sender))
    while not stop.is_set():
        numbers = spool.next_sequences()
        spool.append(event(numbers.urgent))
        if numbers.urgent % EVENTS_PER_BLOCK == 0:
            spool.append(block(numbers.bulk))
        sender.wake()
        await asyncio.sleep(1 / rate_per_s)
    deadline = time.monotonic() + EMPTY_LIMIT_S
    while spool.pending_records and time.monotonic() < deadline:
        sender.wake()
        await asyncio.sleep(0.1)
    counting.cancel()
    numbers = spool.next_sequences()
    print(
        f"events {numbers.urgent - 1}\nblocks {numbers.bulk - 1}\npending {spool.pending_records}", flush=True
    )
    await sender.stop()
    await sending
    spool.close()


async def _count_frames(sender: Sender) -> None:
    count = 0
    while True:
        count += 1
        metrics = hot_values.pack({HOT_METRIC: [float(count)]})
        sender.hot(records.HotFrame(t_ns=time.time_ns(), metrics=metrics))
        await asyncio.sleep(HOT_EVERY_S)


def _hello(config: AgentConfig, spool: Spool) -> Callable[[str | None, str | None], records.Hello]:
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
            gpus=[records.GpuIdentity(0)],
        )

    return hello


if __name__ == "__main__":
    asyncio.run(feed(make_config(*sys.argv[1:5]), float(sys.argv[5])))
