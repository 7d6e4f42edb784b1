"""How a line is meant: a warning about something survived, a sign of work going on, or neither.

In: the text of one line without its labels. Out: yes or no. A process that retries a connection and says so
has not failed, and one that prints steps after a traceback had caught the error.
"""

from __future__ import annotations

import re
from typing import Final

_HEAD_CHARS: Final = 160
"""A logger's level stands near the start; further on the word is part of the message."""
_SURVIVABLE: Final = frozenset({
    "raised", "peer_closed", "peer_timeout", "out_of_memory", "cuda_error", "numeric", "nan_value",
})  # fmt: skip
"""Kinds that a program may report and live on; those of launchers, kernels and watchdogs are not."""

_LEVEL: Final = re.compile(r"\b(?:WARNING|WARN|INFO|DEBUG)\b(?![.\w]*[/:]\d)")
_BEFORE_LEVEL: Final = re.compile(r"[\d\W_TZ]{0,60}(?:[a-z_][\w.]{0,63})?[\W_]{0,12}")
"""``2026-12-02 09:00:00,123 - trainer - WARNING ...``: a stamp and the name of a logger."""
_RETRY: Final = re.compile(r"\b(?:retry(?:ing)?|will retry|trying again|recovered)\b", re.IGNORECASE)
_ATTEMPT: Final = re.compile(
    r"\b(?:attempt|try|retry|retrying)\b[ #:(\[]{0,3}(\d{1,6}) ?(?:of|/) ?(\d{1,6})", re.IGNORECASE
)
_GAVE_UP: Final = re.compile(
    r"\b(?:giving up|gave up|no more|exhausted|out of retries|(?:not|without|failed to) retry)", re.IGNORECASE
)

_STEP: Final = re.compile(
    r"\b(?:global_?step|step|iter|iteration|epoch|batch|it)\b\s{0,3}[:=#|\[]?\s{0,3}\d{1,12}\b"
    r"|\b\d{1,12}(?:\.\d{1,9})? ?(?:it/s|s/it|tokens/s|samples/s|steps/s)"
    r"|\b(?:training|train|run|job|evaluation)\s{1,3}(?:has\s)?(?:finished|completed?|done|succeeded)\b",
    re.IGNORECASE,
)
_TEARDOWN: Final = re.compile(
    r"\b(?:abort\w*|exit\w*|exception|error|fail\w*|clean\w*|clos(?:e|ing)|shut\w*|sav(?:e|ed|ing)|dump\w*"
    r"|crash\w*|emergency|interrupt\w*|terminat\w*|kill\w*|destroy\w*|flush\w*|upload\w*|summary|history"
    r"|last|final|stopp\w*|wandb|died|while|during)\b",
    re.IGNORECASE,
)
"""Words of what a dying process still prints: ``saving an emergency checkpoint at step 120``."""


def is_mild(kind: str, text: str) -> bool:
    """Whether a line of ``kind`` reports something its process lives on after. Cost: O(length)."""
    if kind not in _SURVIVABLE or "NCCL WARN" in text or _GAVE_UP.search(text):
        return False
    attempt = _ATTEMPT.search(text)
    if attempt is not None and int(attempt[1]) >= int(attempt[2]):
        return False
    return attempt is not None or bool(_RETRY.search(text)) or _below_error(text[:_HEAD_CHARS])


def _below_error(head: str) -> bool:
    """Whether a logger printed the line at a level below ERROR."""
    level = _LEVEL.search(head)
    return level is not None and bool(_BEFORE_LEVEL.fullmatch(head[: level.start()]))


def goes_on(text: str) -> bool:
    """Whether a line shows that its process works: a step, a rate, the end of training."""
    return bool(_STEP.search(text)) and not _TEARDOWN.search(text)
