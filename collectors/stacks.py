"""Stacks of a process from outside: py-spy where the kernel allows it, and what /proc always tells.

In: a pid. Out: threads as the wire has them, outermost frame first. py-spy runs without stopping the process
(``--nonblocking``) and with a deadline; why it could not look is part of the answer, not an exception.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import shutil
import sys
from pathlib import Path
from typing import Any, Final

import msgspec

from collectors import processes
from collectors.wire import limits
from collectors.wire.records import ThreadStack

log = logging.getLogger(__name__)

OUTPUT_MAX_BYTES: Final = 8 * 1024 * 1024
THREADS_MAX: Final = 256
_FRAME_MAX_CHARS: Final = 1_024


class StackError(Exception):
    """No stacks from outside; the text says why."""


def pyspy_path() -> str | None:
    """The py-spy beside this Python, else the one on PATH."""
    beside = Path(sys.executable).parent / "py-spy"
    return str(beside) if beside.is_file() else shutil.which("py-spy")


async def take(pid: int, timeout_s: float) -> list[ThreadStack]:
    """Python stacks of ``pid`` by py-spy. Raises ``StackError``. Cost: 50 to 300 ms of one core."""
    program = pyspy_path()
    if program is None:
        raise StackError("py-spy is not installed")
    process = await asyncio.create_subprocess_exec(
        program, "dump", "--nonblocking", "--json", "--pid", str(pid),
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
        limit=OUTPUT_MAX_BYTES,
    )  # fmt: skip
    try:
        async with asyncio.timeout(timeout_s):
            output, complaint = await process.communicate()
    except TimeoutError:
        raise StackError(f"py-spy gave no answer in {timeout_s:.1f} s") from None
    finally:
        if process.returncode is None:
            with contextlib.suppress(ProcessLookupError):
                process.kill()
            await process.wait()
    if process.returncode != 0:
        raise StackError(_why(complaint))
    return parse(output, pid)


def parse(output: bytes, pid: int) -> list[ThreadStack]:
    """Threads out of ``py-spy dump --json``. Raises ``StackError`` on anything else."""
    if len(output) > OUTPUT_MAX_BYTES:
        raise StackError(f"py-spy gave {len(output)} bytes")
    try:
        threads = msgspec.json.decode(output, type=list[_Thread])
    except msgspec.MsgspecError as error:
        raise StackError(f"py-spy's answer cannot be read: {error}") from None
    return [thread.stack(pid) for thread in threads[:THREADS_MAX]]


class _Frame(msgspec.Struct):
    name: str = ""
    filename: str = ""
    line: int = 0

    def text(self) -> str:
        return f"{self.name} ({self.filename}:{self.line})"[:_FRAME_MAX_CHARS]


class _Thread(msgspec.Struct):
    """One element of py-spy's list; its frames are innermost first."""

    thread_name: str | None = None
    os_thread_id: int | None = None
    active: bool = False
    owns_gil: bool = False
    frames: list[_Frame] = []

    def stack(self, pid: int) -> ThreadStack:
        is_main = self.os_thread_id == pid or self.thread_name == "MainThread"
        frames = self.frames[: limits.FRAMES_PER_STACK_MAX]
        return ThreadStack(
            name=(self.thread_name or f"thread {self.os_thread_id}")[: limits.NAME_MAX_CHARS],
            frames=[frame.text() for frame in reversed(frames)],
            main=is_main,
            state="active" if self.active else "idle",
        )


def kernel_thread(pid: int) -> list[ThreadStack]:
    """The kernel side of the main thread as one more stack, empty without the right to see it."""
    frames = processes.kernel_stack(pid)
    return [ThreadStack(name="kernel", frames=frames, native=True)] if frames else []


def _why(complaint: bytes) -> str:
    text = complaint.decode("utf-8", "replace").strip()
    if "ermission" in text or "not permitted" in text:
        return "py-spy may not look into the process (ptrace is not allowed here): run the agent as root"
    lines: list[Any] = text.splitlines()
    return f"py-spy failed: {lines[-1][:500] if lines else 'no reason given'}"
