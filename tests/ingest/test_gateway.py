"""What a node may do on a connection, end to end through a real socket, PostgreSQL and Valkey."""

from __future__ import annotations

from asgiref.sync import sync_to_async
from django.db import connection

from clusterwatch.ingest.hub import Gateway
from clusterwatch.store.models import IngestCursor
from collectors.wire import records
from tests.ingest.client import Node, event, hello


@sync_to_async(thread_sensitive=False)
def stored_texts() -> list[str]:
    try:
        with connection.cursor() as cursor:
            cursor.execute("SELECT text FROM event ORDER BY sequence")
            return [row[0] for row in cursor.fetchall()]
    finally:
        connection.close()


@sync_to_async(thread_sensitive=False)
def cursor_of(lane: records.Lane, node: str = "n1") -> IngestCursor:
    try:
        return IngestCursor.objects.get(node=node, lane=lane)
    finally:
        connection.close()


async def test_stores_events_and_acknowledges_after_the_commit(node: Node) -> None:
    await node.put("urgent", 1, [event(1), event(2), event(3)])
    await node.acked("urgent", 3)
    assert await stored_texts() == ["1", "2", "3"]
    cursor = await cursor_of("urgent")
    assert (cursor.sequence, cursor.stored_count) == (3, 3)


async def test_a_record_sent_twice_is_stored_once(gateway: Gateway, node: Node) -> None:
    await node.put("urgent", 1, [event(1), event(2)])
    await node.acked("urgent", 2)
    again = await Node.connect(gateway.url, hello(credential=node.welcome.credential))
    assert again.welcome.acked == records.LaneNext(2, 0)
    await again.close()
