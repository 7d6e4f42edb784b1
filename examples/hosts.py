"""A named host of the example: its own agent, its own ranks, each a process group of its own.

In: name, folder, the gateway's address. Out: processes, their logs in the folder. Everything started here is
stopped by ``stop``, also what was frozen.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import time
from dataclasses import dataclass, field
from pathlib import Path

from collectors.hook.socket_path import short_socket_path

ROOT = Path(__file__).resolve().parent.parent
STOP_S = 8.0
"""How long processes get to end on SIGTERM."""


@dataclass
class Gateway:
    """How a node reaches the server."""

    url: str
    token_file: str


@dataclass
class Host:
    """One host; ``prefix`` is put before every command (another network namespace)."""

    name: str
    folder: Path
    ranks: list[int]
    prefix: list[str] = field(default_factory=list)
    attempt: int = 0
    agent: subprocess.Popen[bytes] | None = None
    runners: dict[int, subprocess.Popen[bytes]] = field(default_factory=dict)
    """rank -> its clusterwatch-run"""

    @property
    def socket(self) -> Path:
        return short_socket_path(self.folder / "hook.sock")

    def log(self, rank: int) -> Path:
        """Where ``rank`` prints in its present attempt."""
        suffix = f".attempt-{self.attempt}" if self.attempt else ""
        return self.folder / f"rank-{rank}{suffix}.log"

    def start_agent(self, gateway: Gateway) -> None:
        """Starts the agent with an identity and a state folder of its own."""
        self.folder.mkdir(parents=True, exist_ok=True)
        environ = clean_environment() | {
            "CLUSTERWATCH_STATE_DIR": str(self.folder),
            "CLUSTERWATCH_NODE": self.name,
            "CLUSTERWATCH_MACHINE_ID": f"example-{self.name}",
            "CLUSTERWATCH_BOOT_ID": f"{self.name}-{time.time_ns()}",
            "CLUSTERWATCH_HOOK_SOCKET": str(self.socket),
            "CLUSTERWATCH_GATEWAY_URL": gateway.url,
            "CLUSTERWATCH_TOKEN_FILE": gateway.token_file,
        }
        self.agent = self._start(
            [sys.executable, "-m", "collectors", "run"], environ, self.folder / "agent.log"
        )

    def start_rank(self, rank: int, environ: dict[str, str], arguments: list[str]) -> None:
        """Starts one rank of ``examples.train`` under ``clusterwatch-run``."""
        own = environ | {
            "RANK": str(rank),
            "LOCAL_RANK": str(self.ranks.index(rank)),
            "LOCAL_WORLD_SIZE": str(len(self.ranks)),
            "CLUSTERWATCH_HOOK_SOCKET": str(self.socket),
        }
        command = [sys.executable, "-m", "collectors.hook.run", sys.executable, "-m", "examples.train"]
        self.runners[rank] = self._start([*command, *arguments], own, self.log(rank))

    def _start(self, command: list[str], environ: dict[str, str], log: Path) -> subprocess.Popen[bytes]:
        with log.open("ab") as output:
            return subprocess.Popen(
                [*self.prefix, *command],
                env=environ,
                cwd=ROOT,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )

    def processes(self) -> list[subprocess.Popen[bytes]]:
        return [*self.runners.values(), *([self.agent] if self.agent is not None else [])]

    def kill_agent(self) -> None:
        """The agent dies without a word; the host lives."""
        if self.agent is not None:
            send(self.agent, signal.SIGKILL)

    def freeze(self) -> None:
        """Agent and ranks stop where they are; no connection is closed."""
        for process in self.processes():
            send(process, signal.SIGSTOP)


def clean_environment() -> dict[str, str]:
    """This process's environment without settings meant for the server or for another job."""
    return {name: value for name, value in os.environ.items() if not name.startswith("CLUSTERWATCH_")} | {
        "PYTHONUNBUFFERED": "1"
    }


def send(process: subprocess.Popen[bytes], number: signal.Signals) -> None:
    """Signals the whole process group of ``process``, which it leads."""
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(process.pid, number)


def stop(processes: list[subprocess.Popen[bytes]], patience_s: float = STOP_S) -> None:
    """Ends every process group: SIGTERM, then SIGKILL after ``patience_s``; frozen ones included."""
    for process in processes:
        send(process, signal.SIGTERM)
        send(process, signal.SIGCONT)
    until = time.monotonic() + patience_s
    for process in processes:
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(max(0.0, until - time.monotonic()))
    for process in processes:
        send(process, signal.SIGKILL)  # also children that outlived their leader
        process.wait()
