"""Hot state: packed arrays in Valkey, one blob per gateway and thing, rebuilt within seconds after a loss.

Each gateway writes its own keys once a second; readers overlay all gateways by newest, so gateways
multiply. Every time here is ns UTC of the SERVER's clock: a gateway turns a node's ages into it, so node
clocks never matter. Source: DESIGN 2 (Gateway) and 8.
"""

from __future__ import annotations

import contextlib
import logging
import time
import uuid
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, fields
from functools import lru_cache
from typing import Any, Final

import msgspec
import numpy as np
import redis
from numpy.typing import NDArray

from clusterwatch.store import valkey

log = logging.getLogger(__name__)

EXPIRE_S = 600
"""A blob nobody rewrote for so long is forgotten."""
GATEWAY_STALE_S = 30.0
"""A gateway that wrote nothing for so long is left out of overlays."""

OPEN, CLOSED, CLOSED_CLEAN = 0, 1, 2
"""``NodeStates.link``: connected; connection closed; closed after a Bye."""

ROWS_REMEMBERED: Final = 256
"""Jobs whose rows a reading process keeps; a row of a rank costs 16 bytes, one of its groups as much."""


@dataclass(frozen=True, slots=True)
class NodeStates:
    """Nodes as gateways see them. Columns of length N, one row per node."""

    node_id: NDArray[np.int64]
    cluster_id: NDArray[np.int64]
    seen_ns: NDArray[np.int64]
    """last frame of any kind"""
    link: NDArray[np.uint8]
    """OPEN, CLOSED or CLOSED_CLEAN"""
    link_since_ns: NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class NodesRead(NodeStates):
    """The same as it is read, with whose word it is."""

    word_ns: NDArray[np.int64]
    """when the gateway that says so last wrote: its own silence is none of the node's"""


@dataclass(frozen=True, slots=True)
class JobProgress:
    """Collective progress of one job: N rank rows, M (rank, group) rows."""

    rank_id: NDArray[np.int64]
    """``jobs.Rank`` primary keys, N"""
    node_id: NDArray[np.int64]
    seen_ns: NDArray[np.int64]
    """last hot frame that carried the rank"""
    step: NDArray[np.int64]
    """-1 before the first step"""
    phase: NDArray[np.uint8]
    """index into ``collectors.wire.records.PHASES``"""
    phase_since_ns: NDArray[np.int64]
    moved_ns: NDArray[np.int64]
    """last change of any of the rank's numbers"""
    heard_ns: NDArray[np.int64]
    """last word of the hook"""
    row: NDArray[np.int64]
    """M: index of the rank row"""
    group_id: NDArray[np.int64]
    """M: ``jobs.Group`` primary keys"""
    enqueued: NDArray[np.int64]
    completed: NDArray[np.int64]
    sequence: NDArray[np.int64]
    """M: collective sequence number, -1 unknown"""


ROW_COLUMNS: Final = ("rank_id", "node_id", "row", "group_id")
"""Columns of ``JobProgress`` that say which ranks and groups its numbers are of; they change seldom."""
NUMBER_COLUMNS: Final = (
    "seen_ns", "step", "phase", "phase_since_ns", "moved_ns", "heard_ns", "enqueued", "completed", "sequence",
)  # fmt: skip
_RANK_COLUMNS: Final = (
    "rank_id", "node_id", "seen_ns", "step", "phase", "phase_since_ns", "moved_ns", "heard_ns",
)  # fmt: skip
_GROUP_COLUMNS: Final = ("row", "group_id", "enqueued", "completed", "sequence")
_DTYPES: Final[dict[str, Any]] = {"link": np.uint8, "phase": np.uint8}


def pack_columns(columns: NodeStates | JobProgress, names: Sequence[str]) -> bytes:
    """Some columns as they lie in Valkey."""
    return msgspec.msgpack.encode({name: getattr(columns, name).tobytes() for name in names})


def _unpack(data: bytes) -> dict[str, NDArray[Any]]:
    raw = msgspec.msgpack.decode(data, type=dict[str, bytes])
    return {name: np.frombuffer(column, dtype=_DTYPES.get(name, np.int64)) for name, column in raw.items()}


def empty_progress() -> JobProgress:
    return JobProgress(**{f.name: np.empty(0, _DTYPES.get(f.name, np.int64)) for f in fields(JobProgress)})


def empty_nodes() -> NodesRead:
    return NodesRead(**{f.name: np.empty(0, _DTYPES.get(f.name, np.int64)) for f in fields(NodesRead)})


@dataclass(frozen=True, slots=True)
class MetricArray:
    """Newest value per slot of one metric: ``values`` float32[S] (NaN = none), ``seen_ns`` int64[S]."""

    values: NDArray[np.float32]
    seen_ns: NDArray[np.int64]


# --- what everybody reads ---------------------------------------------------------------------------------


def gateways(now_ns: int | None = None) -> list[str]:
    """Gateways that wrote within ``GATEWAY_STALE_S``, oldest word first."""
    return list(_gateway_words(now_ns))


def _gateway_words(now_ns: int | None = None) -> dict[str, int]:
    """When each gateway that counts last wrote, ns, oldest first."""
    now_s = (now_ns or time.time_ns()) / 1e9
    found: Any = valkey.client().zrangebyscore(
        valkey.gateways_key(), now_s - GATEWAY_STALE_S, "+inf", withscores=True
    )
    return {name.decode(): int(word_s * 1e9) for name, word_s in found}


def newest_gateway_word_ns() -> int | None:
    """When any gateway last wrote; None when none ever did (or Valkey came back empty)."""
    newest: Any = valkey.client().zrange(valkey.gateways_key(), -1, -1, withscores=True)
    return int(newest[0][1] * 1e9) if newest else None


def read_nodes() -> NodesRead:
    """All nodes of all gateways; a node known to several has its newest row."""
    words = _gateway_words()
    blobs: Any = valkey.client().mget([valkey.nodes_key(name) for name in words]) if words else []
    parts = [
        _nodes_read(blob, word_ns)
        for blob, word_ns in zip(blobs, words.values(), strict=True)
        if blob is not None
    ]
    if not parts:
        return empty_nodes()
    joined = {f.name: np.concatenate([getattr(p, f.name) for p in parts]) for f in fields(NodesRead)}
    keep = _newest(joined["node_id"], joined["seen_ns"])
    return NodesRead(**{name: column[keep] for name, column in joined.items()})


def _nodes_read(blob: bytes, word_ns: int) -> NodesRead:
    columns = _unpack(blob)
    return NodesRead(**columns, word_ns=np.full(len(columns["node_id"]), word_ns, np.int64))


def read_job(job_id: int, of_gateways: Sequence[str] | None = None) -> JobProgress:
    """Progress of one job over all gateways; a rank known to several has its newest row.

    Args:
        of_gateways: the answer of ``gateways`` a moment ago, for whoever reads many jobs.
    """
    parts = _read_parts(job_id, gateways() if of_gateways is None else of_gateways)
    if not parts:
        return empty_progress()
    if len(parts) == 1:
        return parts[0]
    return _overlay(parts)


def _read_parts(job_id: int, names: Sequence[str]) -> list[JobProgress]:
    """What each gateway says of a job; rows this process has read before are not read again."""
    raw = [
        msgspec.msgpack.decode(blob, type=tuple[str, bytes])
        for blob in _blobs(valkey.job_key(name, job_id) for name in names)
    ]
    parts = []
    for digest, numbers in raw:
        # Rows that are gone were lost with a restart of Valkey: the gateway writes them again within seconds.
        with contextlib.suppress(KeyError):
            parts.append(JobProgress(**_rows(job_id, digest), **_unpack(numbers)))
    return parts


@lru_cache(maxsize=ROWS_REMEMBERED)
def _rows(job_id: int, digest: str) -> dict[str, NDArray[Any]]:
    """Which ranks and groups some numbers are of. Raises ``KeyError``, which is not remembered."""
    packed: Any = valkey.client().get(valkey.job_rows_key(job_id, digest))
    if packed is None:
        raise KeyError(digest)
    return _unpack(packed)


def read_metric(cluster_id: int, name: str, slot_count: int) -> MetricArray:
    """Newest value per slot over all gateways, float32[slot_count]; NaN and 0 ns where nothing came."""
    values = np.full(slot_count, np.nan, np.float32)
    seen = np.zeros(slot_count, np.int64)
    for blob in _blobs(valkey.metric_key(g, cluster_id, name) for g in gateways()):
        raw = msgspec.msgpack.decode(blob, type=list[bytes])
        part_values, part_seen = np.frombuffer(raw[0], "<f4"), np.frombuffer(raw[1], "<i8")
        count = min(slot_count, len(part_values))
        newer = part_seen[:count] > seen[:count]
        values[:count][newer] = part_values[:count][newer]
        seen[:count][newer] = part_seen[:count][newer]
    return MetricArray(values, seen)


def metric_names(cluster_id: int) -> set[str]:
    """Metrics any living gateway has written for a cluster. Cost: a walk over all keys; not each second."""
    names: set[str] = set()
    for gateway in gateways():
        prefix = valkey.metric_key(gateway, cluster_id, "")
        found = valkey.client().scan_iter(match=prefix + "*", count=1000)
        names.update(key.decode()[len(prefix) :] for key in found)
    return names


def _blobs(keys: Iterable[str]) -> Sequence[bytes]:
    names = list(keys)
    blobs: Any = valkey.client().mget(names) if names else []
    return [blob for blob in blobs if blob is not None]


def _newest(ids: NDArray[np.int64], seen_ns: NDArray[np.int64]) -> NDArray[np.int64]:
    """Rows of the newest word per id, in id order."""
    order = np.lexsort((seen_ns, ids))
    last = np.append(ids[order][1:] != ids[order][:-1], True) if len(order) else np.empty(0, bool)
    kept: NDArray[np.int64] = order[last]
    return kept


def _overlay(parts: Sequence[JobProgress]) -> JobProgress:
    ranks = {n: np.concatenate([getattr(p, n) for p in parts]) for n in _RANK_COLUMNS}
    offsets = np.cumsum([0, *(len(p.rank_id) for p in parts[:-1])])
    groups = {n: np.concatenate([getattr(p, n) for p in parts]) for n in _GROUP_COLUMNS[1:]}
    rows = np.concatenate([p.row + offset for p, offset in zip(parts, offsets, strict=True)])
    keep = _newest(ranks["rank_id"], ranks["seen_ns"])
    place = np.full(len(ranks["rank_id"]), -1, np.int64)
    place[keep] = np.arange(len(keep))
    kept = place[rows] >= 0
    return JobProgress(
        **{n: c[keep] for n, c in ranks.items()},
        row=place[rows][kept],
        **{n: c[kept] for n, c in groups.items()},
    )


# --- leases and looks -------------------------------------------------------------------------------------


def take_lease(name: str, holder: str, ttl_s: float) -> bool:
    """True while ``holder`` has the lease; taken when free, renewed when already held."""
    connection = valkey.client()
    key = valkey.lease_key(name)
    if connection.set(key, holder, nx=True, px=int(ttl_s * 1000)):
        return True
    if connection.get(key) != holder.encode():
        return False
    return bool(connection.pexpire(key, int(ttl_s * 1000)))


def drop_lease(name: str, holder: str) -> None:
    """Gives the lease back, unless another holder has it by now."""
    script = "if redis.call('get', KEYS[1]) == ARGV[1] then return redis.call('del', KEYS[1]) end return 0"
    valkey.client().eval(script, 1, valkey.lease_key(name), holder)


def give_back(name: str, holder: str) -> None:
    """The same; while hot state is away the lease is left to run out by itself."""
    try:
        drop_lease(name, holder)
    except redis.RedisError as fault:
        log.warning("lease_left_to_expire lease=%s reason=%s", name, fault)


@contextlib.contextmanager
def leased(name: str, ttl_s: float) -> Iterator[bool]:
    """Whether the lease is ours within the block; False as well while hot state is away, which is logged."""
    holder = new_holder()
    try:
        is_ours = take_lease(name, holder, ttl_s)
    except redis.RedisError as fault:
        log.warning("lease_without_hot_state lease=%s reason=%s", name, fault)
        is_ours = False
    try:
        yield is_ours
    finally:
        if is_ours:
            give_back(name, holder)


def new_holder() -> str:
    """A name for one process's life, for leases and gateway keys."""
    return uuid.uuid4().hex[:12]


def save_look(job_id: int, blob: bytes) -> None:
    """Keeps the detector's last look at a job for the next tick."""
    valkey.client().set(valkey.look_key(job_id), blob, ex=EXPIRE_S)


def save_steps(job_id: int, blob: bytes) -> None:
    """Keeps what the detector of slow ranks remembers of a job."""
    valkey.client().set(valkey.steps_key(job_id), blob, ex=EXPIRE_S)


def load_steps(job_id: int) -> bytes | None:
    return _kept(valkey.steps_key(job_id))


def save_health(cluster_id: int, blob: bytes) -> None:
    """Keeps what is known of the faults of a cluster's parts."""
    valkey.client().set(valkey.health_key(cluster_id), blob, ex=EXPIRE_S)


def load_health(cluster_id: int) -> bytes | None:
    return _kept(valkey.health_key(cluster_id))


def save_unhooked(cluster_id: int, blob: bytes) -> None:
    """Keeps what a cluster's GPUs draw and move, for those whose jobs have no hook."""
    valkey.client().set(valkey.unhooked_key(cluster_id), blob, ex=EXPIRE_S)


def load_unhooked(cluster_id: int) -> bytes | None:
    return _kept(valkey.unhooked_key(cluster_id))


def save_step_notes(job_id: int, blob: bytes) -> None:
    """Keeps what a job's steps tell of its own shape, for its page."""
    valkey.client().set(valkey.step_notes_key(job_id), blob, ex=EXPIRE_S)


def load_step_notes(job_id: int) -> bytes | None:
    return _kept(valkey.step_notes_key(job_id))


def load_look(job_id: int) -> bytes | None:
    return _kept(valkey.look_key(job_id))


def _kept(key: str) -> bytes | None:
    blob: Any = valkey.client().get(key)
    return blob if isinstance(blob, bytes) else None
