"""A capture answers in time for every rank, whatever state it is in."""

from __future__ import annotations

import asyncio
import os
import pickle
import shutil
import signal
import subprocess
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from collectors import capture, processes, ras, ras_event, stacks
from collectors.capture import Capturer
from collectors.clock import SystemClock
from collectors.formats.columns import unpack
from collectors.wire import records
from tests.collectors.fakes import spawn_hook, until
from tests.collectors.formats.test_ras_status import LACKING
from tests.collectors.test_hook_server import Node
from tests.collectors.test_ras import Ras, peer

needs_pyspy = pytest.mark.skipif(
    stacks.pyspy_path() is None or os.geteuid() != 0, reason="py-spy may look into others as root only"
)

DUMP = {
    "version": "2.10",
    "pg_config": {"0": {"name": "0", "desc": "default_pg", "ranks": "[0, 1, 2, 3]"}},
    "pg_status": {"0": {"last_enqueued_collective": 2, "last_started_collective": -1,
                        "last_completed_collective": 1}},
    "entries": [
        {"record_id": 0, "pg_id": 0, "process_group": ("0", "default_pg"), "collective_seq_id": 1,
         "p2p_seq_id": 0, "op_id": 1, "profiling_name": "gloo:all_reduce", "time_created_ns": 10,
         "input_sizes": [[4]], "input_dtypes": ["Float"], "output_sizes": [[4]], "output_dtypes": ["Float"],
         "state": "completed", "time_discovered_started_ns": None, "time_discovered_completed_ns": 20,
         "retired": True, "timeout_ms": 60000, "is_p2p": False, "frames": []},
    ],
}  # fmt: skip


class Bench(Node):
    """A node with a capturer and its ranks."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self.folder = folder
        self.capturer = Capturer(self.table, self.server, SystemClock(), self.emitted.append)
        self.processes: list[subprocess.Popen[bytes]] = []

    async def ranks(self, count: int, mode: str = "run", dump: bytes | None = None) -> None:
        path = None
        if dump is not None:
            path = self.folder / "dump"
            path.write_bytes(dump)
        for _ in range(count):
            self.processes.append(spawn_hook(self.path, len(self.processes), mode, path))
        await until(lambda: len(self.table) == len(self.processes))

    async def stop_rank(self, rank: int) -> None:
        pid = self.processes[rank].pid
        os.kill(pid, signal.SIGSTOP)
        await until(lambda: processes.state(pid) == "T")

    async def order(
        self, *want: Any, ranks: list[int] | None = None, deadline_s: float = 6.0, ras_rank: int | None = None
    ) -> Any:
        self.capturer.start(
            records.CaptureOrder(
                capture_id=1,
                job="job-1",
                want=list(want),
                ranks=ranks,
                deadline_s=deadline_s,
                ras_rank=ras_rank,
            )
        )
        (done,) = await until(lambda: self.of(records.CaptureDone), deadline_s + 2)
        return done


@pytest.fixture
async def bench(tmp_path: Path) -> AsyncIterator[Bench]:
    made = Bench(tmp_path)
    await made.server.start()
    yield made
    made.capturer.close()
    made.exits.close()
    await made.server.stop()
    for process in made.processes:
        process.kill()
        process.wait()


async def test_traces_of_all_ranks_come_as_columns(bench: Bench) -> None:
    await bench.ranks(2, dump=pickle.dumps(DUMP, protocol=2))
    done = await bench.order("ring")
    assert (done.answered, done.silent) == ([0, 1], {})
    traces = {told.id.rank: unpack(told.columns) for told in bench.of(records.Trace)}
    assert set(traces) == {0, 1}
    assert traces[1].rank == 1
    assert [what.op for what in traces[1].signatures] == ["all_reduce"]


async def test_hook_stacks_are_enough_when_nobody_is_suspected(bench: Bench) -> None:
    await bench.ranks(2)
    done = await bench.order("stacks")
    assert done.answered == [0, 1]
    told = bench.of(records.Stacks)
    assert [(record.source, record.threads[0].frames) for record in told] == [("hook", ["main (x.py:1)"])] * 2
    assert all(record.process_state in ("S", "R") for record in told)


@needs_pyspy
async def test_a_suspect_is_also_looked_at_from_outside(bench: Bench) -> None:
    await bench.ranks(2)
    await bench.order("stacks", ranks=[1])
    told = bench.of(records.Stacks)
    assert [(record.id.rank, record.source) for record in told] == [(1, "hook"), (1, "py-spy")]
    (main,) = [thread for thread in told[1].threads if thread.main]
    assert any("wait_here_for_ever" in frame for frame in main.frames)
    assert "hook_process.py" in main.frames[-1]


@needs_pyspy
async def test_a_stopped_rank_is_reported_as_stopped_before_the_deadline(bench: Bench) -> None:
    await bench.ranks(2, dump=pickle.dumps(DUMP, protocol=2))
    await bench.stop_rank(0)
    started_s = time.monotonic()
    done = await bench.order("window", "stacks")
    assert time.monotonic() - started_s < 5
    assert done.answered == [0, 1]
    assert done.silent == {"0": "window: its process is stopped"}
    (told,) = [record for record in bench.of(records.Stacks) if record.id.rank == 0]
    assert (told.source, told.process_state) == ("py-spy", "T")
    assert any("wait_here_for_ever" in frame for thread in told.threads for frame in thread.frames)
    assert [record.id.rank for record in bench.of(records.Trace)] == [1]


async def test_ras_is_asked_once_by_the_node_of_the_rank_that_is_named(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    await bench.ranks(2)
    for state in bench.table:
        state.hello = msgspec.structs.replace(state.hello, backend="cpu:gloo,cuda:nccl")
    async with peer(Ras(LACKING, knows_json=False)) as port:
        monkeypatch.setattr(ras, "address_of", lambda pid: ("127.0.0.1", port))
        await bench.order("stacks", ras_rank=1)
    (event,) = bench.of(records.Event)
    assert (event.kind, event.id.rank, event.fields["capture_id"]) == ("nccl_ras", 1, "1")
    assert ras_event.read(event.fields).status.communicators[0].missing == [1, 21]
    assert isinstance(bench.emitted[-1], records.CaptureDone)


async def test_the_reason_why_ras_said_nothing_is_evidence_too(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    await bench.ranks(1)
    for state in bench.table:
        state.hello = msgspec.structs.replace(state.hello, backend="nccl")
    async with peer(Ras(LACKING)) as port:
        pass
    monkeypatch.setattr(ras, "address_of", lambda pid: ("127.0.0.1", port))
    await bench.order("stacks", ras_rank=0)
    (event,) = bench.of(records.Event)
    assert event.text.startswith("NCCL RAS gave no answer:")


async def test_ras_is_not_asked_elsewhere_nor_of_a_job_without_nccl(bench: Bench) -> None:
    await bench.ranks(1)
    await bench.order("stacks", ras_rank=0)  # its backend is gloo
    bench.emitted.clear()
    await bench.order("stacks", ras_rank=7)
    assert bench.of(records.Event) == []


async def test_without_pyspy_the_process_state_is_still_told(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(stacks, "pyspy_path", lambda: None)
    await bench.ranks(1)
    await bench.stop_rank(0)
    done = await bench.order("stacks")
    (told,) = bench.of(records.Stacks)
    assert (told.process_state, told.error) == ("T", "py-spy is not installed")
    assert done.answered == []
    assert "stopped" in done.silent["0"]


async def test_a_pyspy_that_hangs_is_given_up_at_the_deadline(
    bench: Bench, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    sleeper = tmp_path / "py-spy"
    sleeper.write_text("#!/bin/sh\nexec sleep 60\n")
    sleeper.chmod(0o700)
    monkeypatch.setattr(stacks, "pyspy_path", lambda: str(sleeper))
    await bench.ranks(1)
    started_s = time.monotonic()
    await bench.order("stacks", ranks=[0], deadline_s=1.5)
    assert time.monotonic() - started_s < 3
    assert "py-spy" in bench.of(records.Stacks)[-1].error


async def test_a_hook_that_never_answers_does_not_hold_the_others(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(capture, "STACKS_PATIENCE_S", 0.3)
    await bench.ranks(1)
    mute = await bench.hook()
    mute.hello(rank=9)
    await until(lambda: len(bench.table) == 2)
    done = await bench.order("window", "stacks", deadline_s=2.0)
    assert "0" in done.silent  # its window is no dump
    assert "did not answer in time" in done.silent["9"]
    assert 0 in done.answered


BAD_DUMPS = {
    "empty": b"",
    "cut": pickle.dumps(DUMP, protocol=2)[:-20],
    "hostile": b"cos\nsystem\n(S'touch /tmp/pwned'\ntR.",
    "not a dump": b"\x00" * 100,
    "another object": pickle.dumps([1, 2, 3]),
}


@pytest.mark.parametrize("name", BAD_DUMPS)
async def test_a_bad_dump_is_named_and_costs_nothing_else(bench: Bench, name: str) -> None:
    await bench.ranks(1, dump=BAD_DUMPS[name])
    done = await bench.order("ring", "stacks")
    assert done.answered == [0]  # its stacks came
    assert done.silent["0"].startswith("ring:")
    assert bench.of(records.Trace) == []
    assert bench.of(records.Stacks)
    events = bench.of(records.Event)
    assert [event.kind for event in events] == ([] if name == "empty" else ["dump_unreadable"])
    assert all(event.id.rank == 0 for event in events)


async def test_a_rank_that_is_not_here_is_named(bench: Bench) -> None:
    await bench.ranks(1)
    done = await bench.order("stacks", ranks=[0, 5])
    assert done.answered == [0]
    assert done.silent == {"5": "no such rank of this job on this node"}


async def test_another_job_is_not_disturbed(bench: Bench) -> None:
    await bench.ranks(1)
    other = await bench.hook()
    other.hello(rank=0, job="other")
    await until(lambda: len(bench.table) == 2)
    done = await bench.order("stacks")
    assert done.answered == [0]
    assert {record.id.job for record in bench.of(records.Stacks)} == {"job-1"}
    with pytest.raises(TimeoutError):
        await asyncio.to_thread(other.receive, 0.2)


async def test_a_rank_that_dies_during_its_capture_is_silent_with_a_reason(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    mute = await bench.hook()
    mute.hello(rank=0)
    await until(lambda: len(bench.table) == 1)
    bench.capturer.start(
        records.CaptureOrder(capture_id=1, job="job-1", want=["window"], ranks=None, deadline_s=5.0)
    )
    await asyncio.to_thread(mute.receive)
    mute.close()
    (done,) = await until(lambda: bench.of(records.CaptureDone), 3)
    assert done.silent == {"0": "window: the hook closed its connection"}


async def test_more_orders_than_the_agent_can_carry_are_answered_at_once(bench: Bench) -> None:
    mute = await bench.hook()
    mute.hello(rank=0)
    await until(lambda: len(bench.table) == 1)
    for number in range(1, 6):
        bench.capturer.start(records.CaptureOrder(capture_id=number, job="job-1", want=["ring"]))
    (done,) = await until(lambda: bench.of(records.CaptureDone), 1)
    assert done.capture_id == 5
    assert done.silent == {"*": "the agent is busy with other captures"}


def test_threads_of_pyspy_are_turned_outermost_first() -> None:
    output = (
        b'[{"pid": 7, "thread_id": 1, "thread_name": "MainThread", "os_thread_id": 7, "active": true,'
        b' "owns_gil": false, "frames": [{"name": "inner", "filename": "/a.py", "line": 2},'
        b' {"name": "outer", "filename": "/a.py", "line": 9}]}]'
    )
    (thread,) = stacks.parse(output, 7)
    assert thread.frames == ["outer (/a.py:9)", "inner (/a.py:2)"]
    assert (thread.main, thread.state) == (True, "active")


@pytest.mark.parametrize("output", [b"", b"{}", b"[5]", b'[{"frames": [{"line": "x"}]}]', b"Error: no"])
def test_an_answer_of_pyspy_that_cannot_be_read_is_an_error(output: bytes) -> None:
    with pytest.raises(stacks.StackError):
        stacks.parse(output, 7)


async def test_why_pyspy_could_not_look_is_told() -> None:
    if shutil.which("py-spy") is None and stacks.pyspy_path() is None:
        pytest.skip("py-spy is not installed")
    gone = subprocess.Popen(["true"])
    gone.wait()
    with pytest.raises(stacks.StackError, match="py-spy"):
        await stacks.take(gone.pid, 5.0)
