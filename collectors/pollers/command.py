"""What a tool of the site says: bounded in time and size, and never with a secret of ours.

In: an argument list, never a shell's line. Out: its output and its complaints. A tool that hangs is killed.
"""

from __future__ import annotations

import os
import selectors
import subprocess
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import IO, Final

from collectors.sources.tree import printable

OUTPUT_MAX_BYTES: Final = 256 * 1024 * 1024
COMPLAINTS_MAX_BYTES: Final = 4 * 1024 * 1024
_SAID_MAX_CHARS: Final = 200
_OWN_SETTINGS: Final = "CLUSTERWATCH_"
_END_S: Final = 2.0


class CommandError(Exception):
    """A tool that gave nothing; the text says which and why."""


@dataclass(frozen=True, slots=True)
class Said:
    """What a tool wrote to stdout and to stderr."""

    output: bytes
    complaints: bytes = b""


def run(
    argv: Sequence[str],
    timeout_s: float,
    max_bytes: int = OUTPUT_MAX_BYTES,
    good_codes: frozenset[int] = frozenset({0}),
) -> Said:
    """Runs a tool to its end.

    Args:
        good_codes: exit codes with which it has told everything.

    Raises:
        CommandError: it is not there, failed, was too slow or said too much.
    """
    with tempfile.TemporaryFile() as complaints:
        try:
            process = subprocess.Popen(
                argv, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=complaints, env=_environment()
            )
        except OSError as error:
            raise CommandError(f"{argv[0]}: {error.strerror}"[:_SAID_MAX_CHARS]) from None
        try:
            output = _read(process, time.monotonic() + timeout_s, max_bytes)
        except CommandError as error:
            raise CommandError(f"{argv[0]}: {error}"[:_SAID_MAX_CHARS]) from None
        finally:
            _end(process)
        complaints.seek(0)
        said = Said(output, complaints.read(COMPLAINTS_MAX_BYTES))
    if process.returncode not in good_codes:
        words = _last_words(said) or f"exit code {process.returncode}"
        raise CommandError(
            words if words.startswith(f"{argv[0]}: ") else f"{argv[0]}: {words}"[:_SAID_MAX_CHARS]
        )
    return said


def _read(process: subprocess.Popen[bytes], end_s: float, max_bytes: int) -> bytes:
    """All of its output, until it has ended. Raises ``CommandError``."""
    stdout: IO[bytes] | None = process.stdout
    assert stdout is not None
    chunks, left = [], max_bytes
    with selectors.DefaultSelector() as selector:
        selector.register(stdout, selectors.EVENT_READ)
        while True:
            left_s = end_s - time.monotonic()
            if left_s <= 0 or not selector.select(left_s):
                raise CommandError("timeout")
            chunk = os.read(stdout.fileno(), 262_144)
            if not chunk:
                break
            left -= len(chunk)
            if left < 0:
                raise CommandError("says too much")
            chunks.append(chunk)
    try:
        process.wait(max(0.1, end_s - time.monotonic()))
    except subprocess.TimeoutExpired:
        raise CommandError("timeout") from None
    return b"".join(chunks)


def _end(process: subprocess.Popen[bytes]) -> None:
    """One that hangs in the kernel cannot be ended; it is not waited for."""
    if process.stdout is not None:
        process.stdout.close()
    if process.poll() is not None:
        return
    process.kill()
    try:
        process.wait(_END_S)
    except subprocess.TimeoutExpired:
        return


def _last_words(said: Said) -> str:
    lines = [line for line in said.complaints.decode("utf-8", "replace").splitlines() if line.strip()]
    return printable(lines[-1].strip())[:_SAID_MAX_CHARS] if lines else ""


def _environment() -> dict[str, str]:
    """Without our own settings, and in a language that can be read by programs."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith(_OWN_SETTINGS)}
    return kept | {"LC_ALL": "C"}
