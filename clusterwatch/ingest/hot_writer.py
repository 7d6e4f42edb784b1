"""One thread's work each second: a snapshot of the board becomes hot state.

In: ``board.Snapshot``. Out: the keys of ``store.hot_writes``, and the last two minutes of nodes that fell
silent or whose connection broke (``store.tails``). Valkey away costs nothing else.
"""

from __future__ import annotations

import logging
from typing import Final

import numpy as np
import redis

from clusterwatch.ingest.board import Snapshot
from clusterwatch.ingest.commit import first_line
from clusterwatch.ingest.hot_arrays import JobArrays
from clusterwatch.ingest.slot_values import SlotValues
from clusterwatch.store import gateway_notes, hot, hot_writes, tails

logger = logging.getLogger(__name__)

TAIL_AFTER_NS: Final = 2_000_000_000
"""A node silent for so long has its last minutes saved: before anybody is told of it (3 s)."""
TAILS_PER_S: Final = 32
"""Nodes saved in one second; the others of a mass outage follow while the ring still holds them."""


class GatewayWriter:
    """Writes for one gateway; used by one thread."""

    def __init__(self, gateway: str) -> None:
        self._gateway = gateway
        self._writer = hot_writes.HotWriter(gateway)
        self._jobs = JobArrays()
        self._values: dict[int, SlotValues] = {}
        self._saved: dict[int, int] = {}
        """node id -> its last word when its tail was saved"""
        self._away = False

    def write(self, snapshot: Snapshot, notes: gateway_notes.GatewayNotes) -> None:
        """Takes a second's values and writes everything."""
        for cluster_id in snapshot.values:
            self._values.setdefault(cluster_id, SlotValues())
        for cluster_id, values in self._values.items():
            values.take(snapshot.values.get(cluster_id, []), snapshot.now_ns)
        metrics = {
            (cluster_id, name): array
            for cluster_id, values in self._values.items()
            for name, array in values.renewed().items()
        }
        try:
            self._writer.write(snapshot.now_ns, snapshot.nodes, self._jobs.build(snapshot.progress), metrics)
            gateway_notes.write(self._gateway, notes)
            self._save_tails(snapshot)
        except redis.RedisError as error:
            if not self._away:
                logger.warning("hot_state_away reason=%s", first_line(error))
            self._away = True
            return
        if self._away:
            logger.info("hot_state_back")
        self._away = False

    def _save_tails(self, snapshot: Snapshot) -> None:
        nodes = snapshot.nodes
        for row in self._due(snapshot)[:TAILS_PER_S]:
            node_id, last_word_ns = int(nodes.node_id[row]), int(nodes.seen_ns[row])
            values = self._values.get(int(nodes.cluster_id[row]))
            if values is not None:
                tail = values.tail(snapshot.slots[row])
                tails.save(node_id, tails.Tail(last_word_ns, tail.end_ns, tail.metrics, tail.values))
            self._saved[node_id] = last_word_ns

    def _due(self, snapshot: Snapshot) -> list[int]:
        """Rows of nodes whose last minutes nobody has saved yet, of one silence each."""
        nodes = snapshot.nodes
        silent = (nodes.link == hot.OPEN) & (snapshot.now_ns - nodes.seen_ns > TAIL_AFTER_NS)
        lost = np.flatnonzero(silent | (nodes.link == hot.CLOSED)).tolist()
        return [row for row in lost if self._saved.get(int(nodes.node_id[row])) != nodes.seen_ns[row]]
