"""``clusterwatch analyze PATH``: the verdict on flight-recorder dumps. Needs no server and no Django.

Exit codes: 0 no fault, 1 slow, 2 hang or crash, 3 unknown, 64 wrong usage, 66 no such input.
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from typing import Final

from clusterwatch.analysis import Observation, diagnose, exit_code
from clusterwatch.analysis.model import RankFacts, RankStacks, StackThread
from clusterwatch.analysis.overview import overview
from clusterwatch.analysis.stacks import RECORDER
from clusterwatch.analysis.window import reduce
from clusterwatch.cli.report import text
from clusterwatch.readers import folder, topology
from collectors.formats.columns import from_trace
from collectors.formats.trace import RankTrace

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
    parser.set_defaults(command="analyze", run=run)


def run(args: argparse.Namespace) -> int:
    """Reads, judges, prints. Returns the exit code of the verdict."""
    if args.world_size is not None and args.world_size < 1:
        print("clusterwatch: --world-size must be at least 1", file=sys.stderr)
        return EXIT_USAGE
    facts: dict[int, RankFacts] = {}
    try:
        if args.topology is not None:
            facts = topology.read(args.topology)
        found = folder.read(args.path, _progress())
    except topology.TopologyError as error:
        print(f"clusterwatch: --topology {error}", file=sys.stderr)
        return EXIT_NO_INPUT
    except FileNotFoundError:
        print(f"clusterwatch: there is nothing at {args.path}", file=sys.stderr)
        return EXIT_NO_INPUT
    except OSError as error:
        print(f"clusterwatch: {args.path} cannot be read: {error.strerror}", file=sys.stderr)
        return EXIT_NO_INPUT
    diagnosis = diagnose(
        Observation(
            traces=found.traces,
            stacks=tuple(_recorded_stacks(found.traces)),
            facts=facts,
            world_size=args.world_size,
            problems=found.problems,
        )
    )
    if args.json:
        print(json.dumps(diagnosis.to_dict(), ensure_ascii=False))
    else:
        view = overview([reduce(from_trace(trace)) for trace in found.traces], diagnosis)
        print("\n".join(text.report(diagnosis, view, text.style_of(sys.stdout), args.stacks)))
    worst = diagnosis.worst
    return exit_code(worst.verdict, worst.fault_class, worst.severity)


def _recorded_stacks(traces: tuple[RankTrace, ...]) -> list[RankStacks]:
    """The stack of each rank's newest call, as the recorder took it when the call was issued."""
    found = []
    for trace in traces:
        frames = trace.entries.frames[-1] if trace.entries.frames else ()
        if frames:
            thread = StackThread("main", tuple(reversed(frames)), main=True)
            found.append(RankStacks(trace.rank, RECORDER, (thread,)))
    return found


def _progress() -> folder.Progress | None:
    """A counter on the terminal; nothing when the output goes to a file."""
    if not sys.stderr.isatty():
        return None

    def show(done: int, total: int) -> None:
        if done == total:
            print("\r\033[K", end="", file=sys.stderr, flush=True)
        elif done % 64 == 0:
            print(f"\rreading {done} of {total} dumps", end="", file=sys.stderr, flush=True)

    return show
