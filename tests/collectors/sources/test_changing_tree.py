"""An hour of looks at a node whose devices come and go: what the sources remember does not grow."""

from __future__ import annotations

import gc
import shutil
import tracemalloc
from pathlib import Path

from collectors import sources
from collectors.sources.tree import Tree
from tests.collectors.sources.trees import full_node, write

LOOKS = 720
"""An hour at one look in 5 s of a shortened clock."""
GROWTH_MAX_BYTES = 50_000
PACKAGE = Path(sources.__file__).parents[1]


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


def held_bytes() -> int:
    """What the collectors' own lines hold; the interpreter's table of names grows by itself."""
    gc.collect()
    kept = tracemalloc.take_snapshot().filter_traces([tracemalloc.Filter(True, f"{PACKAGE}/*")])
    return sum(trace.size for trace in kept.traces)


def test_nothing_grows(tmp_path: Path) -> None:
    root = full_node(tmp_path)
    running = [sources.make(name) for name in sources.names()]
    tree = Tree(root)

    def look(first: int, last: int) -> None:
        for number in range(first, last):
            change(root, number)
            for source in running:
                source.read(tree, number * 5.0)

    tracemalloc.start()
    try:
        look(0, LOOKS // 4)
        before = held_bytes()
        look(LOOKS // 4, LOOKS)
        after = held_bytes()
    finally:
        tracemalloc.stop()
    assert before > 0
    assert after - before < GROWTH_MAX_BYTES
