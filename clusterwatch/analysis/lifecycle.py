"""Groups that were never made, made again or destroyed on some of their members only.

In: ``World`` and the roots found so far. Out: the same roots, with ``missing_rank`` told apart into
``stuck_in_init`` (the rank never created the communicator its peers use) and ``destroyed_on_one_side`` (it
had one and has none any more). Read from who lists a group in its pg_config; gloo dumps list none.
"""

from __future__ import annotations

import numpy as np

from clusterwatch.analysis.groups import Group, World
from clusterwatch.analysis.root import Root
from clusterwatch.analysis.sentence import noun
from collectors.formats.columns import NULL


def refine(world: World, roots: list[Root]) -> list[Root]:
    """Tells why the named rank lacks its peers' call. Cost: O(named ranks)."""
    for root in roots:
        group = root.group
        if (
            root.verdict != "missing_rank"
            or root.cause
            or group is None
            or not group.certain
            or not root.named
        ):
            continue
        if all(_destroyed(world, group, rank) for rank in root.named):
            root.verdict = "destroyed_on_one_side"
            verb = "has" if len(root.named) == 1 else "have"
            root.why.append(
                f"{noun(root.named)} took part in {group.name} earlier and {verb} no such group now"
            )
        elif all(_never_made(world, group, rank) for rank in root.named):
            root.verdict = "stuck_in_init"
            verb = "lists" if len(root.named) == 1 else "list"
            root.why.append(f"none of the dumps of {noun(root.named)} {verb} group {group.name}")
    return roots


def _lists(world: World, group: Group, rank: int) -> bool | None:
    """Whether the rank's pg_config names the group's members; None where its dump cannot tell."""
    window = world.windows.get(rank)
    if window is None or window.gloo or not group.rows.groups["told"][group.mine].any():
        return None
    if rank not in group.views:  # an older life of it is a group of that name too
        return any((told.name, told.desc) == (group.name, group.desc) for told in window.told_groups)
    if sum(told.name == group.name for told in window.told_groups) > 1:
        return None  # two local groups of one name share one line of pg_config
    row = group.views.row_of[rank]
    return bool(group.rows.groups["told"][row])


def _ran_before(group: Group) -> bool:
    """Some member has finished a call of it that needs all members."""
    return bool((group.rows.shared_end[group.mine] != NULL).any())


def _destroyed(world: World, group: Group, rank: int) -> bool:
    return _lists(world, group, rank) is False and (rank in group.views or _ran_before(group))


def _never_made(world: World, group: Group, rank: int) -> bool:
    return _lists(world, group, rank) is False and rank not in group.views and not _ran_before(group)


def unmade(world: World) -> list[Root]:
    """Groups that some members have made and others not, before anybody called: making one waits for all.

    Asked for only where nothing else is found. Cost: O(groups), O(members) per group that lacks some.
    """
    found = []
    for group in world.groups:
        if not group.certain or group.whole or len(group.mine) * 2 <= group.size:
            continue
        rows = group.rows.groups[group.mine]
        if np.any(rows["call_count"] > 0) or np.any(rows["p2p_count"] > 0):
            continue
        lacking = tuple(rank for rank in group.lacking if _never_made(world, group, rank))
        if lacking and len(lacking) == len(group.lacking):
            why = f"{noun(group.views)} have made group {group.name}; {noun(lacking)} not yet"
            found.append(Root("stuck_in_init", lacking, (), group, None, None, why=[why], certainty=0.4))
    return found
