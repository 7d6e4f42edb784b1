"""The agent watches whom the kernel vouches for, and a hostile process hurts only itself."""

from __future__ import annotations

import asyncio
import json
import os
import random
import signal
import socket
import struct
import subprocess
from array import array
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from collectors import hook_messages as messages
from collectors.clock import SystemClock
from collectors.exits import ExitWatch
from collectors.hook import protocol
from collectors.hook_server import HookServer
from collectors.ranks import RankTable
from collectors.wire import records
from collectors.wire.records import PHASES
from tests.collectors.fakes import FakeHook, spawn_hook, until

SpawnRank = Callable[..., subprocess.Popen[bytes]]


class Node:
    """The listening half of an agent."""

    def __init__(self, folder: Path) -> None:
        self.path = folder / "hook.sock"
        self.emitted: list[Any] = []
        self.table = RankTable("n1", SystemClock(), self.emitted.append)
        self.exits = ExitWatch(SystemClock(), self.table.exited)
        self.server = HookServer(self.path, self.table, self.exits)

    def of(self, kind: type[Any]) -> list[Any]:
        return [record for record in self.emitted if isinstance(record, kind)]

    async def hook(self) -> FakeHook:
        """A connected hook of this very process."""
        return await asyncio.to_thread(FakeHook, self.path)


async def tick(server: HookServer) -> None:
    """The agent's part, more often."""
    while True:
        await asyncio.sleep(0.02)
        server.hear_all()


@pytest.fixture
async def node(tmp_path: Path) -> AsyncIterator[Node]:
    made = Node(tmp_path)
    await made.server.start()
    ticks = asyncio.create_task(tick(made.server))
    yield made
    ticks.cancel()
    made.exits.close()
    await made.server.stop()


@pytest.fixture
def ranks(node: Node) -> Iterator[SpawnRank]:
    spawned: list[subprocess.Popen[bytes]] = []

    def spawn(*args: Any, **kwargs: Any) -> subprocess.Popen[bytes]:
        spawned.append(spawn_hook(node.path, *args, **kwargs))
        return spawned[-1]

    yield spawn
    for process in spawned:
        process.kill()
        process.wait()


def step_of(node: Node) -> int:
    columns = node.table.hot()
    assert columns is not None
    return array("q", columns.step)[0]


async def test_what_a_rank_says_is_heard_at_the_tick_and_its_last_words_before_its_end(
    tmp_path: Path,
) -> None:
    node = Node(tmp_path)
    await node.server.start()
    hook = await node.hook()
    hook.hello(rank=0)
    await until(lambda: node.table.get(os.getpid()))
    hook.send("progress", step=4)
    await asyncio.sleep(0.05)
    assert step_of(node) != 4
    node.server.hear_all()
    assert step_of(node) == 4
    hook.send("progress", step=5)
    node.exits.on_ended(os.getpid())
    await until(lambda: step_of(node) == 5)
    node.exits.close()
    await node.server.stop()


async def test_all_that_a_rank_said_is_heard_at_one_tick_and_that_it_hung_up(tmp_path: Path) -> None:
    node = Node(tmp_path)
    await node.server.start()
    hook = await node.hook()
    hook.hello(rank=0)
    await until(lambda: node.table.get(os.getpid()))
    phase = protocol.pack({"k": "phase", "t_ns": 1, "phase": "train", "detail": "x" * 1_000})
    hook.send_raw(100 * phase + protocol.pack({"k": "progress", "step": 300}))  # more than one read takes in
    node.server.hear_all()
    assert (step_of(node), len(node.of(records.PhaseChange))) == (300, 100)
    hook.close()
    node.server.hear_all()
    await until(lambda: node.server.connection_of(os.getpid()) is None)
    node.exits.close()
    await node.server.stop()


async def test_a_hello_and_its_groups_become_an_inventory(node: Node) -> None:
    hook = await node.hook()
    hook.hello(rank=3, attempt=1, world="w", torch="2.13.0", backend="gloo", local_rank=1, user="kim")
    hook.send("groups", groups=[{"index": 0, "name": "tp", "desc": "tensor", "ranks": [2, 3]}])
    await until(lambda: len(node.of(records.RankInventory)) == 2)
    told = node.of(records.RankInventory)[1]
    assert told.id == records.RankId(job="job-1", rank=3, attempt=1, world="w")
    assert (told.pid, told.host, told.world_size, told.user) == (os.getpid(), "n1", 2, "kim")
    assert [(group.name, group.ranks) for group in told.groups] == [("tp", [2, 3])]


async def test_the_pid_is_the_kernels_and_not_the_one_claimed(node: Node) -> None:
    hook = await node.hook()
    hook.send("hello", v=1, pid=1, rank=0, world_size=1, job="j")
    await until(lambda: node.of(records.RankInventory))
    assert node.of(records.RankInventory)[0].pid == os.getpid()


async def test_progress_becomes_columns_and_moves_only_when_a_number_changes(node: Node) -> None:
    hook = await node.hook()
    hook.hello()
    progress: dict[str, Any] = {
        "step": 5,
        "phase": "train",
        "phase_since_ns": 7,
        "groups": [[0, 40, 39, None], [2, 4, 4, 4]],
    }
    hook.send("progress", t_ns=1, **progress)
    state = await until(lambda: node.table.get(os.getpid()))
    await until(lambda: state.step == 5)
    moved = state.moved_ns
    hook.send("progress", t_ns=2, **progress)
    heard = state.heard_ns
    await until(lambda: state.heard_ns > heard)
    assert state.moved_ns == moved
    hot = node.table.hot()
    assert hot is not None
    assert array("q", hot.step).tolist() == [5]
    assert PHASES[hot.phase[0]] == "train"
    assert array("H", hot.group_count).tolist() == [2]
    assert array("H", hot.group_index).tolist() == [0, 2]
    assert array("q", hot.enqueued).tolist() == [40, 4]
    assert array("q", hot.sequence).tolist() == [-1, 4]
    hook.send("progress", t_ns=3, **(progress | {"groups": [[0, 41, 39, None], [2, 4, 4, 4]]}))
    await until(lambda: state.moved_ns > moved)


async def test_steps_leave_as_one_record_with_unknown_columns_as_null(node: Node) -> None:
    hook = await node.hook()
    hook.hello()
    hook.send("steps", step=[1], end_ns=[10], duration_s=[0.5], cpu_s=[0.4])
    hook.send("steps", step=[2], end_ns=[20], duration_s=[0.6], data_wait_s=[0.1])
    state = await until(lambda: node.table.get(os.getpid()))
    await until(lambda: state.steps_count == 2)
    node.table.flush_all_steps()
    (told,) = node.of(records.Steps)
    assert (told.step, told.duration_s) == ([1, 2], [0.5, 0.6])
    assert (told.cpu_s, told.data_wait_s, told.gc_s) == ([0.4, None], [None, 0.1], [None, None])


async def test_waiting_and_late_launches_are_passed_on(node: Node) -> None:
    hook = await node.hook()
    hook.hello()
    hook.send("steps", step=[1, 2], end_ns=[10, 20], duration_s=[0.5, 0.6], wait_s=[0.25, None])
    hook.send("steps", step=[3], end_ns=[30], duration_s=[0.6], wait_s=[0.0], late_launch=[1.0])
    state = await until(lambda: node.table.get(os.getpid()))
    await until(lambda: state.steps_count == 3)
    node.table.flush_all_steps()
    (told,) = node.of(records.Steps)
    assert told.wait_s == [0.25, None, 0.0] and told.late_launch == [None, None, 1.0]


@pytest.mark.parametrize(
    "columns",
    [
        {"wait_s": [-0.1]},
        {"wait_s": [86_401]},
        {"wait_s": ["long"]},
        {"wait_s": [0.1, 0.1]},
        {"late_launch": [1.5]},
        {"late_launch": [-0.5]},
        {"late_launch": [0.5] * 2},
    ],
)
def test_waiting_that_cannot_be_is_no_message(columns: dict[str, Any]) -> None:
    header = {"k": "steps", "step": [1], "end_ns": [10], "duration_s": [0.5], **columns}
    with pytest.raises(protocol.ProtocolError):
        messages.Reader().feed(protocol.pack(header))


async def test_a_phase_is_told_at_once(node: Node) -> None:
    hook = await node.hook()
    hook.hello()
    hook.send("phase", t_ns=9, phase="checkpoint", before="train", before_s=12.5, detail="step 100")
    (told,) = await until(lambda: node.of(records.PhaseChange))
    assert (told.phase, told.before, told.before_s, told.detail) == ("checkpoint", "train", 12.5, "step 100")


async def test_a_reconnecting_hook_keeps_its_number(node: Node) -> None:
    first = await node.hook()
    first.hello()
    await until(lambda: node.of(records.RankInventory))
    first.close()
    second = await node.hook()
    second.hello()
    await until(lambda: len(node.of(records.RankInventory)) == 2)
    refs = {told.ref for told in node.of(records.RankInventory)}
    assert len(refs) == 1
    assert len(node.table) == 1


async def test_a_next_attempt_in_the_same_process_is_a_new_rank(node: Node) -> None:
    hook = await node.hook()
    hook.hello(attempt=0)
    hook.hello(attempt=1)
    await until(lambda: len(node.of(records.RankInventory)) == 2)
    assert len({told.ref for told in node.of(records.RankInventory)}) == 2
    assert len(node.table) == 1


# --- ends --------------------------------------------------------------------------------------------


async def _reap(process: subprocess.Popen[bytes]) -> int:
    return await asyncio.to_thread(process.wait)


async def test_a_killed_rank_is_told_with_its_signal(node: Node, ranks: SpawnRank) -> None:
    process = ranks(0)
    await until(lambda: len(node.table) == 1)
    process.kill()
    await _reap(process)
    (told,) = await until(lambda: node.of(records.RankExit))
    assert (told.signal, told.exit_code, told.clean) == (signal.SIGKILL, None, False)
    assert len(node.table) == 0


async def test_a_rank_that_raised_is_told_with_its_exception(node: Node, ranks: SpawnRank) -> None:
    process = ranks(0, "raise")
    await until(lambda: len(node.table) == 1)
    assert await _reap(process) == 3
    (told,) = await until(lambda: node.of(records.RankExit))
    assert told.exit_code == 3
    assert (told.exception.type, told.exception.message) == ("ValueError", "boom")
    assert told.clean is None


async def test_a_rank_that_finished_is_told_as_clean_with_its_last_steps(
    node: Node, ranks: SpawnRank
) -> None:
    process = ranks(0, "finish")
    assert await _reap(process) == 0
    (told,) = await until(lambda: node.of(records.RankExit))
    assert told.clean is True
    assert told.exit_code in (0, None)  # kernels before 6.15 forget it with the parent's wait
    assert sum(len(steps.step) for steps in node.of(records.Steps)) == 4


async def test_the_parents_word_on_an_exit_is_taken(node: Node, ranks: SpawnRank) -> None:
    process = ranks(0)
    await until(lambda: len(node.table) == 1)
    parent = await node.hook()  # this test process is the parent
    parent.send("run", pid=process.pid, job="job-1")
    parent.send("exit", pid=process.pid, code=None, signal=15)
    await asyncio.sleep(0.1)
    process.kill()
    await _reap(process)
    (told,) = await until(lambda: node.of(records.RankExit))
    assert told.signal == 15


async def test_nobody_may_speak_for_a_process_that_is_not_his_child(node: Node) -> None:
    stranger = await node.hook()
    stranger.send("run", pid=os.getppid(), job="j")
    assert await asyncio.to_thread(stranger.is_closed)
    other = await node.hook()
    other.send("exit", pid=os.getpid(), code=0)
    assert await asyncio.to_thread(other.is_closed)


async def test_a_stopped_rank_is_told_within_seconds_and_again_when_it_runs(
    node: Node, ranks: SpawnRank
) -> None:
    process = ranks(0)
    await until(lambda: len(node.table) == 1)
    os.kill(process.pid, signal.SIGSTOP)

    def look() -> list[Any]:
        node.table.look_at_still()
        return node.of(records.Event)

    (told,) = await until(look, 5)
    assert told.kind == "process_state"
    assert (told.fields["state"], told.fields["word"], told.fields["pid"]) == (
        "T",
        "stopped",
        str(process.pid),
    )
    os.kill(process.pid, signal.SIGCONT)
    await until(lambda: len(look()) == 2, 5)
    assert node.of(records.Event)[1].fields["word"] == "running"


async def test_a_quiet_but_living_rank_causes_no_event(node: Node, ranks: SpawnRank) -> None:
    ranks(0, "quiet")
    await until(lambda: len(node.table) == 1)
    await asyncio.sleep(2.2)
    for _ in range(3):
        node.table.look_at_still()
    assert node.of(records.Event) == []


# --- hostile peers -----------------------------------------------------------------------------------


def frame(header: bytes, blob_bytes: int = 0) -> bytes:
    return struct.pack("!II", len(header), blob_bytes) + header


HOSTILE = {
    "no frame": b"GET / HTTP/1.1\r\n\r\n",
    "huge header": struct.pack("!II", 2**31, 0),
    "huge blob": struct.pack("!II", 2, 2**31),
    "blob without an order": frame(b'{"k":"dump","id":1}', 10) + b"x" * 10,
    "not json": frame(b"{half"),
    "not an object": frame(b"[1]"),
    "no kind": frame(b"{}"),
    "kind is a list": frame(b'{"k":[]}'),
    "bad utf-8": frame(b'{"k":"\xff"}'),
    "deep": frame(b'{"k":"hello","x":' + b"[" * 100_000 + b"]" * 100_000 + b"}"),
    "progress before hello": frame(b'{"k":"progress"}'),
    "negative rank": frame(b'{"k":"hello","v":1,"rank":-1,"world_size":2,"job":"j"}'),
    "rank as text": frame(b'{"k":"hello","v":1,"rank":"0","world_size":2,"job":"j"}'),
    "huge number": frame(b'{"k":"hello","v":1,"rank":' + b"9" * 400 + b',"world_size":2,"job":"j"}'),
    "long name": frame(
        json.dumps({"k": "hello", "v": 1, "rank": 0, "world_size": 2, "job": "j" * 300}).encode()
    ),
    "no job": frame(b'{"k":"hello","v":1,"rank":0,"world_size":2,"job":""}'),
    "other version": frame(b'{"k":"hello","v":2,"rank":0,"world_size":2,"job":"j"}'),
}


@pytest.mark.parametrize("name", HOSTILE)
async def test_a_hostile_peer_loses_its_connection_and_nothing_else(
    node: Node, name: str, caplog: pytest.LogCaptureFixture
) -> None:
    good = await node.hook()
    good.hello()
    await until(lambda: len(node.table) == 1)
    bad = await node.hook()
    bad.send_raw(HOSTILE[name])
    assert await asyncio.to_thread(bad.is_closed)
    assert "hook_refused" in caplog.text
    good.send("progress", step=8)
    await until(lambda: next(iter(node.table)).step == 8)


AFTER_HELLO: dict[str, dict[str, Any]] = {
    "uneven columns": {"k": "steps", "step": [1, 2], "end_ns": [1], "duration_s": [1.0, 1.0]},
    "uneven optional column": {"k": "steps", "step": [1], "end_ns": [1], "duration_s": [1.0], "gc_s": [1, 2]},
    "negative step time": {"k": "steps", "step": [1], "end_ns": [1], "duration_s": [-1.0]},
    "too many groups": {"k": "progress", "groups": [[0, 1, 1, 1]] * 5_000},
    "group index too high": {"k": "progress", "groups": [[70_000, 1, 1, 1]]},
    "number over int64": {"k": "progress", "groups": [[0, 2**63, 1, 1]]},
    "group is no row": {"k": "progress", "groups": [5]},
    "not a time": {"k": "phase", "t_ns": "now", "phase": "train"},
}


@pytest.mark.parametrize("name", AFTER_HELLO)
async def test_an_absurd_message_closes_the_connection_and_changes_nothing(node: Node, name: str) -> None:
    hook = await node.hook()
    hook.hello()
    hook.send("progress", step=3)
    await until(lambda: next(iter(node.table), None) and next(iter(node.table)).step == 3)
    fields = dict(AFTER_HELLO[name])
    hook.send(fields.pop("k"), **fields)
    assert await asyncio.to_thread(hook.is_closed)
    state = next(iter(node.table))
    assert state.step == 3
    assert state.steps_count == 0
    assert node.table.hot() is not None


async def test_unknown_kinds_and_fields_are_ignored(node: Node) -> None:
    hook = await node.hook()
    hook.hello(from_the_future=[1, 2])
    hook.send("telepathy", x=1)
    hook.send("progress", step=4, mood="fine", phase="dreaming")
    await until(lambda: next(iter(node.table), None) and next(iter(node.table)).step == 4)
    assert next(iter(node.table)).phase == PHASES.index("unknown")


async def test_random_bytes_never_reach_the_agent(node: Node) -> None:
    generator = random.Random(7)
    for _ in range(30):
        hook = await node.hook()
        header = bytearray(b'{"k":"hello","v":1,"rank":0,"world_size":2,"job":"j","attempt":0}')
        for _ in range(3):
            header[generator.randrange(len(header))] = generator.randrange(256)
        hook.send_raw(frame(bytes(header)))
        hook.close()
    await asyncio.sleep(0.2)
    survivor = await node.hook()
    survivor.hello(job="still-here")
    await until(lambda: [told for told in node.of(records.RankInventory) if told.id.job == "still-here"])


async def test_text_that_is_too_long_says_what_was_left_out(node: Node) -> None:
    hook = await node.hook()
    hook.hello()
    hook.send("exception", type="E", message="m", traceback="first\n" + "x" * 50_000 + "\nlast", t_ns=1)
    state = await until(lambda: next(iter(node.table), None))
    exception = await until(lambda: state.exception)
    assert len(exception.traceback) <= 16_384
    assert exception.traceback.startswith("first")
    assert exception.traceback.endswith("last")
    assert "characters left out" in exception.traceback


# --- the socket --------------------------------------------------------------------------------------


async def test_a_socket_left_by_a_killed_agent_is_replaced(tmp_path: Path) -> None:
    left = socket.socket(socket.AF_UNIX)
    left.bind(str(tmp_path / "hook.sock"))
    left.close()
    node = Node(tmp_path)
    await node.server.start()
    (await node.hook()).hello()
    await until(lambda: len(node.table) == 1)
    node.exits.close()
    await node.server.stop()
    assert not node.path.exists()


async def test_a_stopping_agent_tells_its_hooks(node: Node) -> None:
    hook = await node.hook()
    hook.hello()
    await until(lambda: len(node.table) == 1)
    await node.server.stop()
    assert await asyncio.to_thread(hook.receive) == {"k": "bye"}


async def test_a_foreign_folder_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    os.chown(tmp_path, 4242, 4242) if os.geteuid() == 0 else pytest.skip("needs root to make one")
    with pytest.raises(PermissionError):
        await Node(tmp_path).server.start()
    os.chown(tmp_path, 0, 0)


def test_the_reader_keeps_a_small_buffer_until_a_dump_was_ordered() -> None:
    reader = protocol.Reader()
    reader.blob_max_bytes = 0
    with pytest.raises(protocol.ProtocolError):
        reader.feed(struct.pack("!II", 2, 1))
