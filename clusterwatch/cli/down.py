"""`clusterwatch down`: stops everything that `up` started on this state folder, also after a crash."""

from __future__ import annotations

import argparse

from clusterwatch.ops.state import StateFolder
from clusterwatch.ops.up import stop_running
from clusterwatch.project import environment


def add_parser(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Adds the command."""
    subparsers.add_parser("down", description=__doc__).set_defaults(command="down")


def run(args: argparse.Namespace) -> int:
    """Stops it; nothing to stop is fine."""
    root = environment.state_dir()
    stopped_count = stop_running(StateFolder.open(root)) if root.exists() else 0
    print("Stopped." if stopped_count else "Nothing runs here.")
    return 0
