"""Headers of blocks are stored once per cluster, up to a limit, and let go when nothing can name them."""

from __future__ import annotations

import pytest
from django.db import connection
from django.test import override_settings

from clusterwatch.project import environment
from clusterwatch.store import block_shapes, partitions
from clusterwatch.store.block_shapes import BlockShapes, ShapeKey, shape_of
from collectors.wire.blocks import BlockError
from collectors.wire.records import BlockMetric

pytestmark = pytest.mark.django_db


def key(name: str, cluster: int = 1) -> ShapeKey:
    return ShapeKey(cluster, shape_of((BlockMetric(name, "w", 0.5, 8, 60),)))


def count() -> int:
    with connection.cursor() as cursor:
        cursor.execute("SELECT count(*) FROM block_shape")
        return int(cursor.fetchone()[0])


def test_two_writers_find_the_same_row_and_it_says_what_the_header_said() -> None:
    power, heat = key("power_w"), key("temperature_c")
    one = BlockShapes().ids([power, heat])
    other = BlockShapes().ids([heat, power, power])
    assert one == other and count() == 2
    row = one[1, power.shape.digest]
    assert block_shapes.read([row, 10**9]) == {row: power.shape.metrics}


def test_a_writer_asks_the_database_once(django_assert_num_queries: object) -> None:
    shapes = BlockShapes()
    first = shapes.ids([key("power_w")])
    with django_assert_num_queries(0):  # type: ignore[operator]
        assert shapes.ids([key("power_w")]) == first


@override_settings(BLOCK_SHAPES_MAX=2)
def test_a_cluster_at_its_limit_gets_no_new_row_and_harms_no_other() -> None:
    shapes = BlockShapes()
    assert len(shapes.ids([key("a"), key("b"), key("c")])) == 2
    assert shapes.ids([key("d")]) == {}
    assert len(shapes.ids([key("a"), key("b"), key("c")])) == 2
    assert len(shapes.ids([key("d", cluster=2)])) == 1
    assert count() == 3


def test_a_header_no_block_can_have_has_no_shape() -> None:
    with pytest.raises(BlockError):
        shape_of((BlockMetric("a", "w", 0.0, 1, 60),))


def test_maintenance_lets_headers_go_that_no_kept_row_can_name() -> None:
    BlockShapes().ids([key("old"), key("new")])
    kept = max(environment.RETENTION_DAYS[table] for table in partitions.SHAPED)
    with connection.cursor() as cursor:
        cursor.execute(
            "UPDATE block_shape SET last_seen_on = current_date - %s::integer WHERE metrics @> %s::jsonb",
            [kept + block_shapes.UNUSED_DAYS + 1, '[{"name": "old"}]'],
        )
    partitions.maintain()
    assert count() == 1
    assert len(BlockShapes().ids([key("old")])) == 1
