"""Calls of one rank, as its hook tells them, until they leave as one record.

In: ``hook_messages.Edges``, each with its own list of ops. Out: ``records.Edges`` with one list for all rows.
"""

from __future__ import annotations

from typing import Final

from collectors import hook_messages as messages
from collectors.wire import limits, records
from collectors.wire.records import RankId

FLUSH_ROWS: Final = 4_096
_COPIED: Final = ("step", "group", "size_bytes", "count", "sum_s", "min_s", "p10_s", "p50_s")


class RankEdges:
    """Rows gathered so far."""

    def __init__(self) -> None:
        self._clear()

    def _clear(self) -> None:
        self._ops: dict[str, int] = {}
        self._op: list[int] = []
        self._columns: dict[str, list[int | float]] = {name: [] for name in _COPIED}

    def fits(self, message: messages.Edges) -> bool:
        """False where its rows or words would make the record too large: take what is here first."""
        words = self._ops.keys() | set(message.ops)
        return len(self._op) + len(message.op) <= FLUSH_ROWS and len(words) <= limits.EDGE_OPS_MAX

    def add(self, message: messages.Edges) -> None:
        places = [self._ops.setdefault(op, len(self._ops)) for op in message.ops]
        self._op += [places[op] for op in message.op]
        for name, column in self._columns.items():
            column += getattr(message, name)

    def take(self, t_ns: int, identity: RankId) -> records.Edges | None:
        """The rows as a record, None without any; begins anew."""
        ops, op, columns = list(self._ops), self._op, self._columns
        self._clear()
        if not op:
            return None
        return records.Edges(t_ns=t_ns, id=identity, ops=ops, op=op, **columns)  # type: ignore[arg-type]
