"""``clusterwatch analyze PATH``: the verdict on flight-recorder dumps. Needs no server and no Django.

Exit codes: 0 no fault, 1 slow, 2 hang or crash, 3 unknown, 64 wrong usage, 66 no such input.
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from typing import Final

from clusterwatch.analysis import Diagnosis, Finding, Observation, diagnose, exit_code
from clusterwatch.analysis.model import MergedStack, RankFacts, RankStacks, StackThread
from clusterwatch.analysis.sentence import count, noun, ranks_text
from clusterwatch.analysis.stacks import RECORDER
from clusterwatch.readers import folder, topology
from collectors.formats.trace import RankTrace

EXIT_USAGE: Final = 64
EXIT_NO_INPUT: Final = 66
_STACKS_SHOWN: Final = 12
_PROBLEMS_SHOWN: Final = 10


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
        print("\n".join(report(diagnosis, stacks=args.stacks)))
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


def report(diagnosis: Diagnosis, stacks: bool = False) -> list[str]:
    """The diagnosis as lines for a terminal: the sentence, then who, where, who waits, evidence, advice."""
    lines: list[str] = []
    for finding in diagnosis.findings:
        lines += [*_finding(finding), ""]
    cover = diagnosis.coverage
    lines.append(
        f"coverage    {cover.reported} of {count(cover.expected, 'rank')} reported"
        + (f", {cover.stale} stale" if cover.stale else "")
        + (f", {cover.truncated} rings overflowed" if cover.truncated else "")
    )
    for problem in diagnosis.problems[:_PROBLEMS_SHOWN]:
        lines.append(f"not used    {problem.source}: {problem.reason}")
    left = len(diagnosis.problems) - _PROBLEMS_SHOWN
    if left > 0:
        lines.append(f"            and {left} more; --json lists them")
    if stacks:
        lines += _stacks(diagnosis.stacks)
    return [_printable(line) for line in lines]


def _finding(finding: Finding) -> list[str]:
    rows = [("verdict", f"{finding.verdict}, confidence {finding.confidence:.2f}, owner {finding.owner}")]
    if finding.culprits:
        rows += [
            ("culprit", _culprit_line(finding, number)) for number in range(min(len(finding.culprits), 8))
        ]
    if finding.suspect_ranks:
        rows.append(("suspects", noun(finding.suspect_ranks)))
    if finding.group is not None:
        number = f" {finding.seq}" if finding.seq is not None else ""
        group = f"{finding.group.desc or finding.group.name} (group {finding.group.name!r})"
        rows.append(("where", f"{finding.op}{number} of {group}, {noun(finding.group.ranks)}"))
    if finding.joined_ranks or finding.missing_ranks:
        missing = ranks_text(finding.missing_ranks) or "none"
        rows.append(("joined", f"{ranks_text(finding.joined_ranks) or 'none'}; not joined: {missing}"))
    waiting = finding.downstream
    if waiting.ranks:
        groups = f" in {count(waiting.groups, 'group')}" if waiting.groups else ""
        rows.append(("waiting", f"{count(waiting.ranks, 'rank')}{groups}"))
    rows += [("why", line) for line in finding.why]
    rows.append(("next", finding.recommended_action))
    return [finding.summary, *(f"  {label:<10}{text}" for label, text in rows if text)]


def _culprit_line(finding: Finding, number: int) -> str:
    culprit = finding.culprits[number]
    places = [
        culprit.host,
        None if culprit.gpu is None else f"GPU {culprit.gpu}",
        None if culprit.pid is None else f"pid {culprit.pid}",
    ]
    known = ", ".join(place for place in places if place)
    return f"rank {culprit.rank}" + (f" ({known})" if known else "")


def _stacks(merged: tuple[MergedStack, ...]) -> list[str]:
    if not merged:
        return ["", "stacks      the dumps hold none (they are recorded with TORCH_INCLUDE_STACK_TRACE)"]
    lines = [""]
    for stack in merged[:_STACKS_SHOWN]:
        lines.append(f"stack of {noun(stack.ranks)} ({stack.role}, newest recorded call)")
        lines += [f"    {frame}" for frame in stack.frames]
    left = len(merged) - _STACKS_SHOWN
    return [*lines, f"and {left} more stacks"] if left > 0 else lines


def _printable(text: str) -> str:
    """Names come from dumps: control characters never reach the terminal."""
    return "".join(char if char.isprintable() else "\N{REPLACEMENT CHARACTER}" for char in text)
