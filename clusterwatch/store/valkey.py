"""Connections to Valkey, and the names of every key and channel the product uses."""

from __future__ import annotations

from functools import lru_cache

import redis
import redis.asyncio
from django.conf import settings

CAPTURE_CHANNEL = "capture:notice"
"""published with a capture's id when a row was committed; gateways listen"""


@lru_cache(maxsize=1)
def client() -> redis.Redis:
    """A thread-safe blocking client, binary answers, short timeouts: hot state is never worth waiting for."""
    return redis.Redis.from_url(settings.VALKEY_URL, socket_timeout=5.0, socket_connect_timeout=2.0)


def async_client() -> redis.asyncio.Redis:
    """A new asyncio client; the caller closes it."""
    return redis.asyncio.Redis.from_url(settings.VALKEY_URL, socket_connect_timeout=2.0)


def gateways_key() -> str:
    return "hot:gateways"


def nodes_key(gateway: str) -> str:
    return f"hot:{gateway}:nodes"


def job_key(gateway: str, job_id: int) -> str:
    return f"hot:{gateway}:job:{job_id}"


def metric_key(gateway: str, cluster_id: int, metric: str) -> str:
    return f"hot:{gateway}:metric:{cluster_id}:{metric}"


def look_key(job_id: int) -> str:
    return f"look:{job_id}"


def lease_key(name: str) -> str:
    return f"lease:{name}"
