"""An hour of looks at a node whose devices come and go: what the sources remember does not grow."""

from __future__ import annotations

import gc
import shutil
import sys
from pathlib import Path

from collectors import sources
from collectors.sources.tree import Tree
from tests.collectors.sources.trees import full_node, write

LOOKS = 160
APART_S = 22.5
"""Together an hour of a shortened clock."""
GROWTH_MAX_BLOCKS = 100
"""One thing kept at each look would be 120 and more."""


def change(root: Path, number: int) -> None:
    """A counter that moves, a device that comes and goes under ever new names, log lines, a job."""
    write(root, {"sys/class/infiniband/mlx5_0/ports/1/counters/port_xmit_data": f"{1_000 + number * 7}\n"})
    shutil.rmtree(root / f"sys/class/net/eth{number - 1}", ignore_errors=True)
    write(
        root,
        {
            f"sys/class/net/eth{number}/device": "../0000:70:00.0",
            f"sys/class/net/eth{number}/carrier_changes": f"{number}\n",
            "dev/kmsg": "".join(
                f"6,{n},{n * 1_000_000},-;usb 1-1: event {n}\n" for n in range(number, number + 50)
            ),
            "proc/4000/environ": b"RANK=0\0LOCAL_RANK=0\0SLURM_JOB_ID=%d\0" % number,
        },
    )


def held_blocks() -> int:
    """Pieces of memory that are held; counting them costs nothing, following each does."""
    gc.collect()
    return sys.getallocatedblocks()


def test_nothing_grows(tmp_path: Path) -> None:
    root = full_node(tmp_path)
    running = [sources.make(name) for name in sources.names()]
    tree = Tree(root)

    def look(first: int, last: int) -> None:
        for number in range(first, last):
            change(root, number)
            for source in running:
                source.read(tree, number * APART_S)

    look(0, LOOKS // 4)
    before = held_blocks()
    look(LOOKS // 4, LOOKS)
    assert held_blocks() - before < GROWTH_MAX_BLOCKS
