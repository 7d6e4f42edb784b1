"""Lanes are found by number where a writer knows it, and never taken for another lane."""

from __future__ import annotations

import pytest
from django.db import connection, transaction

from clusterwatch.store import cursors
from clusterwatch.store.cursors import Advance, LaneKey, Lanes

pytestmark = pytest.mark.django_db
A, B, C = (LaneKey("tiny", node, "epoch", "bulk") for node in ("a", "b", 'c,"{}'))


def move(lanes: Lanes, **changes: int) -> dict[LaneKey, int]:
    named = {"a": A, "b": B, "c": C}
    with transaction.atomic():
        before = lanes.lock([named[name] for name in changes])
        lanes.advance({named[name]: Advance(to, stored_count=1) for name, to in changes.items()})
    return before


def test_lanes_begin_at_zero_and_go_where_they_were_moved() -> None:
    lanes = Lanes()
    assert move(lanes, a=3, c=5) == {A: 0, C: 0}
    assert move(lanes, a=4, b=1, c=9) == {A: 3, B: 0, C: 5}
    assert move(lanes, c=10, b=2, a=5) == {A: 4, B: 1, C: 9}
    assert cursors.read([A, B, C]) == {A: 5, B: 2, C: 10}


def test_another_writer_sees_what_this_one_committed() -> None:
    one, other = Lanes(), Lanes()
    move(one, a=3)
    assert move(other, a=4) == {A: 3}
    assert move(one, a=5) == {A: 4}


def test_a_known_number_that_now_means_another_lane_is_looked_up_again() -> None:
    lanes = Lanes()
    move(lanes, a=3, b=7)
    with connection.cursor() as cursor:
        cursor.execute("UPDATE store_ingestcursor SET node = 'x' WHERE node = 'a'")
        cursor.execute("UPDATE store_ingestcursor SET node = 'a' WHERE node = 'b'")
    assert move(lanes, a=8, b=1) == {A: 7, B: 0}
    assert cursors.read([A, B]) == {A: 8, B: 1}


def test_a_row_that_is_gone_is_made_again() -> None:
    lanes = Lanes()
    move(lanes, a=3)
    with connection.cursor() as cursor:
        cursor.execute("DELETE FROM store_ingestcursor")
    assert move(lanes, a=4) == {A: 0}


def test_a_writer_forgets_before_it_remembers_too_much(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cursors, "LANES_KNOWN_MAX", 1)
    lanes = Lanes()
    move(lanes, a=1, b=1)
    move(lanes, c=1)
    assert move(lanes, a=2, b=2) == {A: 1, B: 1}
