"""`clusterwatch status`: one table of the processes. Exit code 0 when all is ready, else 1."""

from __future__ import annotations

import argparse
import dataclasses
import json

from clusterwatch.ops.state import StateFolder
from clusterwatch.ops.status import UP_STATES, read_status, table
from clusterwatch.project import environment


def add_parser(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Adds the command's arguments."""
    parser = subparsers.add_parser("status", description=__doc__)
    parser.add_argument("--json", action="store_true", help="machine-readable")
    parser.set_defaults(command="status")


def run(args: argparse.Namespace) -> int:
    """Prints the table."""
    phase, rows = read_status(StateFolder(environment.state_dir()))
    if args.json:
        print(json.dumps({"phase": phase, "processes": [dataclasses.asdict(row) for row in rows]}))
    else:
        print(f"clusterwatch is {phase} ({environment.state_dir()})")
        if rows:
            print(table(rows))
    return 0 if phase == "ready" and all(row.state in UP_STATES for row in rows) else 1
