"""A simulated cluster against a gateway: it enrols, lives, comes back, and says goodbye."""

import asyncio
import os
import stat
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path

import numpy as np

from clusterwatch.simulate import start
from clusterwatch.simulate.cluster import Cluster
from clusterwatch.simulate.kept import Settings
from collectors.formats import columns as trace_columns
from collectors.wire import blocks, codec, hot_values, records
from tests.simulate.gateway import FakeGateway, until


class FastClock:
    """Wall time that runs ``rate`` times as fast from ``begin_ns`` on."""

    def __init__(self, begin_ns: int, rate: float) -> None:
        self._begin_ns, self._rate = begin_ns, rate
        self._from_s = asyncio.get_running_loop().time()

    def now_ns(self) -> int:
        return self._begin_ns + int((self.monotonic_s() - self._from_s) * self._rate * 1e9)

    def monotonic_s(self) -> float:
        return asyncio.get_running_loop().time()


def settings(gateway: FakeGateway, root: Path) -> Settings:
    return Settings("simulated", 16, 0, root, gateway.url, token="enrolment")


@asynccontextmanager
async def living(of: Cluster) -> AsyncIterator[Cluster]:
    stop = asyncio.Event()
    task = asyncio.create_task(of.run(stop))
    try:
        yield of
    finally:
        stop.set()
        await task


async def test_nodes_enrol_once_and_keep_their_credential(tmp_path: Path):
    async with FakeGateway().running() as gateway:
        for _ in range(2):
            async with living(start.cluster(settings(gateway, tmp_path))):
                seen = len(gateway.hellos)
                await until(lambda seen=seen: len(gateway.hellos) >= seen // 2 * 2 + 2)
                await until(lambda: len(gateway.records_of(records.RankInventory)) >= 8)
        first, again = gateway.hellos[:2], gateway.hellos[2:]
        assert {hello.enrolment_token for hello in first} == {"enrolment"}
        assert {(h.credential, h.enrolment_token) for h in again} == {
            ("credential of gpu-r001-n01", None),
            ("credential of gpu-r001-n02", None),
        }
        assert all(
            hello.simulated and len(hello.gpus) == 8 and hello.rack == "r001" for hello in gateway.hellos
        )
        assert {h.epoch for h in first}.isdisjoint({h.epoch for h in again})


def trains(frame: records.HotFrame) -> bool:
    assert frame.progress is not None
    return records.PHASES[frame.progress.phase[0]] == "train"


async def test_hot_frames_come_once_a_second_and_a_job_starts_up_then_moves(tmp_path: Path):
    async with FakeGateway().running() as gateway, living(start.cluster(settings(gateway, tmp_path))):
        await until(lambda: sum(map(trains, gateway.frames["gpu-r001-n01"])) >= 4)
        frames = list(gateway.frames["gpu-r001-n01"])
    gaps = np.diff([frame.t_ns for frame in frames]) / 1e9
    assert (gaps > 0.5).all()
    assert records.PHASES[frames[0].progress.phase[0]] == "startup"
    numbers = [np.frombuffer(frame.progress.completed, "<i8") for frame in frames if trains(frame)]
    assert all((after > before).any() for before, after in zip(numbers[:-1], numbers[1:], strict=True))
    assert len(hot_values.unpack(frames[0].metrics)["gpu_power_w"]) == 8
    assert "gpu-r001-n02" in gateway.frames and gateway.frames["gpu-r001-n02"][0].progress is None, (
        "it is idle"
    )


async def test_what_was_not_acknowledged_comes_again_after_the_line_broke(tmp_path: Path):
    async with FakeGateway().running() as gateway:
        gateway.acknowledges = False
        async with living(start.cluster(settings(gateway, tmp_path))):
            await until(lambda: len(gateway.connections) == 2)
            await asyncio.sleep(0.3)
            gateway.acknowledges = True
            for connection in list(gateway.connections.values()):
                await connection.close()
            await until(lambda: len(gateway.records_of(records.RankInventory)) == 8)
            await until(lambda: len(gateway.records_of(records.Inventory)) == 2)
        for (_, _, lane), kept in gateway.kept.items():
            assert sorted(kept) == list(range(1, len(kept) + 1)), lane


async def test_every_minute_leaves_one_block_a_node_and_the_steps_of_each_rank(tmp_path: Path):
    begun_ns = 29_933_333 * 60 * 10**9
    async with FakeGateway().running() as gateway:
        of = start.cluster(settings(gateway, tmp_path), FastClock(begun_ns, rate=30))
        async with living(of):
            await until(lambda: len(gateway.records_of(records.Block)) >= 2, 30)
            await until(lambda: len(gateway.records_of(records.Steps)) >= 8, 30)
    for block in gateway.records_of(records.Block):
        blocks.verify(block)
    of_node: dict[str, list[int]] = {}
    for (node, _, _), kept in gateway.kept.items():
        of_node.setdefault(node, []).extend(
            r.minute_ns for r in kept.values() if isinstance(r, records.Block)
        )
    assert all(len(minutes) == len(set(minutes)) for minutes in of_node.values())
    steps = gateway.records_of(records.Steps)
    assert {record.id.rank for record in steps} == set(range(8))


async def test_a_capture_is_answered_with_rings_that_agree_with_the_frames(tmp_path: Path):
    async with FakeGateway().running() as gateway, living(start.cluster(settings(gateway, tmp_path))):
        await until(lambda: gateway.frames["gpu-r001-n01"])
        order = records.CaptureOrder(7, "88213", ["window", "ring", "stacks"], [0, 3, 99])
        await gateway.connections["gpu-r001-n01"].send(codec.encode(order))
        await until(lambda: gateway.records_of(records.CaptureDone))
        (done,) = gateway.records_of(records.CaptureDone)
        assert (done.capture_id, done.answered, set(done.silent)) == (7, [0, 3], {"99"})
    rings = [trace for trace in gateway.records_of(records.Trace) if trace.want == "ring"]
    assert sorted(trace.id.rank for trace in rings) == [0, 3]
    assert len(gateway.records_of(records.Trace)) == 4 and len(gateway.records_of(records.Stacks)) == 2
    (inventory,) = [r for r in gateway.records_of(records.RankInventory) if r.id.rank == 3]
    trace = trace_columns.unpack(next(t.columns for t in rings if t.id.rank == 3))
    assert [(g.name, g.desc, list(g.ranks)) for g in trace.groups] == [
        (group.name, group.desc, list(group.members)) for group in inventory.groups
    ]


async def test_a_capture_of_another_job_is_told_that_it_is_not_here(tmp_path: Path):
    async with FakeGateway().running() as gateway, living(start.cluster(settings(gateway, tmp_path))):
        await until(lambda: len(gateway.connections) == 2)
        await gateway.connections["gpu-r001-n02"].send(
            codec.encode(records.CaptureOrder(8, "88213", ["ring"], [0]))
        )
        await until(lambda: gateway.records_of(records.CaptureDone))
        (done,) = gateway.records_of(records.CaptureDone)
        assert (done.answered, set(done.silent)) == ([], {"0"})


async def test_a_stop_says_bye_on_every_line(tmp_path: Path):
    async with FakeGateway().running() as gateway:
        async with living(start.cluster(settings(gateway, tmp_path))):
            await until(lambda: all(gateway.frames[f"gpu-r001-n0{n}"] for n in (1, 2)))
        await until(lambda: len(gateway.closed) == 2)
        assert sorted(gateway.byes) == ["gpu-r001-n01", "gpu-r001-n02"]


async def ranks_said(gateway: FakeGateway, root: Path, gpu_count: int) -> set[tuple[int, int, int]]:
    """(attempt, world size, start) that the processes of a cluster's first node say of themselves."""
    gateway.kept.clear()

    def of_first_node() -> list[records.RankInventory]:
        return [r for r in gateway.records_of(records.RankInventory) if r.host == "gpu-r001-n01"]

    async with living(start.cluster(replace(settings(gateway, root), gpu_count=gpu_count))):
        await until(lambda: len(of_first_node()) >= 8)
    return {(record.id.attempt, record.world_size, record.started_ns) for record in of_first_node()}


async def test_jobs_go_on_where_they_were_and_begin_an_attempt_when_the_size_changes(tmp_path: Path):
    async with FakeGateway().running() as gateway:
        ((attempt, _, started_ns),) = await ranks_said(gateway, tmp_path, 16)
        assert await ranks_said(gateway, tmp_path, 16) == {(attempt, 8, started_ns)}
        ((next_attempt, world_size, restarted_ns),) = await ranks_said(gateway, tmp_path, 32)
        assert (next_attempt, world_size) == (attempt + 1, 24) and restarted_ns > started_ns
        for damaged in (tmp_path / "simulator" / "simulated").glob("run-*.json"):
            damaged.write_text("{")
        assert {attempt for attempt, _, _ in await ranks_said(gateway, tmp_path, 32)} == {0}


async def test_the_command_lives_until_sigterm_and_ends_with_bye(tmp_path: Path):
    async with FakeGateway().running() as gateway:
        environ = {
            **os.environ,
            "CLUSTERWATCH_STATE_DIR": str(tmp_path),
            "CLUSTERWATCH_GATEWAY_URL": gateway.url,
            "CLUSTERWATCH_TOKEN": "enrolment",
        }
        command = (sys.executable, "-m", "clusterwatch.cli.main", "simulate", "--gpus", "8")
        process = await asyncio.create_subprocess_exec(*command, env=environ)
        try:
            await until(lambda: gateway.frames["gpu-r001-n01"], 60)
            process.terminate()
            assert await asyncio.wait_for(process.wait(), 20) == 0
        finally:
            if process.returncode is None:
                process.kill()
        await until(lambda: gateway.closed)
        assert gateway.byes == ["gpu-r001-n01"]
    credentials = tmp_path / "simulator" / "simulated" / "credentials.json"
    assert stat.S_IMODE(credentials.stat().st_mode) == 0o600
