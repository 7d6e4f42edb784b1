"""The live line as a browser has it: sign-in, rights, resume, and Valkey gone and back."""

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
import redis
from channels.db import database_sync_to_async
from django.contrib.auth.models import AnonymousUser
from django.db import connections
from django.test import Client
from django.utils import timezone

from clusterwatch.accounts.models import Team, User
from clusterwatch.fleet.models import Cluster
from clusterwatch.jobs.models import Job
from clusterwatch.live import consumer, requests
from clusterwatch.live.consumer import LiveConsumer
from clusterwatch.live.feed import SPACING_S
from clusterwatch.store import frames
from clusterwatch.store import valkey as keys
from tests.live.browser import Browser
from tests.stack import Stack

pytestmark = [pytest.mark.stack, pytest.mark.django_db(transaction=True), pytest.mark.usefixtures("valkey")]


@pytest.fixture(autouse=True)
async def _close_connections() -> AsyncIterator[None]:
    """Channels uses the database in a thread, whose connection would outlive the test database."""
    yield
    await database_sync_to_async(connections.close_all)()


@pytest.fixture
def cluster() -> Cluster:
    return Cluster.objects.create(name="small")


@pytest.fixture
def owner() -> User:
    return User.objects.create_user("owner", password="long enough", role=User.Role.OPERATOR)


@asynccontextmanager
async def line(user: Any) -> AsyncIterator[Browser]:
    browser = Browser(LiveConsumer.as_asgi(), [], user=user)
    assert await browser.connect()
    try:
        yield browser
    finally:
        await browser.leave()


async def publish(topic: str, **state: Any) -> frames.Position:
    return await asyncio.to_thread(frames.publish, topic, state)


async def test_who_is_not_signed_in_is_told_so():
    async with line(AnonymousUser()) as browser:
        assert await browser.closed() == consumer.CLOSE_SIGNED_OUT


async def test_a_full_frame_comes_first_then_what_changed(cluster: Cluster, owner: User):
    topic = f"cluster:{cluster.pk}"
    await publish(topic, total=8, slots=b"\1\1")
    async with line(owner) as browser:
        await browser.say({"subscribe": [{"topic": topic}]})
        (first,) = await browser.hear("frames")
        assert first["full"] == {"total": 8, "slots": {"b64": "AQE="}}
        await publish(topic, total=8, slots=b"\1\4")
        (second,) = await browser.hear("frames")
        assert second["number"] == first["number"] + 1
        assert second["delta"] == {"set": {"slots": {"b64": "AQQ="}}}


async def test_a_browser_that_lost_its_line_gets_only_what_it_missed(cluster: Cluster, owner: User):
    topic = f"cluster:{cluster.pk}"
    held = await publish(topic, total=1)
    await publish(topic, total=2)
    await publish(topic, total=3)
    async with line(owner) as browser:
        await browser.say({"subscribe": [{"topic": topic, "epoch": held.epoch, "number": held.number}]})
        missed = await browser.hear("frames")
        assert [frame["delta"] for frame in missed] == [{"set": {"total": 2}}, {"set": {"total": 3}}]


async def test_a_topic_nobody_published_yet_waits_and_then_fills(cluster: Cluster, owner: User):
    topic = f"incidents:{cluster.pk}"
    async with line(owner) as browser:
        await browser.say({"subscribe": [{"topic": topic}]})
        assert await browser.hear("waiting") == [topic]
        await publish(topic, counts={"open": 1})
        (frame,) = await browser.hear("frames")
        assert frame["full"] == {"counts": {"open": 1}}


async def test_the_last_viewer_leaves_nothing_open(cluster: Cluster, owner: User, valkey: redis.Redis):
    topic = f"cluster:{cluster.pk}"
    channel = keys.frame_channel(topic)
    await publish(topic, total=1)
    async with line(owner) as one, line(owner) as other:
        for browser in (one, other):
            await browser.say({"subscribe": [{"topic": topic}]})
            await browser.hear("frames")
        assert valkey.pubsub_numsub(channel) == [(channel.encode(), 1)], "one subscription a process"
        assert topic.encode() in valkey.zrange(keys.watched_key(), 0, -1)
    async with asyncio.timeout(10):
        while valkey.pubsub_numsub(channel) != [(channel.encode(), 0)]:
            await asyncio.sleep(0.05)


async def test_bursts_are_held_to_one_message_a_second(cluster: Cluster, owner: User):
    topic = f"cluster:{cluster.pk}"
    await publish(topic, total=0)
    async with line(owner) as browser:
        await browser.say({"subscribe": [{"topic": topic}]})
        await browser.hear("frames")
        begun_s = time.monotonic()
        for total in range(1, 21):
            await publish(topic, total=total)
        messages, newest = 0, 0
        while newest < 20:
            newest = (await browser.hear("frames"))[-1]["delta"]["set"]["total"]
            messages += 1
        assert messages <= 2 + (time.monotonic() - begun_s) / SPACING_S


async def test_a_viewer_sees_no_job_of_another_team(cluster: Cluster):
    def prepare() -> tuple[User, Job, Job]:
        team = Team.objects.create(name="vision")
        mine, theirs = (
            Job.objects.create(cluster=cluster, key=key, started_at=timezone.now(), team=of)
            for key, of in (("mine", team), ("theirs", Team.objects.create(name="speech")))
        )
        user = User.objects.create_user("teammate", password="long enough")
        user.teams.add(team)
        return user, mine, theirs

    user, mine, theirs = await database_sync_to_async(prepare)()
    topic = f"cluster:{cluster.pk}"
    await publish(topic, jobs={job.pk: {"key": job.key} for job in (mine, theirs)})
    async with line(user) as browser:
        await browser.say({"subscribe": [{"topic": f"job:{theirs.pk}"}, {"topic": topic}]})
        assert await browser.hear("denied") == [f"job:{theirs.pk}"]
        (frame,) = await browser.hear("frames")
        assert frame["full"]["jobs"] == {str(mine.pk): {"key": "mine"}}


async def test_a_live_line_with_nothing_new_beats(
    owner: User, cluster: Cluster, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(consumer, "BEAT_S", 0.1)
    async with line(owner) as browser:
        await browser.say({"subscribe": [{"topic": f"incidents:{cluster.pk}"}]})
        assert await browser.hear("beat_ms") > 1_700_000_000_000


async def test_valkey_killed_and_back_fills_the_page_again(
    cluster: Cluster, owner: User, stack: Stack, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(consumer, "BEAT_S", 0.1)
    topic = f"cluster:{cluster.pk}"
    await publish(topic, total=1)
    async with line(owner) as browser:
        await browser.say({"subscribe": [{"topic": topic}]})
        await browser.hear("frames")
        await asyncio.to_thread(stack.kill, "valkey")
        await _until_silent(browser)
        async with line(owner) as late:
            await late.say({"subscribe": [{"topic": topic}]})
            await asyncio.to_thread(stack.start_valkey)
            await publish(topic, total=2)
            for each in (browser, late):
                (frame,) = await each.hear("frames")
                assert frame["full"] == {"total": 2}
        await publish(topic, total=3)
        (frame,) = await browser.hear("frames")
        assert frame["delta"] == {"set": {"total": 3}}


async def _until_silent(browser: Browser) -> None:
    """Beats stop while nothing new can come, so that the page turns stale."""
    for _ in range(20):
        if await browser.receive_nothing(timeout=0.8):
            return
        await browser.receive_output()
    pytest.fail("the line goes on beating without Valkey")


async def test_nonsense_is_answered_and_a_flood_is_closed(owner: User):
    async with line(owner) as browser:
        await browser.say("[]")
        assert "object" in await browser.hear("error")
        for _ in range(requests.REQUESTS_MAX + 1):
            await browser.say("{}")
        assert await browser.closed() == consumer.CLOSE_TOO_MANY


async def test_the_session_of_a_signed_in_browser_opens_the_line(owner: User):
    from clusterwatch.project.asgi import application

    client = Client()
    await database_sync_to_async(client.force_login)(owner)
    cookie = f"sessionid={client.cookies['sessionid'].value}".encode()
    headers = [(b"cookie", cookie), (b"origin", b"http://localhost"), (b"host", b"localhost")]
    browser = Browser(application, headers)
    assert await browser.connect()
    await browser.say({"subscribe": [{"topic": "cluster:999"}]})
    assert await browser.hear("denied") == ["cluster:999"]
    await browser.leave()


async def test_a_session_that_ended_closes_the_line(owner: User, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(consumer, "RIGHTS_FRESH_S", 0.0)
    monkeypatch.setattr(consumer, "get_user", _nobody)
    async with line(owner) as browser:
        assert await browser.closed() == consumer.CLOSE_SIGNED_OUT


async def _nobody(scope: Any) -> AnonymousUser:
    return AnonymousUser()
