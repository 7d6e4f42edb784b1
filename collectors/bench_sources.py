"""What each source costs on a node of 8 GPUs and 8 RDMA ports: processor time a look and part of a core.

A recorded node is replayed at speed, each source at its own period of a clock that is only counted. Files
of a tree on disk cost about what those of sysfs cost; the driver's own time is not in these figures.
"""

from __future__ import annotations

import tempfile
import time
from pathlib import Path
from typing import Final

from collectors import bench_node, sources
from collectors.sources.tree import Tree

LOOKS: Final = 20
"""Twice what the slowest part of a source waits, in periods of a second."""


class Replayed(Tree):
    """A recorded tree that is looked at as a machine is: what is read rarely there is read rarely here.

    But no kernel is asked: what only the live machine can tell is not part of it.
    """

    @property
    def is_paced(self) -> bool:
        return True

    def path(self, name: str) -> str:
        """Links of a machine's own files are not followed by hand."""
        return self._prefix + name


def measure() -> dict[str, dict[str, float]]:
    """Source -> microseconds of processor time a look, part of a core at its period, values a look."""
    with tempfile.TemporaryDirectory(prefix="cw-bench-node-") as folder:
        trees = []
        for step in range(LOOKS + 1):
            root = Path(folder) / str(step)
            bench_node.write(root, 1_000 + step)
            trees.append(Replayed(root))
        return {name: _of(name, trees) for name in sources.names()}


def _of(name: str, trees: list[Replayed]) -> dict[str, float]:
    source = sources.make(name)
    source.read(trees[0], 0.0)
    began_s, values = time.process_time(), 0
    for look in range(1, LOOKS + 1):
        values = len(source.read(trees[look], look * source.period_s).samples)
    look_s = (time.process_time() - began_s) / LOOKS
    return {
        "look_us": round(look_s * 1e6, 1),
        "core_ratio": round(look_s / source.period_s, 6),
        "values_count": values,
    }
