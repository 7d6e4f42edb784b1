"""What a log says over several lines: Python tracebacks, and torchelastic's list of failures.

In: lines of one stream (equal labels), one at a time. Out: kind and fields when a block is complete. Each
machine is bounded in lines and bytes and gives up quietly: text that only begins like a block costs nothing.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import Final

from collectors.formats.job_log_patterns import VALUE_MAX_CHARS, Fields
from collectors.formats.job_log_prefix import Stamp

TRACEBACK: Final = "Traceback (most recent call last):"
ROOT_CAUSE: Final = "Root Cause (first observed failure)"
FAILURES: Final = re.compile(r"^Failures:\s*$")

_LINES_MAX: Final = 1_000
"""Own lines of one traceback: the interpreter folds recursion, so real ones stay below 1,000 frames."""
_FOREIGN_MAX: Final = 200
"""Lines in between that are none of a traceback (unlabelled logs of several ranks)."""
_FILE: Final = re.compile(r'^\s{2,8}(?:\| {0,4})?File "([^"]{1,1000})", line (\d{1,9}), in (.{1,200})')
_EXCEPTION: Final = re.compile(r"^((?:[A-Za-z_]\w{0,99}\.){0,12}[A-Za-z_]\w{0,99})(?:: ?(.*)|)$", re.DOTALL)
_LOOKS_RAISED: Final = re.compile(
    r"(?:Error|Exception|Exit|Interrupt|Warning|Timeout|Failure|Abort\w*|Stop\w*|Group|Unpickling\w*)\d?$"
)
_NOT_USER: Final = re.compile(
    r"site-packages/|dist-packages/|/lib/python3|<frozen |<string>"
    r"|/torch/(?:nn|distributed|utils|autograd|optim)/|/bin/torchrun"
)
_LAUNCHER: Final = re.compile(r"torch/distributed/(?:run|launch|launcher|elastic)|/bin/torchrun")
_CHAIN: Final = ("During handling of the above exception", "The above exception was the direct cause")


@dataclass(slots=True)
class Traceback:
    """From its first line to the line that names the exception."""

    line: int
    text: str
    chained: bool = False
    mixed: bool = False
    """lines of another traceback stand in between: its frames cannot be told apart"""
    near: Stamp | None = None
    done: Fields | None = None
    """the exception, once its line has come"""
    _lines: int = 0
    _foreign: int = 0
    _user: str = ""
    _last: str = ""
    _launcher: bool = False

    def take(self, text: str) -> bool:
        """The next line of the stream; whether it belongs to the traceback."""
        self._lines += 1
        if text[:1] in (" ", "\t", ""):
            self._frame(text)
            return True
        match = _EXCEPTION.match(text)
        if match is None or not _raised(match[1], match[2]):
            self._foreign += 1
            return False
        self.done = self._fields(match[1], match[2] or "")
        return True

    @property
    def given_up(self) -> bool:
        return self._lines > _LINES_MAX or self._foreign > _FOREIGN_MAX

    def _frame(self, text: str) -> None:
        match = _FILE.match(text)
        if match is None:
            return
        path, line, function = match.groups()
        place = f"{function.strip()} ({path}:{line})"[:VALUE_MAX_CHARS]
        self._last = place
        self._launcher = self._launcher or bool(_LAUNCHER.search(path))
        if not _NOT_USER.search(path):
            self._user = place

    def _fields(self, kind: str, message: str) -> Fields:
        fields: Fields = {
            "type": kind.rpartition(".")[2][:100],
            "message": message.strip()[:VALUE_MAX_CHARS],
            "frame": "" if self.mixed else self._user or self._last,
            "launcher": int(self._launcher and not self._user),
        }
        if self.chained:
            fields["chained"] = 1
        return fields


def _raised(name: str, message: str | None) -> bool:
    """Whether ``name`` can be an exception's: log lines also begin with a word and a colon."""
    last = name.rpartition(".")[2]
    return bool(_LOOKS_RAISED.search(last)) or ("." in name and bool(message) and last[:1].isupper())


def begins_chain(text: str) -> bool:
    """Whether a line joins the traceback above to the one below."""
    return text.startswith(_CHAIN)


_LIST_LINES_MAX: Final = 2_000_000
"""Seven lines for each of 24,576 ranks, with other streams' lines in between."""
_KEY: Final = re.compile(r"^\s{0,8}(time|host|rank|exitcode|error_file|traceback)\s{0,8}: ?(.{0,400})")
_ITEM: Final = re.compile(r"^\s{0,8}\[\d{1,6}\]:\s{0,4}$")
_RANK: Final = re.compile(r"(-?\d{1,7}) \(local_rank: (\d{1,7})\)")
_EXIT: Final = re.compile(r"(-?\d{1,6}) \(pid: (\d{1,10})\)")


@dataclass(slots=True)
class FailureList:
    """torchelastic's ``Failures`` and ``Root Cause`` lists: an item per process that ended badly."""

    line: int
    root: bool = False
    closed: bool = False
    took: bool = False
    """whether the last line was part of the list"""
    _lines: int = 0
    _item: Fields = field(default_factory=dict)
    _item_line: int = 0

    def take(self, text: str, line: int) -> tuple[int, Fields] | None:
        """The next line; an item with its first line when it is complete."""
        self._lines += 1
        self.took = True
        if ROOT_CAUSE in text:
            self.root = True
        elif _ITEM.match(text):
            self._item, self._item_line = {}, line
        elif (match := _KEY.match(text)) is not None:
            return self._value(match[1], match[2].strip())
        elif text.startswith("====") and self.root:
            self.closed = True
        else:
            self.took = False
        return None

    @property
    def given_up(self) -> bool:
        return self.closed or self._lines > _LIST_LINES_MAX

    def _value(self, key: str, value: str) -> tuple[int, Fields] | None:
        if key == "time":
            self._item["noticed"] = value[:40]
        elif key == "host":
            self._item["host"] = value[:255]
        elif key == "rank" and (match := _RANK.search(value)) is not None:
            self._item |= {"rank": int(match[1]), "local": int(match[2])}
        elif key == "exitcode" and (match := _EXIT.search(value)) is not None:
            self._item |= {"exit": int(match[1]), "pid": int(match[2])}
        elif key == "traceback" and "exit" in self._item:
            item, self._item = self._item, {}
            item["what"] = value[:VALUE_MAX_CHARS]
            if self.root:
                item["root"] = 1
            return self._item_line, item
        return None
