"""Reads of the test's database from an async test, each in a thread that closes its connection."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

from asgiref.sync import sync_to_async
from django.db import connection

from clusterwatch.store.models import IngestCursor
from collectors.wire import records

T = TypeVar("T")


async def in_database(function: Callable[[], T]) -> T:
    """Runs a function that uses the ORM or SQL."""

    def call() -> T:
        try:
            return function()
        finally:
            connection.close()

    return await sync_to_async(call, thread_sensitive=False)()


def select(query: str, *arguments: Any) -> list[Any]:
    """Rows of a query; of one column its values."""
    with connection.cursor() as cursor:
        cursor.execute(query, arguments)
        rows = cursor.fetchall()
    return [row[0] if len(row) == 1 else row for row in rows]


async def stored_texts() -> list[str]:
    """Texts of all stored events by node and sequence: the numbered ones' numbers."""
    return await in_database(lambda: select("SELECT text FROM event ORDER BY node_id, sequence"))


async def cursor_of(lane: records.Lane, node: str = "n1", epoch: str = "epoch-1") -> IngestCursor:
    return await in_database(lambda: IngestCursor.objects.get(node=node, lane=lane, epoch=epoch))
