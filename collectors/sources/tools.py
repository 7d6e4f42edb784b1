"""The output of a tool: recorded as commands/NAME in a tree, asked of the tool itself on the live machine.

In: a tool's argument list, never a shell's line. Out: the start of its output. A tool that fails, hangs or is
not installed is an ``OSError``, like a file that cannot be read.
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
    try:
        done = subprocess.run(
            [program, *argv[1:]],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=timeout_s,
            check=False,
        )
    except subprocess.TimeoutExpired:
        raise TimeoutError(errno.ETIMEDOUT, os.strerror(errno.ETIMEDOUT), argv[0]) from None
    if done.returncode:
        said = done.stderr.decode("utf-8", "replace").strip()[:_SAID_MAX_CHARS]
        raise OSError(errno.EIO, said or f"exit code {done.returncode}", argv[0])
    return done.stdout[:max_bytes]
