"""A real agent process against a gateway that fails and training processes that die."""

from __future__ import annotations

import asyncio
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import AsyncIterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from collectors import sources
from collectors.agent import Agent
from collectors.readings import Newest
from collectors.sources.base import Reading, Sample
from collectors.sources.tree import Tree
from collectors.supervise import Supervisor
from collectors.wire import hot_values, readings, records
from tests.collectors.fakes import (
    REPO,
    FakeClock,
    FakeGateway,
    FakeHook,
    agent_environment,
    config,
    spawn_hook,
    start_agent,
    until,
)


class Bench:
    """One agent in a temporary folder; it may be killed and started again."""

    def __init__(self, folder: Path, gateway: FakeGateway) -> None:
        self.folder = folder
        self.gateway = gateway
        self.hook_socket = folder / "hook.sock"
        self.agent: asyncio.subprocess.Process | None = None
        self.ranks: list[subprocess.Popen[bytes]] = []

    async def start(self) -> None:
        self.agent = await start_agent(self.folder, self.gateway.url)

    async def stop(self, number: signal.Signals = signal.SIGTERM) -> int:
        assert self.agent is not None
        self.agent.send_signal(number)
        code = await asyncio.wait_for(self.agent.wait(), 10)
        self.agent = None
        return code

    def rank(self, number: int, mode: str = "run") -> subprocess.Popen[bytes]:
        self.ranks.append(spawn_hook(self.hook_socket, number, mode))
        return self.ranks[-1]

    def phases(self) -> list[int]:
        return [int(record.detail) for record in self.gateway.stored_records(records.PhaseChange)]


@pytest.fixture
async def gateway() -> AsyncIterator[FakeGateway]:
    fake = FakeGateway()
    await fake.start()
    yield fake
    await fake.stop()


@pytest.fixture
async def bench(tmp_path: Path, gateway: FakeGateway) -> AsyncIterator[Bench]:
    made = Bench(tmp_path, gateway)
    await made.start()
    yield made
    for process in made.ranks:
        process.kill()
        process.wait()
    if made.agent is not None:
        await made.stop(signal.SIGKILL)


def send_phases(hook: FakeHook, numbers: range) -> None:
    for number in numbers:
        hook.send("phase", t_ns=number, phase="train", before="train", before_s=0.0, detail=str(number))


async def test_it_says_who_it_is_and_sends_hot_frames_each_second(bench: Bench) -> None:
    await until(lambda: len(bench.gateway.hot) >= 3)
    hello = bench.gateway.hellos[0]
    assert (hello.node, hello.cluster) == ("n1", "default")
    (told,) = bench.gateway.stored_records(records.Inventory)
    assert told.hostname == "n1"
    newest = bench.gateway.hot[-1]
    of_host = [hot_values.unpack(frame.metrics).get("host_memory_used_bytes") for frame in bench.gateway.hot]
    (used,) = next(filter(None, of_host))
    assert used is not None and used > 0
    assert newest.agent is not None
    assert newest.agent.sources == dict.fromkeys(sources.names(), "ok")
    gaps = [later.t_ns - earlier.t_ns for earlier, later in pairwise(bench.gateway.hot)]
    assert all(gap > 0.5e9 for gap in gaps)


async def test_a_clean_stop_flushes_says_goodbye_and_ends_with_zero(bench: Bench) -> None:
    bench.rank(0)
    await until(lambda: bench.gateway.hot and bench.gateway.hot[-1].progress)
    assert await bench.stop() == 0
    assert bench.gateway.byes == 1
    assert not bench.hook_socket.exists()
    await bench.start()  # what was in the buffers lay in the spool
    await until(lambda: bench.gateway.stored_records(records.Steps))


async def test_a_second_agent_on_the_same_folder_is_refused_with_words(bench: Bench) -> None:
    done = await asyncio.to_thread(
        subprocess.run,
        [sys.executable, "-m", "collectors", "run"],
        cwd=REPO,
        env=agent_environment(bench.folder, bench.gateway.url),
        capture_output=True,
        text=True,
        timeout=30,
        check=False,
    )
    assert done.returncode == 75
    assert "another agent uses" in done.stderr
    assert "Traceback" not in done.stderr
    assert bench.hook_socket.exists()


async def test_a_killed_agent_under_load_loses_no_record_and_doubles_none(
    bench: Bench, gateway: FakeGateway
) -> None:
    """Numbered records through three kill -9; the hook side counts what the agent has read."""
    written = 0
    for _ in range(3):
        hook = await asyncio.to_thread(FakeHook, bench.hook_socket)
        hook.hello()
        await asyncio.to_thread(send_phases, hook, range(written + 1, written + 401))
        # The agent has read all of it once it has handled what came after.
        hook.send("progress", step=written)
        await until(lambda step=written: _hot_step(gateway) == step)
        written += 400
        await asyncio.to_thread(send_phases, hook, range(100_000 + written, 100_000 + written + 200))
        await bench.stop(signal.SIGKILL)
        hook.close()
        await bench.start()
    await until(lambda: set(bench.phases()) >= set(range(1, written + 1)), 20)
    assert len(bench.phases()) == len(set(bench.phases()))
    assert len({hello.epoch for hello in gateway.hellos}) == 1


def _hot_step(gateway: FakeGateway) -> int | None:
    progress = gateway.hot[-1].progress if gateway.hot else None
    return int.from_bytes(progress.step[:8], "little", signed=True) if progress else None


async def test_a_killed_gateway_under_load_gets_everything_once(bench: Bench, gateway: FakeGateway) -> None:
    hook = await asyncio.to_thread(FakeHook, bench.hook_socket)
    hook.hello()
    for turn in range(4):
        await asyncio.to_thread(send_phases, hook, range(turn * 300, turn * 300 + 300))
        await gateway.stop()
        await asyncio.sleep(0.2)
        await gateway.start()
    await until(lambda: sorted(bench.phases()) == list(range(1_200)), 20)
    hook.close()


async def test_a_wiped_spool_begins_a_new_epoch_and_tells_its_ranks_again(
    bench: Bench, gateway: FakeGateway
) -> None:
    await until(lambda: gateway.stored_records(records.Inventory))
    await bench.stop(signal.SIGKILL)
    shutil.rmtree(bench.folder / "agent" / "spool")
    await bench.start()
    hook = await asyncio.to_thread(FakeHook, bench.hook_socket)
    hook.hello()
    send_phases(hook, range(5))
    await until(lambda: sorted(bench.phases()) == list(range(5)))
    assert len({hello.epoch for hello in gateway.hellos}) == 2
    assert len(gateway.stored_records(records.Inventory)) == 2
    hook.close()


async def test_a_rank_is_told_from_its_start_to_its_end(bench: Bench, gateway: FakeGateway) -> None:
    process = bench.rank(2)
    await until(lambda: _hot_step(gateway))
    os.kill(process.pid, signal.SIGKILL)
    await asyncio.to_thread(process.wait)
    (told,) = await until(lambda: gateway.stored_records(records.RankExit))
    assert (told.id.rank, told.signal) == (2, signal.SIGKILL)
    await until(lambda: gateway.hot[-1].progress is None)


async def test_a_rank_that_died_while_the_agent_was_away_is_told(bench: Bench, gateway: FakeGateway) -> None:
    dies, lives = bench.rank(0, "quiet"), bench.rank(1, "quiet")  # deaf to the agent's death
    await until(lambda: len(gateway.stored_records(records.RankInventory)) == 4)
    await until(lambda: gateway.hot and gateway.hot[-1].progress is not None)
    await asyncio.sleep(1.1)  # the ranks are remembered each second
    refs = {told.id.rank: told.ref for told in gateway.stored_records(records.RankInventory)}
    await bench.stop(signal.SIGKILL)
    dies.kill()
    await asyncio.to_thread(dies.wait)
    await bench.start()
    (told,) = await until(lambda: gateway.stored_records(records.RankExit))
    assert (told.id.rank, told.ref, told.exit_code, told.signal) == (0, refs[0], None, None)
    # The other one is watched although its hook (this fake one) does not come back.
    lives.kill()
    await asyncio.to_thread(lives.wait)
    await until(lambda: len(gateway.stored_records(records.RankExit)) == 2)
    (other,) = [told for told in gateway.stored_records(records.RankExit) if told.id.rank == 1]
    assert (other.ref, other.signal) == (refs[1], signal.SIGKILL)


async def test_a_stopped_rank_is_told_within_seconds(bench: Bench, gateway: FakeGateway) -> None:
    process = bench.rank(0)
    await until(lambda: _hot_step(gateway))
    stopped_ns = time.time_ns()
    os.kill(process.pid, signal.SIGSTOP)

    def states() -> list[records.Event]:
        return [told for told in gateway.stored_records(records.Event) if told.kind == "process_state"]

    (told,) = await until(states)
    assert told.t_ns - stopped_ns < 5e9
    assert told.fields["state"] == "T"


async def test_a_capture_goes_all_the_way(bench: Bench, gateway: FakeGateway) -> None:
    bench.rank(0)
    await until(lambda: _hot_step(gateway))
    await gateway.send(records.CaptureOrder(capture_id=3, job="job-1", want=["stacks"]))
    (done,) = await until(lambda: gateway.stored_records(records.CaptureDone))
    assert (done.capture_id, done.answered) == (3, [0])
    assert gateway.stored_records(records.Stacks)[0].capture_id == 3


async def test_two_agents_on_one_machine_are_two_nodes(
    bench: Bench, gateway: FakeGateway, tmp_path_factory: Any
) -> None:
    other = await start_agent(tmp_path_factory.mktemp("other"), gateway.url, node="n2")
    await until(lambda: {hello.node for hello in gateway.hellos} == {"n1", "n2"})
    other.terminate()
    assert await asyncio.wait_for(other.wait(), 10) == 0


async def test_credentials_and_the_token_are_never_logged(tmp_path: Path, gateway: FakeGateway) -> None:
    gateway.refuse = records.Refuse(code="bad_enrolment", reason="no", retry_after_s=1.0)
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "collectors", "run", cwd=REPO,
        env=agent_environment(tmp_path, gateway.url) | {"CLUSTERWATCH_TOKEN": "a-very-secret-token"},
        stdout=subprocess.PIPE, stderr=subprocess.PIPE,
    )  # fmt: skip
    await until(lambda: gateway.hellos)
    await asyncio.sleep(0.3)
    process.terminate()
    out, err = await process.communicate()
    assert b"bad_enrolment" in err
    assert b"a-very-secret-token" not in out + err


async def test_everything_it_reads_travels(bench: Bench) -> None:
    await until(lambda: bench.gateway.stored_records(records.Readings), 20)
    told = bench.gateway.stored_records(records.Readings)[0]
    table = readings.unpack(told.data)
    assert {source.name: source.state for source in table.sources} == dict.fromkeys(
        [*sources.names(), "torch_allocator"], "ok"
    )
    assert "host" in table.entities
    assert "host_memory_used_bytes" in table.metrics


def test_the_spool_holds_one_record_of_what_is_read_until_the_gateway_has_it(tmp_path: Path) -> None:
    clock = FakeClock()
    agent = Agent(config(tmp_path, "ws://127.0.0.1:1"), clock)
    chosen = [sources.make("host")]
    agent._supervisor = Supervisor(chosen, Tree(tmp_path), clock, lambda *_: None)
    agent._newest = Newest("n1", clock, chosen)

    def second(number: int) -> int:
        """One second with another value; returns how many records wait then."""
        agent._newest.keep(chosen[0], Reading([Sample("host", f"m{number}_count", 1.0)]))
        clock.advance(1)
        agent._send_readings()
        return agent._spool.pending_records

    assert [second(number) for number in range(60)][11:] == [1] * 49
    agent._spool.ack("bulk", 1)
    assert 1 in [second(number) for number in range(60, 76)]
    agent._supervisor.stop()
    agent._spool.close()
