"""Asks the NVML worker, and gives up on it: a driver that hangs costs a process, never the agent's thread.

In: questions with a deadline. Out: answers, ``TimeoutError`` for a worker that hung and was stopped. A worker
in state D cannot be stopped: it is left alone, and at most ``STUCK_MAX`` of them are.
"""

from __future__ import annotations

import contextlib
import json
import os
import selectors
import signal
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from typing import Any, Final

from collectors.sources.gpu_pause import WATCH, Paused

ANSWER_MAX_BYTES: Final = 1_048_576
STUCK_MAX: Final = 2
END_S: Final = 0.5
"""How long a worker may take to end when it is asked to; a client of the driver is not killed at once."""
ARGV: Final = (sys.executable, "-m", "collectors.sources.nvml_worker")


class NvmlClient:
    """One worker, started when it is needed. For one thread."""

    def __init__(self, argv: Sequence[str] = ARGV, env: Mapping[str, str] | None = None) -> None:
        """``env``: of the worker; the agent's own by default."""
        self._argv = list(argv)
        self._env = env
        self._worker: subprocess.Popen[bytes] | None = None
        self._stuck: list[subprocess.Popen[bytes]] = []

    def holders(self) -> list[int]:
        """Workers that may have the driver open. For any thread."""
        worker = self._worker
        workers = [*self._stuck, *([worker] if worker is not None else [])]
        return [one.pid for one in workers if one.poll() is None]

    def release(self, gently: bool) -> None:
        """Has the worker let go of the driver; the question that is open gets no answer. For any thread."""
        worker = self._worker
        if worker is not None:
            worker.send_signal(signal.SIGTERM if gently else signal.SIGKILL)

    @property
    def is_running(self) -> bool:
        """Whether the next question goes to a worker that has begun."""
        return self._worker is not None

    def ask(self, question: Mapping[str, str | list[str]], within_s: float) -> dict[str, Any]:
        """The worker's answer. After an error the next question goes to a new worker.

        Raises:
            Paused: the driver is released, and no worker is to open it.
            TimeoutError: none in time, or too many workers that hung are still there.
            OSError: the worker ended or says what is no answer.
        """
        worker = self._worker or self._started()
        self._worker = worker
        try:
            line = self._asked(worker, json.dumps(question).encode() + b"\n", within_s)
            answer = json.loads(line)
        except (OSError, ValueError, RecursionError) as error:
            self.close()
            if isinstance(error, OSError):
                raise
            raise OSError("the worker gave no answer that can be read") from None
        if not isinstance(answer, dict):
            self.close()
            raise OSError("the worker gave no answer that can be read")
        return answer

    def close(self) -> None:
        """Ends the worker, gently first."""
        worker, self._worker = self._worker, None
        if worker is None:
            return
        for pipe in (worker.stdin, worker.stdout):
            with contextlib.suppress(OSError):
                if pipe:
                    pipe.close()
        for end in (worker.terminate, worker.kill):
            end()
            with contextlib.suppress(subprocess.TimeoutExpired):
                worker.wait(END_S)
                return
        self._stuck.append(worker)

    def _started(self) -> subprocess.Popen[bytes]:
        if WATCH.is_on:
            raise Paused
        self._stuck = [worker for worker in self._stuck if worker.poll() is None]
        if len(self._stuck) >= STUCK_MAX:
            raise TimeoutError("workers that hung have not ended")
        return subprocess.Popen(
            self._argv,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            bufsize=0,
            env=self._env,
        )

    def _asked(self, worker: subprocess.Popen[bytes], line: bytes, within_s: float) -> bytes:
        if worker.stdin is None or worker.stdout is None:
            raise OSError("the worker has no pipes")
        worker.stdin.write(line)
        ends_s = time.monotonic() + within_s
        said = b""
        with selectors.DefaultSelector() as ready:
            ready.register(worker.stdout, selectors.EVENT_READ)
            while not said.endswith(b"\n"):
                if not ready.select(max(0.0, ends_s - time.monotonic())):
                    raise TimeoutError(f"no answer within {within_s:g} s")
                chunk = os.read(worker.stdout.fileno(), 65_536)
                if not chunk or len(said) > ANSWER_MAX_BYTES:
                    raise OSError("the worker ended" if not chunk else "the worker's answer is too long")
                said += chunk
        return said
