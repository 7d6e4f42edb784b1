"""Memory of each rank and of its job's control group: use, limit, growth, and when it will be full.

In: /proc/PID/status of ranks, /proc/PID/statm of their helpers, the control groups' files, proc/meminfo. Out:
samples of ``job/<id>``, ``job/<id>/rank/<rank>`` and ``host``; ``memory_limit_near`` while a job or the node
grows steadily towards its limit, ``cgroup_oom_kill``. The proportional set size is not read: for a large
process the kernel walks its pages for seconds and holds up what maps memory. Source: proc_pid_status(5).
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from typing import Final

from collectors.minute import MetricSpec
from collectors.sources.base import HOST, OK, Attribute, Rate, Reading, Sample, SourceEvent
from collectors.sources.counters import Count, CounterGroup, parsed, samples
from collectors.sources.memory_cgroup import (
    UNLIMITED,
    Detail,
    Level,
    Place,
    detail,
    job_place,
    level,
    narrowest,
    place_of,
)
from collectors.sources.memory_growth import Growth
from collectors.sources.rank_list import Member, RankList
from collectors.sources.tree import Tree, reason
from collectors.wire.records import Severity

NEAR_S: Final = 3_600.0
FAR_S: Final = 5_400.0
"""A warning ends when there is that much time again, so that it does not come and go."""
CRITICAL_S: Final = 900.0
_PAGE_BYTES: Final = os.sysconf("SC_PAGE_SIZE")
_STATUS: Final = {
    "VmRSS": "rss_bytes",
    "RssAnon": "anon_bytes",
    "RssShmem": "shmem_bytes",
    "VmSwap": "swap_bytes",
    "VmLck": "locked_bytes",
    "VmPin": "pinned_bytes",
}
_MIB: Final = 1_048_576.0


class MemorySource:
    """All ranks and jobs of a node, and the node. Remembers the looks of ten minutes."""

    name = "memory"
    period_s = 60.0
    deadline_s = 10.0
    metrics = (
        *(MetricSpec(name, "bytes", _MIB) for name in ("rss_bytes", "anon_bytes", "pinned_bytes")),
        *(MetricSpec(f"cgroup_memory_{name}_bytes", "bytes", _MIB) for name in ("used", "unreclaimable")),
        MetricSpec("cgroup_memory_used_ratio", "ratio", 0.001),
        MetricSpec("memory_growth_bytes_per_s", "bytes_per_s", 1_024.0),
        MetricSpec("memory_full_in_s", "s", 1.0),
    )

    def __init__(self) -> None:
        self._ranks = RankList()
        self._watched: dict[str, _Watched] = {}

    def read(self, tree: Tree, at_s: float) -> Reading:
        told = _Told(self._watched, at_s)
        told.node(tree)
        jobs: dict[str, list[tuple[Member, Place | None]]] = {}
        for member in self._ranks.members(tree, at_s):
            where = told.rank(tree, member)
            jobs.setdefault(member.rank.job, []).append((member, where))
        levels: dict[Place, Level | None] = {}
        for job, members in jobs.items():
            told.job(tree, job, members, levels)
        self._watched = told.kept
        return Reading(told.samples, told.events)


class _Watched:
    """What is remembered of the node, a rank's process or a control group."""

    def __init__(self) -> None:
        self.growth = Growth()
        self.counters = CounterGroup({})
        self.stalls = {"some": Rate(), "full": Rate()}
        self.is_near = False


class _Told:
    """One look."""

    def __init__(self, before: dict[str, _Watched], at_s: float) -> None:
        self._before = before
        self._at_s = at_s
        self.kept: dict[str, _Watched] = {}
        self.samples: list[Sample] = []
        self.events: list[SourceEvent] = []

    def _watch(self, key: str) -> _Watched:
        self.kept[key] = watched = self._before.get(key) or _Watched()
        return watched

    def node(self, tree: Tree) -> None:
        """How fast the node's memory fills. Its use itself is told by the source ``host``."""
        try:
            total, available = memory(tree.read_text("proc/meminfo", 16_384))
        except OSError:
            return
        if total is not None and available is not None:
            watched = self._watch(HOST)
            watched.growth.add(self._at_s, total - available)
            self._forecast(HOST, watched, available, total, "the node's memory")

    def rank(self, tree: Tree, member: Member) -> Place | None:
        """Samples of a rank's own process and its helpers. Returns its control group."""
        entity, folder = member.entity, f"proc/{member.pid}"
        try:
            values = status(tree.read_text(f"{folder}/status", 16_384))
        except OSError as error:
            values = {metric: Count(None, reason(error)) for metric in _STATUS.values()}
        for metric, count in values.items():
            self.samples.append(Sample(entity, metric, count.value, count.quality))
        anon = values.get("anon_bytes", Count(None)).value
        if anon is not None:
            growth = self._watch(entity).growth
            growth.add(self._at_s, anon)
            self.samples.append(Sample(entity, "memory_growth_bytes_per_s", *growth.per_s()))
        if member.helpers:
            known = [size for pid in member.helpers if (size := own_bytes(tree, pid)) is not None]
            self.samples.append(Sample(entity, "helpers_count", len(member.helpers)))
            self.samples.append(Sample(entity, "helpers_own_bytes", sum(known)))
        try:
            return place_of(tree.read_text(f"{folder}/cgroup", 65_536))
        except OSError:
            return None

    def job(
        self,
        tree: Tree,
        job: str,
        members: list[tuple[Member, Place | None]],
        levels: dict[Place, Level | None],
    ) -> None:
        """Samples of the job's control group, and of those of single ranks that have a limit of their own."""
        whole = job_place(place for _, place in members if place is not None)
        above = whole.path if whole is not None else ""
        if whole is not None:
            own = narrowest(_levels(tree, whole.levels(), levels))
            if own is not None:
                self._group(tree, f"job/{job}", own, f"job {job}")
        for member, place in members:
            if place is None:
                continue
            below = narrowest(_levels(tree, place.levels(above), levels))
            if below is not None and below.limit.value is not None:
                self._group(tree, member.entity, below, f"rank {member.rank.rank} of job {job}")

    def _group(self, tree: Tree, entity: str, of: Level, who: str) -> None:
        # Apart from the rank's process, and anew where another group has become the narrowest.
        watched = self._watch(f"{entity} {of.place.path}")
        told = detail(tree, of)
        used, limit = of.used.value, of.limit.value
        share = used / limit if used is not None and limit else None
        no_share = of.limit.quality if limit is None else "no_limit" if not limit else of.used.quality
        self.samples += [
            Sample(entity, "cgroup_memory_used_bytes", used, of.used.quality),
            Sample(entity, "cgroup_memory_limit_bytes", limit, of.limit.quality),
            Sample(entity, "cgroup_memory_used_ratio", share, OK if share is not None else no_share),
            _sample(entity, "cgroup_memory_unreclaimable_bytes", told.unreclaimable),
            _sample(entity, "cgroup_swap_used_bytes", told.swap),
        ]
        self._stalls(entity, watched, told)
        self._kills(entity, watched, told, of.place, who)
        if told.unreclaimable.value is not None:
            watched.growth.add(self._at_s, told.unreclaimable.value)
            free = None if limit is None else limit - told.unreclaimable.value
            self._forecast(entity, watched, free, limit, f"the memory of {who}")

    def _stalls(self, entity: str, watched: _Watched, told: Detail) -> None:
        for share, stalled_us in told.stalled_us.items():
            value, quality = watched.stalls[share].update(stalled_us / 1e6, self._at_s)
            value = None if value is None else min(value, 1.0)
            self.samples.append(Sample(entity, f"cgroup_memory_pressure_{share}_ratio", value, quality))

    def _kills(self, entity: str, watched: _Watched, told: Detail, place: Place, who: str) -> None:
        counts = {f"cgroup_memory_{name}": count for name, count in told.events.items()}
        changes = watched.counters.update(counts, self._at_s)
        self.samples += samples(entity, watched.counters, counts, changes)
        change = changes.get("cgroup_memory_oom_kill")
        if change is not None and change.delta:
            text = f"the kernel killed {change.delta} processes of {who}: its control group is out of memory"
            attributes: dict[str, Attribute] = {"kills": change.delta, "cgroup": place.path[-256:]}
            self.events.append(
                SourceEvent(entity, "cgroup_oom_kill", text, "critical", attributes=attributes)
            )

    def _forecast(
        self, entity: str, watched: _Watched, free_bytes: int | None, limit_bytes: int | None, what: str
    ) -> None:
        """Growth, the time until the limit, and a warning while that is short."""
        growth = watched.growth
        if entity == HOST or entity.count("/") == 1:  # of a rank, that of its process is told
            self.samples.append(Sample(entity, "memory_growth_bytes_per_s", *growth.per_s()))
        left_s, quality = (None, UNLIMITED) if free_bytes is None else growth.full_in_s(free_bytes)
        self.samples.append(Sample(entity, "memory_full_in_s", left_s, quality))
        watched.is_near = left_s is not None and left_s < (FAR_S if watched.is_near else NEAR_S)
        if left_s is None or not watched.is_near:
            return
        text = f"{what} grows steadily and is full in about {left_s / 60:.0f} minutes"
        attributes: dict[str, Attribute] = {"limit_bytes": limit_bytes}
        severity: Severity = "critical" if left_s < CRITICAL_S else "warning"
        self.events.append(
            SourceEvent(entity, "memory_limit_near", text, severity, attributes=attributes, standing=True)
        )


def _levels(tree: Tree, places: Iterable[Place], known: dict[Place, Level | None]) -> Iterator[Level]:
    """Each group is read once a look: many ranks share those above their own."""
    for place in places:
        if place not in known:
            known[place] = level(tree, place)
        found = known[place]
        if found is not None:
            yield found


def _sample(entity: str, metric: str, count: Count) -> Sample:
    return Sample(entity, metric, count.value, count.quality)


def status(text: str) -> dict[str, Count]:
    """Metrics of /proc/PID/status, in bytes; what a kernel does not tell is absent, as all is of a zombie."""
    found = {}
    for line in text.splitlines()[:128]:
        name, _, rest = line.partition(":")
        metric = _STATUS.get(name)
        if metric is not None:
            count = parsed(rest.strip().removesuffix(" kB"))
            found[metric] = Count(None if count.value is None else count.value * 1_024, count.quality)
    return found


def memory(text: str) -> tuple[int | None, int | None]:
    """(total, available) bytes of proc/meminfo."""
    found = {}
    for line in text.splitlines()[:8]:
        name, _, rest = line.partition(":")
        count = parsed(rest.strip().removesuffix(" kB"))
        found[name] = None if count.value is None else count.value * 1_024
    return found.get("MemTotal"), found.get("MemAvailable")


def own_bytes(tree: Tree, pid: int) -> int | None:
    """A process's memory that is no file's and not shared; after a fork its parent's pages count, too."""
    try:
        words = tree.read_text(f"proc/{pid}/statm", 256).split()
    except OSError:
        return None
    counts = [parsed(word).value for word in words[1:3]]
    if len(counts) < 2 or counts[0] is None or counts[1] is None:
        return None
    return max(0, counts[0] - counts[1]) * _PAGE_BYTES
