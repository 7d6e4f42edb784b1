"""Members of groups whose dumps do not name them (gloo), by the shape of the sibling groups.

In: ``Group`` objects, some of whose members are only those that recorded a call. They are enlarged in place.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence

from clusterwatch.analysis.group import Group


def is_world(name: str, desc: str) -> bool:
    return desc == "default_pg" or (name == "0" and not desc)


def by_role(groups: Iterable[Group]) -> dict[str, list[Group]]:
    roles: dict[str, list[Group]] = defaultdict(list)
    for group in groups:
        roles[group.role].append(group)
    return roles


def lone_rank(groups: Sequence[Group], told: int) -> int:
    """World size when the last ranks left no dump and nothing told it.

    gloo dumps name no member. A group that only one rank recorded has at least one member more; if every
    rank below ``told`` is taken in that role, that member is the next rank.
    """
    alone = {group.role for group in groups if not group.certain and group.size == 1}
    for role, siblings in by_role(groups).items() if alone else ():
        taken = {rank for group in siblings for rank in group.members}
        if role in alone and len(siblings) > 1 and taken >= set(range(told)):
            return told + 1
    return told


def complete(groups: Sequence[Group], size: int) -> None:
    """Adds members that recorded nothing, by the shape of the sibling groups.

    A role divides the world into groups of one size. Where one group is too small by as many members as there
    are ranks without a group, those ranks are its members; where several are, the one whose spacing fits.
    """
    if all(group.certain for group in groups):
        return
    for siblings in by_role(groups).values():
        loose = [g for g in siblings if not g.certain]
        if not loose or len(siblings) < 2:
            continue
        usual = usual_size(siblings)
        taken = {rank for g in siblings for rank in g.members}
        free = [rank for rank in range(size) if rank not in taken]
        short = [g for g in loose if len(g.members) < usual]
        forms = {_shape(g.members) for g in siblings if len(g.members) == usual}
        for group in short:
            added = _fitting(group.members, free, usual, forms, only=len(short) == 1)
            group.enlarge((*group.members, *added))
            free = [rank for rank in free if rank not in added]


def usual_size(groups: list[Group]) -> int:
    """The size most groups of a role have; the larger one on a tie, since members can only be missing."""
    sizes = Counter(len(g.members) for g in groups)
    return max(sizes, key=lambda size: (sizes[size], size))


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
