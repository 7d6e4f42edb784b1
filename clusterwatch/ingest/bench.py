"""``clusterwatch bench ingest``: what a gateway costs, against a baseline taken in the same run.

Uses the configured PostgreSQL server, in a database of its own that it makes and drops; hot state is not
touched. Needs a role that may create databases (the embedded server's may).
"""

from __future__ import annotations

import argparse
import os
from typing import Any

import django


def run(argv: list[str]) -> dict[str, Any]:
    """Measures and returns the figures; the names end in their units."""
    parser = argparse.ArgumentParser(prog="clusterwatch bench ingest", description=__doc__)
    parser.add_argument("--nodes", type=int, default=512, help="nodes of 8 GPUs (the cluster has 3072)")
    parser.add_argument("--seconds", type=int, default=5, help="hot frames per node")
    parser.add_argument("--records", type=int, default=20_000, help="events to commit")
    arguments = parser.parse_args(argv)
    os.environ.setdefault("DJANGO_SETTINGS_MODULE", "clusterwatch.project.settings")
    django.setup()
    # Models may be imported only after django.setup().
    from clusterwatch.ingest import measure

    return {
        "bench": "ingest",
        "nodes": arguments.nodes,
        **measure.hot_frames(arguments.nodes, arguments.seconds),
        **measure.commits(arguments.nodes, arguments.records),
    }
