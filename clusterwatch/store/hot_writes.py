"""What a gateway writes to hot state once a second: one pipelined write, unchanged parts left out.

In: the arrays of ``store.hot``. Out: keys of this gateway. Which ranks and groups the rows of a job mean
changes seldom, so those columns lie in a key named by their digest and are written once; the numbers are
written each second. A metric nobody renewed is not written again.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

import msgspec
from numpy.typing import NDArray

from clusterwatch.store import valkey
from clusterwatch.store.hot import (
    EXPIRE_S,
    NUMBER_COLUMNS,
    ROW_COLUMNS,
    JobProgress,
    MetricArray,
    NodeStates,
    pack_columns,
)

REFRESH_S: Final = EXPIRE_S / 4
"""Keys that are not rewritten have their expiry moved this often."""

_encode: Final = msgspec.msgpack.Encoder().encode
_NODE_COLUMNS: Final = tuple(NodeStates.__dataclass_fields__)


@dataclass(slots=True)
class _Rows:
    """The rows of a job as they lie in Valkey; by the identity of ``arrays`` they are known again."""

    arrays: tuple[NDArray[Any], ...]
    digest: str
    written_s: float


class HotWriter:
    """Writes for one gateway; used by one thread."""

    def __init__(self, gateway: str) -> None:
        self._gateway = gateway
        self._rows: dict[int, _Rows] = {}

    def write(
        self,
        now_ns: int,
        nodes: NodeStates,
        jobs: Mapping[int, JobProgress],
        metrics: Mapping[tuple[int, str], MetricArray],
    ) -> None:
        """One pipelined write. Jobs that are no longer given lose their key.

        Args:
            metrics: those that have new values; (cluster id, name) -> arrays.

        Raises: ``redis.RedisError``; the next call writes everything the server may have lost.
        """
        pipe = valkey.client().pipeline(transaction=False)
        pipe.set(valkey.nodes_key(self._gateway), pack_columns(nodes, _NODE_COLUMNS), ex=EXPIRE_S)
        written: dict[int, _Rows] = {}
        for job_id, progress in jobs.items():
            written[job_id] = self._add_job(pipe, job_id, progress, now_ns / 1e9)
        for (cluster_id, name), array in metrics.items():
            values, seen_ns = array.values.astype("<f4", copy=False), array.seen_ns.astype("<i8", copy=False)
            blob = _encode([values.tobytes(), seen_ns.tobytes()])
            pipe.set(valkey.metric_key(self._gateway, cluster_id, name), blob, ex=EXPIRE_S)
        for job_id in self._rows.keys() - jobs.keys():
            pipe.delete(valkey.job_key(self._gateway, job_id))
        pipe.zadd(valkey.gateways_key(), {self._gateway: now_ns / 1e9})
        self._rows = written
        lost = True
        try:
            # A gateway new to the list is one that Valkey forgot: it came back empty.
            lost = bool(pipe.execute()[-1])
        finally:
            if lost:
                for rows in written.values():
                    rows.written_s = 0.0

    def _add_job(self, pipe: Any, job_id: int, progress: JobProgress, now_s: float) -> _Rows:
        rows = self._rows.get(job_id)
        arrays = tuple(getattr(progress, name) for name in ROW_COLUMNS)
        same = rows is not None and all(a is b for a, b in zip(rows.arrays, arrays, strict=True))
        if rows is None or not same or now_s - rows.written_s > REFRESH_S:
            packed = pack_columns(progress, ROW_COLUMNS)
            digest = hashlib.blake2b(packed, digest_size=12).hexdigest()
            pipe.set(valkey.job_rows_key(job_id, digest), packed, ex=EXPIRE_S)
            rows = _Rows(arrays, digest, now_s)
        numbers = _encode([rows.digest, pack_columns(progress, NUMBER_COLUMNS)])
        pipe.set(valkey.job_key(self._gateway, job_id), numbers, ex=EXPIRE_S)
        return rows


def write_gateway(
    gateway: str,
    now_ns: int,
    nodes: NodeStates,
    jobs: Mapping[int, JobProgress],
    metrics: Mapping[tuple[int, str], MetricArray],
) -> None:
    """One write of a gateway that remembers nothing (tests, tools)."""
    HotWriter(gateway).write(now_ns, nodes, jobs, metrics)
