"""The log that NCCL's Inspector writes inside a rank, found as the rank's own open file.

In: /proc/PID/environ (whether the plugin is on), /proc/PID/fd. Out: ``Log``. The plugin opens one file,
``<host>-pid<pid>.log`` with the number of the rank in its own container, and keeps it open: its descriptor
leads to it whatever folder, container or rename. One on a network mount is known by that and not touched.
"""

from __future__ import annotations

import os
import re
from dataclasses import dataclass
from typing import Final

from collectors.sources.job_logs_files import Output, output
from collectors.sources.rank_list import Member
from collectors.sources.tree import Tree

FIND_EVERY_S: Final = 60.0
DESCRIPTORS_MAX: Final = 4_096
"""Of one rank; the plugin's file is opened at its start and has a low number."""
SWITCH: Final = "NCCL_INSPECTOR_ENABLE"
_NAME: Final = re.compile(r"(?:.*/)?[^/]{1,255}-pid\d{1,10}\.log(?:[.-]\d{1,14})?(?: \(deleted\))?")


@dataclass(slots=True)
class Log:
    """What is known of a rank's log. ``number``: its descriptor; None: not found so far."""

    pid: int
    number: int | None = None
    output: Output | None = None
    sought_s: float | None = None

    def find(self, tree: Tree, at_s: float) -> Output | None:
        """The log as it is open now; looked for again once it is closed, every ``FIND_EVERY_S``."""
        if self.number is not None:
            self.output = output(tree, self.pid, self.number, self.output)
            if self.output is not None and _NAME.fullmatch(self.output.path):
                return self.output
            self.number, self.output = None, None
        if tree.is_due(self.sought_s, at_s, FIND_EVERY_S):
            self.sought_s = at_s
            self.number = _descriptor(tree, self.pid)
            if self.number is not None:
                self.output = output(tree, self.pid, self.number, None)
        return self.output


def is_on(member: Member) -> bool:
    """Whether the plugin is switched on in a rank; it reads any number but 0 as on."""
    number = re.match(r"\s{0,8}[+-]?\d{1,9}", member.rank.process.values.get(SWITCH, ""))
    return number is not None and int(number[0]) != 0


def _descriptor(tree: Tree, pid: int) -> int | None:
    """The open file with the plugin's name. Touches no file."""
    folder = f"proc/{pid}/fd"
    numbers = sorted(int(name) for name in tree.list(folder) if name.isascii() and name.isdigit())
    for number in numbers[:DESCRIPTORS_MAX]:
        try:
            path = os.readlink(f"{tree.root}/{folder}/{number}")  # noqa: PTH115  of each open file
        except OSError:
            continue
        if _NAME.fullmatch(path):
            return number
    return None
