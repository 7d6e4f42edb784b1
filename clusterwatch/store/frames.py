"""Numbered live frames: what pages are told, kept so that a reader resumes after a gap.

A *topic* has a state: a JSON object. ``publish`` compares it with the state published before and sends the
difference. Any process may publish (pulse does for clusters and jobs, ``incidents.services`` for incidents,
after its commit); comparing, numbering, storing and announcing are one atomic step in Valkey, so numbers are
announced in order however many publish. The newest full state and the last ``KEPT_DELTAS`` differences stay.

**Topics and their states**: see ``clusterwatch/live/README.md``, the one table of fields.

**A frame**, as stored, announced and sent to browsers (JSON)::

    {"topic": "cluster:1", "epoch": "9f0c...", "number": 42, "at_ms": 1796180000000, "full": {...}}
    {"topic": "cluster:1", "epoch": "9f0c...", "number": 43, "at_ms": 1796180001000, "delta": {...}}

Numbers rise by one within an epoch. A new epoch (another leader, Valkey came back empty) starts with a full
frame. ``number`` missing one: ask again with the last (epoch, number) held. ``delta`` has up to four parts::

    {"set":   {key: value},                                 value replaced
     "gone":  [key],                                        key removed
     "rows":  {key: {"put": {id: row}, "gone": [id]}},      key holds {id: row}, rows are objects
     "cells": {key: [index, value, index, value, ...]}}     key holds bytes or a list of scalars

Bytes are written ``{"b64": "..."}``. An empty delta is a sign of life. ``apply_delta`` of ``store/deltas.py``
is the meaning of it all; ``static/js/live.js`` does the same.

Raises: ``redis.RedisError`` when Valkey is away; the next publish after its return starts a new epoch.
"""

from __future__ import annotations

import base64
import threading
import time
import uuid
from collections.abc import AsyncIterator, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Final

import orjson
import redis.asyncio

from clusterwatch.store import valkey
from clusterwatch.store.deltas import Json, State, apply_delta, make_delta

__all__ = ["apply_delta", "make_delta"]

KEPT_DELTAS: Final = 60
"""A reader that missed up to a minute of one frame a second resumes without a full frame."""
STEADY_KINDS: Final = frozenset({"cluster", "job"})
"""Kinds of topics that pulse publishes each second: silence of 5 s means stale."""
STEADY_KEEP_S: Final = 600
EVENT_KEEP_S: Final = 24 * 3600
WATCH_S: Final = 10
"""A topic counts as watched for so long after a reader last said so."""
REMEMBERED_TOPICS: Final = 1_024
"""States a publisher remembers; a topic beyond costs one read when it is published again."""
_ATTEMPTS: Final = 5

_PUSH = """
local head = redis.call('get', KEYS[1]) or ''
if head ~= ARGV[1] then return 0 end
local keep = tonumber(ARGV[7])
redis.call('set', KEYS[1], ARGV[2], 'EX', keep)
redis.call('set', KEYS[2], ARGV[3], 'EX', keep)
if ARGV[4] == '' then
  redis.call('del', KEYS[3])
  redis.call('publish', ARGV[5], ARGV[3])
else
  redis.call('rpush', KEYS[3], ARGV[4])
  redis.call('ltrim', KEYS[3], -tonumber(ARGV[6]), -1)
  redis.call('expire', KEYS[3], keep)
  redis.call('publish', ARGV[5], ARGV[4])
end
return 1
"""
"""Stores and announces frame ARGV[2] if the head still is ARGV[1]; else another publisher was first."""

_SINCE = """
local head = redis.call('get', KEYS[1])
if not head then return {} end
local epoch, number = string.match(head, '^(%S+) (%d+)$')
local missing = tonumber(number) - tonumber(ARGV[2])
if epoch == ARGV[1] and missing == 0 then return {head} end
if epoch == ARGV[1] and missing > 0 and missing <= redis.call('llen', KEYS[3]) then
  local found = redis.call('lrange', KEYS[3], -missing, -1)
  table.insert(found, 1, head)
  return found
end
return {head, redis.call('get', KEYS[2])}
"""
"""The head, then the deltas after (ARGV[1], ARGV[2]), or the full frame when those do not reach so far."""


@dataclass(frozen=True, slots=True)
class Position:
    """The newest frame a reader holds of a topic; number 0: none."""

    epoch: str = ""
    number: int = 0


@dataclass(frozen=True, slots=True)
class Announced:
    """One frame as it travels: its place, and the JSON that goes to the browser as it is."""

    topic: str
    position: Position
    is_full: bool
    body: bytes


@dataclass(frozen=True, slots=True)
class Followed:
    """From now on every frame of the topic is announced to this reader."""

    topic: str


# --- frames as JSON ---------------------------------------------------------------------------------------


def _encode(topic: str, at: Position, at_ms: int, part: str, content: Mapping[str, Json]) -> bytes:
    frame = {"topic": topic, "epoch": at.epoch, "number": at.number, "at_ms": at_ms, part: content}
    return orjson.dumps(frame, default=_bytes_as_json, option=orjson.OPT_NON_STR_KEYS)


def _bytes_as_json(value: Any) -> Json:
    if isinstance(value, bytes):
        return {"b64": base64.b64encode(value).decode()}
    raise TypeError(f"a {type(value).__name__} cannot be published")


def decode_frame(body: bytes) -> dict[str, Json]:
    """A stored or announced frame as an object."""
    frame: dict[str, Json] = orjson.loads(body)
    return frame


def decode_content(content: Mapping[str, Json]) -> dict[str, Json]:
    """A ``full`` state, or the ``set`` part of a delta, with its bytes as bytes."""
    return {key: _from_json(value) for key, value in content.items()}


def _from_json(value: Json) -> Json:
    if isinstance(value, dict) and value.keys() == {"b64"} and isinstance(value["b64"], str):
        return base64.b64decode(value["b64"])
    return value


def _as_published(state: State) -> dict[str, Json]:
    """The state as a reader will hold it: NaN is null, tuples are lists, keys are strings."""
    plain = {key: value for key, value in state.items() if not isinstance(value, bytes)}
    decoded: dict[str, Json] = orjson.loads(
        orjson.dumps(plain, option=orjson.OPT_NON_STR_KEYS | orjson.OPT_SERIALIZE_NUMPY)
    )
    return decoded | {key: value for key, value in state.items() if isinstance(value, bytes)}


# --- publishing -------------------------------------------------------------------------------------------


class Publisher:
    """Publishes topics and remembers what it published last, so that a delta needs no read.

    Args:
        takes_over: the first frame of each topic starts a new epoch (a new leader); else the stored state
            is continued, whoever published it.
    """

    def __init__(self, *, takes_over: bool = False) -> None:
        self._takes_over = takes_over
        self._last: dict[str, tuple[Position, dict[str, Json]]] = {}
        self._lock = threading.Lock()

    def publish(self, topic: str, state: State) -> Position:
        """Stores and announces ``state``; returns its place.

        Readers hand on at most one message a second per topic, so publish on change, once a second at most.

        Raises: ``redis.RedisError``; ``RuntimeError`` when others kept publishing the topic in between.
        """
        published = _as_published(state)
        with self._lock:
            for _ in range(_ATTEMPTS):
                known = self._last.pop(topic, None)
                found, before = known if known is not None else self._stored(topic)
                place = self._push(topic, found, before, published)
                if place is not None:
                    self._remember(topic, place, published)
                    return place
        raise RuntimeError(f"{topic} is published by too many at once")

    def forget(self, topics: Iterable[str]) -> None:
        """Drops what is remembered of topics that are no longer published."""
        for topic in topics:
            self._last.pop(topic, None)

    def topics(self) -> list[str]:
        """Topics published by this publisher and not forgotten."""
        return list(self._last)

    def _stored(self, topic: str) -> tuple[Position, dict[str, Json] | None]:
        """The head of a topic and its state; None in place of the state asks for a new epoch."""
        head, full = valkey.client().mget(valkey.frame_head_key(topic), valkey.frame_full_key(topic))
        position = _parse_head(head)
        if self._takes_over or full is None:
            return position, None
        frame = orjson.loads(full)
        if (frame["epoch"], frame["number"]) != (position.epoch, position.number):
            return position, None
        return position, decode_content(frame["full"])

    def _remember(self, topic: str, place: Position, state: dict[str, Json]) -> None:
        self._last[topic] = (place, state)
        if len(self._last) > REMEMBERED_TOPICS:
            del self._last[next(iter(self._last))]

    def _push(
        self, topic: str, found: Position, before: State | None, state: dict[str, Json]
    ) -> Position | None:
        """The new place; None when another publisher was first."""
        at_ms = time.time_ns() // 1_000_000
        if before is None:
            place, delta = Position(uuid.uuid4().hex[:16], 1), b""
        else:
            place = Position(found.epoch, found.number + 1)
            delta = _encode(topic, place, at_ms, "delta", make_delta(before, state))
        full = _encode(topic, place, at_ms, "full", state)
        keep_s = STEADY_KEEP_S if topic.partition(":")[0] in STEADY_KINDS else EVENT_KEEP_S
        keys = (valkey.frame_head_key(topic), valkey.frame_full_key(topic), valkey.frame_deltas_key(topic))
        heads = (_head(found), _head(place))
        arguments = (*heads, full, delta, valkey.frame_channel(topic), KEPT_DELTAS, keep_s)
        return place if valkey.client().eval(_PUSH, 3, *keys, *arguments) else None


def _head(position: Position) -> str:
    return f"{position.epoch} {position.number}" if position.epoch else ""


def _parse_head(head: Any) -> Position:
    if not head:
        return Position()
    epoch, number = head.decode().split(" ")
    return Position(epoch, int(number))


_shared = Publisher()


def publish(topic: str, state: State) -> Position:
    """Publishes the state of a topic from any process; call it after the commit that made it true.

    Args:
        topic: ``incident:<id>``, ``incidents:<cluster id>``, ... (live/README.md).
        state: the whole state; only what changed travels.

    Raises: as ``Publisher.publish``.
    """
    return _shared.publish(topic, state)


# --- reading ----------------------------------------------------------------------------------------------


async def read_since(client: redis.asyncio.Redis, topic: str, held: Position) -> list[Announced] | None:
    """Frames that bring a reader from ``held`` to the newest: deltas, else one full frame.

    Returns: [] when nothing is newer; None when the topic was never published (or Valkey came back empty).
    """
    keys = (valkey.frame_head_key(topic), valkey.frame_full_key(topic), valkey.frame_deltas_key(topic))
    found: Any = await client.eval(_SINCE, 3, *keys, held.epoch, held.number)
    return [parse(topic, body) for body in found[1:] if body] if found else None


def parse(topic: str, body: bytes) -> Announced:
    """A stored or announced frame."""
    frame = orjson.loads(body)
    return Announced(topic, Position(frame["epoch"], frame["number"]), "full" in frame, body)


async def listen(pubsub: redis.asyncio.client.PubSub) -> AsyncIterator[Announced | Followed]:
    """Frames of the topics ``pubsub`` follows as they are announced, and each topic once it is followed.

    A ``Followed`` also comes after the connection was lost and made again: what was announced in between
    was missed, so read it from the store. Raises ``redis.RedisError``.
    """
    async for message in pubsub.listen():
        if message["type"] == "message":
            yield parse(valkey.frame_topic(message["channel"]), message["data"])
        elif message["type"] == "subscribe":
            yield Followed(valkey.frame_topic(message["channel"]))


async def follow(pubsub: redis.asyncio.client.PubSub, topics: Iterable[str]) -> None:
    """Starts following topics."""
    if channels := [valkey.frame_channel(topic) for topic in topics]:
        await pubsub.subscribe(*channels)


async def unfollow(pubsub: redis.asyncio.client.PubSub, topics: Iterable[str]) -> None:
    """Stops following topics."""
    if channels := [valkey.frame_channel(topic) for topic in topics]:
        await pubsub.unsubscribe(*channels)


async def mark_watched(client: redis.asyncio.Redis, topics: Iterable[str]) -> None:
    """Says that somebody looks at these topics; repeat within ``WATCH_S``."""
    until_s = time.time() + WATCH_S
    if marks := dict.fromkeys(topics, until_s):
        await client.zadd(valkey.watched_key(), marks)


def watched() -> frozenset[str]:
    """Topics somebody looks at now. What nobody watches need not be made."""
    connection = valkey.client()
    connection.zremrangebyscore(valkey.watched_key(), "-inf", time.time())
    names: Any = connection.zrange(valkey.watched_key(), 0, -1)
    return frozenset(name.decode() for name in names)
