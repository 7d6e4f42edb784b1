"""``clusterwatch analyze PATH``: the verdict on flight-recorder dumps. Needs no server and no Django.

Exit codes: 0 no fault, 1 slow, 2 hang or crash, 3 unknown, 64 wrong usage, 66 no such input.
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from typing import Final

from clusterwatch.analysis import Diagnosis, diagnose, exit_code
from clusterwatch.analysis.overview import Overview, overview
from clusterwatch.cli import analyze_input
from clusterwatch.cli.report import html, outputs, text

EXIT_USAGE: Final = 64
EXIT_NO_INPUT: Final = 66


def add_parser(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Adds the command's arguments."""
    parser = subparsers.add_parser("analyze", description=__doc__)
    parser.add_argument(
        "path", type=Path, metavar="PATH", help="a dump, a folder of dumps, or an archive of them"
    )
    parser.add_argument("--json", action="store_true", help="print the whole diagnosis as one JSON object")
    parser.add_argument(
        "--topology", type=Path, metavar="FILE", help="topology.json: host and GPU of each rank"
    )
    parser.add_argument(
        "--world-size", type=int, metavar="N", help="ranks the job should have, where dumps lack"
    )
    parser.add_argument(
        "--stacks", action="store_true", help="also print the merged stacks of the open calls"
    )
    parser.add_argument(
        "--html", type=Path, metavar="FILE", help="also write one self-contained page to send to a colleague"
    )
    parser.set_defaults(command="analyze", run=run)


def run(args: argparse.Namespace) -> int:
    """Reads, judges, prints. Returns the exit code of the verdict."""
    if args.world_size is not None and args.world_size < 1:
        print("clusterwatch: --world-size must be at least 1", file=sys.stderr)
        return EXIT_USAGE
    try:
        observation = analyze_input.gather(args.path, args.topology, args.world_size)
    except analyze_input.NoInputError as error:
        print(f"clusterwatch: {error}", file=sys.stderr)
        return EXIT_NO_INPUT
    diagnosis = diagnose(observation)
    view = overview(observation.windows, diagnosis)
    if args.json:
        print(json.dumps(diagnosis.to_dict(), ensure_ascii=False))
    else:
        print("\n".join(text.report(diagnosis, view, text.style_of(sys.stdout), args.stacks)))
    worst = diagnosis.worst
    return _write_files(args, diagnosis, view) or exit_code(worst.verdict, worst.fault_class, worst.severity)


def _write_files(args: argparse.Namespace, diagnosis: Diagnosis, view: Overview) -> int:
    """What was asked for beside the answer. Returns 0, or the exit code of the first file that failed."""
    codes = []
    if args.html is not None:
        page = html.page(diagnosis, view, args.path.resolve().name)
        codes.append(outputs.write(args.html, lambda file: file.write(page.encode())))
    return next((code for code in codes if code), 0)
