"""Process groups of a job, put together from what every dump says of them.

In: ``Observation``. Out: ``Group`` per (name, description, members), each with the ``View`` of every member
that left a dump. Members come from the hook, else from pg_config, else from who recorded the group (gloo).
Never keyed by pg_id, which is a process's own counter.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from clusterwatch.analysis.columns import View, views_of
from clusterwatch.analysis.model import GroupRef, KnownGroup, Observation
from collectors.formats.trace import RankTrace, TraceGroup

GroupKey = tuple[str, str, tuple[int, ...]]


@dataclass(slots=True, eq=False)
class Group:
    """One process group. ``members`` in the order of group ranks where a dump or the hook says it."""

    name: str
    desc: str
    members: tuple[int, ...]
    certain: bool
    """members are told, not inferred from who recorded the group"""
    views: dict[int, View] = field(default_factory=dict)
    ordered: tuple[int, ...] = field(init=False)
    """members, rising"""

    def __post_init__(self) -> None:
        self.ordered = tuple(sorted(self.members))

    def enlarge(self, members: tuple[int, ...]) -> None:
        """Takes ``members`` for the group's, once more of them are known."""
        self.members = self.ordered = tuple(sorted(members))

    @property
    def ref(self) -> GroupRef:
        return GroupRef(self.name, self.desc, self.ordered)

    @property
    def key(self) -> GroupKey:
        return (self.name, self.desc, self.ordered)

    @property
    def role(self) -> str:
        """What siblings share: the description, or the name where there is none."""
        return self.desc or self.name

    @property
    def high(self) -> int | None:
        return max((v.high for v in self.views.values() if v.high is not None), default=None)


@dataclass(slots=True)
class World:
    """All groups and dumps of one observation."""

    size: int
    groups: list[Group]
    """sorted by key, so that no answer depends on the order of files"""
    traces: dict[int, RankTrace]
    no_dump: tuple[int, ...]
    """ranks of the world that left no dump"""

    def groups_of(self, rank: int) -> list[Group]:
        return [group for group in self.groups if rank in group.views]


def _is_world(name: str, desc: str) -> bool:
    return desc == "default_pg" or (name == "0" and not desc)


Traces = Mapping[int, RankTrace]


def newest(traces: Iterable[RankTrace]) -> dict[int, RankTrace]:
    """One dump per rank: the newest by its newest call, then by content, never by order."""
    chosen: dict[int, RankTrace] = {}
    for trace in traces:
        kept = chosen.get(trace.rank)
        if kept is None or _age_key(trace) > _age_key(kept):
            chosen[trace.rank] = trace
    return dict(sorted(chosen.items()))


def _age_key(trace: RankTrace) -> tuple[int, int, int, str]:
    return (trace.taken_ns or 0, trace.newest_ns or 0, len(trace.entries), trace.source)


def build(observation: Observation) -> World:
    """Groups, members and views. Cost: O(entries + sum of group sizes)."""
    traces = newest(observation.traces)
    told = _told_size(observation, traces)
    known: dict[tuple[str, int], list[KnownGroup]] = defaultdict(list)
    for group in observation.groups:
        for rank in group.ranks:
            known[(group.name, rank)].append(group)
    groups: dict[GroupKey, Group] = {}
    sorted_lists: dict[int, tuple[int, ...]] = {}
    loose: dict[tuple[str, str], dict[int, View]] = defaultdict(dict)
    for rank, trace in traces.items():
        views = views_of(trace)
        for index, told_group in enumerate(trace.groups):
            view = views.get(index) or View(rank, trace, index)
            members = _members(told_group, rank, known)
            if members:  # ranks of a job share one list, read once: it is sorted once too
                ordered = sorted_lists.setdefault(id(members), ()) or tuple(sorted(members))
                sorted_lists[id(members)] = ordered
                _join(groups, told_group, members, ordered, view)
            elif index in views:
                loose[(told_group.name, told_group.desc)][rank] = view
    _settle(groups, loose, range(told))
    size = observation.world_size or max(told, _lone_rank(groups, told))
    for placed in groups.values():
        if _is_world(placed.name, placed.desc) and len(placed.members) == told < size:
            placed.enlarge(tuple(range(size)))
    _complete(list(groups.values()), size)
    silent = tuple(rank for rank in range(size) if rank not in traces)
    return World(size, sorted(groups.values(), key=lambda g: g.key), traces, silent)


def _told_size(observation: Observation, traces: dict[int, RankTrace]) -> int:
    if observation.world_size is not None:
        return observation.world_size
    lists = {id(group.ranks): group.ranks for trace in traces.values() for group in trace.groups}
    lists |= {id(known.ranks): known.ranks for known in observation.groups}
    highest = max((max(ranks) for ranks in lists.values() if ranks), default=-1)
    return max(highest, *traces, *observation.facts, -1) + 1


def _members(group: TraceGroup, rank: int, known: dict[tuple[str, int], list[KnownGroup]]) -> tuple[int, ...]:
    same = [k for k in known.get((group.name, rank), ()) if k.desc == group.desc or not k.desc]
    if len(same) == 1:
        return same[0].ranks
    return group.ranks


def _join(
    groups: dict[GroupKey, Group],
    told: TraceGroup,
    members: tuple[int, ...],
    ordered: tuple[int, ...],
    view: View,
) -> None:
    key = (told.name, told.desc, ordered)
    group = groups.get(key)
    if group is None:
        group = groups[key] = Group(told.name, told.desc, members, certain=True)
    kept = group.views.get(view.rank)
    if kept is None or (kept.high or 0) <= (view.high or 0):  # a re-created group: its newest life counts
        group.views[view.rank] = view


def _settle(
    groups: dict[GroupKey, Group],
    loose: dict[tuple[str, str], dict[int, View]],
    world: range,
) -> None:
    """Places views whose dump did not tell the members."""
    for (name, desc), views in sorted(loose.items()):
        named = [g for (n, d, _), g in groups.items() if (n, d) == (name, desc)]
        for rank in list(views):
            fitting = [g for g in named if rank in g.members]
            if len(fitting) == 1:
                fitting[0].views[rank] = views.pop(rank)
        if not views:
            continue
        whole = _is_world(name, desc)
        members = tuple(world) if whole else tuple(sorted(views))
        group = Group(name, desc, members, certain=whole, views=dict(sorted(views.items())))
        groups[group.key] = group


def _by_role(groups: Iterable[Group]) -> dict[str, list[Group]]:
    roles: dict[str, list[Group]] = defaultdict(list)
    for group in groups:
        roles[group.role].append(group)
    return roles


def _usual_size(groups: list[Group]) -> int:
    """The size most groups of a role have; the larger one on a tie, since members can only be missing."""
    sizes = Counter(len(g.members) for g in groups)
    return max(sizes, key=lambda size: (sizes[size], size))


def _lone_rank(groups: dict[GroupKey, Group], told: int) -> int:
    """World size when the last ranks left no dump and nothing told it.

    gloo dumps name no member. A group that only one rank recorded has at least one member more; if every
    rank below ``told`` is taken in that role, that member is the next rank.
    """
    for group in groups.values():
        if group.certain or len(group.members) > 1:
            continue
        siblings = [g for g in groups.values() if g.role == group.role]
        taken = {rank for g in siblings for rank in g.members}
        if len(siblings) > 1 and taken >= set(range(told)):
            return told + 1
    return told


def _complete(groups: list[Group], size: int) -> None:
    """Adds members that recorded nothing, by the shape of the sibling groups.

    A role divides the world into groups of one size. Where one group is too small by as many members as there
    are ranks without a group, those ranks are its members; where several are, the one whose spacing fits.
    """
    for siblings in _by_role(groups).values():
        loose = [g for g in siblings if not g.certain]
        if not loose or len(siblings) < 2:
            continue
        usual = _usual_size(siblings)
        taken = {rank for g in siblings for rank in g.members}
        free = [rank for rank in range(size) if rank not in taken]
        short = [g for g in loose if len(g.members) < usual]
        shapes = {_shape(g.members) for g in siblings if len(g.members) == usual}
        for group in short:
            added = _fitting(group.members, free, usual, shapes, only=len(short) == 1)
            group.enlarge((*group.members, *added))
            free = [rank for rank in free if rank not in added]


def _shape(members: tuple[int, ...]) -> tuple[int, ...]:
    first = min(members)
    return tuple(sorted(rank - first for rank in members))


def _fitting(
    members: tuple[int, ...], free: list[int], usual: int, shapes: set[tuple[int, ...]], only: bool
) -> tuple[int, ...]:
    lacking = usual - len(members)
    if only and len(free) == lacking:
        return tuple(free)
    if lacking != 1:
        return ()
    fits = [rank for rank in free if _shape((*members, rank)) in shapes]
    return (fits[0],) if len(fits) == 1 else ()
