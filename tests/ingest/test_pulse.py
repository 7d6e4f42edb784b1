"""Pulse as processes: frames each second, one leader, and everything back after a kill -9."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from typing import Any

import numpy as np
import orjson
import pytest
from django.db import connection
from django.utils import timezone

from clusterwatch.fleet.models import Cluster, Node, Slot
from clusterwatch.fleet.overview import STATE_OF_BYTE
from clusterwatch.ingest.pulse_loop import StepRate
from clusterwatch.jobs.models import Group, Job, Rank
from clusterwatch.store import frames, hot, hot_writes, valkey
from collectors.wire import limits
from tests.stack import Stack

needs_stack = [pytest.mark.stack, pytest.mark.django_db(transaction=True), pytest.mark.usefixtures("valkey")]
START_S = 60.0
"""A Python process with Django on a busy machine."""
PULSE = (sys.executable, "-m", "clusterwatch.ingest.pulse")


@pytest.fixture
def pulses(stack: Stack) -> Iterator[Callable[[], subprocess.Popen[bytes]]]:
    """Starts pulse processes on the test database; they are gone afterwards."""
    url = stack.database_url.replace("/clusterwatch?", f"/{connection.settings_dict['NAME']}?")
    running: list[subprocess.Popen[bytes]] = []

    def start() -> subprocess.Popen[bytes]:
        running.append(subprocess.Popen(PULSE, env={**os.environ, "CLUSTERWATCH_DATABASE_URL": url}))
        return running[-1]

    yield start
    for process in running:
        process.kill()
        process.wait()


class Small:
    """Two nodes of two GPUs and a job of four ranks, kept alive in hot state by a gateway."""

    def __init__(self) -> None:
        self.cluster = Cluster.objects.create(name="tiny", slot_count=4, slots_version=2)
        self.nodes = [
            Node.objects.create(cluster=self.cluster, name=name, machine_id=name)
            for name in ("gpu-a", "gpu-b")
        ]
        for number in range(4):
            Slot.objects.create(
                cluster=self.cluster, number=number, node=self.nodes[number // 2], gpu_index=number % 2
            )
        self.job = Job.objects.create(
            cluster=self.cluster, key="88213", name="llama", started_at=timezone.now()
        )
        self.group = Group.objects.create(
            job=self.job, attempt=0, name="0", desc="dp", members_hash="x", ranks=[0, 1, 2, 3]
        )
        self.ranks = [self._rank(number) for number in range(4)]
        self.step = 0
        self.seen_ns = [0, 0]

    def _rank(self, number: int) -> Rank:
        node = self.nodes[number // 2]
        return Rank.objects.create(
            job=self.job, attempt=0, rank=number, world_size=4, node=node, host=node.name, ref=number,
            epoch="e", pid=number + 1, gpu_index=number % 2, started_at=timezone.now(),
        )  # fmt: skip

    def write(self, silent: tuple[int, ...] = (), power_w: float = 600.0) -> None:
        """One second of a gateway: every node but the silent ones speaks, the job takes a step."""
        now_ns = time.time_ns()
        self.step += 1
        self.seen_ns = [seen if place in silent else now_ns for place, seen in enumerate(self.seen_ns)]
        ids, seen = np.array([node.pk for node in self.nodes]), np.array(self.seen_ns)
        nodes = hot.NodeStates(ids, np.full(2, self.cluster.pk), seen, np.zeros(2, np.uint8), seen)
        now, numbers = np.full(4, now_ns), np.full(4, self.step)
        progress = hot.JobProgress(
            rank_id=np.array([rank.pk for rank in self.ranks]),
            node_id=np.array([r.node_id for r in self.ranks]),
            seen_ns=now, step=numbers, phase=np.full(4, 2, np.uint8), phase_since_ns=now, moved_ns=now,
            heard_ns=now, row=np.arange(4), group_id=np.full(4, self.group.pk), enqueued=numbers,
            completed=numbers, sequence=numbers,
        )  # fmt: skip
        metric = hot.MetricArray(np.full(4, power_w, np.float32), np.full(4, now_ns))
        metrics = {(self.cluster.pk, "gpu_power_w"): metric}
        hot_writes.write_gateway("gw", now_ns, nodes, {self.job.pk: progress}, metrics)

    @property
    def topic(self) -> str:
        return f"cluster:{self.cluster.pk}"

    def frame(self, topic: str = "") -> dict[str, Any] | None:
        """The newest full frame of a topic."""
        body: Any = valkey.client().get(valkey.frame_full_key(topic or self.topic))
        return orjson.loads(body) if body else None

    def slots(self) -> list[str]:
        frame = self.frame()
        return [STATE_OF_BYTE[b] for b in frames.decode_content(frame["full"])["slots"]] if frame else []


def until(reached: Callable[[], Any], within_s: float, meanwhile: Callable[[], None] = lambda: None) -> float:
    """Seconds until ``reached`` says yes; fails after ``within_s``."""
    begun = time.monotonic()
    next_s = begun
    while not reached():
        if time.monotonic() - begun > within_s:
            pytest.fail(f"not within {within_s:g} s")
        if time.monotonic() >= next_s:
            meanwhile()
            next_s += 1.0
        time.sleep(0.05)
    return time.monotonic() - begun


@pytest.fixture
def small(transactional_db: None) -> Small:
    return Small()


class TestWithTheStack:
    pytestmark = needs_stack

    def test_frames_come_each_second_and_a_silent_node_turns_unknown(self, small: Small, pulses: Any):
        pulses()
        until(lambda: small.slots() == ["ok"] * 4, START_S, small.write)
        first = small.frame()
        until(lambda: small.frame()["number"] >= first["number"] + 3, 6, small.write)
        later = small.frame()
        assert later["epoch"] == first["epoch"]
        between_ms = (later["at_ms"] - first["at_ms"]) / (later["number"] - first["number"])
        assert between_ms > 750, "more than one frame a second"
        took_s = until(lambda: small.slots()[2:] == ["unknown"] * 2, 8, lambda: small.write(silent=(1,)))
        assert took_s >= limits.SILENT_AFTER_S - 1.5
        assert small.slots()[:2] == ["ok"] * 2

    def test_a_killed_leader_is_followed_by_a_new_epoch_within_5_s(self, small: Small, pulses: Any):
        leader = pulses()
        until(lambda: small.frame(), START_S, small.write)
        standby = pulses()
        until(lambda: len(_connections()) >= 2, START_S, small.write)
        time.sleep(2.0)
        before = small.frame()
        leader.send_signal(signal.SIGKILL)
        leader.wait()
        took_s = until(lambda: small.frame()["epoch"] != before["epoch"], 8, small.write)
        assert took_s <= 5.0
        assert small.frame()["number"] <= 2 and standby.poll() is None

    def test_a_clean_stop_gives_the_lease_back(self, small: Small, pulses: Any):
        process = pulses()
        until(lambda: small.frame(), START_S, small.write)
        process.send_signal(signal.SIGTERM)
        assert process.wait(10) == 0
        assert hot.take_lease("pulse", "somebody", 1.0)

    def test_everything_fills_again_after_valkey_was_killed(self, small: Small, pulses: Any, stack: Stack):
        process = pulses()
        until(lambda: small.slots() == ["ok"] * 4, START_S, small.write)
        stack.kill("valkey")
        time.sleep(1.5)
        stack.start_valkey()
        until(lambda: small.slots() == ["ok"] * 4, 6, small.write)
        assert process.poll() is None

    def test_a_job_has_frames_only_while_somebody_watches(self, small: Small, pulses: Any):
        topic = f"job:{small.job.pk}"
        pulses()
        until(lambda: small.frame(), START_S, small.write)
        assert small.frame(topic) is None
        valkey.client().zadd(valkey.watched_key(), {topic: time.time() + 3})
        until(lambda: small.frame(topic), 4, small.write)
        assert small.frame(topic)["full"]["rank"] == [0, 1, 2, 3]

    def test_new_processes_and_ends_show_without_a_restart(self, small: Small, pulses: Any):
        topic = f"job:{small.job.pk}"
        pulses()
        valkey.client().zadd(valkey.watched_key(), {topic: time.time() + 60})
        until(lambda: small.frame(topic), START_S, small.write)
        Rank.objects.filter(pk=small.ranks[3].pk).update(exited_at=datetime.now(UTC), exit_signal=9)
        until(lambda: small.frame(topic)["full"]["rank_counts"]["failed"] == 1, 5, small.write)
        assert small.slots()[3] == "failed"

    def test_a_job_with_damaged_numbers_does_not_blind_the_others(self, small: Small, pulses: Any):
        damaged = Job.objects.create(cluster=small.cluster, key="88214", started_at=timezone.now())
        pulses()
        valkey.client().set(valkey.job_key("gw", damaged.pk), b"\x81\xa1a")
        until(lambda: small.slots() == ["ok"] * 4, START_S, small.write)
        assert set(small.frame()["full"]["jobs"]) == {str(small.job.pk)}

    def test_percentiles_of_the_fleet_are_published_and_kept(self, small: Small, pulses: Any):
        small.write()
        pulses()
        until(lambda: small.frame() and small.frame()["full"]["bands"], START_S, small.write)
        band = small.frame()["full"]["bands"]["gpu_power_w"]
        assert (band["p1"], band["p99"], band["count"]) == (600.0, 600.0, 4)
        until(lambda: _kept_percentiles(small.cluster.pk), START_S, small.write)
        assert _kept_percentiles(small.cluster.pk) == {(600.0, 4)}


def _kept_percentiles(cluster_id: int) -> set[tuple[float, int]]:
    """p50 and count of the power of the fleet, as the table holds them."""
    with connection.cursor() as cursor:
        cursor.execute(
            "SELECT p50, count FROM fleet_percentile"
            " WHERE cluster_id = %s AND scope = 'fleet' AND metric = 'gpu_power_w'",
            [cluster_id],
        )
        return set(cursor.fetchall())


def _connections() -> list[Any]:
    """Pulse processes connected to Valkey, besides this test's own client."""
    listed: Any = valkey.client().client_list()
    return [c for c in listed if c["cmd"] in ("get", "set", "pexpire", "eval", "zrange", "mget")]


@pytest.mark.parametrize(
    ("seen", "rate"),
    [
        ([(0, 10), (2, 11), (3, 11), (4, 12), (5, 12), (6, 13), (7, 13)], 0.5),
        ([(0, 10), (9, 11)], None),
        ([(0, 10), (2, 11), (4, 12), (12, 12)], 0.1),
        ([(0, 10), (2, 11), (4, 12), (60, 12)], 0.0),
        ([(0, 100), (60, 101), (120, 102), (200, 102)], 0.0167),
        ([(0, 100), (1, 101), (2, 102), (3, 40)], None),
        ([(0, None)], None),
    ],
    ids=[
        "every two seconds",
        "one rise says nothing",
        "falls while it stands",
        "stands",
        "one step a minute",
        "restarted from a checkpoint",
        "no step yet",
    ],
)
def test_the_step_rate(seen: list[tuple[float, int | None]], rate: float | None):
    counter = StepRate()
    assert [counter.add(at_s, step) for at_s, step in seen][-1] == rate
