"""Slurm's switch tree: below which leaf switch a node is.

In: topology.conf. Out: a switch's name. It is the rack as Slurm knows it: its nodes, not their ports.
Source: topology.conf(5).
"""

from __future__ import annotations

import re
from typing import Final

from collectors.sources import hostlist
from collectors.sources.tree import Tree

PATH: Final = "etc/slurm/topology.conf"
LINES_MAX: Final = 65_536
_NAME_MAX_CHARS: Final = 128
_PAIR: Final = re.compile(r"(\w+)\s*=\s*(\S+)")


def leaf_of(tree: Tree, host: str) -> str | None:
    """The leaf switch (or the block) of a host; None where nothing tells."""
    try:
        return leaf_in(tree.read_text(PATH), host)
    except OSError:
        return None


def leaf_in(text: str, host: str) -> str | None:
    """The same of a file's text. Keys in any case; a line may go on after a backslash."""
    for line in text.replace("\\\n", "").splitlines()[:LINES_MAX]:
        pairs = {key.lower(): value for key, value in _PAIR.findall(line.partition("#")[0])}
        name: str = pairs.get("switchname") or pairs.get("blockname") or ""
        if name.isprintable() and 0 < len(name) <= _NAME_MAX_CHARS and _holds(pairs.get("nodes", ""), host):
            return name
    return None


def _holds(nodes: str, host: str) -> bool:
    return nodes.upper() == "ALL" or hostlist.holds(nodes, host)
