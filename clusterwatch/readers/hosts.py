"""The host of each rank, where paths of dumps tell it: ``..._rank_<host>_<rank>``, or a folder per node.

In: paths and ranks of one job's dumps. Out: host by rank, or nothing. A wrong host costs more than none, so a
folder counts as a host only where every folder of its level does: blocks of ranks, one in each.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Mapping
from typing import Final

from clusterwatch.readers.names import PARTS

RANKS_PER_HOST_MAX: Final = 128
"""More ranks share no operating system in any machine built so far."""
_BETWEEN: Final = re.compile(
    r"rank[_-](?P<host>[A-Za-z0-9][A-Za-z0-9.-]*)[_-](?P<rank>\d{1,7})(?:\.[a-z]+)*$"
)
_NO_HOST: Final = re.compile(
    r"^(?:\d+|(?:rank|attempt|run|job|dump|dumps|trial|step|iter|part|round|restart|log|logs)[_-]?\d*)$", re.I
)


def of(dumps: Mapping[str, int]) -> dict[int, str]:
    """Host by rank, for all ranks or for none.

    Args:
        dumps: path of each dump below the input -> its rank.
    """
    return _between(dumps) or _folders(dumps)


def _between(dumps: Mapping[str, int]) -> dict[int, str]:
    found = {}
    for name, rank in dumps.items():
        match = _BETWEEN.search(PARTS.split(name)[-1])
        if match is None or int(match["rank"]) != rank or not re.search(r"[A-Za-z]", match["host"]):
            return {}
        found[rank] = match["host"]
    return found if _in_pieces(found) else {}


def _folders(dumps: Mapping[str, int]) -> dict[int, str]:
    paths = {rank: PARTS.split(name)[:-1] for name, rank in dumps.items()}
    depth = min(map(len, paths.values()), default=0)
    for level in range(depth):
        found = {rank: path[level] for rank, path in paths.items()}
        if not any(map(_NO_HOST.match, found.values())) and _in_pieces(found):
            return found
    return {}


def _in_pieces(hosts: Mapping[int, str]) -> bool:
    """Whether ranks lie on several hosts in blocks of one size, one each; some may have left no dump."""
    ranks: dict[str, list[int]] = defaultdict(list)
    for rank, host in hosts.items():
        ranks[host].append(rank)
    most = max(map(len, ranks.values()), default=0)
    if len(ranks) < 2 or not 2 <= most <= RANKS_PER_HOST_MAX:
        return False
    for size in range(most, 2 * most):
        blocks = [{rank // size for rank in of_host} for of_host in ranks.values()]
        if all(len(block) == 1 for block in blocks) and len(set.union(*blocks)) == len(blocks):
            return True
    return False
