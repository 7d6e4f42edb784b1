"""Lustre's client: each connection to a metadata or object server, and what the mount moves.

In: {mdc,osc}/TARGET/{import,state} and llite/MOUNT/stats below proc/fs/lustre, sys/fs/lustre or
sys/kernel/debug/lustre (root), wherever this version has them. Out: samples of ``lustre/<target>`` and of
``mount/<mount point>``; standing events ``lustre_import_down``, and ``lustre_evicted`` with the time of the
eviction. Source: lprocfs_rd_import, lprocfs_rd_state and ll_stats of Lustre 2.12 to 2.15.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from collectors.minute import MetricSpec
from collectors.sources.base import Attribute, Reading, Sample, SourceEvent
from collectors.sources.counters import Count, CounterGroup
from collectors.sources.mountstats import path_of
from collectors.sources.tree import Tree, printable

ROOTS: Final = ("sys/kernel/debug/lustre", "proc/fs/lustre", "sys/fs/lustre")
KINDS: Final = ("mdc", "osc")
TARGETS_MAX: Final = 512
MOUNTS_MAX: Final = 16
GOOD: Final = frozenset({"FULL", "IDLE", "NEW"})
"""IDLE: disconnected for want of work, connected again at the next request."""
DOWN_LOOKS: Final = 2
"""A connection that is made anew between two looks is no fault."""
_TARGET: Final = re.compile(r"([A-Za-z0-9_]{1,16}-(?:OST|MDT)[0-9a-fA-F]{4})")
_STATE: Final = re.compile(r"\s*state:\s*([A-Z_]{2,20})")
_CURRENT: Final = re.compile(r"current_state:\s*([A-Z_]{2,20})")
_HISTORY: Final = re.compile(r"\s*-\s*\[\s*(\d{1,12}),\s*([A-Z_]{2,20})\s*\]")
_SERVER: Final = re.compile(r'current_connection:\s*"?([0-9A-Za-z.:@_-]{1,64})')
_NUMBER: Final = {
    "rpc_in_flight_count": re.compile(r"\s*inflight:\s*(\d{1,12})"),
    "rpc_timeouts_total": re.compile(r"\s*timeouts:\s*(\d{1,12})"),
    "rpc_wait_us": re.compile(r"\s*avg_waittime:\s*(\d{1,12})\s*usec"),
    "connection_attempts_total": re.compile(r"\s*connection_attempts:\s*(\d{1,12})"),
}
_MOVED: Final = re.compile(r"(read|write)_bytes\s+(\d{1,20}) samples \[\w+\] \d{1,20} \d{1,20} (\d{1,20})")


@dataclass(frozen=True, slots=True)
class Import:
    """One connection to a server.

    Attributes:
        state: Lustre's word; None where no file told it.
        numbers: metric -> value.
        evicted_s: Unix times of the evictions that the client still remembers.
    """

    state: str | None = None
    server: str | None = None
    numbers: tuple[tuple[str, int], ...] = ()
    evicted_s: tuple[int, ...] = ()


@dataclass(slots=True)
class _Watched:
    """What is remembered of one target."""

    evicted_s: frozenset[int] | None = None
    down_looks: int = 0


class LustreSource:
    """Every target of every Lustre file system that is mounted."""

    name = "lustre"
    period_s = 15.0
    deadline_s = 5.0
    metrics = (
        MetricSpec("import_up_count", "count", 1.0),
        MetricSpec("rpc_wait_s", "s", 0.0001),
        MetricSpec("connection_attempts_total", "total", 1.0),
        MetricSpec("rpc_timeouts_total", "total", 1.0),
        MetricSpec("lustre_read_bytes_per_s", "bytes_per_s", 1.0),
        MetricSpec("lustre_write_bytes_per_s", "bytes_per_s", 1.0),
    )

    def __init__(self) -> None:
        self._watched: dict[str, _Watched] = {}
        self._moved: dict[str, CounterGroup] = {}

    def read(self, tree: Tree, at_s: float) -> Reading:
        samples: list[Sample] = []
        events: list[SourceEvent] = []
        watched: dict[str, _Watched] = {}
        for target, found in imports(tree).items():
            known = watched[target] = self._watched.get(target) or _Watched()
            samples += _import_samples(target, found)
            events += _import_events(target, found, known, tree.is_live)
        self._watched = watched
        samples += self._mounts(tree, at_s)
        return Reading(samples, events)

    def _mounts(self, tree: Tree, at_s: float) -> Iterator[Sample]:
        moved: dict[str, CounterGroup] = {}
        paths = lustre_mounts(_text(tree, "proc/self/mountinfo"))
        for folder, stats in _files(tree, ("llite",), "stats", MOUNTS_MAX):
            entity = f"mount/{paths.get(folder.partition('-')[0], folder)}"
            group = moved[folder] = self._moved.get(folder) or CounterGroup({})
            counts = {name: Count(value) for name, value in parse_stats(stats).items()}
            for name, change in group.update(counts, at_s).items():
                yield Sample(entity, f"lustre_{name}_per_s", change.per_s, change.quality)
        self._moved = moved


def imports(tree: Tree) -> dict[str, Import]:
    """Target (``lfs-OST0003``) -> its connection, from whichever of the two files tells what."""
    texts: dict[str, list[str]] = {}
    for name in ("import", "state"):
        for folder, text in _files(tree, KINDS, name, TARGETS_MAX):
            if match := _TARGET.match(folder):
                texts.setdefault(match[1], []).append(text)
    return {target: parse_import("\n".join(told)) for target, told in sorted(texts.items())}


def parse_import(text: str) -> Import:
    """Of the text of ``import`` and ``state``, either may be missing."""
    state: str | None = None
    server: str | None = None
    numbers: dict[str, int] = {}
    evicted: list[int] = []
    for line in text.splitlines()[:1_000]:
        if match := _STATE.match(line) or _CURRENT.match(line):
            state = state or match[1]
        elif match := _HISTORY.match(line):
            evicted += [int(match[1])] if match[2] == "EVICTED" else []
        elif match := _SERVER.search(line):
            server = match[1]
        else:
            for metric, pattern in _NUMBER.items():
                if match := pattern.match(line):
                    numbers.setdefault(metric, int(match[1]))
    return Import(state, server, tuple(numbers.items()), tuple(sorted(set(evicted))))


def parse_stats(text: str) -> dict[str, int]:
    """``read_bytes`` and ``write_bytes`` since the mount, or since the statistics were cleared."""
    found: dict[str, int] = {}
    for line in text.splitlines()[:1_000]:
        if (match := _MOVED.match(line)) and int(match[3]) < 2**64:
            found[f"{match[1]}_bytes"] = int(match[3])
    return found


def lustre_mounts(text: str) -> dict[str, str]:
    """File system -> where it is mounted; without those that are mounted twice."""
    found: dict[str, list[str]] = {}
    for line in text.split("\n")[:4_096]:
        left, dash, right = line.partition(" - lustre ")
        words = left.split(" ")
        name = right.split(" ")[0].rpartition(":/")[2].partition("/")[0]
        path = path_of(words[4]) if dash and len(words) > 5 else None
        if path is not None and name.isprintable():
            found.setdefault(name[:64], []).append(path)
    return {name: paths[0] for name, paths in found.items() if len(paths) == 1}


def _files(tree: Tree, kinds: tuple[str, ...], name: str, most: int) -> Iterator[tuple[str, str]]:
    """(folder, text) of a file of each target: of the first root that has it."""
    seen: set[str] = set()
    for root in ROOTS:
        for kind in kinds:
            for folder in tree.list(f"{root}/{kind}")[:most]:
                text = (
                    ""
                    if folder in seen or not folder.isprintable()
                    else _text(tree, f"{root}/{kind}/{folder}/{name}")
                )
                if text:
                    seen.add(folder)
                    yield folder[:128], text


def _text(tree: Tree, name: str) -> str:
    try:
        return tree.read_text(name, 1_048_576)
    except OSError:
        return ""


def _import_samples(target: str, found: Import) -> Iterator[Sample]:
    entity = f"lustre/{target}"
    up = None if found.state is None else int(found.state in GOOD)
    labels = {"server": found.server} if found.server else {}
    yield Sample(entity, "import_up_count", up, "ok" if up is not None else "unreadable", labels)
    for metric, value in found.numbers:
        if metric == "rpc_wait_us":
            yield Sample(entity, "rpc_wait_s", value / 1e6)
        else:
            yield Sample(entity, metric, value)


def _import_events(target: str, found: Import, known: _Watched, live: bool) -> Iterator[SourceEvent]:
    """Evictions since the look before. At a first look on a live machine they may be days old: not told."""
    entity = f"lustre/{target}"
    told: dict[str, Attribute] = {"server": found.server}
    fresh = set(found.evicted_s) - (known.evicted_s or frozenset())
    for at_s in sorted(fresh) if known.evicted_s is not None or not live else ():
        text = f"the server of {target} evicted this client: its locks and unwritten data are gone"
        yield SourceEvent(entity, "lustre_evicted", text, "critical", t_ns=at_s * 10**9, attributes=told)
    known.evicted_s = frozenset(found.evicted_s)
    down = found.state is not None and found.state not in GOOD
    known.down_looks = known.down_looks + 1 if down else 0
    if down and (known.down_looks >= DOWN_LOOKS or not live):
        state = printable(found.state or "")
        text = f"no connection to the server of {target}: {state}"
        attributes: dict[str, Attribute] = {**told, "state": state}
        yield SourceEvent(
            entity, "lustre_import_down", text, "critical", attributes=attributes, standing=True
        )
