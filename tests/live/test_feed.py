"""What a viewer is owed: nothing twice, nothing out of order, at most one message a second."""

from clusterwatch.live.feed import SPACING_S, Feed
from clusterwatch.store.frames import KEPT_DELTAS, Announced, Position

TOPIC = "job:1"


def frame(number: int, epoch: str = "a", *, full: bool = False) -> Announced:
    return Announced(TOPIC, Position(epoch, number), full, b"{}")


def followed(held: Position, found: list[Announced] | None) -> Feed:
    feed = Feed()
    feed.follow(TOPIC, held)
    feed.fill(TOPIC, held, found)
    return feed


def numbers(frames: list[Announced]) -> list[int]:
    return [f.position.number for f in frames]


def test_the_next_frame_is_queued_and_an_old_one_is_not():
    feed = followed(Position("a", 4), [])
    assert feed.offer(frame(5))
    assert not feed.offer(frame(5)) and not feed.offer(frame(3))
    assert numbers(feed.take_due(0.0)) == [5]


def test_a_missing_number_asks_the_store_from_the_last_place():
    feed = followed(Position("a", 4), [])
    feed.offer(frame(6))
    assert feed.lacking() == {TOPIC: Position("a", 4)}
    feed.fill(TOPIC, Position("a", 4), [frame(5), frame(6)])
    assert numbers(feed.take_due(0.0)) == [5, 6] and feed.lacking() == {}


def test_a_delta_of_another_epoch_asks_the_store_and_a_full_frame_needs_no_asking():
    feed = followed(Position("a", 4), [])
    feed.offer(frame(5, "b"))
    assert TOPIC in feed.lacking()
    feed = followed(Position("a", 4), [])
    feed.offer(frame(1, "b", full=True))
    assert numbers(feed.take_due(0.0)) == [1]


def test_a_frame_announced_while_the_store_is_read_is_not_lost():
    feed = Feed()
    feed.follow(TOPIC, Position())
    feed.offer(frame(2))
    feed.fill(TOPIC, Position(), [frame(1, full=True)])
    assert feed.lacking() == {TOPIC: Position("a", 1)}


def test_a_full_frame_replaces_what_was_queued_before_it():
    feed = followed(Position("a", 4), [])
    feed.offer(frame(5))
    feed.mark_lacking(TOPIC)
    feed.fill(TOPIC, Position("a", 5), [frame(70, full=True)])
    assert numbers(feed.take_due(0.0)) == [70]


def test_frames_that_come_too_fast_wait_and_go_together():
    feed = followed(Position("a", 4), [])
    feed.offer(frame(5))
    assert numbers(feed.take_due(10.0)) == [5]
    feed.offer(frame(6))
    assert feed.take_due(10.5) == []
    assert 0 < feed.wait_s(10.5) < SPACING_S
    feed.offer(frame(7))
    assert numbers(feed.take_due(10.0 + SPACING_S)) == [6, 7]


def test_a_viewer_that_does_not_read_holds_a_bounded_queue():
    feed = followed(Position("a", 0), [])
    for number in range(1, 10 * KEPT_DELTAS):
        feed.offer(frame(number))
    assert len(feed.take_due(0.0)) <= KEPT_DELTAS
    assert TOPIC in feed.lacking()


def test_waiting_is_told_once():
    feed = Feed()
    feed.follow(TOPIC, Position())
    assert feed.fill(TOPIC, Position(), None)
    feed.mark_lacking(TOPIC)
    assert not feed.fill(TOPIC, Position(), None)


def test_an_answer_for_a_place_that_is_no_longer_held_is_ignored():
    feed = followed(Position("a", 4), [])
    feed.follow(TOPIC, Position("a", 9))
    feed.fill(TOPIC, Position("a", 4), [frame(5)])
    assert feed.take_due(0.0) == [] and feed.lacking() == {TOPIC: Position("a", 9)}


def test_an_answer_goes_at_once_and_does_not_delay_what_is_published_next():
    feed = followed(Position("a", 4), [])
    feed.offer(frame(5))
    feed.take_due(10.0)
    feed.mark_lacking(TOPIC)
    feed.fill(TOPIC, Position("a", 5), [frame(6)])
    assert numbers(feed.take_due(10.2)) == [6]
    feed.offer(frame(7))
    assert numbers(feed.take_due(10.0 + SPACING_S)) == [7]
