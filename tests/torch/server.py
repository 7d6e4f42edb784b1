"""Runs scenarios on real torch and leaves their dumps: ``python -m tests.torch.server OUT`` < JSON lines.

In: one JSON object per line, ``{"name", "program", "world", "fault", "rank", "ring"}``.
Out: under ``OUT/<name>/pickle`` and ``OUT/<name>/json`` what the recorder of each living rank says, and
one JSON line per scenario: what became of each rank. torch is imported once (seconds of CPU), then every rank
of every scenario is a fork of this process, which has started no thread and no group, so each has a recorder
of its own.

A scenario is over when every rank has ended its program, or when no thread of any has run for ``QUIET_S``.
Then the dumps are taken, by a thread of each rank as a watchdog does it, and the ranks are killed.
"""

from __future__ import annotations

import contextlib
import json
import mmap
import os
import select
import signal
import sys
import threading
import time
import traceback
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any, Final, NoReturn

import torch
import torch._C._distributed_c10d as core
import torch._inductor.codecache  # noqa: F401  (the recorder imports it for its first stack: seconds, once here)
import torch.distributed as dist
import torch.distributed.fsdp
import torch.distributed.tensor  # noqa: F401

from tests.torch import programs
from tests.torch.moves import Injected, stand_still

LANES: Final = 3
"""Scenarios at a time: most of them only wait for QUIET_S to pass."""

QUIET_S: Final = 0.4
"""No rank has run for so long: they wait for each other."""
POLLS_MIN: Final = 5
"""Rounds of gloo's loop in that time."""
LIMIT_S: Final = 120.0
"""Of one scenario, and of the dumps of one; only a failure takes so long."""

RUNNING, DONE, RAISED = 0, 1, 2
STATES: Final = ("hangs", "done", "raised")


@dataclass
class Rank:
    """A forked rank, seen from the parent."""

    pid: int
    ask: int
    """write one byte here for a dump"""
    answer: int
    """reads one byte when the dump is written"""
    exit: str = ""

    def poll(self) -> bool:
        """Whether it still lives."""
        if not self.exit:
            found, status = os.waitpid(self.pid, os.WNOHANG)
            if found:
                self.exit = f"signal {status}" if os.WIFSIGNALED(status) else f"exit {status >> 8}"
        return not self.exit

    def threads(self) -> dict[str, Thread] | None:
        """Its threads by id; None when one ended meanwhile."""
        try:
            return {path.name: Thread.of(path) for path in Path(f"/proc/{self.pid}/task").iterdir()}
        except OSError:
            return None


@dataclass(frozen=True)
class Thread:
    """What proc(5) tells of one thread."""

    polls: bool
    """gloo's loop wakes every 10 ms whether there is work or not"""
    asleep: bool
    switches: int
    """how often it went on or off a core: unchanged, it has not run, however busy the machine is"""

    @classmethod
    def of(cls, place: Path) -> Thread:
        """Raises ``OSError`` if it is gone."""
        rows = dict(line.split(":", 1) for line in (place / "status").read_text().splitlines() if ":" in line)
        switches = int(rows["voluntary_ctxt_switches"]) + int(rows["nonvoluntary_ctxt_switches"])
        return cls("gloo_tcp_loop" in rows["Name"], rows["State"].split()[0] == "S", switches)


def _still(before: dict[str, Thread] | None, now: dict[str, Thread] | None) -> bool:
    """No thread has run in between, nor wants to; but those that poll for messages must have run, and so seen
    whatever there was."""
    if before is None or now is None or before.keys() != now.keys():
        return False
    moved = {name: thread.switches - before[name].switches for name, thread in now.items()}
    return all(
        moved[name] >= POLLS_MIN if thread.polls else thread.asleep and not moved[name]
        for name, thread in now.items()
    )


def main() -> None:
    """Runs what standard input asks for."""
    out = Path(sys.argv[1])
    if threading.active_count() > 1:
        raise RuntimeError("torch has started a thread: forks of this process are not safe")
    os.environ["GLOO_SOCKET_IFNAME"] = "lo"
    torch.set_num_threads(1)
    scenarios = [json.loads(line) for line in sys.stdin]
    lanes = [_lane(scenarios[number::LANES], out) for number in range(LANES)]
    failed = [pid for pid in lanes if os.waitpid(pid, 0)[1]]
    sys.exit(len(failed))


def _lane(scenarios: list[dict[str, Any]], out: Path) -> int:
    """A fork that runs its share of the scenarios one after the other. Returns its process id."""
    pid = os.fork()
    if pid:
        return pid
    failed = 1
    try:
        for scenario in scenarios:
            began_s = time.monotonic()
            ranks = run(scenario, out / scenario["name"])
            said = {"name": scenario["name"], "ranks": ranks, "took_s": time.monotonic() - began_s}
            os.write(1, json.dumps(said).encode() + b"\n")
        failed = 0
    finally:
        if failed:
            traceback.print_exc()
        os._exit(failed)


def run(scenario: dict[str, Any], folder: Path) -> list[str]:
    """One scenario from fork to kill. Returns what became of each rank, in words."""
    folder.mkdir(parents=True)
    shared = mmap.mmap(-1, scenario["world"])
    ranks = [_fork(scenario, rank, folder, shared) for rank in range(scenario["world"])]
    try:
        _wait(ranks, shared)
        living = [rank for rank in ranks if rank.poll()]
        for rank in living:
            os.write(rank.ask, b"d")
        for rank in living:
            ready, _, _ = select.select([rank.answer], [], [], LIMIT_S)
            if not ready or os.read(rank.answer, 1) != b"d":
                raise TimeoutError(f"{scenario['name']}: process {rank.pid} gave no dump")
    finally:
        words = [rank.exit or STATES[shared[number]] for number, rank in enumerate(ranks)]
        for rank in ranks:
            _end(rank)
    return words


def _wait(ranks: list[Rank], shared: mmap.mmap) -> None:
    """Until nothing can move any more: all are through, or gone, or stand still for QUIET_S."""
    until_s = time.monotonic() + LIMIT_S
    before: list[dict[str, Thread] | None] = []
    while time.monotonic() < until_s:
        pause_s = time.monotonic() + QUIET_S
        while time.monotonic() < pause_s:
            if all(shared[number] == DONE for number, rank in enumerate(ranks) if rank.poll()):
                return
            time.sleep(0.01)
        now = [rank.threads() for rank in ranks if rank.poll()]
        if len(now) == len(before) and all(map(_still, before, now)):
            return
        before = now
    raise TimeoutError("the ranks neither end nor stand still")


def _end(rank: Rank) -> None:
    if rank.poll():
        os.kill(rank.pid, signal.SIGKILL)
        os.waitpid(rank.pid, 0)
    os.close(rank.ask)
    os.close(rank.answer)


def _fork(scenario: dict[str, Any], number: int, folder: Path, shared: mmap.mmap) -> Rank:
    asked, ask = os.pipe()
    answer, answered = os.pipe()
    pid = os.fork()
    if pid:
        os.close(asked)
        os.close(answered)
        return Rank(pid, ask, answer)
    try:
        with (folder / f"rank_{number}.log").open("w") as log:
            os.dup2(log.fileno(), 1)
            os.dup2(log.fileno(), 2)
        _rank(scenario, number, folder, shared, asked, answered)
    finally:  # a fork must never run on into its parent's loop
        traceback.print_exc()
        os._exit(3)


def _rank(
    scenario: dict[str, Any], number: int, folder: Path, shared: mmap.mmap, asked: int, answered: int
) -> NoReturn:
    os.environ["TORCH_FR_BUFFER_SIZE"] = str(scenario.get("ring", 2000))
    os.environ |= {"RANK": str(number), "LOCAL_RANK": str(number), "WORLD_SIZE": str(scenario["world"])}
    threading.Thread(target=_dumper, args=(number, folder, asked, answered), daemon=True).start()
    store = core.FileStore(str(folder / "store"), scenario["world"])
    dist.init_process_group(
        "gloo", store=store, rank=number, world_size=scenario["world"], timeout=timedelta(seconds=2 * LIMIT_S)
    )
    try:
        program = programs.build(scenario["program"])
        if number == scenario.get("rank"):
            program.edit(scenario["fault"])
        program.run()
        shared[number] = DONE
    except Injected:
        os._exit(1)
    except RuntimeError:
        traceback.print_exc()
        shared[number] = RAISED
    stand_still()


def _dumper(number: int, folder: Path, asked: int, answered: int) -> None:
    """Waits without using CPU, then writes both encodings, as a watchdog thread does."""
    os.read(asked, 1)
    pickled = core._dump_fr_trace(  # type: ignore[attr-defined]
        includeCollectives=True, includeStackTraces=True, onlyActive=False
    )
    text = core._dump_fr_trace_json(  # type: ignore[attr-defined]
        includeCollectives=True, onlyActive=False
    )
    text = text if isinstance(text, bytes) else text.encode()
    for flavour, data in (("pickle", pickled), ("json", text)):
        place = folder / flavour
        with contextlib.suppress(FileExistsError):
            place.mkdir()
        suffix = ".json" if flavour == "json" else ""
        (place / f"comm_lib_trace_rank_{number}{suffix}").write_bytes(data)
    os.write(answered, b"d")


if __name__ == "__main__":
    main()
