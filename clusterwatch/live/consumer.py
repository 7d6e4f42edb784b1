"""The live line of one browser: checks rights, answers with what is missing, then hands on what is new."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from typing import Any

import orjson
import redis
import redis.asyncio
from channels.auth import get_user
from channels.generic.websocket import AsyncWebsocketConsumer
from django.db import Error as DatabaseFault

from clusterwatch.accounts.models import User
from clusterwatch.live import rights
from clusterwatch.live.feed import Feed
from clusterwatch.live.hub import hub
from clusterwatch.live.requests import TOPICS_MAX, Request, RequestFault, RequestRate, parse_request
from clusterwatch.store import frames, valkey

log = logging.getLogger(__name__)

CLOSE_SIGNED_OUT = 4401
CLOSE_TOO_MANY = 4408
CLOSE_TRY_LATER = 1013
BEAT_S = 2.0
"""A viewer hears at least this often that the line lives."""
RETRY_S = 0.5
JOBS_FRESH_S = 10.0
"""How long a restricted viewer's set of jobs is used before it is read again."""
RIGHTS_FRESH_S = 60.0
"""How long a session and its rights are trusted on an open line."""


class LiveConsumer(AsyncWebsocketConsumer):  # type: ignore[misc]
    """One websocket. One task of its own reads the store and sends; announcements only wake it."""

    channel_layer_alias = "none"
    """No layer of this name: frames come by the hub, and a line opens while Valkey is away."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._feed = Feed()
        self._rate = RequestRate()
        self._wake = asyncio.Event()
        self._waiting: list[str] = []
        self._jobs: rights.JobIds | None = frozenset()
        self._jobs_at_s = self._rights_at_s = float("-inf")
        self._sender: asyncio.Task[None] | None = None
        self._client: redis.asyncio.Redis | None = None

    # --- the line ---------------------------------------------------------------------------------------

    async def connect(self) -> None:
        """Accepts signed-in users; others are accepted and closed with a code, which a page can read."""
        await self.accept()
        if not self._is_signed_in(self.scope["user"]):
            await self.close(code=CLOSE_SIGNED_OUT)
            return
        self._rights_at_s = time.monotonic()
        self._client = valkey.async_client()
        self._sender = asyncio.create_task(self._serve())

    async def disconnect(self, code: int) -> None:
        """Leaves every topic and closes what this line opened."""
        for topic in self._feed.topics:
            hub().leave(topic, self)
        if self._sender is not None and self._sender is not asyncio.current_task():
            self._sender.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._sender
        if self._client is not None:
            with contextlib.suppress(redis.RedisError, OSError):
                await self._client.aclose()

    async def receive(self, text_data: str | None = None, bytes_data: bytes | None = None) -> None:
        """One request of the browser."""
        if self._sender is None:
            return
        if self._rate.is_exceeded():
            await self.close(code=CLOSE_TOO_MANY)
            return
        try:
            await self._obey(parse_request(text_data if text_data is not None else bytes_data))
        except RequestFault as fault:
            await self._say(error=str(fault))
        except DatabaseFault as fault:
            log.warning("live_rights_unknown reason=%s", fault)
            await self.close(code=CLOSE_TRY_LATER)

    async def _obey(self, request: Request) -> None:
        for topic in request.unsubscribe:
            self._leave(topic)
        asked = {ask.topic: ask for ask in request.subscribe}
        seen = set(await rights.visible_topics(self.scope["user"], list(asked)))
        if denied := [topic for topic in asked if topic not in seen]:
            await self._say(denied=denied)
        if len(seen | set(self._feed.topics)) > TOPICS_MAX:
            raise RequestFault(f"at most {TOPICS_MAX} topics a connection")
        for topic in seen:
            self._feed.follow(topic, frames.Position(asked[topic].epoch, asked[topic].number))
            hub().join(topic, self)

    def _leave(self, topic: str) -> None:
        self._feed.drop(topic)
        hub().leave(topic, self)

    # --- what the hub says --------------------------------------------------------------------------------

    def deliver(self, frame: frames.Announced) -> None:
        """An announced frame (``hub.Viewer``)."""
        if self._feed.offer(frame):
            self._wake.set()

    def catch_up(self, topic: str) -> None:
        """Frames may have been missed (``hub.Viewer``)."""
        self._feed.mark_lacking(topic)
        self._wake.set()

    # --- the sending task ---------------------------------------------------------------------------------

    async def _serve(self) -> None:
        try:
            while await self._still_allowed():
                await self._read_lacking()
                await self._send_due()
                await self._pause()
            await self.close(code=CLOSE_SIGNED_OUT)
        except DatabaseFault as fault:
            log.warning("live_rights_unknown reason=%s", fault)
            await self.close(code=CLOSE_TRY_LATER)

    async def _pause(self) -> None:
        """Until something may be sent, or a beat is due."""
        now_s = time.monotonic()
        wait_s = self._feed.wait_s(now_s)
        if wait_s is not None:
            await asyncio.sleep(wait_s)
            return
        try:
            await asyncio.wait_for(self._wake.wait(), RETRY_S if self._feed.lacking() else BEAT_S)
        except TimeoutError:
            # Without Valkey nothing new can come: silence lets the page say so.
            if hub().is_connected:
                await self._say(beat_ms=time.time_ns() // 1_000_000)
        self._wake.clear()

    async def _read_lacking(self) -> None:
        assert self._client is not None
        try:
            for topic, held in self._feed.lacking().items():
                found = await frames.read_since(self._client, topic, held)
                if self._feed.fill(topic, held, found):
                    self._waiting.append(topic)
        except (redis.RedisError, OSError) as fault:
            log.warning("live_store_away reason=%s", fault)

    async def _send_due(self) -> None:
        if self._waiting:
            waiting, self._waiting = self._waiting, []
            await self._say(waiting=waiting)
        if due := self._feed.take_due(time.monotonic()):
            await self._refresh_jobs()
            bodies = [rights.without_hidden_rows(frame.body, self._jobs) for frame in due]
            await self.send(text_data=(b'{"frames":[' + b",".join(bodies) + b"]}").decode())

    async def _refresh_jobs(self) -> None:
        if time.monotonic() - self._jobs_at_s > JOBS_FRESH_S:
            self._jobs = await rights.visible_jobs(self.scope["user"])
            self._jobs_at_s = time.monotonic()

    async def _still_allowed(self) -> bool:
        """Looks again now and then: a session ends, a job changes its team."""
        if time.monotonic() - self._rights_at_s < RIGHTS_FRESH_S:
            return True
        self.scope["user"] = user = await get_user(self.scope)
        if not self._is_signed_in(user):
            return False
        seen = await rights.visible_topics(user, self._feed.topics)
        for topic in set(self._feed.topics) - set(seen):
            self._leave(topic)
            await self._say(denied=[topic])
        self._rights_at_s = time.monotonic()
        return True

    @staticmethod
    def _is_signed_in(user: Any) -> bool:
        return isinstance(user, User) and user.is_active

    async def _say(self, **message: Any) -> None:
        await self.send(text_data=orjson.dumps(message).decode())
