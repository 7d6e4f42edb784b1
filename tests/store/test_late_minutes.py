"""A minute is built again exactly when something came for it after it was read."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator

import pytest
from django.db import connection, transaction

from clusterwatch.store import late_minutes
from clusterwatch.store.late_minutes import LateMinute

MINUTE_NS = 60 * 10**9
T0 = 29_900_000 * MINUTE_NS


@pytest.fixture
def kept_tables(transactional_db: None) -> Iterator[None]:
    """For tests that commit; these tables are no models, so nobody else empties them."""
    yield
    with connection.cursor() as cursor:
        cursor.execute("TRUNCATE fleet_horizon, late_minute")


def store(*minutes: int) -> None:
    with transaction.atomic():
        late_minutes.note({(1, T0 + minute * MINUTE_NS) for minute in minutes})


def waiting() -> dict[int, int]:
    return {(late.t_ns - T0) // MINUTE_NS: late.notes for late in late_minutes.waiting(1, 100)}


@pytest.mark.django_db
def test_nothing_is_late_before_the_first_minute_was_built() -> None:
    store(0, 5)
    assert waiting() == {} and late_minutes.horizon_ns(1) is None


@pytest.mark.django_db
def test_what_comes_at_or_below_the_horizon_is_noted_and_each_time_counts() -> None:
    late_minutes.move_horizon(1, T0 + 2 * MINUTE_NS)
    store(1, 2, 3)
    store(1)
    assert waiting() == {1: 2, 2: 1}


@pytest.mark.django_db
def test_a_minute_whose_builder_died_stays_in_the_list_until_it_is_finished() -> None:
    late_minutes.move_horizon(1, T0)
    assert waiting() == {0: 0}
    late_minutes.finish(1, LateMinute(T0, 0))
    assert waiting() == {}


@pytest.mark.django_db
def test_a_note_that_came_while_the_minute_was_built_keeps_it_in_the_list() -> None:
    late_minutes.move_horizon(1, T0)
    late_minutes.finish(1, LateMinute(T0, 0))
    store(0)
    (seen,) = late_minutes.waiting(1, 10)
    store(0)
    late_minutes.finish(1, seen)
    assert waiting() == {0: 2}


@pytest.mark.django_db
def test_the_horizon_never_falls_and_is_one_per_cluster() -> None:
    late_minutes.move_horizon(1, T0)
    late_minutes.move_horizon(1, T0 - MINUTE_NS)
    assert late_minutes.horizon_ns(1) == T0 and late_minutes.horizon_ns(2) is None


@pytest.mark.usefixtures("kept_tables")
def test_the_horizon_waits_for_the_transaction_that_may_not_see_it_move() -> None:
    """Had it moved under it, the transaction's rollup would be neither read nor noted."""
    late_minutes.move_horizon(1, T0)
    moved = []
    with transaction.atomic():
        late_minutes.note({(1, T0 + MINUTE_NS)})
        mover = in_thread(lambda: moved.append(late_minutes.move_horizon(1, T0 + MINUTE_NS)))
        mover.join(0.3)
        assert moved == []
    mover.join(10)
    assert moved == [True] and waiting() == {0: 0, 1: 0}


@pytest.mark.usefixtures("kept_tables")
def test_a_transaction_that_hangs_does_not_hold_the_builder_for_long(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(late_minutes, "LOCK_TIMEOUT_MS", 50)
    with transaction.atomic():
        late_minutes.note({(1, T0)})
        moved = []
        in_thread(lambda: moved.append(late_minutes.move_horizon(1, T0))).join(10)
    assert moved == [False] and late_minutes.horizon_ns(1) is None


def in_thread(work: Callable[[], object]) -> threading.Thread:
    def run() -> None:
        try:
            work()
        finally:
            connection.close()

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    return thread
