"""``error.json`` of torchelastic: the exception that ended a process, as its ``record`` decorator wrote it.

In: the bytes of the file (TORCHELASTIC_ERROR_FILE, one per process and attempt). Out: ``JobLog`` with the
exception as the traceback a log would hold, its time told in whole seconds. Never raises: a file that is
something else says nothing.

Source: torch.distributed.elastic.multiprocessing.errors, error_handler.py: ``{"message": {"message": text,
"extraInfo": {"py_callstack": text, "timestamp": text}}}``; other writers give the inner message as text.
"""

from __future__ import annotations

from typing import Any, Final

import msgspec

from collectors.formats.job_log import JobLog, Origin, parse
from collectors.formats.job_log_blocks import TRACEBACK
from collectors.formats.job_log_prefix import UTC, Stamp

ERROR_MAX_BYTES: Final = 4 * 1024 * 1024
"""A traceback of a thousand frames takes some hundred kB."""
_SECONDS_MAX: Final = 1 << 33
"""Year 2242."""


def parse_error(source: str, data: bytes, origin: Origin) -> JobLog | None:
    """The exception in one file; None when it is no error file."""
    try:
        found = msgspec.json.decode(data)
    except (msgspec.DecodeError, RecursionError, UnicodeError):
        return None
    outer = found.get("message") if isinstance(found, dict) else None
    message, extra = _parts(outer)
    stack = extra.get("py_callstack")
    text = stack if isinstance(stack, str) and TRACEBACK in stack else message
    if not text:
        return None
    log = parse(source, [text.encode("utf-8", "replace")], origin)
    stamp = _stamp(extra.get("timestamp"))
    if stamp is not None:
        for event in log.events:
            event.stamp, event.stamp_near = stamp, False
    return log


def _parts(outer: Any) -> tuple[str, dict[str, Any]]:
    """Message, and what is told beside it."""
    if isinstance(outer, str):
        return outer, {}
    if not isinstance(outer, dict):
        return "", {}
    message, extra = outer.get("message"), outer.get("extraInfo")
    return (message if isinstance(message, str) else "", extra if isinstance(extra, dict) else {})


def _stamp(value: Any) -> Stamp | None:
    """Seconds since 1970 as text or a number."""
    if isinstance(value, str) and value.isascii() and value.isdigit() and len(value) <= 10:
        value = int(value)
    if not isinstance(value, int | float) or not 0 < value < _SECONDS_MAX:
        return None
    return Stamp(int(value) * 1_000_000_000, UTC)
