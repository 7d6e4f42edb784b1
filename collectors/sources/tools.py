"""The output of a tool: recorded as commands/NAME in a tree, asked of the tool itself on the live machine.

In: a tool's argument list, never a shell's line. Out: the start of its output. A tool that fails, hangs or is
not installed is an ``OSError``, like a file that cannot be read. Of one tool there is one process at a time;
one that hangs in the kernel cannot be ended: it is left behind, never waited for, and not begun again until
it is gone. A tool that opens the GPU driver is not begun while the driver is released (``gpu_pause``).
"""

from __future__ import annotations

import errno
import os
import shutil
import subprocess
import threading
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from collectors.sources.gpu_pause import WATCH, Paused
from collectors.sources.tree import READ_MAX_BYTES, Tree

FOLDER: Final = "commands"
DRIVER_TOOLS: Final = frozenset({"nvidia-smi", "dcgmi"})
"""Tools that open the GPU driver."""
_SAID_MAX_CHARS: Final = 200
_END_S: Final = 1.0
_OWN_SETTINGS: Final = "CLUSTERWATCH_"
"""Of the agent's environment a tool gets nothing that may hold a secret of ours."""
_locks: Final[dict[str, threading.Lock]] = {}
"""program -> held while a question to it is open"""
_running: Final[dict[str, subprocess.Popen[bytes]]] = {}
"""program -> its process of now"""
_hanging: Final[dict[str, subprocess.Popen[bytes]]] = {}
"""program -> its process that did not end when it was killed"""


def output(
    tree: Tree, name: str, argv: Sequence[str], timeout_s: float, max_bytes: int = READ_MAX_BYTES
) -> bytes:
    """What the tool says, ``max_bytes`` of it.

    Args:
        name: the file's name of a recorded output.
        argv: what to run on the live machine.
        timeout_s: how long to wait for the tool, and before that for another's question to it.

    Raises:
        Paused: the tool opens the GPU driver, and that is released.
        OSError: no such recording or tool (ENOENT), no answer in time (ETIMEDOUT), a failure (EIO).
    """
    if not tree.is_live:
        return tree.read_bytes(f"{FOLDER}/{name}", max_bytes)
    program = shutil.which(argv[0])
    if program is None:
        raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), argv[0])
    lock = _locks.setdefault(program, threading.Lock())
    ends_s = time.monotonic() + timeout_s
    if not lock.acquire(timeout=timeout_s):
        raise TimeoutError(errno.ETIMEDOUT, "another question to it is open", argv[0])
    try:
        _refuse_second(program)
        return _run([program, *argv[1:]], max(0.1, ends_s - time.monotonic()))[:max_bytes]
    finally:
        lock.release()


def left_behind() -> dict[str, int]:
    """Program -> id of its process that hangs and cannot be ended."""
    for program, process in list(_hanging.items()):
        if process.poll() is not None:
            _hanging.pop(program, None)
    return {program: process.pid for program, process in list(_hanging.items())}


def on_driver() -> list[int]:
    """Processes of tools that have the GPU driver open now."""
    processes = [*_running.items(), *_hanging.items()]
    return [p.pid for program, p in processes if Path(program).name in DRIVER_TOOLS and p.poll() is None]


WATCH.watch(on_driver)


def _refuse_second(program: str) -> None:
    """Raises ``OSError`` where the tool is not to be begun now."""
    if Path(program).name in DRIVER_TOOLS and WATCH.is_on:
        raise Paused
    if program in left_behind():
        raise TimeoutError(errno.ETIMEDOUT, "the one before still hangs", program)


def _run(argv: list[str], timeout_s: float) -> bytes:
    program = argv[0]
    process = subprocess.Popen(
        argv, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=_environment()
    )
    _running[program] = process
    try:
        said, complaint = process.communicate(timeout=timeout_s)
    except subprocess.TimeoutExpired:
        _end(process, program)
        raise TimeoutError(errno.ETIMEDOUT, os.strerror(errno.ETIMEDOUT), program) from None
    finally:
        _running.pop(program, None)
    if process.returncode:
        text = complaint.decode("utf-8", "replace").strip()[:_SAID_MAX_CHARS]
        raise OSError(errno.EIO, text or f"exit code {process.returncode}", program)
    return said


def _end(process: subprocess.Popen[bytes], program: str) -> None:
    """Ends a process, or leaves it behind: one in the kernel's hands does not end when it is killed."""
    process.kill()
    for pipe in (process.stdout, process.stderr):
        if pipe is not None:
            pipe.close()
    try:
        process.wait(_END_S)
    except subprocess.TimeoutExpired:
        _hanging[program] = process


def _environment() -> dict[str, str]:
    """The agent's, in a language that can be read by programs."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith(_OWN_SETTINGS)}
    return kept | {"LC_ALL": "C"}
