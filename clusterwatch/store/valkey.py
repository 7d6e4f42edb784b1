"""Connections to Valkey, and the names of every key and channel the product uses."""

from __future__ import annotations

from functools import lru_cache

import redis
import redis.asyncio
from django.conf import settings
from redis.backoff import NoBackoff
from redis.retry import Retry

CAPTURE_CHANNEL = "capture:notice"
"""published with a capture's id when a row was committed; gateways listen"""


@lru_cache(maxsize=1)
def client() -> redis.Redis:
    """A thread-safe blocking client, binary answers, short timeouts: hot state is never worth waiting for."""
    return redis.Redis.from_url(
        settings.VALKEY_URL,
        socket_timeout=5.0,
        socket_connect_timeout=2.0,
        retry=Retry(NoBackoff(), 1),  # one new connection; the default waits seconds while Valkey is away
    )


def async_client() -> redis.asyncio.Redis:
    """A new asyncio client; the caller closes it."""
    return redis.asyncio.Redis.from_url(settings.VALKEY_URL, socket_connect_timeout=2.0)


def gateways_key() -> str:
    return "hot:gateways"


def nodes_key(gateway: str) -> str:
    return f"hot:{gateway}:nodes"


def job_key(gateway: str, job_id: int) -> str:
    return f"hot:{gateway}:job:{job_id}"


def job_rows_key(job_id: int, digest: str) -> str:
    """Which ranks and groups the numbers of a job are of."""
    return f"hot:rows:{job_id}:{digest}"


def metric_key(gateway: str, cluster_id: int, metric: str) -> str:
    return f"hot:{gateway}:metric:{cluster_id}:{metric}"


def notes_key(gateway: str) -> str:
    """What a gateway has to say to people."""
    return f"hot:{gateway}:notes"


def tail_key(node_id: int) -> str:
    """The last two minutes of a node that fell silent."""
    return f"hot:tail:{node_id}"


def look_key(job_id: int) -> str:
    return f"look:{job_id}"


def steps_key(job_id: int) -> str:
    return f"steps:{job_id}"


def health_key(cluster_id: int) -> str:
    """What is known of the faults of a cluster's parts."""
    return f"health:{cluster_id}"


def unhooked_key(cluster_id: int) -> str:
    """What a cluster's GPUs draw and move."""
    return f"unhooked:{cluster_id}"


def step_notes_key(job_id: int) -> str:
    return f"step-notes:{job_id}"


def lease_key(name: str) -> str:
    return f"lease:{name}"


def frame_head_key(topic: str) -> str:
    """``<epoch> <number>`` of a topic's newest live frame."""
    return f"frames:{topic}:head"


def frame_full_key(topic: str) -> str:
    return f"frames:{topic}:full"


def frame_deltas_key(topic: str) -> str:
    return f"frames:{topic}:deltas"


def frame_channel(topic: str) -> str:
    """The pub/sub channel that announces a topic's frames."""
    return f"frames/{topic}"


def frame_topic(channel: bytes) -> str:
    """The topic of a channel named by ``frame_channel``."""
    return channel.decode().removeprefix("frames/")


def watched_key() -> str:
    """Sorted set: topic -> until when (seconds UTC) it counts as watched."""
    return "frames:watched"
