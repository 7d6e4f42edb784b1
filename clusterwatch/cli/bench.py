"""`clusterwatch bench NAME`: measures one part; the last line is one JSON object of figures."""

from __future__ import annotations

import argparse
import importlib
import importlib.util
import json
import sys
from collections.abc import Callable
from typing import Any, Final

EXIT_USAGE: Final = 64

REGISTRY = {
    "analyze": "clusterwatch.cli.benches.analyze:run",
    "ingest": "clusterwatch.cli.benches.ingest:run",
    "store": "clusterwatch.cli.benches.store:run",
    "query": "clusterwatch.cli.benches.query:run",
    "detect": "clusterwatch.cli.benches.detect:run",
    "live": "clusterwatch.cli.benches.live:run",
    "web": "clusterwatch.cli.benches.web:run",
    "agent": "collectors.bench:run",
    "overhead": "collectors.hook.bench:run",
}
"""Name -> `module:function`. The function takes the arguments after NAME and returns its figures."""


def add_parser(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Adds the command's arguments."""
    parser = subparsers.add_parser("bench", description=__doc__)
    parser.add_argument("name", metavar="NAME", help=", ".join(available()))
    parser.add_argument("arguments", nargs=argparse.REMAINDER, help="arguments of that measurement")
    parser.set_defaults(command="bench")


def available() -> list[str]:
    """The measurements of this installation."""
    return [name for name, target in REGISTRY.items() if _exists(target.partition(":")[0])]


def run(args: argparse.Namespace) -> int:
    """Runs one measurement and prints its figures as the last line."""
    if args.name not in available():
        print(
            f"clusterwatch: there is no bench {args.name!r}; there are: {', '.join(available())}",
            file=sys.stderr,
        )
        return EXIT_USAGE
    module, _, function = REGISTRY[args.name].partition(":")
    measure: Callable[[list[str]], dict[str, Any]] = getattr(importlib.import_module(module), function)
    print(json.dumps(measure(args.arguments)), flush=True)
    return 0


def _exists(module: str) -> bool:
    """Whether a module can be found, its parents included, without importing the module itself."""
    parent = module.rpartition(".")[0]
    if "." in parent and not _exists(parent):
        return False
    return importlib.util.find_spec(module) is not None
