"""One connection to Valkey per web process: follows the topics its viewers want, hands them the frames.

Frames go through Valkey's pub/sub directly and not through a Channels group: storing, numbering and
announcing a frame are then one atomic step for any publisher, with or without an event loop, and nothing is
dropped silently between them (django/channels_redis#181).
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import weakref
from typing import Protocol

import redis
import redis.asyncio

from clusterwatch.store import frames, valkey

log = logging.getLogger(__name__)

RETRY_S = 0.5
TEND_S = 3.0
"""How often followed topics are marked as watched; well below ``frames.WATCH_S``."""
_KEEPALIVE_TOPIC = "hub:0"
"""Never published: a listener must follow something."""


class Viewer(Protocol):
    """Who wants frames. Both calls return at once."""

    def deliver(self, frame: frames.Announced) -> None:
        """One frame as it was announced."""

    def catch_up(self, topic: str) -> None:
        """Frames may have been missed: read the topic from the store."""


class Hub:
    """Viewers of one event loop by topic."""

    def __init__(self) -> None:
        self._viewers: dict[str, set[Viewer]] = {}
        self._followed: set[str] = set()
        self._changed = asyncio.Event()
        self._task: asyncio.Task[None] | None = None

    @property
    def is_connected(self) -> bool:
        """Whether announcements reach this process now."""
        return _KEEPALIVE_TOPIC in self._followed

    def join(self, topic: str, viewer: Viewer) -> None:
        """Hands ``viewer`` the topic's frames; it is told to catch up once the topic is followed."""
        self._viewers.setdefault(topic, set()).add(viewer)
        self._changed.set()
        if topic in self._followed:
            viewer.catch_up(topic)
        if self._task is None or self._task.done():
            self._task = asyncio.create_task(self._run())

    def leave(self, topic: str, viewer: Viewer) -> None:
        """Stops it. The connection closes with the last viewer."""
        viewers = self._viewers.get(topic, set())
        viewers.discard(viewer)
        if not viewers:
            self._viewers.pop(topic, None)
            self._changed.set()

    async def _run(self) -> None:
        while self._viewers:
            self._followed.clear()
            try:
                await self._relay()
            except* (redis.RedisError, OSError) as faults:
                log.warning("live_line_lost reason=%s", faults.exceptions[0])
                await asyncio.sleep(RETRY_S)

    async def _relay(self) -> None:
        """Relays until nobody watches (returns) or Valkey goes away (raises an exception group)."""
        client = valkey.async_client()
        pubsub = client.pubsub()
        try:
            async with asyncio.TaskGroup() as tasks:
                await frames.follow(pubsub, [_KEEPALIVE_TOPIC])
                listening = tasks.create_task(self._listen(pubsub))
                await self._tend(client, pubsub)
                listening.cancel()
        finally:
            with contextlib.suppress(redis.RedisError, OSError):
                await pubsub.aclose()  # type: ignore[no-untyped-call]
                await client.aclose()

    async def _listen(self, pubsub: redis.asyncio.client.PubSub) -> None:
        async for word in frames.listen(pubsub):
            viewers = tuple(self._viewers.get(word.topic, ()))
            if isinstance(word, frames.Announced):
                for viewer in viewers:
                    viewer.deliver(word)
            else:
                self._followed.add(word.topic)
                for viewer in viewers:
                    viewer.catch_up(word.topic)

    async def _tend(self, client: redis.asyncio.Redis, pubsub: redis.asyncio.client.PubSub) -> None:
        """Keeps the followed topics equal to the wanted ones, and marked as watched."""
        asked: set[str] = set()
        while self._viewers:
            wanted = set(self._viewers)
            await frames.follow(pubsub, wanted - asked)
            await frames.unfollow(pubsub, asked - wanted)
            self._followed -= asked - wanted
            asked = wanted
            await frames.mark_watched(client, wanted)
            self._changed.clear()
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._changed.wait(), TEND_S)


_hubs: weakref.WeakKeyDictionary[asyncio.AbstractEventLoop, Hub] = weakref.WeakKeyDictionary()


def hub() -> Hub:
    """The hub of the running event loop."""
    loop = asyncio.get_running_loop()
    if loop not in _hubs:
        _hubs[loop] = Hub()
    return _hubs[loop]
