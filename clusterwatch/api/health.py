"""What is stale or away, in words without names."""

from __future__ import annotations

import time

import orjson
import redis
from django.db import DatabaseError

from clusterwatch.fleet.models import Cluster
from clusterwatch.store import hot, valkey

GATEWAY_STALE_S = 5.0
FRAME_STALE_S = 5.0
CLUSTERS_CHECKED = 20


def reasons() -> list[str]:
    """Empty when all is well."""
    try:
        clusters = list(Cluster.objects.values_list("pk", flat=True)[:CLUSTERS_CHECKED])
    except DatabaseError:
        return ["the database does not answer"]
    try:
        return [*_gateways(bool(clusters)), *_frames(clusters)]
    except redis.RedisError:
        return ["live state does not answer"]


def _gateways(expected: bool) -> list[str]:
    newest = hot.newest_gateway_word_ns()
    if newest is None:
        return ["no gateway has written yet"] if expected else []
    age_s = time.time() - newest / 1e9
    return [f"no gateway has written for {age_s:.0f} s"] if age_s > GATEWAY_STALE_S else []


def _frames(clusters: list[int]) -> list[str]:
    stale = 0
    for pk in clusters:
        raw = valkey.client().get(valkey.frame_full_key(f"cluster:{pk}"))
        fresh = isinstance(raw, bytes) and time.time() - orjson.loads(raw)["at_ms"] / 1000 < FRAME_STALE_S
        stale += not fresh
    return [f"live frames of {stale} of {len(clusters)} clusters are old"] if stale else []
