"""`clusterwatch distribute`: spreads node-keyed tables over several PostgreSQL machines with Citus."""

from __future__ import annotations

import argparse

from clusterwatch.cli.database import use_database
from clusterwatch.ops.errors import OpsError

SHARDS_MAX = 1024


def add_parser(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Adds the command's arguments."""
    parser = subparsers.add_parser(
        "distribute",
        description=f"{__doc__} Run it on the coordinator after `citus_add_node`; running it again is safe.",
    )
    parser.add_argument(
        "--shards", type=int, default=32, metavar="N", help="shards of each table (default 32)"
    )


def run(arguments: argparse.Namespace) -> int:
    """Places the tables and says what became of each."""
    if not 1 <= arguments.shards <= SHARDS_MAX:
        raise OpsError(f"--shards must lie between 1 and {SHARDS_MAX}")
    use_database()
    from django.db import Error

    from clusterwatch.store import distribution

    try:
        for placed in distribution.distribute(arguments.shards):
            print(f"{placed.table:<14}{placed.how}{'' if placed.new else ' (already)'}", flush=True)
    except distribution.CannotDistribute as fault:
        raise OpsError(str(fault)) from fault
    except Error as fault:
        reason = str(fault).strip().splitlines()[0]
        raise OpsError(f"the database refused ({reason}); what was placed stays so: run it again") from fault
    return 0
