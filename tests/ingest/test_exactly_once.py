"""Nothing acknowledged is lost and nothing is stored twice, whatever is killed under load."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from random import Random

import pytest

from tests.ingest.conftest import GatewayProcess
from tests.ingest.database import in_database, select
from tests.ingest.load import LoadNode, run_all
from tests.stack import Stack

NODES = 3
RECORDS = 1_200


class Cluster:
    """A gateway that is started again whenever it was killed, and nodes that send to it."""

    def __init__(self, stack: Stack, started: list[GatewayProcess], enrolment: str, total: int) -> None:
        self.stack = stack
        self.started = started
        self.start_gateway()
        self.nodes = [
            LoadNode(f"n{number}", total, lambda: self.started[-1].url, enrolment) for number in range(NODES)
        ]

    def start_gateway(self) -> None:
        self.started.append(GatewayProcess.start(self.stack))

    async def run_while(self, disturb: Callable[[], Awaitable[None]], timeout_s: float) -> None:
        load = asyncio.create_task(run_all(self.nodes, timeout_s))
        await disturb()
        await load

    async def check(self) -> None:
        """Every record is there once, in its own place, and every promise was kept."""
        rows = await in_database(
            lambda: select(
                "SELECT n.name, count(*), count(DISTINCT e.text), bool_and(e.text = e.sequence::text)"
                " FROM event e JOIN fleet_node n ON n.id = e.node_id GROUP BY n.name ORDER BY n.name"
            )
        )
        assert rows == [(node.name, node.total, node.total, True) for node in self.nodes]
        assert [node.broken_promises for node in self.nodes] == [[]] * NODES

    def progress(self) -> int:
        return sum(node.acked for node in self.nodes)

    async def progressed(self, count: int) -> None:
        """Waits until ``count`` more records were acknowledged, or all of them."""
        goal = min(self.progress() + count, sum(node.total for node in self.nodes))
        while self.progress() < goal:
            await asyncio.sleep(0.01)


@pytest.fixture
def cluster(stack: Stack, gateway_processes: list[GatewayProcess], enrolment: str) -> Cluster:
    return Cluster(stack, gateway_processes, enrolment, RECORDS)


@pytest.mark.stack
async def test_a_killed_gateway_loses_and_doubles_nothing(cluster: Cluster) -> None:
    async def kill_twice() -> None:
        for _ in range(2):
            await cluster.progressed(600)
            cluster.started[-1].kill()
            await asyncio.to_thread(cluster.start_gateway)

    await cluster.run_while(kill_twice, 90)
    await cluster.check()
    assert any(node.connections > 1 for node in cluster.nodes)


@pytest.mark.stack
async def test_a_killed_database_loses_and_doubles_nothing(cluster: Cluster) -> None:
    async def kill_postgres() -> None:
        await cluster.progressed(600)
        await asyncio.to_thread(cluster.stack.kill, "postgres")
        before = cluster.progress()
        await asyncio.sleep(1.0)
        assert cluster.progress() - before < 200 * NODES, "acknowledged without a database"
        await asyncio.to_thread(cluster.stack.start_postgres)

    await cluster.run_while(kill_postgres, 90)
    await cluster.check()
    assert all(node.slowed_count for node in cluster.nodes), "nobody was told to slow down"


@pytest.mark.stack
async def test_a_stopped_gateway_hands_over_to_another_without_loss(cluster: Cluster) -> None:
    async def replace() -> None:
        await cluster.progressed(600)
        await asyncio.to_thread(cluster.start_gateway)
        assert await asyncio.to_thread(cluster.started[0].terminate) == 0

    await cluster.run_while(replace, 90)
    await cluster.check()


@pytest.mark.stack
async def test_nodes_may_move_between_two_gateways_at_any_time(cluster: Cluster) -> None:
    cluster.start_gateway()
    random = Random(1)
    for node in cluster.nodes:
        node.url = lambda: random.choice(cluster.started).url

    async def cut_connections() -> None:
        while cluster.progress() < NODES * RECORDS:
            await cluster.progressed(500)
            for node in cluster.nodes:
                node.cut = True

    await cluster.run_while(cut_connections, 90)
    await cluster.check()


@pytest.mark.long
@pytest.mark.stack
@pytest.mark.limit_s(900)
@pytest.mark.parametrize("seed", range(5))
async def test_many_kills_of_everything_lose_and_double_nothing(
    stack: Stack, gateway_processes: list[GatewayProcess], enrolment: str, seed: int
) -> None:
    cluster = Cluster(stack, gateway_processes, enrolment, 20_000)
    random = Random(seed)

    async def kill_at_random() -> None:
        for _ in range(12):
            await cluster.progressed(random.randrange(500, 4_000))
            if random.random() < 0.5:
                cluster.started[-1].kill()
                await asyncio.to_thread(cluster.start_gateway)
            else:
                await asyncio.to_thread(stack.kill, "postgres")
                await asyncio.sleep(random.random())
                await asyncio.to_thread(stack.start_postgres)

    await cluster.run_while(kill_at_random, 600)
    await cluster.check()
