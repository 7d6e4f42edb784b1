"""``clusterwatch-run``: the command comes first, the agent is told, the environment is prepared."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from collectors.hook import run
from tests.collectors.hook.fake_agent import FakeAgent

ROOT = Path(__file__).resolve().parents[3]


def start(command: list[str], socket_path: Path, **more: str) -> subprocess.Popen[str]:
    clean = {name: value for name, value in os.environ.items() if not name.startswith("CLUSTERWATCH_")}
    return subprocess.Popen(
        [sys.executable, "-m", "collectors.hook.run", *command],
        env=clean | {"CLUSTERWATCH_HOOK_SOCKET": str(socket_path), **more},
        cwd=ROOT,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def test_gives_the_commands_exit_code_and_tells_the_agent(tmp_path: Path) -> None:
    with FakeAgent(tmp_path / "a.sock") as agent:
        process = start(["sh", "-c", "exit 7"], agent.path, CLUSTERWATCH_JOB_ID="job-1")
        process.communicate(timeout=20)
        assert process.returncode == 7
        exited = agent.wait_for("exit").header
        begun = agent.of("run")[0].header
    assert begun["job"] == "job-1"
    assert exited == {"k": "exit", "pid": begun["pid"], "code": 7, "signal": None}


def test_a_signals_death_is_128_and_more(tmp_path: Path) -> None:
    with FakeAgent(tmp_path / "a.sock") as agent:
        process = start(["sh", "-c", "kill -9 $$"], agent.path)
        process.communicate(timeout=20)
        assert process.returncode == 128 + signal.SIGKILL
        exited = agent.wait_for("exit").header
    assert (exited["code"], exited["signal"]) == (None, signal.SIGKILL)


def test_passes_signals_on(tmp_path: Path) -> None:
    script = "trap 'echo got; exit 3' TERM; echo ready; while :; do sleep 0.1; done"
    process = start(["sh", "-c", script], tmp_path / "nobody.sock")
    assert process.stdout is not None and process.stdout.readline() == "ready\n"
    process.send_signal(signal.SIGTERM)
    out, _errors = process.communicate(timeout=20)
    assert (out, process.returncode) == ("got\n", 3)


def test_a_command_gets_its_signals_unblocked(tmp_path: Path) -> None:
    process = start(["grep", "SigBlk", "/proc/self/status"], tmp_path / "nobody.sock")
    out, _errors = process.communicate(timeout=20)
    assert int(out.split()[1], 16) == 0


def test_without_an_agent_one_line_and_the_command(tmp_path: Path) -> None:
    process = start(["echo", "hello"], tmp_path / "nobody.sock")
    out, errors = process.communicate(timeout=20)
    assert (out, process.returncode) == ("hello\n", 0)
    assert len(errors.splitlines()) == 1 and "no agent" in errors


def test_an_agent_that_came_back_hears_of_the_end(tmp_path: Path) -> None:
    with FakeAgent(tmp_path / "a.sock") as agent:
        process = start(["sleep", "1.5"], agent.path)
        agent.wait_for("run")
        agent.stop()
        agent.start()
        process.communicate(timeout=20)
        assert agent.wait_for("exit").header["code"] == 0


@pytest.mark.parametrize(("command", "code"), [(["/no/such/command"], 127), (["/etc/passwd"], 126), ([], 64)])
def test_a_command_that_cannot_run_has_a_shells_exit_code(
    tmp_path: Path, command: list[str], code: int
) -> None:
    process = start(command, tmp_path / "nobody.sock")
    process.communicate(timeout=20)
    assert process.returncode == code


def test_prepares_the_environment() -> None:
    environ = {"PYTHONPATH": "/mine", "SLURM_JOB_ID": "17"}
    run.prepare(environ, "/run/hook.sock")
    assert environ["PYTHONPATH"].split(os.pathsep) == [str(run.HOOK_PATH), "/mine"]
    assert environ["CLUSTERWATCH_JOB_ID"] == "17"
    assert environ["TORCH_FR_BUFFER_SIZE"] == "2000"
    assert "CLUSTERWATCH_JOB_ID_MADE" not in environ
    assert "TORCH_NCCL_ENABLE_TIMING" not in environ
    before = dict(environ)
    run.prepare(environ, "/run/hook.sock")
    assert environ == before


def test_a_ring_size_the_user_chose_stays() -> None:
    environ = {"TORCH_FR_BUFFER_SIZE": "0"}
    run.prepare(environ, None)
    assert environ["TORCH_FR_BUFFER_SIZE"] == "0"
    assert "CLUSTERWATCH_HOOK_SOCKET" not in environ


def test_a_made_job_id_says_so(capsys: pytest.CaptureFixture[str]) -> None:
    environ = {"RANK": "3"}
    run.prepare(environ, None)
    assert environ["CLUSTERWATCH_JOB_ID"].startswith("run-")
    assert environ["CLUSTERWATCH_JOB_ID_MADE"] == "1"
    assert "CLUSTERWATCH_JOB_ID" in capsys.readouterr().err


def test_a_process_without_torch_pays_next_to_nothing(tmp_path: Path) -> None:
    script = (
        "import sys; print('clusterwatch_hook' in sys.modules, 'typing' in sys.modules, len(sys.meta_path))"
    )
    process = start([sys.executable, "-S", "-c", script], tmp_path / "nobody.sock")
    bare, _errors = process.communicate(timeout=20)
    process = start([sys.executable, "-c", script], tmp_path / "nobody.sock")
    hooked, _errors = process.communicate(timeout=20)
    assert hooked.split()[0] == bare.split()[0] == "False"


def test_the_users_own_sitecustomize_still_runs(tmp_path: Path) -> None:
    own = tmp_path / "own"
    own.mkdir()
    (own / "sitecustomize.py").write_text("import sys\nsys.own_was_here = True\n")
    script = "import sys; print(sys.own_was_here, sys.modules['sitecustomize'].__file__)"
    process = start([sys.executable, "-c", script], tmp_path / "nobody.sock", PYTHONPATH=str(own))
    out, _errors = process.communicate(timeout=20)
    assert out.split() == ["True", str(own / "sitecustomize.py")]


def test_the_hook_loads_in_any_python_that_has_a_torch(tmp_path: Path) -> None:
    """A torch that is a few empty files is enough to see that the loader finds it and stays harmless."""
    package = tmp_path / "fake" / "torch" / "distributed"
    package.mkdir(parents=True)
    (package.parent / "__init__.py").write_text("__version__ = '0.0'\nfrom . import distributed\n")
    (package / "__init__.py").write_text("from .distributed_c10d import *\n")
    (package / "distributed_c10d.py").write_text(
        "def init_process_group(): return 'made'\ndef destroy_process_group(group=None): pass\n"
        "def is_initialized(): return False\n"
    )
    script = "import torch; f = torch.distributed.init_process_group; print(f.__wrapped__.__name__, f())"
    path = str(tmp_path / "fake")
    for python in sorted({sys.executable, "/usr/bin/python3"}):
        if not os.access(python, os.X_OK):
            continue
        process = start([python, "-c", script], tmp_path / "nobody.sock", PYTHONPATH=path)
        out, errors = process.communicate(timeout=30)
        assert (out, process.returncode) == ("init_process_group made\n", 0), errors
        assert "Traceback" not in errors


def test_runs_for_as_long_as_its_command(tmp_path: Path) -> None:
    began = time.monotonic()
    process = start(["sleep", "0.7"], tmp_path / "nobody.sock")
    process.communicate(timeout=20)
    assert time.monotonic() - began >= 0.7
