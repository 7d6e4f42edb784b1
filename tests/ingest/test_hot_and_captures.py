"""Hot frames on their way to hot state, and captures on their way to a node and back."""

from __future__ import annotations

import asyncio
import struct
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from clusterwatch.ingest.hub import Gateway
from clusterwatch.jobs.models import Capture, Group, Job, Rank
from clusterwatch.jobs.services import request_capture
from clusterwatch.store import hot, tails
from collectors.wire import records
from collectors.wire.hot_values import pack
from tests.ingest.client import Node, hello
from tests.ingest.database import in_database, select
from tests.stack import Stack

SECOND_NS = 10**9


def inventory(rank: int, ref: int, **changes: Any) -> records.RankInventory:
    made: dict[str, Any] = {
        "t_ns": time.time_ns(),
        "ref": ref,
        "id": records.RankId("job-1", rank),
        "pid": 1000 + rank,
        "host": "n1",
        "world_size": 2,
        "started_ns": time.time_ns() - 60 * SECOND_NS,
        "groups": [
            records.GroupInfo(0, "0", "default_pg", "nccl", [0, 1]),
            records.GroupInfo(2, "1", "dp", "nccl", [0, 1]),
        ],
    }
    return records.RankInventory(**(made | changes))


def frame(refs: list[int], *, behind_ns: int = 0, step: int = 7) -> records.HotFrame:
    """A frame of a node whose clock is behind; each rank moved 5 s before and holds two groups."""
    now_ns = time.time_ns() - behind_ns
    count = len(refs)
    progress = records.HotProgress(
        ref=struct.pack(f"<{count}I", *refs),
        step=struct.pack(f"<{count}q", *[step] * count),
        phase=bytes([2] * count),
        phase_since_ns=struct.pack(f"<{count}q", *[0] * count),
        moved_ns=struct.pack(f"<{count}q", *[now_ns - 5 * SECOND_NS] * count),
        heard_ns=struct.pack(f"<{count}q", *[now_ns] * count),
        group_count=struct.pack(f"<{count}H", *[2] * count),
        group_index=struct.pack(f"<{2 * count}H", *[0, 2] * count),
        enqueued=struct.pack(f"<{2 * count}q", *range(10, 10 + 2 * count)),
        completed=struct.pack(f"<{2 * count}q", *[9] * 2 * count),
        sequence=struct.pack(f"<{2 * count}q", *[-1] * 2 * count),
    )
    return records.HotFrame(t_ns=now_ns, progress=progress)


async def until(check: Callable[[], Any], timeout_s: float = 15.0) -> Any:
    """The first true answer of ``check``."""
    async with asyncio.timeout(timeout_s):
        while not (answer := await asyncio.to_thread(check)):
            await asyncio.sleep(0.1)
    return answer


async def announce(node: Node) -> Job:
    await node.put("urgent", 1, [inventory(0, 11), inventory(1, 12)])
    await node.acked("urgent", 2)
    return await in_database(Job.objects.get)


async def test_progress_reaches_hot_state_in_the_servers_clock(node: Node) -> None:
    job = await announce(node)
    ranks = await in_database(lambda: {r.rank: r for r in Rank.objects.all()})
    groups = await in_database(lambda: {g.desc: g.pk for g in Group.objects.all()})
    await node.send(frame([11, 12], behind_ns=3600 * SECOND_NS))
    progress = await until(lambda: p if len((p := hot.read_job(job.pk)).rank_id) == 2 else None)
    assert progress.rank_id.tolist() == [ranks[0].pk, ranks[1].pk]
    assert progress.step.tolist() == [7, 7]
    moved_ago_s = (progress.seen_ns - progress.moved_ns) / SECOND_NS
    assert moved_ago_s == pytest.approx([5.0, 5.0])
    assert abs(progress.seen_ns[0] - time.time_ns()) < 60 * SECOND_NS
    assert progress.phase_since_ns.tolist() == [0, 0]
    assert progress.row.tolist() == [0, 0, 1, 1]
    assert progress.group_id.tolist() == [groups["default_pg"], groups["dp"]] * 2
    assert progress.enqueued.tolist() == [10, 11, 12, 13]


async def test_a_vanished_process_keeps_its_last_numbers(node: Node) -> None:
    job = await announce(node)
    await node.send(frame([11, 12], step=7))
    await until(lambda: len(hot.read_job(job.pk).rank_id) == 2)
    await node.send(frame([12], step=9))
    progress = await until(lambda: p if sorted((p := hot.read_job(job.pk)).step.tolist()) == [7, 9] else None)
    gone = int(np.argmin(progress.step))
    assert progress.enqueued[progress.row == gone].tolist() == [10, 11]


async def test_a_new_gateway_learns_old_refs_from_the_database(gateway: Gateway, node: Node) -> None:
    job = await announce(node)
    gateway.board.__init__()  # type: ignore[misc]  # as after a restart: nothing is known
    again = await Node.connect(gateway.url, hello(credential=node.welcome.credential))
    await again.send(frame([11, 12]))
    await until(lambda: len(hot.read_job(job.pk).rank_id) == 2)
    await again.close()


async def test_metrics_go_to_the_slots_of_their_node(gateway: Gateway, enrolment: str) -> None:
    gpus = [records.GpuIdentity(index, uuid=f"GPU-{index}") for index in range(2)]
    first = await Node.connect(gateway.url, hello(enrolment_token=enrolment, gpus=gpus))
    second = await Node.connect(
        gateway.url, hello(enrolment_token=enrolment, node="n2", machine_id="m2", gpus=gpus)
    )
    now_ns = time.time_ns()
    await first.send(records.HotFrame(now_ns, pack({"power_w": [100.0, None], "load_1m": [0.5]})))
    await second.send(records.HotFrame(now_ns, pack({"power_w": [300.0, 400.0], "odd": [1.0, 2.0, 3.0]})))
    cluster_id = await in_database(lambda: select("SELECT id FROM fleet_cluster")[0])
    power = await until(
        lambda: m if (m := hot.read_metric(cluster_id, "power_w", 4)).seen_ns[[0, 3]].all() else None
    )
    assert power.values[[0, 2, 3]].tolist() == [100.0, 300.0, 400.0]
    assert np.isnan(power.values[1])
    load = hot.read_metric(cluster_id, "load_1m", 4)
    assert load.values[0] == 0.5 and np.isnan(load.values[1:]).all()
    assert not hot.read_metric(cluster_id, "odd", 4).seen_ns.any()
    await first.close()
    await second.close()


async def link_of(node_state: int) -> hot.NodeStates:
    nodes: hot.NodeStates = await until(
        lambda: n if (n := hot.read_nodes()).link.tolist() == [node_state] else None
    )
    return nodes


async def test_the_last_seconds_of_a_node_that_breaks_off_are_kept(node: Node) -> None:
    for watts in (500.0, 71.0):
        await node.send(records.HotFrame(time.time_ns(), pack({"power_w": [watts]})))
        await asyncio.sleep(1.1)
    node.websocket.transport.abort()
    node_id = int((await link_of(hot.CLOSED)).node_id[0])
    tail = await until(lambda: tails.load(node_id))
    seconds = tail.values[0, :, 0]
    assert tail.metrics == ("power_w",)
    assert sorted(set(seconds[np.isfinite(seconds)].tolist())) == [71.0, 500.0]


async def test_tells_a_clean_stop_from_a_death(gateway: Gateway, node: Node) -> None:
    await node.send(frame([]))
    await link_of(hot.OPEN)
    node.websocket.transport.abort()
    closed = await link_of(hot.CLOSED)
    assert abs(int(closed.link_since_ns[0]) - time.time_ns()) < 20 * SECOND_NS
    again = await Node.connect(gateway.url, hello(credential=node.welcome.credential))
    await link_of(hot.OPEN)
    await again.send(records.Bye(reason="the agent stops"))
    await link_of(hot.CLOSED_CLEAN)


async def test_hot_state_fills_again_after_valkey_was_killed_and_ingest_goes_on(
    stack: Stack, node: Node
) -> None:
    job = await announce(node)
    await node.send(frame([11, 12]))
    await until(lambda: len(hot.read_job(job.pk).rank_id) == 2)
    await asyncio.to_thread(stack.kill, "valkey")
    try:
        await node.put("urgent", 3, [inventory(1, 12)])
        await node.acked("urgent", 3)
    finally:
        await asyncio.to_thread(stack.start_valkey)
    await until(lambda: len(hot.read_job(job.pk).rank_id) == 2)


# --- captures -------------------------------------------------------------------------------------


def ask(job: Job) -> Capture:
    return request_capture(job.pk, want=["ring", "stacks"], ranks=[1], by="test", reason="why not")


async def test_a_capture_reaches_the_node_and_its_answer_ends_it(node: Node) -> None:
    job = await announce(node)
    capture = await in_database(lambda: ask(job))
    while not node.orders:
        await node.next()
    order = node.orders[0]
    assert (order.capture_id, order.job, order.want, order.ranks) == (
        capture.pk, "job-1", ["ring", "stacks"], [1],
    )  # fmt: skip
    now_ns = time.time_ns()
    identity = records.RankId("job-1", 1)
    stacks = records.Stacks(
        now_ns, identity, 1001, order.capture_id, "hook", [records.ThreadStack("main", ["f (a.py:1)"])]
    )
    foreign = records.Stacks(now_ns, identity, 1001, 999_999, "py-spy", [])
    done = records.CaptureDone(now_ns, order.capture_id, [], {"1": "its hook did not answer"})
    await node.put("urgent", 3, [stacks, foreign, done])
    await node.acked("urgent", 5)
    capture = await in_database(lambda: Capture.objects.get(pk=capture.pk))
    assert capture.state == Capture.State.DONE and capture.done_at is not None
    assert capture.silent_ranks == {"1": "its hook did not answer"}
    stored = await in_database(
        lambda: select("SELECT source, capture_id, rank FROM stacks ORDER BY sequence")
    )
    assert stored == [("hook", capture.pk, 1), ("py-spy", None, 1)]


async def test_a_node_that_comes_back_gets_its_open_order(gateway: Gateway, node: Node) -> None:
    job = await announce(node)
    await node.close()
    capture = await in_database(lambda: ask(job))
    again = await Node.connect(gateway.url, hello(credential=node.welcome.credential))
    while not again.orders:
        await again.next()
    assert again.orders[0].capture_id == capture.pk
    await again.close()
