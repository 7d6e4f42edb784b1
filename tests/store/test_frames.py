"""Published frames: numbered without a hole, resumed after any loss, whoever publishes."""

import asyncio
import base64
from concurrent.futures import ThreadPoolExecutor

import orjson
import pytest
import redis
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from clusterwatch.store import frames, valkey
from clusterwatch.store.deltas import apply_delta
from tests.stack import Stack

pytestmark = pytest.mark.stack
TOPIC = "cluster:1"


@pytest.fixture(autouse=True)
def _empty(valkey: redis.Redis) -> None:
    """Each test begins with an empty Valkey."""


class Reader:
    """A browser's side: what live.js holds of one topic."""

    def __init__(self) -> None:
        self.held = frames.Position()
        self.state: dict | None = None

    def take(self, frame: frames.Announced) -> bool:
        """Takes one frame; False when it does not follow what is held."""
        content = orjson.loads(frame.body)
        if "full" in content:
            self.state = frames.decode_content(content["full"])
        elif self.state is None or frame.position.epoch != self.held.epoch:
            return False
        elif frame.position.number != self.held.number + 1:
            return frame.position.number <= self.held.number
        else:
            delta = content["delta"]
            delta["set"] = frames.decode_content(delta.get("set", {}))
            self.state = apply_delta(self.state, delta)
        self.held = frame.position
        return True

    def resume(self) -> list[frames.Announced]:
        found = since(self.held) or []
        for frame in found:
            assert self.take(frame)
        return found


def since(held: frames.Position) -> list[frames.Announced] | None:
    async def read() -> list[frames.Announced] | None:
        async with valkey.async_client() as client:
            return await frames.read_since(client, TOPIC, held)

    return asyncio.run(read())


steps = st.lists(
    st.tuples(
        st.binary(min_size=8, max_size=8),
        st.integers(0, 3),
        st.sampled_from(["lost", "heard", "asks", "crash"]),
    ),
    max_size=30,
)


@settings(max_examples=25, deadline=None, suppress_health_check=list(HealthCheck))
@given(steps)
def test_a_reader_ends_equal_to_the_publisher_whatever_was_lost(steps):
    publisher, reader = frames.Publisher(), Reader()
    state: dict = {}
    for slots, jobs, luck in steps:
        if luck == "crash":
            publisher = frames.Publisher(takes_over=True)
        state = {"slots": slots, "jobs": {str(i): {"step": slots[i]} for i in range(jobs)}}
        publisher.publish(TOPIC, state)
        if luck == "asks" or (luck == "heard" and not all(map(reader.take, since(reader.held) or []))):
            reader.resume()
    reader.resume()
    assert (reader.state or {}) == state


def test_numbers_rise_by_one_and_a_short_gap_costs_deltas_only():
    publisher = frames.Publisher()
    places = [publisher.publish(TOPIC, {"total": n}) for n in range(5)]
    assert [place.number for place in places] == [1, 2, 3, 4, 5]
    assert len({place.epoch for place in places}) == 1
    found = since(places[1])
    assert [(f.position.number, f.is_full) for f in found] == [(3, False), (4, False), (5, False)]
    assert since(places[4]) == []


def test_a_gap_longer_than_what_is_kept_gives_one_full_frame():
    publisher = frames.Publisher()
    places = [publisher.publish(TOPIC, {"total": n}) for n in range(frames.KEPT_DELTAS + 5)]
    assert len(since(places[4])) == frames.KEPT_DELTAS
    (only,) = since(places[3])
    assert only.is_full and only.position == places[-1]


def test_a_new_leader_starts_a_new_epoch_with_a_full_frame():
    old = frames.Publisher(takes_over=True)
    before = old.publish(TOPIC, {"total": 1})
    after = frames.Publisher(takes_over=True).publish(TOPIC, {"total": 1})
    assert after.epoch != before.epoch and after.number == 1
    (only,) = since(before)
    assert only.is_full


def test_two_processes_publishing_one_topic_make_one_row_of_numbers():
    one, other = frames.Publisher(), frames.Publisher()
    places = [who.publish(TOPIC, {"total": n}) for n, who in enumerate((one, other, one, one, other))]
    assert [place.number for place in places] == [1, 2, 3, 4, 5]
    reader = Reader()
    reader.resume()
    assert reader.state == {"total": 4}


def test_threads_of_one_process_publish_one_topic_without_losing_a_number():
    publisher = frames.Publisher()
    with ThreadPoolExecutor(4) as threads:
        places = list(threads.map(lambda n: publisher.publish(TOPIC, {"total": n}), range(40)))
    assert sorted(place.number for place in places) == list(range(1, 41))


def test_a_forgotten_topic_goes_on_in_its_epoch(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(frames, "REMEMBERED_TOPICS", 1)
    publisher = frames.Publisher()
    first = publisher.publish(TOPIC, {"total": 1})
    publisher.publish("cluster:2", {"total": 1})
    assert publisher.topics() == ["cluster:2"]
    assert publisher.publish(TOPIC, {"total": 2}) == frames.Position(first.epoch, 2)


def test_publishing_goes_on_after_valkey_came_back_empty(stack: Stack):
    publisher, reader = frames.Publisher(), Reader()
    publisher.publish(TOPIC, {"total": 1})
    reader.resume()
    stack.kill("valkey")
    with pytest.raises(redis.RedisError):
        publisher.publish(TOPIC, {"total": 2})
    stack.start_valkey()
    assert since(reader.held) is None
    publisher.publish(TOPIC, {"total": 3})
    assert reader.resume()[0].is_full
    assert reader.state == {"total": 3}


def test_bytes_and_missing_numbers_travel_as_what_they_are():
    frames.publish(TOPIC, {"slots": b"\0\xff", "power_w": float("nan"), "jobs": {7: {"step": None}}})
    (only,) = since(frames.Position())
    assert orjson.loads(only.body)["full"] == {
        "slots": {"b64": base64.b64encode(b"\0\xff").decode()},
        "power_w": None,
        "jobs": {"7": {"step": None}},
    }


def test_a_topic_is_watched_until_nobody_renews_it(monkeypatch: pytest.MonkeyPatch):
    async def mark() -> None:
        async with valkey.async_client() as client:
            await frames.mark_watched(client, ["job:1"])

    asyncio.run(mark())
    assert frames.watched() == {"job:1"}
    monkeypatch.setattr(frames, "WATCH_S", -1)
    asyncio.run(mark())
    assert frames.watched() == frozenset()
