"""The memory of one control group: use, limit, what cannot be taken back, pressure and out-of-memory counts.

In: /proc/PID/cgroup and the files of the memory controller, version 1 or 2. Out: ``Place``, ``Level``,
``Detail``. The page cache counts as use but is given back at the limit, so growth is judged without it.
Source: admin-guide/cgroup-v2.rst and cgroup-v1/memory.rst of Linux.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Final

from collectors.sources.counters import NOT_AVAILABLE, Count, parsed
from collectors.sources.tree import Tree, reason

ROOTS: Final = {1: "sys/fs/cgroup/memory", 2: "sys/fs/cgroup"}
LEVELS_MAX: Final = 16
PATH_MAX_CHARS: Final = 1_024
UNLIMITED: Final = "unlimited"
_UNLIMITED_FROM: Final = 2**62
"""Version 1 says a huge number, rounded to pages."""
_JOB_PART: Final = re.compile(r"job_\d+|(?:kubepods-)?(?:[a-z]+-)?pod[0-9a-f_-]{32,36}(?:\.slice)?")
_RECLAIMABLE: Final = {
    1: ("total_inactive_file", "total_active_file"),
    2: ("inactive_file", "active_file", "slab_reclaimable"),
}
_EVENTS: Final = ("high", "max", "oom", "oom_kill")


@dataclass(frozen=True, slots=True)
class Place:
    """A control group of the memory controller."""

    version: int
    path: str

    def levels(self, above: str = "") -> list[Place]:
        """This one and those around it, the nearest first; without the root and without ``above`` and up."""
        parts = self.path.strip("/").split("/") if self.path.strip("/") else []
        paths = ["/" + "/".join(parts[:count]) for count in range(len(parts), 0, -1)]
        kept = [path for path in paths if len(path) > len(above)] if above else paths
        return [Place(self.version, path) for path in kept[:LEVELS_MAX]]


@dataclass(frozen=True, slots=True)
class Level:
    """Use and limit of one group. The limit is the lower one of ``max`` and ``high``."""

    place: Place
    used: Count
    limit: Count

    @property
    def free_bytes(self) -> int | None:
        if self.used.value is None or self.limit.value is None:
            return None
        return self.limit.value - self.used.value


@dataclass(frozen=True, slots=True)
class Detail:
    """What is read of the one group that matters.

    Attributes:
        unreclaimable: use without page cache and caches of the kernel.
        stalled_us: ``some`` and ``full``, since the group was made.
    """

    unreclaimable: Count
    swap: Count
    events: Mapping[str, Count] = field(default_factory=dict)
    stalled_us: Mapping[str, int] = field(default_factory=dict)


def place_of(text: str, controller: str = "memory") -> Place | None:
    """The group of a process by its /proc/PID/cgroup; None at the root and outside of what can be seen."""
    found: Place | None = None
    for line in text.splitlines()[:64]:
        number, _, rest = line.partition(":")
        controllers, _, path = rest.partition(":")
        if number == "0" and not controllers and path:
            found = found or _place(2, path)
        elif controller in controllers.split(","):
            return _place(1, path)
    return found


def _place(version: int, path: str) -> Place | None:
    parts = path.split("/")
    if not path.startswith("/") or ".." in parts or len(path) > PATH_MAX_CHARS or not path.isprintable():
        return None
    return Place(version, path) if path != "/" else None


def job_place(places: Iterable[Place]) -> Place | None:
    """The group that holds all of a job's ranks: the job's or pod's own where its name says so."""
    places = list(places)
    paths = [place.path.strip("/").split("/") for place in places]
    versions = {place.version for place in places}
    if not paths or len(versions) != 1:
        return None
    common = paths[0]
    for path in paths[1:]:
        same = next((at for at, (a, b) in enumerate(zip(common, path, strict=False)) if a != b), None)
        common = common[: min(len(common), len(path)) if same is None else same]
    for at, part in enumerate(common):
        if _JOB_PART.fullmatch(part):
            common = common[: at + 1]
            break
    return Place(versions.pop(), "/" + "/".join(common)) if common else None


def level(tree: Tree, place: Place) -> Level | None:
    """Use and limit of a group; None where the controller has no such group."""
    folder = f"{ROOTS[place.version]}{place.path}"
    if place.version == 1:
        used, limit = (_bytes(tree, f"{folder}/memory.{name}_in_bytes") for name in ("usage", "limit"))
    else:
        used, limit = _bytes(tree, f"{folder}/memory.current"), _bytes(tree, f"{folder}/memory.max")
        high = _bytes(tree, f"{folder}/memory.high")
        if high.value is not None and (limit.value is None or high.value < limit.value):
            limit = high
    if used.value is None and used.quality == NOT_AVAILABLE:
        return None
    return Level(place, used, limit)


def narrowest(levels: Iterable[Level]) -> Level | None:
    """The group that will be full first; the nearest where none has a limit."""
    known = list(levels)
    limited = [(free, at) for at, one in enumerate(known) if (free := one.free_bytes) is not None]
    if limited:
        return known[min(limited)[1]]
    return known[0] if known else None


def detail(tree: Tree, of: Level) -> Detail:
    """The rest of one group's files; what is not there is not told."""
    version, folder = of.place.version, f"{ROOTS[of.place.version]}{of.place.path}"
    used = of.used
    try:
        stat = fields(tree.read_text(f"{folder}/memory.stat", 65_536))
        unreclaimable = _without_cache(used, stat, version)
    except OSError as error:
        stat, unreclaimable = {}, Count(None, reason(error))
    if version == 1:
        control = _fields(tree, f"{folder}/memory.oom_control")
        hits = _bytes(tree, f"{folder}/memory.failcnt")
        events = {name: control[name] for name in ("oom_kill",) if name in control}
        return Detail(
            unreclaimable, stat.get("total_swap", Count(None, NOT_AVAILABLE)), {"max": hits, **events}
        )
    told = _fields(tree, f"{folder}/memory.events")
    try:
        stalled_us = stalled(tree.read_text(f"{folder}/memory.pressure", 4_096))
    except OSError:
        stalled_us = {}
    swap = _bytes(tree, f"{folder}/memory.swap.current")
    return Detail(unreclaimable, swap, {name: told[name] for name in _EVENTS if name in told}, stalled_us)


def _without_cache(used: Count, stat: Mapping[str, Count], version: int) -> Count:
    if used.value is None:
        return used
    parts = [stat.get(name, Count(None, "unreadable")) for name in _RECLAIMABLE[version]]
    missing = next((part for part in parts[:2] if part.value is None), None)
    if missing is not None:
        return missing
    return Count(max(0, used.value - sum(part.value or 0 for part in parts)))


def fields(text: str) -> dict[str, Count]:
    """Lines of a name and a number."""
    found = {}
    for line in text.splitlines()[:512]:
        name, blank, value = line.partition(" ")
        if blank:
            found[name] = parsed(value)
    return found


def stalled(text: str) -> dict[str, int]:
    """``some`` and ``full`` of a pressure file -> microseconds since the group was made."""
    found = {}
    for line in text.splitlines()[:8]:
        share, _, rest = line.partition(" ")
        total = parsed(rest.rpartition("total=")[2]) if "total=" in rest else Count(None)
        if share in ("some", "full") and total.value is not None:
            found[share] = total.value
    return found


def _fields(tree: Tree, name: str) -> dict[str, Count]:
    try:
        return fields(tree.read_text(name, 65_536))
    except OSError:
        return {}


def _bytes(tree: Tree, name: str) -> Count:
    try:
        text = tree.read_text(name, 64).strip()
    except OSError as error:
        return Count(None, reason(error))
    count = Count(None, UNLIMITED) if text == "max" else parsed(text)
    return Count(None, UNLIMITED) if (count.value or 0) >= _UNLIMITED_FROM else count
