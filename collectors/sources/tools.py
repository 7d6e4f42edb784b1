"""The output of a tool: recorded as commands/NAME in a tree, asked of the tool itself on the live machine.

In: a tool's argument list, never a shell's line. Out: the start of its output. A tool that fails, hangs or is
not installed is an ``OSError``, like a file that cannot be read. One that hangs in the kernel cannot be
ended: it is left alone, and not begun again until it is gone.
"""

from __future__ import annotations

import errno
import os
import shutil
import subprocess
from collections.abc import Sequence
from typing import Final

from collectors.sources.tree import READ_MAX_BYTES, Tree

FOLDER: Final = "commands"
_SAID_MAX_CHARS: Final = 200
_END_S: Final = 1.0
_OWN_SETTINGS: Final = "CLUSTERWATCH_"
"""Of the agent's environment a tool gets nothing that may hold a secret of ours."""
_hanging: dict[str, subprocess.Popen[bytes]] = {}
"""program -> its process that did not end when it was killed"""


def output(
    tree: Tree, name: str, argv: Sequence[str], timeout_s: float, max_bytes: int = READ_MAX_BYTES
) -> bytes:
    """What the tool says, ``max_bytes`` of it.

    Args:
        name: the file's name of a recorded output.
        argv: what to run on the live machine.

    Raises:
        OSError: no such recording or tool (ENOENT), no answer in time (ETIMEDOUT), a failure (EIO).
    """
    if not tree.is_live:
        return tree.read_bytes(f"{FOLDER}/{name}", max_bytes)
    program = shutil.which(argv[0])
    if program is None:
        raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), argv[0])
    if program in _hanging:
        if _hanging[program].poll() is None:
            raise TimeoutError(errno.ETIMEDOUT, "the one before still hangs", argv[0])
        del _hanging[program]
    return _run([program, *argv[1:]], timeout_s)[:max_bytes]


def _run(argv: list[str], timeout_s: float) -> bytes:
    process = subprocess.Popen(
        argv, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=_environment()
    )
    try:
        said, complaint = process.communicate(timeout=timeout_s)
    except subprocess.TimeoutExpired:
        _end(process, argv[0])
        raise TimeoutError(errno.ETIMEDOUT, os.strerror(errno.ETIMEDOUT), argv[0]) from None
    if process.returncode:
        text = complaint.decode("utf-8", "replace").strip()[:_SAID_MAX_CHARS]
        raise OSError(errno.EIO, text or f"exit code {process.returncode}", argv[0])
    return said


def _end(process: subprocess.Popen[bytes], program: str) -> None:
    """Ends a process, or remembers one that cannot be ended."""
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
