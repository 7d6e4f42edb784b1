"""A Slurm cluster of this machine alone, on loopback, as whoever runs the tests.

Needs ``slurmctld``, ``slurmd`` and the client: on Debian ``apt install slurmctld slurmd slurm-client``, or
their packages unpacked into a folder that ``CLUSTERWATCH_TEST_SLURM`` names. The system is not changed.
"""

from __future__ import annotations

import contextlib
import getpass
import os
import shutil
import socket
import subprocess
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

UNPACKED = "CLUSTERWATCH_TEST_SLURM"
READY_S = 40.0
CONFIG = """ClusterName=test
SlurmctldHost={host}(127.0.0.1)
AuthType=auth/none
CredType=cred/none
CommunicationParameters=NoInAddrAny,NoCtldInAddrAny
SlurmUser={user}
SlurmdUser={user}
SlurmctldPort={controller_port}
SlurmdPort={node_port}
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/slurmd.pid
SlurmdParameters=config_overrides
ProctrackType=proctrack/pgid
TaskPlugin=task/none
MpiDefault=none
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
ReturnToService=2
NodeName={host} NodeAddr=127.0.0.1 CPUs=1 RealMemory=100
PartitionName=dev Nodes={host} Default=YES MaxTime=INFINITE State=UP
"""


@dataclass(frozen=True)
class Cluster:
    """A running cluster. ``environment``: for its own tools and for ours."""

    environment: dict[str, str]
    host: str

    def run(self, *argv: str) -> str:
        done = subprocess.run(
            argv, env=self.environment, capture_output=True, text=True, timeout=30, check=True
        )
        return done.stdout

    def submit(self, folder: Path, name: str, *options: str) -> int:
        """A job that only sleeps, with a rank's variables; its id."""
        script = folder / f"{name}.sh"
        script.write_text("#!/bin/sh\nRANK=0 LOCAL_RANK=0 sleep 60\n")
        said = self.run("sbatch", "--parsable", "-J", name, "-o", "/dev/null", *options, str(script))
        return int(said.strip())

    def wait_for(self, job: int, state: str) -> None:
        asked = ("squeue", "-h", "-j", str(job), "-o", "%T")
        assert until(lambda: self.run(*asked).strip() == state), state


def until(holds: Callable[[], bool]) -> bool:
    """Waits until it holds, for ``READY_S`` at most; whether it does."""
    end_s = time.monotonic() + READY_S
    while not (done := holds()) and time.monotonic() < end_s:
        time.sleep(0.2)
    return done


@contextlib.contextmanager
def cluster(folder: Path) -> Iterator[Cluster]:
    """Starts a controller and a node, and ends them; skips where there is no Slurm."""
    host = socket.gethostname().partition(".")[0]
    (folder / "state").mkdir()
    (folder / "spool").mkdir()
    environment = _environment(folder)
    path = environment["PATH"]
    if any(shutil.which(name, path=path) is None for name in ("slurmctld", "slurmd", "squeue", "sbatch")):
        pytest.skip("no Slurm on this machine")
    (folder / "slurm.conf").write_text(_config(folder, host))
    with contextlib.ExitStack() as running:
        for name, *options in (("slurmctld", "-D"), ("slurmd", "-D", "-d", _step_daemon(path))):
            running.enter_context(_daemon(folder, environment, name, *options))
        found = Cluster(environment, host)
        if not until(lambda: _is_idle(found)):
            pytest.skip(f"Slurm does not start here: {_last_line(folder / 'slurmd.log')}")
        try:
            yield found
        finally:
            found.run("scancel", "-u", getpass.getuser())
            assert until(lambda: not found.run("squeue", "-h").strip())


def _is_idle(found: Cluster) -> bool:
    try:
        return found.run("sinfo", "-h", "-o", "%T").strip() == "idle"
    except subprocess.CalledProcessError:
        return False


def _last_line(path: Path) -> str:
    return path.read_text(encoding="utf-8", errors="replace").strip().rpartition("\n")[2]


def _environment(folder: Path) -> dict[str, str]:
    """Finds Slurm where the system has it, or where its packages were unpacked under their long names."""
    kept = dict(os.environ) | {"SLURM_CONF": str(folder / "slurm.conf")}
    kept["PATH"] = f"{kept.get('PATH', '')}:/usr/sbin:/sbin"
    if unpacked := kept.get(UNPACKED):
        libraries = next(Path(unpacked).glob("usr/lib/*/slurm-wlm"))
        programs = folder / "bin"
        programs.mkdir()
        for program in (*Path(unpacked).glob("usr/sbin/*"), *Path(unpacked).glob("usr/bin/*")):
            (programs / program.name.removesuffix("-wlm")).symlink_to(program)
        kept["PATH"] = f"{programs}:{kept['PATH']}"
        kept["LD_LIBRARY_PATH"] = f"{libraries.parent}:{libraries}"
    return kept


def _config(folder: Path, host: str) -> str:
    ports = []
    for _ in range(2):
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            ports.append(free.getsockname()[1])
    text = CONFIG.format(
        host=host, user=getpass.getuser(), folder=folder, controller_port=ports[0], node_port=ports[1]
    )
    if unpacked := os.environ.get(UNPACKED):
        text += f"PluginDir={next(Path(unpacked).glob('usr/lib/*/slurm-wlm'))}\n"
    return text


def _step_daemon(path: str) -> str:
    return shutil.which("slurmstepd", path=path) or "/usr/sbin/slurmstepd"


@contextlib.contextmanager
def _daemon(folder: Path, environment: dict[str, str], *argv: str) -> Iterator[None]:
    with (folder / f"{argv[0]}.log").open("wb") as log:
        process = subprocess.Popen(argv, env=environment, stdout=log, stderr=log)
        try:
            yield
        finally:
            process.terminate()
            try:
                process.wait(10)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
