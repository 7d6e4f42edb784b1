"""The hook inside real torch processes, with a fake agent on the other end of the socket."""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from collectors.formats import flight_recorder
from tests.collectors.hook.fake_agent import FakeAgent

pytestmark = [pytest.mark.torch]
pytest.importorskip("torch")

ROOT = Path(__file__).resolve().parents[3]
JOBS = Path(__file__).with_name("jobs.py")


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def environment(agent_path: Path, **more: str) -> dict[str, str]:
    clean = {name: value for name, value in os.environ.items() if not name.startswith("CLUSTERWATCH_")}
    return clean | {
        "CLUSTERWATCH_HOOK_SOCKET": str(agent_path),
        "CLUSTERWATCH_JOB_ID": "job-7",
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(free_port()),
        "RANK": "0",
        "LOCAL_RANK": "0",
        "WORLD_SIZE": "1",
        "OMP_NUM_THREADS": "1",
        **more,
    }


def launch(job: str, environ: dict[str, str], watched: bool = True) -> subprocess.Popen[str]:
    runner = [sys.executable, "-m", "collectors.hook.run"] if watched else []
    return subprocess.Popen(
        [*runner, sys.executable, str(JOBS), job],
        env=environ,
        cwd=ROOT,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )


def finish(process: subprocess.Popen[str]) -> tuple[list[dict[str, Any]], str, int]:
    """JSON lines of stdout, stderr, exit code."""
    out, errors = process.communicate(timeout=100)
    return [json.loads(line) for line in out.splitlines() if line.startswith("{")], errors, process.returncode


def stop(process: subprocess.Popen[str]) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.communicate()


class Pair:
    """Two ranks that train for ever, and their agent."""

    def __init__(self, folder: Path) -> None:
        self.agent = FakeAgent(folder / "hook.sock")
        self.agent.start()
        self.stop_receiving = folder / "stop"
        shared = environment(self.agent.path, WORLD_SIZE="2", STOP_RECEIVING=str(self.stop_receiving))
        self.processes = [
            launch("endless", shared | {"RANK": str(rank), "LOCAL_RANK": str(rank)}) for rank in (0, 1)
        ]
        self.agent.wait(lambda: len(self.pids()) == 2 and all(self.step(rank) for rank in (0, 1)), 90)

    def pids(self) -> dict[int, int]:
        return {frame.header["rank"]: frame.pid for frame in self.agent.of("hello")}

    def step(self, rank: int) -> int:
        frames = self.agent.of("progress", self.pids()[rank])
        return (frames[-1].header["step"] or 0) if frames else 0

    def groups(self, rank: int) -> dict[str, dict[str, Any]]:
        newest = self.agent.of("groups", self.pids()[rank])[-1]
        return {group["desc"]: group for group in newest.header["groups"]}

    def numbers(self, rank: int, desc: str) -> list[int]:
        index = self.groups(rank)[desc]["index"]
        newest = self.agent.of("progress", self.pids()[rank])[-1]
        return next(row for row in newest.header["groups"] if row[0] == index)

    def ask(self, rank: int, what: str, kind: str, number: int, **more: Any) -> Any:
        self.agent.ask(self.pids()[rank], id=number, what=what, **more)
        pid = self.pids()[rank]
        return self.agent.wait(
            lambda: next((f for f in self.agent.of(kind, pid) if f.header["id"] == number), None)
        )


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Pair]:
    started = Pair(tmp_path_factory.mktemp("pair"))
    yield started
    for process in started.processes:
        stop(process)
    started.agent.stop()


def test_says_who_it_is(pair: Pair) -> None:
    hello = pair.agent.of("hello", pair.pids()[1])[0].header
    assert (hello["rank"], hello["world_size"], hello["local_rank"], hello["job"]) == (1, 2, 1, "job-7")
    assert hello["pid"] == pair.pids()[1]
    assert hello["torch"].startswith("2.13")
    assert "jobs.py endless" in hello["command"]
    assert hello["blind"] == []


def test_ranks_agree_on_the_world(pair: Pair) -> None:
    assert len({frame.header["world"] for frame in pair.agent.of("hello")}) == 1


def test_groups_have_the_same_name_and_members_although_local_numbers_differ(pair: Pair) -> None:
    first, second = pair.groups(0), pair.groups(1)
    assert first["pair"]["ranks"] == second["pair"]["ranks"] == [0, 1]
    assert first["pair"]["name"] == second["pair"]["name"]
    assert (first["pair"]["recorder_id"], second["pair"]["recorder_id"]) == (2, 1)
    assert "alone" in first and "alone" not in second


def test_progress_moves_in_the_group_that_works(pair: Pair) -> None:
    before = pair.numbers(0, "pair")
    pair.agent.wait(lambda: pair.numbers(0, "pair")[1] > before[1])
    assert pair.numbers(0, "alone")[1:3] == [0, 0]


def test_calls_are_told_with_their_group_and_op(pair: Pair) -> None:
    def told(rank: int) -> set[tuple[int, str, int]]:
        frames = [frame.header for frame in pair.agent.of("edges", pair.pids()[rank])]
        return {
            (group, frame["ops"][op], size)
            for frame in frames
            for group, op, size in zip(frame["group"], frame["op"], frame["size_bytes"], strict=True)
        }

    pair.agent.wait(lambda: told(0) and told(1))
    index = {rank: pair.groups(rank)["pair"]["index"] for rank in (0, 1)}
    both = [(0, "all_reduce", 64), (0, "all_reduce", 16)]
    assert told(0) == {*both, (index[0], "all_reduce", 12), (index[0], "send", 8)}
    assert told(1) == {*both, (index[1], "all_reduce", 12), (index[1], "recv", 8)}


def test_sequence_counts_collectives_and_not_sends(pair: Pair) -> None:
    _index, enqueued, _completed, sequence = pair.numbers(0, "pair")
    assert 0 < sequence < enqueued
    assert abs(sequence - pair.numbers(1, "pair")[3]) <= 40


def test_steps_have_parts(pair: Pair) -> None:
    columns = pair.agent.wait_for("steps", pair.pids()[0]).header
    rows = len(columns["step"])
    assert all(
        len(columns[name]) == rows for name in ("end_ns", "duration_s", "data_wait_s", "cpu_s", "gc_s")
    )
    assert all(0.05 <= duration < 30 for duration in columns["duration_s"])
    assert all(
        wait <= length for wait, length in zip(columns["data_wait_s"], columns["duration_s"], strict=True)
    )


def test_a_window_decodes_to_this_ranks_calls(pair: Pair) -> None:
    frame = pair.ask(0, "window", "dump", 11)
    assert (frame.header["recorder"], frame.header["format"], frame.header["error"]) == (
        "generic",
        "pickle",
        "",
    )
    decoded = flight_recorder.decode(frame.blob, 0)
    assert "all_reduce" in {what.op for what in decoded.signatures}
    assert not decoded.stacks


def test_a_ring_carries_stacks_when_asked(pair: Pair) -> None:
    decoded = flight_recorder.decode(pair.ask(0, "ring", "dump", 12, frames=True).blob, 0)
    assert any("backward (" in frame for frames in decoded.stacks for frame in frames)


def test_a_recorder_this_torch_lacks_is_told_in_words(pair: Pair) -> None:
    frame = pair.ask(0, "ring", "dump", 13, recorder="nccl")
    assert frame.blob == b""
    assert "nccl" in frame.header["error"]


def test_stacks_show_the_training_loop_outermost_first(pair: Pair) -> None:
    threads = pair.ask(1, "stacks", "stacks", 14).header["threads"]
    assert threads[0]["main"] is True
    assert threads[0]["frames"][0].startswith("<module> (") and "endless (" in threads[0]["frames"][1]
    assert not any(thread["name"] == "clusterwatch-hook" for thread in threads)


def test_children_say_nothing(pair: Pair) -> None:
    runners = {process.pid for process in pair.processes}
    assert {frame.pid for frame in pair.agent.frames} == set(pair.pids().values()) | runners


def test_costs_a_thousandth_at_most_of_the_time_it_reports(pair: Pair) -> None:
    frames = pair.agent.of("progress", pair.pids()[0])
    assert all(
        later.header["cost_s"] >= sooner.header["cost_s"] for sooner, later in itertools.pairwise(frames)
    )


def test_says_everything_again_to_an_agent_that_came_back(pair: Pair) -> None:
    pair.agent.stop()
    seen = len(pair.agent.frames)
    pair.agent.start()
    for pid in pair.pids().values():
        pair.agent.wait_for("hello", pid, since=seen)
        assert pair.agent.wait_for("groups", pid, since=seen).header["groups"]
        pair.agent.wait_for("progress", pid, since=seen)


def test_an_open_receive_is_told_although_gloo_records_none(pair: Pair) -> None:
    pair.stop_receiving.touch()

    def open_calls() -> list[dict[str, Any]]:
        newest = pair.agent.of("progress", pair.pids()[0])[-1].header
        return newest["p2p"]["open"] or [
            {"op": "collective"} for _i, enqueued, completed, _s in newest["groups"] if enqueued > completed
        ]

    assert pair.agent.wait(open_calls)


def test_counts_steps_as_people_do(tmp_path: Path) -> None:
    with FakeAgent(tmp_path / "hook.sock") as agent:
        lines, errors, code = finish(launch("counting", environment(agent.path)))
        assert code == 0, errors
        cases = {line["case"]: (line["counted"], line["made"]) for line in lines if "case" in line}
        wrapped = lines[-1]
        assert agent.wait_for("finish").header["t_ns"] > 0
    assert cases.pop("skipping") == (10, 10)
    assert {case: counted for case, (counted, _made) in cases.items()} == {
        case: made for case, (_counted, made) in cases.items()
    }
    assert wrapped["signature"].startswith("(obj") and wrapped["name"] == "save"
    assert wrapped["pickled"] and wrapped["p2p_op"]
    assert wrapped["iterator"] == "_SingleProcessDataLoaderIter" and wrapped["batches"] == 3
    assert wrapped["compile_s"] > 0 and wrapped["checkpoint_s"] > 0
    assert wrapped["frozen_evaluating"] == [True, True, False, False]
    assert wrapped["evaluating"] and not wrapped["evaluating_after_train"]


def test_phases_begin_and_end(tmp_path: Path) -> None:
    with FakeAgent(tmp_path / "hook.sock") as agent:
        _lines, errors, code = finish(launch("phases", environment(agent.path)))
        assert code == 0, errors
        changes = [frame.header for frame in agent.of("phase")]
    assert [change["before"] for change in changes] + [changes[-1]["phase"]] == [
        "startup",
        "train",
        "evaluation",
        "train",
        "checkpoint",
        "train",
        "data_loading",
        "train",
        "teardown",
    ]
    assert all(change["before_s"] >= 0 for change in changes)


def test_last_words_of_a_failing_rank_on_an_untried_torch(tmp_path: Path) -> None:
    with FakeAgent(tmp_path / "hook.sock") as agent:
        _lines, errors, code = finish(launch("raising", environment(agent.path)))
        failure = agent.wait_for("exception").header
        exited = agent.wait_for("exit").header
        progress = agent.of("progress")[-1].header
        assert agent.of("finish") == []
        blind = agent.of("hello")[0].header["blind"]
    assert code == 1
    assert "ValueError: loss is not finite" in errors, "the job's own words must stay"
    assert (failure["type"], failure["message"]) == ("ValueError", "loss is not finite")
    assert "jobs.py" in failure["traceback"]
    assert (exited["code"], exited["signal"]) == (1, None)
    assert any("untested" in word for word in blind)
    assert progress["step"] is None and progress["phase"] == "unknown"
    assert progress["groups"][0][1] >= 1


def test_one_line_of_code_and_a_second_world(tmp_path: Path) -> None:
    with FakeAgent(tmp_path / "hook.sock") as agent:
        environ = environment(agent.path, RENDEZVOUS=str(tmp_path / "store"), PYTHONPATH=str(ROOT))
        _lines, errors, code = finish(launch("attached", environ, watched=False))
        assert code == 0, errors
        hellos = [frame.header for frame in agent.of("hello")]
        teardown = [frame.header["phase"] for frame in agent.of("phase")]
    worlds = list(dict.fromkeys(hello["world"] for hello in hellos))
    assert len(worlds) == 2 and worlds[1].endswith("#1")
    assert "teardown" in teardown
    assert any("p2p" in word for word in hellos[0]["blind"])


def test_without_an_agent_the_job_runs_and_one_line_says_so(tmp_path: Path) -> None:
    lines, errors, code = finish(launch("short", environment(tmp_path / "nobody.sock")))
    assert code == 0
    assert lines
    assert [line for line in errors.splitlines() if "clusterwatch" in line] == [
        f"clusterwatch-run: no agent at {tmp_path / 'nobody.sock'}: "
        "the command runs, unwatched until one listens there"
    ]
