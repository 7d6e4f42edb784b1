"""GPU memory whose process is gone or cannot end: no job can have it, and only a reset or a reboot frees it.

In: which processes hold GPU memory (``gpu_holders``), /proc/PID/stat and status of those. Out: a standing
``gpu_memory_orphaned`` for each GPU. A process is judged by two looks with a list of the driver after the
first: one that has just ended is still in the list before. One that is blocked but not told to end is a
process that works or waits; it owns its memory. Source: proc_pid_stat(5), proc_pid_status(5).
"""

from __future__ import annotations

import errno
import os
import time
from dataclasses import dataclass, field, replace
from typing import Final

from collectors.sources.base import Attribute, SourceEvent
from collectors.sources.gpu_holders import Held, holders
from collectors.sources.tree import Tree

KIND: Final = "gpu_memory_orphaned"
_ENDED: Final = frozenset("ZX")
_BLOCKED: Final = "D"
_SIGKILL_BIT: Final = 1 << 8
_EXITING_FLAG: Final = 0x4
"""PF_EXITING of include/linux/sched.h."""
_HOST_PIDS: Final = "pid:[4026531836]"
"""The first PID namespace, PROC_PID_INIT_INO of include/linux/proc_ns.h: who is in it sees every process."""
_PIDS_TOLD_MAX: Final = 16


@dataclass(frozen=True, slots=True)
class Life:
    """One process as it is now. ``start`` None: not told."""

    start: int | None
    state: str
    """``gone``, ``ended``, ``blocked`` or ``lives``"""


@dataclass(slots=True)
class _Suspect:
    """A process that does not live. ``used_bytes``: GPU -> what it held when that was first told."""

    start: int | None
    state: str
    since_s: float
    used_bytes: dict[str, int | None] = field(default_factory=dict)


class Orphans:
    """Remembers processes that held memory while they lived, and since when they do not."""

    def __init__(self) -> None:
        self._lived: dict[int, int | None] = {}
        """process that was there -> its start"""
        self._suspects: dict[int, _Suspect] = {}

    def events(self, tree: Tree, at_s: float) -> list[SourceEvent]:
        told = holders(tree, at_s)
        if told is None:
            return []
        now_s = time.monotonic() if tree.is_live else at_s
        sees_all = _sees_all(tree)
        pids = {one.pid for one in told.held}
        self._lived = {pid: start for pid, start in self._lived.items() if pid in pids}
        self._suspects = {pid: one for pid, one in self._suspects.items() if pid in pids}
        judged = {pid: self._judged(tree, pid, now_s, told.at_s, sees_all) for pid in sorted(pids)}
        orphans: dict[str, list[tuple[Held, str]]] = {}
        for one in told.held:
            suspect = judged[one.pid]
            if suspect is not None:
                used = suspect.used_bytes.setdefault(one.uuid, one.used_bytes)
                orphans.setdefault(one.uuid, []).append((replace(one, used_bytes=used), suspect.state))
        return [_event(uuid, found) for uuid, found in sorted(orphans.items())]

    def _judged(self, tree: Tree, pid: int, now_s: float, list_s: float, sees_all: bool) -> _Suspect | None:
        """A process whose memory is nobody's; None: it is somebody's, or that is not sure."""
        life = life_of(tree, pid)
        if life.state == "lives":
            self._lived[pid] = life.start
            self._suspects.pop(pid, None)
            return None
        if life.state == "gone" and pid not in self._lived and not sees_all:
            return None
        suspect = self._suspects.get(pid)
        if suspect is None or (life.start is not None and suspect.start not in (None, life.start)):
            start = life.start if life.start is not None else self._lived.get(pid)
            self._suspects[pid] = _Suspect(start, life.state, now_s)
            return None
        self._lived.setdefault(pid, life.start)
        suspect.state = life.state
        return suspect if list_s > suspect.since_s else None


def life_of(tree: Tree, pid: int) -> Life:
    """Whether a process is there, and whether it is one that ends and cannot."""
    try:
        words = tree.read_text(f"proc/{pid}/stat", 4_096).rpartition(") ")[2].split()
    except OSError as error:
        gone = error.errno in (errno.ENOENT, errno.ESRCH) and not tree.exists(f"proc/{pid}")
        return Life(None, "gone" if gone else "lives")
    start, flags = _number(words, 19), _number(words, 6)
    state = words[0] if words else ""
    if state in _ENDED:
        return Life(start, "ended")
    if state == _BLOCKED and ((flags or 0) & _EXITING_FLAG or _is_killed(tree, pid)):
        return Life(start, "blocked")
    return Life(start, "lives")


def _is_killed(tree: Tree, pid: int) -> bool:
    """Whether SIGKILL waits for it."""
    try:
        text = tree.read_text(f"proc/{pid}/status", 16_384)
    except OSError:
        return False
    for line in text.splitlines()[:128]:
        name, _, mask = line.partition(":")
        if name in ("SigPnd", "ShdPnd") and _mask(mask.strip()) & _SIGKILL_BIT:
            return True
    return False


def _mask(text: str) -> int:
    try:
        return int(text, 16) if text.isascii() and len(text) <= 32 else 0
    except ValueError:
        return 0


def _number(words: list[str], place: int) -> int | None:
    word = words[place] if place < len(words) else ""
    return int(word) if word.isascii() and word.isdigit() and len(word) <= 20 else None


def _sees_all(tree: Tree) -> bool:
    """Whether a process that is not in /proc is nowhere on this machine."""
    if not tree.is_live or os.geteuid() != 0:
        return False
    try:
        return os.readlink("/proc/self/ns/pid") == _HOST_PIDS  # noqa: PTH115  the link's text, no path
    except OSError:
        return False


_WORDS: Final = {
    "gone": "is gone",
    "ended": "has ended but is not gone",
    "blocked": "was killed and cannot end",
}


def _event(uuid: str, found: list[tuple[Held, str]]) -> SourceEvent:
    sizes = [one.used_bytes for one, _ in found if one.used_bytes is not None]
    used = sum(sizes) if len(sizes) == len(found) else None
    first, state = found[0]
    size = "memory" if used is None else f"{used / 2**30:.1f} GiB"
    others = f" and of {len(found) - 1} more" if len(found) > 1 else ""
    text = f"the GPU holds {size} of process {first.pid}, which {_WORDS[state]}{others}: a reset frees it"
    attributes: dict[str, Attribute] = {
        "pid": first.pid,
        "pids": [one.pid for one, _ in found[:_PIDS_TOLD_MAX]],
        "state": state,
        "used_bytes": used,
    }
    return SourceEvent(f"gpu/{uuid}", KIND, text, "warning", attributes=attributes, standing=True)
