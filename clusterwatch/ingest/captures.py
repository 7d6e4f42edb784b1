"""Captures on their way to the nodes: watches for requested rows and sends each connected node its order.

A Valkey notice makes it quick, a look at the table every ``LOOK_EVERY_S`` makes it certain.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any, Final

import redis

from clusterwatch.jobs import queries, services
from clusterwatch.store import valkey
from collectors.wire.records import CaptureOrder

logger = logging.getLogger(__name__)

LOOK_EVERY_S: Final = 2.0
RECONNECT_S: Final = 1.0


@dataclass(frozen=True, slots=True)
class OpenCapture:
    """A capture that waits, and the nodes that have not answered yet."""

    order: CaptureOrder
    node_ids: tuple[int, ...]


def open_captures() -> list[OpenCapture]:
    """Ends overdue captures and returns what still waits. Runs in a database thread."""
    services.expire_captures()
    found = []
    for capture in queries.open_captures()[:256]:
        order = CaptureOrder(
            capture_id=capture.pk,
            job=capture.job.key,
            want=list(capture.want),
            ranks=capture.ranks,
            deadline_s=capture.deadline_s,
            ras_rank=capture.ras_rank,
        )
        waiting = set(capture.expected_nodes) - set(capture.answered_nodes)
        found.append(OpenCapture(order, tuple(sorted(waiting))))
    return found


class CaptureWatch:
    """Runs beside the connections of one gateway."""

    def __init__(
        self,
        call: Callable[[Callable[[], list[OpenCapture]]], Awaitable[list[OpenCapture]]],
        send: Callable[[int, CaptureOrder], None],
    ) -> None:
        """Args:
        call: runs a function in a database thread.
        send: hands an order to a node id, at most once per connection; unknown nodes are another gateway's.
        """
        self._call = call
        self._send = send
        self._noticed = asyncio.Event()

    async def run(self) -> None:
        """Until cancelled."""
        listener = asyncio.create_task(self._listen())
        try:
            while True:
                self._noticed.clear()
                await self._look()
                # Not wait_for: before Python 3.12 it can swallow the cancellation that ends this loop.
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(LOOK_EVERY_S):
                        await self._noticed.wait()
        finally:
            # redis-py may swallow a cancellation that meets its connecting: ask until it obeys.
            while not listener.done():
                listener.cancel()
                await asyncio.wait([listener], timeout=0.2)

    def wake(self) -> None:
        """Looks at once: a node with a pending order may just have come back."""
        self._noticed.set()

    async def _look(self) -> None:
        try:
            captures = await self._call(open_captures)
        except Exception as error:  # noqa: BLE001 - a supervised loop; the database may be away for a while
            logger.warning("captures_unread reason=%s", (str(error).splitlines() or ["?"])[0])
            return
        for capture in captures:
            for node_id in capture.node_ids:
                self._send(node_id, capture.order)

    async def _listen(self) -> None:
        while True:
            client = valkey.async_client()
            try:
                subscription: Any = client.pubsub()
                await subscription.subscribe(valkey.CAPTURE_CHANNEL)
                async for _ in subscription.listen():
                    self._noticed.set()
            except (redis.RedisError, OSError) as error:
                logger.warning("capture_notices_lost retry_s=%.0f reason=%s", RECONNECT_S, error)
            finally:
                await client.aclose()
            await asyncio.sleep(RECONNECT_S)
