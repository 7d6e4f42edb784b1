"""How many connections the kernel lets this process hold: raises the soft limit as far as it may go."""

from __future__ import annotations

import logging
import resource
from typing import Final

logger = logging.getLogger(__name__)

OTHER_FILES: Final = 256
"""Files that are no connection of a node: libraries, logs, PostgreSQL, Valkey."""


def connections_possible(wanted: int) -> int:
    """Raises RLIMIT_NOFILE for ``wanted`` connections; returns how many there may be, with words if fewer.

    One connection beyond the limit would fail in ``accept`` without an answer; within it a node is told to
    come back.
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    needed = wanted + OTHER_FILES
    if soft < needed:
        soft = needed if hard == resource.RLIM_INFINITY else min(needed, hard)
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    possible = max(1, min(wanted, soft - OTHER_FILES))
    if possible < wanted:
        logger.warning(
            "connections_limited possible=%d wanted=%d: this process may open %d files; raise the hard limit "
            "(LimitNOFILE= of its service, `ulimit -Hn`, nofile of its container) or add a gateway",
            possible, wanted, soft,
        )  # fmt: skip
    return possible
