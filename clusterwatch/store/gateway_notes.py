"""What gateways have to say to people: whether they can store, and nodes they keep out or do not trust.

Written by each gateway with its hot state, read by pages and ``clusterwatch status``; everything here is
words and counts, nothing is decided by it.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Final, Literal

import msgspec

from clusterwatch.store import hot, valkey

NOTE_KEPT_S: Final = 3600
"""A node that gave no cause for so long is not mentioned any more."""

Storing = Literal["ok", "slow", "database_away", "disk_full"]


class StoringNote(msgspec.Struct, frozen=True):
    """How storing goes in one gateway."""

    state: Storing
    since_ms: int
    reason: str
    """the database's own words, empty while all is well"""
    waiting_records: int
    waiting_bytes: int


class NodeNote(msgspec.Struct, frozen=True):
    """A node that is kept out, or whose clock or name is in doubt."""

    cluster: str
    node: str
    code: str
    """a code of ``records.Refuse``, ``clock_ahead``, ``clock_behind`` or ``clock_stepped``"""
    reason: str
    peer: str
    count: int
    first_ms: int
    last_ms: int


class GatewayNotes(msgspec.Struct, frozen=True):
    """All of one gateway."""

    storing: StoringNote
    nodes: list[NodeNote]
    total: int
    """causes given since the gateway started, those that are no longer listed too"""


def write(gateway: str, notes: GatewayNotes) -> None:
    """Replaces a gateway's notes. Raises ``redis.RedisError``."""
    valkey.client().set(valkey.notes_key(gateway), msgspec.msgpack.encode(notes), ex=hot.EXPIRE_S)


def read() -> list[GatewayNotes]:
    """The notes of gateways that write. Raises ``redis.RedisError``."""
    names = hot.gateways()
    blobs: Any = valkey.client().mget([valkey.notes_key(name) for name in names]) if names else []
    return [msgspec.msgpack.decode(blob, type=GatewayNotes) for blob in blobs if blob is not None]


def storing_words(notes: Iterable[GatewayNotes]) -> str:
    """One sentence when a gateway cannot store as it should; empty while all can."""
    worst = max((note.storing for note in notes), key=lambda s: _WORST_LAST.index(s.state), default=None)
    if worst is None or worst.state == "ok":
        return ""
    return f"{_WORDS[worst.state]} ({worst.reason}); {worst.waiting_records} records wait in the gateway"


_WORST_LAST: Final[tuple[Storing, ...]] = ("ok", "slow", "database_away", "disk_full")
_WORDS: Final[dict[Storing, str]] = {
    "slow": "The database is slow: agents were asked to hold their records",
    "database_away": "The database does not answer: nothing is stored, agents keep their records",
    "disk_full": "The database's disk is full: nothing is stored, agents keep their records for now",
}
