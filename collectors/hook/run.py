"""``clusterwatch-run CMD ...``: runs a training command with the hook loaded, without a change to its code.

Passes signals on, returns the command's exit code (128 + signal where one ended it), tells the agent when
the command began and how it ended. Without an agent the command runs all the same.

Variables it sets, and what is lost without each:

=========================== ==============================================================================
PYTHONPATH                  ``collectors/hook/path`` in front: every Python the command starts finds the hook.
                            Without it (also under ``python -I`` or ``-E``): no progress, so a hang shows
                            only as ``stalled_unnamed`` by GPU and network counters.
CLUSTERWATCH_HOOK_SOCKET    where the agent listens. Without it the hook searches ``endpoints.json`` itself.
CLUSTERWATCH_JOB_ID         the given one, else SLURM_JOB_ID, TORCHELASTIC_RUN_ID, else made here (then
                            CLUSTERWATCH_JOB_ID_MADE=1: torchrun's own run id wins inside its workers).
                            A made id is this host's own: on several hosts give one.
TORCH_FR_BUFFER_SIZE        2000 where unset: the flight recorder's ring. At 0 no verdict names a call: only
                            progress numbers remain.
=========================== ==============================================================================

Variables it never sets:

* TORCH_NCCL_ENABLE_TIMING: it can itself hang a job. Without it a call's ``started`` is unknown, so
  ``queued_not_started`` cannot be told from ``all_joined_not_finished``.
* TORCH_NCCL_DUMP_ON_TIMEOUT, TORCH_FR_CPP_STACK and the like: the hook asks the recorder in the process.
"""

from __future__ import annotations

import contextlib
import os
import secrets
import signal
import socket
import sys
from collections.abc import MutableMapping
from pathlib import Path
from typing import Any

from . import endpoints, identity, protocol

HOOK_PATH = Path(__file__).resolve().parent / "path"
RING_ENTRIES = "2000"
PASSED_ON = (
    signal.SIGTERM,
    signal.SIGINT,
    signal.SIGHUP,
    signal.SIGQUIT,
    signal.SIGUSR1,
    signal.SIGUSR2,
    signal.SIGCONT,
    signal.SIGWINCH,
)
FROM_KERNEL = 0x80
"""si_code of a signal made by the terminal, which the command gets by itself (SI_KERNEL, sigaction(2))."""
SPEAK_S = 0.5
"""How long telling the agent may take; then the command goes first."""
NOT_FOUND, NOT_EXECUTABLE, USAGE = 127, 126, 64
"""Exit codes as a shell gives them; 64 is EX_USAGE."""


def main(argv: list[str] | None = None) -> int:
    """Runs the command in ``argv`` (default: the process's own arguments). Returns its exit code."""
    command = list(sys.argv[1:] if argv is None else argv)
    if command[:1] == ["--"]:
        command = command[1:]
    if not command:
        print("usage: clusterwatch-run CMD [ARG ...]\nclusterwatch-run --help tells more.", file=sys.stderr)
        return USAGE
    if command[0] in ("-h", "--help"):
        text = "\n".join(line for line in (__doc__ or "").splitlines() if not line.startswith("==="))
        print("usage: clusterwatch-run CMD [ARG ...]\n\n" + text.replace("``", ""))
        return 0
    environ = dict(os.environ)
    agent = Agent(endpoints.hook_socket(environ))
    prepare(environ, agent.path)
    if not agent.connect():
        place = agent.path or "any known place"
        _say(f"no agent at {place}: the command runs, unwatched until one listens there")
    return _run(command, environ, agent)


def prepare(environ: MutableMapping[str, str], socket_path: str | None) -> None:
    """Sets the variables of the module's table in ``environ``."""
    before = environ.get("PYTHONPATH", "")
    if str(HOOK_PATH) not in before.split(os.pathsep):
        environ["PYTHONPATH"] = str(HOOK_PATH) + (os.pathsep + before if before else "")
    if socket_path is not None:
        environ["CLUSTERWATCH_HOOK_SOCKET"] = socket_path
    environ.setdefault("TORCH_FR_BUFFER_SIZE", RING_ENTRIES)
    if not environ.get("CLUSTERWATCH_JOB_ID"):
        elastic = environ.get("TORCHELASTIC_RUN_ID", "")
        known = environ.get("SLURM_JOB_ID") or (elastic if elastic not in identity.NO_RUN_ID else "")
        environ["CLUSTERWATCH_JOB_ID"] = known or f"run-{secrets.token_hex(4)}"
        if not known:
            environ["CLUSTERWATCH_JOB_ID_MADE"] = "1"
            if environ.get("RANK"):
                _say("made a job id for this process alone: give all ranks one CLUSTERWATCH_JOB_ID")


class Agent:
    """The agent's ear for ``run`` and ``exit``; absent is fine."""

    def __init__(self, path: str | None) -> None:
        self.path = path
        self._socket: socket.socket | None = None

    def connect(self) -> bool:
        """Returns False where nobody listens."""
        if self.path is None:
            return False
        fresh = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        fresh.settimeout(SPEAK_S)
        try:
            fresh.connect(self.path)
        except OSError:
            fresh.close()
            return False
        self._socket = fresh
        return True

    def tell(self, *headers: dict[str, Any]) -> bool:
        """Sends frames. Returns False when the connection is gone."""
        if self._socket is None:
            return False
        try:
            self._socket.sendall(b"".join(protocol.pack(header) for header in headers))
        except OSError:
            self.close()
            return False
        return True

    def is_gone(self) -> bool:
        """True when the other side closed: a first write after that would still seem to succeed."""
        if self._socket is None:
            return True
        self._socket.setblocking(False)
        try:
            return self._socket.recv(4096) == b""
        except BlockingIOError:
            return False
        except OSError:
            return True
        finally:
            self._socket.settimeout(SPEAK_S)

    def close(self) -> None:
        if self._socket is not None:
            self._socket.close()
            self._socket = None


def _run(command: list[str], environ: dict[str, str], agent: Agent) -> int:
    """Starts the command and stays until it ended; signals are taken in turn, none interrupts anything."""
    waited = {signal.SIGCHLD, *PASSED_ON}
    before = signal.pthread_sigmask(signal.SIG_BLOCK, waited)
    try:
        pid = os.posix_spawnp(command[0], command, environ, setsigmask=before)
    except FileNotFoundError:
        _say(f"{command[0]}: no such command")
        return NOT_FOUND
    except OSError as error:
        _say(f"{command[0]}: {error.strerror}")
        return NOT_EXECUTABLE
    run = {"k": "run", "v": protocol.VERSION, "pid": pid, "job": environ["CLUSTERWATCH_JOB_ID"]}
    agent.tell(run)
    status = _wait(pid, waited)
    code = os.waitstatus_to_exitcode(status)
    ended = {"k": "exit", "pid": pid, "code": None, "signal": None}
    ended["code" if code >= 0 else "signal"] = abs(code)
    if agent.is_gone():  # the agent was started again meanwhile
        agent.close()
        agent.connect()
        agent.tell(run, ended)
    else:
        agent.tell(ended)
    agent.close()
    return code if code >= 0 else 128 - code


def _wait(pid: int, waited: set[signal.Signals]) -> int:
    """Passes signals to ``pid`` until it ends. Returns its wait status."""
    while True:
        got = signal.sigwaitinfo(waited)
        if got.si_signo == signal.SIGCHLD:
            ended, status = os.waitpid(pid, os.WNOHANG)
            if ended:
                return status
        elif got.si_code != FROM_KERNEL:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, got.si_signo)


def _say(text: str) -> None:
    sys.stderr.write(f"clusterwatch-run: {text}\n")


if __name__ == "__main__":
    sys.exit(main())
