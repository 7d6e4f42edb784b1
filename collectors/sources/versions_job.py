"""What a job's processes run on: the libraries they have mapped, and their limits.

In: /proc/PID/maps of one rank of each job, /proc/PID/limits. Out: facts of ``job/<id>``. No library is opened
and none of its folders is looked into: they may lie on a network mount. A library whose file name has no
version is known by how many bytes of it are mapped, which is the same for the same file. To print its map the
kernel holds up what maps memory, so it is read until the library is there, and then no more.
Source: proc_pid_maps(5).
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from itertools import starmap
from typing import Final

from collectors.sources.limits_process import limits
from collectors.sources.memory_cgroup import UNLIMITED
from collectors.sources.rank_list import Member
from collectors.sources.rank_processes import kin_of
from collectors.sources.tree import Tree
from collectors.sources.versions_facts import Facts

MAPS_MAX_BYTES: Final = 32 * 1024 * 1024
"""Libraries lie at high addresses, behind whatever else a process has mapped."""
_CHUNK_BYTES: Final = 65_536
LOOKS_MAX: Final = 3
"""A process that has no NCCL by then is not looked at again."""
JOBS_MAX: Final = 32
_LIBRARIES: Final = (
    ("nccl.net_plugin", b"libnccl-net"),
    ("nccl.library", b"libnccl.so"),
    ("torch.library", b"libtorch_cuda.so"),
    ("cuda.library", b"libcuda.so"),
    ("cuda.runtime", b"libcudart.so"),
    ("cudnn.library", b"libcudnn.so"),
    ("ibverbs.library", b"libibverbs.so"),
    ("mlx5.library", b"libmlx5.so"),
)
_SOUGHT: Final = "nccl.library"
_LINE: Final = re.compile(
    rb"^([0-9a-f]{1,16})-([0-9a-f]{1,16}) ([^\n]{0,5000}/)"
    rb"(lib(?:nccl|torch_cuda|cud|ibverbs|mlx5)[^/\n]{0,100})$",
    re.MULTILINE,
)
_VERSIONED: Final = re.compile(r"\.so(?:\.\d{1,6}){2,5}")
_TORCH_PATH: Final = re.compile(r"/(?:py)?torch[-_]v?(\d{1,3}(?:\.\d{1,4}){1,2}[A-Za-z0-9.+]{0,24})(?=[/_-])")
_NAMES_MAX: Final = 2
"""Names of one library that are told of one process."""
_DELETED: Final = b" (deleted)"
_BLOCKED: Final = "D"


@dataclass(slots=True)
class _Seen:
    """The process of a job that was looked at."""

    pid: int
    start: int | None
    looks: int = 0
    libraries: dict[str, str] = field(default_factory=dict)


class Jobs:
    """Remembers of each job what its lowest rank here has mapped."""

    def __init__(self) -> None:
        self._seen: dict[str, _Seen] = {}

    def tell(self, facts: Facts, tree: Tree, members: list[Member]) -> None:
        first: dict[str, Member] = {}
        for member in members:
            first.setdefault(member.rank.job, member)
        seen = {}
        for job, member in list(first.items())[:JOBS_MAX]:
            seen[job] = one = self._of(tree, job, member.pid)
            for fact, value in one.libraries.items():
                facts.tell(fact, value, f"job/{job}")
            _limits(facts, tree, f"job/{job}", member.pid)
        self._seen = seen

    def _of(self, tree: Tree, job: str, pid: int) -> _Seen:
        kin = kin_of(tree, pid)
        seen = self._seen.get(job)
        if seen is None or (seen.pid, seen.start) != (pid, kin.start):
            seen = _Seen(pid, kin.start)
        if _SOUGHT in seen.libraries or (tree.is_paced and seen.looks >= LOOKS_MAX):
            return seen
        if _is_blocked(tree, pid):
            return seen  # its memory may be locked for as long as it waits
        seen.looks += 1
        try:
            seen.libraries = libraries(_lines(tree, f"proc/{pid}/maps"))
        except OSError:
            seen.libraries = {}
        return seen


def _lines(tree: Tree, name: str) -> Iterator[bytes]:
    """The file in pieces of whole lines. Raises ``OSError``."""
    fd = tree.open(name)
    try:
        rest, left = b"", MAPS_MAX_BYTES
        while left > 0 and (chunk := os.read(fd, _CHUNK_BYTES)):
            left -= len(chunk)
            whole, newline, rest = (rest + chunk).rpartition(b"\n")
            if newline:
                yield whole
            elif len(rest) > _CHUNK_BYTES:
                return  # no memory map has such a line
        yield rest
    finally:
        os.close(fd)


def libraries(maps: Iterable[bytes]) -> dict[str, str]:
    """Fact -> name of each known library of a memory map that comes in pieces of whole lines."""
    sizes: dict[str, dict[bytes, int]] = {}
    torch: str | None = None
    for match in (match for piece in maps for match in _LINE.finditer(piece)):
        first, last, folder, name = match.groups()
        fact = next((fact for fact, prefix in _LIBRARIES if name.startswith(prefix)), None)
        if fact is None:
            continue
        name = name.removesuffix(_DELETED)
        of_fact = sizes.setdefault(fact, {})
        if name in of_fact or len(of_fact) < _NAMES_MAX:
            of_fact[name] = of_fact.get(name, 0) + max(0, int(last, 16) - int(first, 16))
        if fact == "torch.library" and torch is None:
            found = _TORCH_PATH.search(folder.decode("utf-8", "replace"))
            torch = found[1] if found else None
    told = {fact: ", ".join(sorted(starmap(_told, of.items()))) for fact, of in sizes.items()}
    return told | ({"torch.version": torch} if torch else {})


def _told(name: bytes, size: int) -> str:
    text = name.decode("utf-8", "replace")
    return text if _VERSIONED.search(text) else f"{text} {size} bytes mapped"


def _is_blocked(tree: Tree, pid: int) -> bool:
    try:
        text = tree.read_text(f"proc/{pid}/stat", 4_096)
    except OSError:
        return False
    return text.rpartition(") ")[2].startswith(_BLOCKED)


def _limits(facts: Facts, tree: Tree, entity: str, pid: int) -> None:
    try:
        told = limits(tree.read_text(f"proc/{pid}/limits", 8_192))
    except OSError:
        return
    for name, limit in told.items():
        if limit.soft.value is not None or limit.soft.quality == UNLIMITED:
            value = UNLIMITED if limit.soft.value is None else str(limit.soft.value)
            facts.tell(f"ulimit.{name}", value, entity)
