"""Two gateways, two workers and two pulses over one Valkey and one PostgreSQL.

Nothing is lost, done twice or shown wrong, whichever of them a node or a task comes to.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import psycopg
import pytest
from django.conf import settings

from tests.e2e.product import Product, temporary_product, wait_for
from tests.faults.balancer import Balancer
from tests.faults.live_watch import LiveWatch
from tests.faults.nodes import Counted, cluster_id, database_url, feeding, holds_each_once, stored
from tests.faults.table import Another, another, log_lines
from tests.faults.task_watch import TaskWatch

pytestmark = [pytest.mark.e2e, pytest.mark.limit_s(180)]

NODE = "node-between"
CUTS = 4
NO_JOB = 2_000_000_000
"""An id no job has: a look at it takes the lease, asks the database, and finds nothing."""


@pytest.fixture(scope="module")
def product() -> Iterator[Product]:
    with temporary_product("cw-scale-") as running:
        yield running


@pytest.fixture(scope="module")
def second_gateway(product: Product) -> Iterator[Another]:
    with another(product, "gateway") as gateway:
        yield gateway


@pytest.fixture(scope="module")
def balancer(product: Product, second_gateway: Another) -> Iterator[Balancer]:
    with Balancer([product.gateway_port, second_gateway.port]) as running:
        yield running


@pytest.fixture
def watch(product: Product) -> Iterator[LiveWatch]:
    with LiveWatch(product, cluster_id(product)) as running:
        yield running


# --- a node moves ---------------------------------------------------------------------------------------


def test_a_node_moves_between_gateways_without_loss_doubles_or_flicker(
    product: Product, second_gateway: Another, balancer: Balancer, watch: LiveWatch, tmp_path: Path
) -> None:
    with feeding(product, tmp_path, NODE, gateway_port=balancer.port) as feeder:
        wait_for(lambda: stored(product, NODE)[0] > 50 or None, 30, "events arrive")
        shown = Counted(product, NODE)
        wait_for(shown.next, 30, "the count is shown")
        begun = len(watch.frames)
        for _ in range(CUTS):
            balancer.cut()
            shown.follow_until_more_is_stored()
        come_to(balancer, second_gateway.port, shown)
        second_gateway.kill()
        shown.follow_until_more_is_stored()
        second_gateway.start()
        come_to(balancer, product.gateway_port, shown)
        os.kill(product.pid("gateway"), signal.SIGKILL)
        shown.follow_until_more_is_stored()
        made = feeder.finish()
    assert balancer.served[product.gateway_port] >= 2
    assert balancer.served[second_gateway.port] >= 2
    assert len(watch.frames) > begun
    assert [frame for frame in watch.wrongly_silent(NODE) if frame in watch.frames[begun:]] == []
    holds_each_once(product, NODE, made)


def come_to(balancer: Balancer, port: int, shown: Counted) -> None:
    """Moves the node to this gateway; the other stays in the turn for when it dies."""
    other = next(backend for backend in balancer.backends if backend != port)
    given = balancer.served[port]
    balancer.backends = [port]
    balancer.cut()
    shown.follow_until(lambda: balancer.served[port] > given)
    before = shown.values[-1]
    shown.follow_until(lambda: shown.values[-1] > before)
    balancer.backends = [port, other]


# --- one pulse leads ------------------------------------------------------------------------------------


def test_one_of_two_pulses_leads_and_the_other_takes_over_once(product: Product, watch: LiveWatch) -> None:
    """From a leader that is frozen, and back from one that is killed."""
    own = product.folder / "logs" / "pulse.log"
    with another(product, "pulse") as second:
        wait_for(
            lambda: pids_that(second.log, "standing_by") == [second.pid] or None, 60, "the second stands by"
        )
        goes_on(watch)
        assert len(watch.epochs()) == 1, "two pulses publish"
        first = product.pid("pulse")
        with frozen(first):
            wait_for(lambda: len(watch.epochs()) > 1 or None, 30, "the second pulse leads")
        goes_on(watch)
        assert len(watch.epochs()) == 2, "the two pulses take frames from each other"
        assert pids_that(second.log, "leading") == [second.pid]
        wait_for(lambda: pids_that(own, "standing_by")[-1:] == [first] or None, 30, "the first stands by")
        second.kill()
        wait_for(lambda: len(watch.epochs()) > 2 or None, 30, "the first pulse leads again")
        goes_on(watch)
        assert len(watch.epochs()) == 3
        assert pids_that(own, "leading")[-2:] == [first, first]
        for epoch in watch.epochs():
            numbers = [frame.number for frame in watch.frames if frame.epoch == epoch]
            assert numbers == sorted(set(numbers))


def goes_on(watch: LiveWatch) -> None:
    """Waits for some frames more."""
    seen = len(watch.frames)
    wait_for(lambda: len(watch.frames) > seen + 4 or None, 30, "frames go on")


@contextmanager
def frozen(pid: int) -> Iterator[None]:
    """The process does not run while inside."""
    os.kill(pid, signal.SIGSTOP)
    try:
        yield
    finally:
        os.kill(pid, signal.SIGCONT)


def pids_that(log: Path, event: str) -> list[int]:
    """Processes that took leadership or stood by, by their own log, in order."""
    return [int(line.rpartition("pid=")[2]) for line in log_lines(log, lambda line: f" {event} " in line)]


# --- one task at a job ----------------------------------------------------------------------------------


def test_a_look_at_a_job_is_had_by_one_of_two_workers(product: Product) -> None:
    """While one look waits for the database, every other at the same job ends at once and did nothing."""
    with (
        another(product, "worker", "--hostname", "second@%h"),
        TaskWatch(product, settings.CELERY_BROKER_TRANSPORT_OPTIONS) as tasks,
        psycopg.connect(database_url(product)) as connection,
    ):
        wait_for(lambda: tasks.taken_by(2, "detect.job", NO_JOB), 90, "both workers take tasks", every_s=1.0)
        connection.execute("LOCK TABLE jobs_job IN ACCESS EXCLUSIVE MODE")
        looks = [tasks.send("detect.job", NO_JOB) for _ in range(12)]
        wait_for(lambda: tasks.count_of(looks, "False") == len(looks) - 1 or None, 30, "others turn away")
        assert tasks.count_of(looks, "True") == 0
        connection.rollback()
        wait_for(lambda: tasks.count_of(looks, "True") == 1 or None, 30, "the one look ends")
        assert tasks.count_of(looks, "False") == len(looks) - 1
