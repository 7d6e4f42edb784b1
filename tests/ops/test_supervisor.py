"""The supervisor with small process tables: order, restarts, clean stops, recovery after kill -9."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import textwrap
import time
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Protocol

import pytest

from clusterwatch.ops.child import FIRST_BACKOFF_S, Child, ChildState
from clusterwatch.ops.errors import OpsError
from clusterwatch.ops.proc import is_same_process, read_process
from clusterwatch.ops.processes import ProcessSpec
from clusterwatch.ops.recovery import leftovers, running_supervisor, stop_leftovers
from clusterwatch.ops.state import StateFolder
from clusterwatch.ops.status import read_status, table
from clusterwatch.ops.supervisor import STATUS_FILE, Supervisor

SLEEP = ("/bin/sleep", "300")


def python(code: str) -> tuple[str, ...]:
    """A process that runs this code."""
    return ("python", "-c", textwrap.dedent(code))


@pytest.fixture
def state(tmp_path: Path) -> StateFolder:
    return StateFolder.open(tmp_path / "state")


class Make(Protocol):
    """Makes a supervisor of a process table."""

    def __call__(self, *specs: ProcessSpec, said: list[str] | None = None) -> Supervisor: ...


@pytest.fixture
def supervisor(state: StateFolder) -> Iterator[Make]:
    """Makes supervisors; what a failed test leaves running is stopped."""

    def make(*specs: ProcessSpec, said: list[str] | None = None) -> Supervisor:
        say = (said if said is not None else []).append
        return Supervisor(state, specs, dict(os.environ), uuid.uuid4().hex, say=say)

    yield make
    stop_leftovers(state, grace_s=0.5)


def wait_until(condition: Callable[[], bool], limit_s: float = 10.0) -> None:
    deadline_s = time.monotonic() + limit_s
    while not condition():
        assert time.monotonic() < deadline_s, "it did not happen in time"
        time.sleep(0.02)


def test_starts_in_order_of_need_and_stops_in_reverse(
    supervisor: Make, state: StateFolder, tmp_path: Path
) -> None:
    journal = tmp_path / "journal"

    def noted(name: str) -> tuple[str, ...]:
        return python(f"""
            import signal, sys, time
            journal = open({str(journal)!r}, "a", buffering=1)
            def stop(*_):
                print("stop {name}", file=journal)
                sys.exit(0)
            signal.signal(signal.SIGTERM, stop)
            print("start {name}", file=journal)
            time.sleep(300)
        """)

    def started(name: str) -> Callable[[], bool]:
        return lambda: journal.exists() and f"start {name}" in journal.read_text()

    own = supervisor(
        ProcessSpec("agent", noted("agent"), after=("gateway",), ready=started("agent")),
        ProcessSpec("gateway", noted("gateway"), after=("base",), ready=started("gateway")),
        ProcessSpec("base", noted("base"), ready=started("base")),
    )
    assert own.start()
    own.stop()
    order = ["start base", "start gateway", "start agent", "stop agent", "stop gateway", "stop base"]
    assert journal.read_text().splitlines() == order


def test_a_process_that_is_killed_starts_again(supervisor: Make, state: StateFolder) -> None:
    said: list[str] = []
    own = supervisor(ProcessSpec("worker", SLEEP), said=said)
    assert own.start()
    child = own.children["worker"]
    first_pid = child.pid
    assert first_pid
    os.kill(first_pid, signal.SIGKILL)

    def is_back() -> bool:
        own.look()
        return child.is_up and child.pid != first_pid

    wait_until(is_back)
    assert child.restart_count == 1
    assert any("SIGKILL" in line and "worker" in line for line in said)
    own.stop()


def test_waits_longer_after_each_failure(state: StateFolder, tmp_path: Path) -> None:
    child = Child(ProcessSpec("broken", ("/bin/false",), settle_s=5.0), {}, tmp_path / "broken.log")
    waits_s = []
    for _ in range(4):
        child.start()
        wait_until(child.step)
        assert child.state is ChildState.BACKOFF, "it must not be taken for ready before it could fail"
        waits_s.append(child.retry_at_s - time.monotonic())
    expected_s = [FIRST_BACKOFF_S * 2**count for count in range(4)]
    assert waits_s == pytest.approx(expected_s, abs=0.2)


def test_a_program_that_is_not_there_is_a_failure_like_any_other(tmp_path: Path) -> None:
    child = Child(ProcessSpec("lost", ("/no/such/program",)), {}, tmp_path / "lost.log")
    child.start()
    assert child.state is ChildState.BACKOFF
    assert "No such file" in child.last_exit


def test_gives_up_on_a_required_process_and_says_its_last_line(supervisor: Make, state: StateFolder) -> None:
    broken = python("print('the disk is on fire'); raise SystemExit(3)")
    own = supervisor(ProcessSpec("base", SLEEP), ProcessSpec("web", broken, settle_s=5.0, required=True))
    with pytest.raises(OpsError, match="web cannot be started: the disk is on fire"):
        own.start()
    assert own.phase == "failed"
    assert not leftovers(state), "what was started before must be stopped"


def test_goes_on_without_a_process_that_is_not_required(supervisor: Make, state: StateFolder) -> None:
    said: list[str] = []
    own = supervisor(
        ProcessSpec("web", SLEEP, required=True),
        ProcessSpec("gateway", ("/bin/false",), settle_s=5.0),
        ProcessSpec("agent", SLEEP, after=("gateway",)),
        said=said,
    )
    assert own.start()
    assert own.children["web"].is_up
    assert any(line.startswith("gateway is not ready") for line in said)
    own.stop()


def test_what_ignores_the_stop_is_killed_with_its_children(
    supervisor: Make, state: StateFolder, tmp_path: Path
) -> None:
    pid_file = tmp_path / "child"
    stubborn = python(f"""
        import signal, subprocess, time
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        child = subprocess.Popen(["/bin/sleep", "300"])
        open({str(pid_file)!r}, "w").write(str(child.pid))
        time.sleep(300)
    """)
    ready = lambda: pid_file.exists() and pid_file.read_text() != ""  # noqa: E731
    own = supervisor(ProcessSpec("stubborn", stubborn, ready=ready, stop_grace_s=0.3))
    assert own.start()
    grandchild = read_process(int(pid_file.read_text()))
    assert grandchild
    own.stop()
    wait_until(lambda: not is_same_process(grandchild.pid, grandchild.start_ticks))


def test_a_stopped_process_is_stopped_all_the_same(supervisor: Make, state: StateFolder) -> None:
    own = supervisor(ProcessSpec("frozen", SLEEP, stop_grace_s=5.0))
    assert own.start()
    pid = own.children["frozen"].pid
    assert pid
    os.kill(pid, signal.SIGSTOP)
    before_s = time.monotonic()
    own.stop()
    assert time.monotonic() - before_s < 4.0


def test_a_once_process_is_done_when_it_ends_well(supervisor: Make, state: StateFolder) -> None:
    own = supervisor(
        ProcessSpec("bootstrap", ("/bin/true",), once=True),
        ProcessSpec("web", SLEEP, after=("bootstrap",)),
    )
    assert own.start()
    assert own.children["bootstrap"].state is ChildState.DONE
    assert read_status(state)[0] == "ready"
    own.stop()


SUPERVISOR_PROGRAM = """
    import os, sys
    from pathlib import Path
    from clusterwatch.ops.processes import ProcessSpec
    from clusterwatch.ops.state import StateFolder
    from clusterwatch.ops.supervisor import Supervisor
    child = "import subprocess, time; subprocess.Popen(['/bin/sleep', '300']); time.sleep(300)"
    own = Supervisor(
        StateFolder.open(Path(sys.argv[1])),
        [
            ProcessSpec("parent", ("python", "-c", child), settle_s=0.5),
            ProcessSpec("single", ("/bin/sleep", "300")),
        ],
        dict(os.environ),
        sys.argv[2],
    )
    own.install_signals()
    own.start()
    print("ready", flush=True)
    own.watch()
    own.stop()
"""


@pytest.fixture
def other_supervisor(state: StateFolder) -> Iterator[subprocess.Popen[str]]:
    """A supervisor in a process of its own, running."""
    program = [sys.executable, "-c", textwrap.dedent(SUPERVISOR_PROGRAM), str(state.root), uuid.uuid4().hex]
    process = subprocess.Popen(program, stdout=subprocess.PIPE, text=True, cwd=Path(__file__).parents[2])
    assert process.stdout
    assert process.stdout.readline() == "ready\n"
    yield process
    if process.poll() is None:
        process.kill()
        process.wait()
    stop_leftovers(state, grace_s=0.5)


def test_sigterm_stops_everything_it_started(
    state: StateFolder, other_supervisor: subprocess.Popen[str]
) -> None:
    assert running_supervisor(state) is not None
    other_supervisor.send_signal(signal.SIGTERM)
    assert other_supervisor.wait(15) == 0
    assert running_supervisor(state) is None
    assert leftovers(state) == {}


def test_after_kill_9_of_the_supervisor_all_it_left_is_found_and_stopped(
    state: StateFolder, other_supervisor: subprocess.Popen[str]
) -> None:
    wait_until(lambda: len(leftovers(state)) == 3)
    other_supervisor.kill()
    other_supervisor.wait()
    assert sorted(leftovers(state).values()) == ["child", "parent", "single"]
    assert read_status(state)[0] == "killed"
    assert stop_leftovers(state) == 3
    assert leftovers(state) == {}
    assert read_status(state) == ("down", [])


def test_a_foreign_process_with_a_recorded_id_is_never_signalled(state: StateFolder) -> None:
    stranger = subprocess.Popen(SLEEP)
    try:
        record = {"pid": stranger.pid, "start_ticks": 1, "state": "ready"}
        status = {"run_id": "run-3", "phase": "ready", "supervisor": {}, "processes": {"web": record}}
        (state.root / STATUS_FILE).write_text(json.dumps(status))
        assert stop_leftovers(state) == 0
        assert stranger.poll() is None
    finally:
        stranger.kill()
        stranger.wait()


def test_a_damaged_status_file_is_no_obstacle(state: StateFolder) -> None:
    (state.root / STATUS_FILE).write_text('{"run_id": "run-')
    assert running_supervisor(state) is None
    assert stop_leftovers(state) == 0


def test_the_table_names_each_process_once(supervisor: Make, state: StateFolder) -> None:
    own = supervisor(ProcessSpec("alpha", SLEEP), ProcessSpec("beta", SLEEP))
    assert own.start()
    phase, rows = read_status(state)
    own.stop()
    assert phase == "ready"
    text = table(rows)
    assert text.count("alpha") == text.count("beta") == 1
    assert str(own.children["alpha"].pid) in text
