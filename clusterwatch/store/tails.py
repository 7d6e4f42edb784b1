"""The last two minutes of a node that fell silent, kept in Valkey until an incident takes them as evidence.

Written by the gateway that heard the node, read by ``detect``. A block of a minute leaves its node up to a
minute after its end, so what happened just before a death lies here and nowhere else.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

import msgspec
import numpy as np
import zstandard
from numpy.typing import NDArray

from clusterwatch.store import valkey

KEPT_S: Final = 3600
"""Longer than an incident needs to open; then the tail lies in its evidence."""
_LEVEL: Final = 3
_MAX_BYTES: Final = 64 * 1024 * 1024


@dataclass(frozen=True, slots=True)
class Tail:
    """Newest values of a node's slots before it fell silent, one column a second.

    ``values`` is float32[metrics, seconds, slots], NaN where none came; its last second is ``end_ns``, the
    gateway's clock.
    """

    last_word_ns: int
    end_ns: int
    metrics: tuple[str, ...]
    values: NDArray[np.float32]


class _Stored(msgspec.Struct, array_like=True):
    last_word_ns: int
    end_ns: int
    metrics: list[str]
    seconds: int
    slots: int
    planes: bytes


def save(node_id: int, tail: Tail) -> None:
    """Keeps a node's newest tail. Raises ``redis.RedisError``."""
    # Bytes of one weight together: the upper ones hardly change from second to second.
    flat = np.ascontiguousarray(tail.values, "<f4")
    planes = flat.view(np.uint8).reshape(-1, 4).T.tobytes()
    _, seconds, slots = tail.values.shape
    packed = zstandard.ZstdCompressor(level=_LEVEL).compress(planes)
    stored = _Stored(tail.last_word_ns, tail.end_ns, list(tail.metrics), seconds, slots, packed)
    valkey.client().set(valkey.tail_key(node_id), msgspec.msgpack.encode(stored), ex=KEPT_S)


def load(node_id: int) -> Tail | None:
    """The newest tail of a node; None when there is none. Raises ``redis.RedisError``."""
    blob: Any = valkey.client().get(valkey.tail_key(node_id))
    if blob is None:
        return None
    stored = msgspec.msgpack.decode(blob, type=_Stored)
    planes = zstandard.ZstdDecompressor().decompress(stored.planes, max_output_size=_MAX_BYTES)
    flat = np.frombuffer(planes, np.uint8).reshape(4, -1).T
    values = np.ascontiguousarray(flat).view("<f4").reshape(-1, stored.seconds, stored.slots)
    return Tail(stored.last_word_ns, stored.end_ns, tuple(stored.metrics), values)
