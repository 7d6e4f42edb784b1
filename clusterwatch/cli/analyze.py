"""``clusterwatch analyze PATH``: the verdict on flight-recorder dumps. Needs no server and no Django.

Exit codes: 0 no fault, 1 slow, 2 hang or crash, 3 unknown, 64 wrong usage, 66 no such input.
"""

from __future__ import annotations

import argparse
import io
import json
import re
import sys
from dataclasses import replace
from pathlib import Path
from typing import Final

from clusterwatch.analysis import Diagnosis, Observation, diagnose, exit_code
from clusterwatch.analysis.overview import Overview, overview
from clusterwatch.cli.progress import Bar
from clusterwatch.cli.report import html, known_bugs, outputs, perfetto, text
from clusterwatch.readers import folder, inputs, topology
from clusterwatch.readers.observation import FormatError, NoInputError, observe
from collectors.wire.limits import RANKS_PER_GROUP_MAX

EXIT_USAGE: Final = 64
EXIT_NO_INPUT: Final = 66


def add_parser(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Adds the command's arguments."""
    parser = subparsers.add_parser("analyze", prog="clusterwatch analyze", description=__doc__)
    parser.add_argument(
        "path", type=_path, metavar="PATH", help="a dump, a folder of dumps, or an archive of them"
    )
    parser.add_argument("--json", action="store_true", help="print the whole diagnosis as one JSON object")
    parser.add_argument(
        "--topology", type=_path, metavar="FILE", help=f"host and GPU of each rank: {topology.EXAMPLE}"
    )
    parser.add_argument(
        "--world-size", type=int, metavar="N", help="ranks the job should have, where dumps lack"
    )
    parser.add_argument(
        "--stacks", action="store_true", help="also print the merged stacks of the open calls"
    )
    parser.add_argument(
        "--html", type=_path, metavar="FILE", help="also write one self-contained page to send to a colleague"
    )
    parser.add_argument(
        "--perfetto", type=_path, metavar="FILE",
        help="also write the calls as a trace for ui.perfetto.dev; gzipped when FILE ends in .gz",
    )  # fmt: skip
    parser.add_argument(
        "--perfetto-ranks", type=_ranks, metavar="RANKS",
        help="ranks of that trace, as 0-7,12; default: who is named and their groups, at most 64",
    )  # fmt: skip
    parser.set_defaults(command="analyze", run=run)


def run(args: argparse.Namespace) -> int:
    """Reads, judges, prints. Returns the exit code of the verdict."""
    if args.world_size is not None and not 1 <= args.world_size <= RANKS_PER_GROUP_MAX:
        print(f"clusterwatch: --world-size must be 1 to {RANKS_PER_GROUP_MAX}", file=sys.stderr)
        return EXIT_USAGE
    if (fault := _wrong_targets(args)) is not None:
        print(f"clusterwatch: {fault}", file=sys.stderr)
        return EXIT_USAGE
    try:
        with Bar(sys.stderr) as bar:
            show = bar.show if bar.visible else None
            observation = observe(args.path, args.topology, args.world_size, show)
    except NoInputError as error:
        print(f"clusterwatch: {error}", file=sys.stderr)
        return EXIT_USAGE if isinstance(error, FormatError) else EXIT_NO_INPUT
    diagnosis = diagnose(observation)
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(
            errors="replace"
        )  # a terminal that knows no such letter still gets the verdict
    worst = diagnosis.worst
    code = exit_code(worst.verdict, worst.fault_class, worst.severity)
    bugs = known_bugs.of(observation, diagnosis)
    if args.json:
        answer = diagnosis.to_dict() | ({} if bugs is None else {"known_bugs": bugs.to_dict()})
        print(json.dumps(answer, ensure_ascii=False))
        if args.html is None and args.perfetto is None:
            return code
    view = _view(observation, diagnosis)
    if not args.json:
        told = text.report(diagnosis, view, text.style_of(sys.stdout), args.stacks)
        print("\n".join([*told, *known_bugs.lines(bugs, text.style_of(sys.stdout).width)]))
    return _write_files(args, observation, diagnosis, view) or code


def _wrong_targets(args: argparse.Namespace) -> str | None:
    """Why the files that were asked for cannot be written, or None. An input is never written over."""
    if args.html is not None and args.perfetto is not None and args.html.resolve() == args.perfetto.resolve():
        return f"--html and --perfetto both name {args.html}"
    if args.perfetto_ranks is not None and args.perfetto is None:
        return "--perfetto-ranks needs --perfetto FILE"
    for option, target in (("--html", args.html), ("--perfetto", args.perfetto)):
        if target is None:
            continue
        if str(target) == "-":
            return f"{option} needs the name of a file; - is none"
        if target.exists() and (
            inputs.is_input(args.path, target)
            or (args.topology is not None and args.topology.resolve() == target.resolve())
        ):
            return f"{option} {target} is one of the files to analyze: it is not written over"
    return None


def _view(observation: Observation, diagnosis: Diagnosis) -> Overview:
    """The groups and calls of the job; of dumps without ranks only how new they are."""
    if not observation.unranked:
        return overview(observation.windows, diagnosis)
    newest = max((w.newest_ns for w in observation.windows if w.newest_ns is not None), default=None)
    return replace(overview((), diagnosis), newest_ns=newest)


def _write_files(
    args: argparse.Namespace, observation: Observation, diagnosis: Diagnosis, view: Overview
) -> int:
    """What was asked for beside the answer. Returns 0, or the exit code of the first file that failed."""
    name, codes = args.path.resolve().name or str(args.path), []
    if args.html is not None:
        page = html.page(diagnosis, view, name).encode()
        codes.append(outputs.write(args.html, lambda file: file.write(page)))
    if args.perfetto is not None:
        windows = () if observation.unranked else observation.windows
        plan = perfetto.plan(name, windows, diagnosis, view, args.perfetto_ranks, observation.facts)
        if not plan.ranks:
            print("clusterwatch: there is no dump of the ranks of the trace; it is empty", file=sys.stderr)
        rings = folder.traces(args.path, frozenset(plan.ranks), windows)
        rings = outputs.read_again(args.path, rings, plan.ranks)
        packed = args.perfetto.suffix == ".gz"
        codes.append(outputs.write(args.perfetto, lambda file: perfetto.write(file, rings, plan, packed)))
    return next((code for code in codes if code), 0)


def _path(value: str) -> Path:
    """A path, for argparse. An empty one is a shell variable that is not set, not the working folder."""
    if not value:
        raise argparse.ArgumentTypeError("it is empty")
    return Path(value)


def _ranks(value: str) -> tuple[int, ...]:
    """``0-7,12`` as ranks, for argparse."""
    ranks: list[int] = []
    for part in value.split(","):
        match = re.fullmatch(r"(\d{1,7})(?:-(\d{1,7}))?", part.strip())
        if match is None or (match[2] and int(match[2]) < int(match[1])):
            raise argparse.ArgumentTypeError(f"{part!r} is no rank and no range of ranks")
        ranks += range(int(match[1]), min(int(match[2] or match[1]), RANKS_PER_GROUP_MAX) + 1)
    return tuple(dict.fromkeys(ranks))
