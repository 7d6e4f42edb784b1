"""`clusterwatch status`: one table of the processes. Exit code 0 when all is ready, else 1."""

from __future__ import annotations

import argparse
import dataclasses
import json
import os

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
        if phase == "ready" and (words := _storing_words()):
            print(words)
        print(f"clusterwatch is {phase} ({environment.state_dir()})")
        if rows:
            print(table(rows))
    return 0 if phase == "ready" and all(row.state in UP_STATES for row in rows) else 1


def _storing_words() -> str:
    """What the gateways say when they cannot store; empty when they can, or when nobody can be asked."""
    os.environ.setdefault("DJANGO_SETTINGS_MODULE", "clusterwatch.project.settings")
    # Only here: the command starts without Django, which would cost it a second.
    import redis

    from clusterwatch.store import gateway_notes

    try:
        return gateway_notes.storing_words(gateway_notes.read())
    except (redis.RedisError, environment.EnvironmentFault):
        return ""
