"""The processes of this node, and what each says of itself and of its parent.

In: /proc/PID/environ (a few variables only), /proc/PID/cgroup and /proc/PID/stat. Out: ``Identity``, ``Kin``.
Reading the environment of another user's process needs CAP_SYS_PTRACE; without it a job is known by its
control group, a rank is not.
"""

from __future__ import annotations

from typing import Final

from collectors.sources.process_identity import Group, Identity, environment, group
from collectors.sources.rank_choice import Kin
from collectors.sources.tree import Tree

PROCESSES_MAX: Final = 65_536
ENVIRON_MAX_BYTES: Final = 2 * 1024 * 1024
LOOKS_AT_NEW: Final = 2
"""A process is looked at again once: it may have been about to become another program."""


def pids(tree: Tree) -> list[int]:
    names = (name for name in tree.list("proc") if name.isascii() and name.isdigit() and len(name) <= 7)
    return sorted(map(int, names))[:PROCESSES_MAX]


def identity(tree: Tree, pid: int) -> Identity:
    """A process as far as it may be looked at."""
    try:
        values = environment(tree.read_bytes(f"proc/{pid}/environ", ENVIRON_MAX_BYTES))
    except OSError:
        values = {}
    try:
        where = group(tree.read_text(f"proc/{pid}/cgroup", 65_536))
    except OSError:
        where = Group()
    return Identity(pid, values, where)


def kin_of(tree: Tree, pid: int) -> Kin:
    """Parent and start of a process; the second field of its stat may hold blanks and brackets."""
    try:
        words = tree.read_text(f"proc/{pid}/stat", 4_096).rpartition(") ")[2].split()
        return Kin(int(words[1]), int(words[19]))
    except (OSError, ValueError, IndexError):
        return Kin()
