"""``clusterwatch replay``: what a detector would have said over stored history, beside what was said then.

    clusterwatch replay --last 6h
    clusterwatch replay --from 2026-12-01T03:00Z --to 2026-12-01T05:00Z --job 4711 --detector slow@1

A change of a rule is judged by it before it pages anybody. Nothing is written and nobody is told. Detectors:
slow (parts that slow a job down, from the steps of all ranks, kept for two days). Stalls cannot be played
again: progress of each second is not kept; their evidence is frozen with their incidents.

Exit codes: 0 played, 1 a fault said in one line, 64 wrong usage, 66 no such cluster or job.
"""

from __future__ import annotations

import argparse
import json
import sys
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Final

from clusterwatch.cli import choices
from clusterwatch.ops.errors import OpsError

if TYPE_CHECKING:
    from clusterwatch.analysis.slow.paging import PageRule
    from clusterwatch.detect.replay import Replayed, Story

DETECTORS: Final = ("slow",)


def add_parser(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Adds the command's arguments."""
    parser = subparsers.add_parser(
        "replay", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    choices.add_arguments(parser, last="1h")
    parser.add_argument("--job", help="the scheduler's job id, or ours; default: every job of the span")
    parser.add_argument(
        "--detector", default="slow", metavar="X[@VERSION]", help="default: slow, its newest version"
    )
    parser.add_argument("--json", action="store_true", help="machine-readable; times in ns UTC")
    parser.set_defaults(command="replay")


def run(args: argparse.Namespace) -> int:
    """Plays and prints. Returns the exit code."""
    from clusterwatch.cli.database import use_database

    rule = _rule(args.detector)
    use_database()
    # Models and queries may be imported only after Django is set up.
    from clusterwatch.detect import replay

    window = choices.window(args)
    try:
        cluster = choices.cluster(args.cluster)
        named = [choices.job(cluster, args.job)] if args.job else None
    except choices.NoSuchThing as missing:
        print(f"clusterwatch: {missing}", file=sys.stderr)
        return choices.EXIT_NO_INPUT
    jobs = replay.jobs_of(cluster.pk, window.start_ns, window.end_ns) if named is None else named
    try:
        found = [
            one for job in jobs for one in replay.slow_parts(job, window.start_ns, window.end_ns, rule)
        ]
    except replay.TooLong as fault:
        raise OpsError(f"That cannot be played: {fault}; ask for a shorter span.") from fault
    if args.json:
        print(json.dumps([_as_json(one, rule) for one in found]))
        return 0
    print("\n".join(_lines(found, rule)))
    return 0


def _rule(word: str) -> PageRule:
    """The version of the detector that was named."""
    from clusterwatch.analysis.slow.paging import CURRENT, PAGE_RULES

    name, _, version = word.partition("@")
    if name not in DETECTORS:
        raise OpsError(f"There is no detector {name!r} that can be played; there is: {', '.join(DETECTORS)}.")
    if not version:
        return CURRENT
    rule = PAGE_RULES.get(int(version)) if version.isascii() and version.isdecimal() else None
    if rule is None:
        known = ", ".join(f"{name}@{number}" for number in PAGE_RULES)
        raise OpsError(f"Detector {name} has no version {version!r}; there are {known}.")
    return rule


def _lines(found: list[Replayed], rule: PageRule) -> list[str]:
    lines = [f"slow@{rule.version} pages what {rule.says}."]
    if not found:
        return [*lines, "No job of that span has steps or incidents of slow parts: nothing to play."]
    for one in found:
        lines += _of_attempt(one)
    pages, then = sum(one.pages for one in found), sum(one.pages_then for one in found)
    stories, were = sum(len(one.stories) for one in found), sum(len(one.then) for one in found)
    lines.append(f"In all: {_count(stories, pages)} now; {_count(were, then)} at the time.")
    return lines


def _count(incidents: int, pages: int) -> str:
    return f"{incidents} incident{'' if incidents == 1 else 's'} ({pages} paged)"


def _of_attempt(one: Replayed) -> list[str]:
    head = f"job {one.job_key}, attempt {one.attempt.number}: {one.steps} steps in {one.looks} looks"
    lines = [head]
    for story in one.stories:
        lines += [f"  {_times(story)}", f"    {story.summary}"]
        if len(story.verdicts) > 1:
            lines.append(f"    was: {', then '.join(story.verdicts)}")
        lines.append(f"    then: {'nothing' if story.then is None else f'incident {story.then}'}")
    for incident in one.missed:
        what = "paged" if incident.opened_at else "suspected"
        lines += [f"  not raised any more: incident {incident.pk}, {what} then", f"    {incident.summary}"]
    return lines if len(lines) > 1 else [f"{head}; nobody stands out, then as now"]


def _times(story: Story) -> str:
    parts = [f"suspected {_clock(story.suspected_ns)}"]
    parts.append("never paged" if story.opened_ns is None else f"paged {_clock(story.opened_ns)}")
    parts.append("still so at the end" if story.resolved_ns is None else f"over {_clock(story.resolved_ns)}")
    return ", ".join(parts)


def _clock(at_ns: int) -> str:
    return datetime.fromtimestamp(at_ns / 1e9, UTC).strftime("%Y-%m-%d %H:%M:%S")


def _as_json(one: Replayed, rule: PageRule) -> dict[str, Any]:
    return {
        "detector": f"slow@{rule.version}",
        "job": one.attempt.job_id,
        "job_key": one.job_key,
        "attempt": one.attempt.number,
        "looks": one.looks,
        "steps": one.steps,
        "raised": [
            {
                "verdict": story.verdict,
                "verdicts": story.verdicts,
                "summary": story.summary,
                "suspected_ns": story.suspected_ns,
                "paged_ns": story.opened_ns,
                "over_ns": story.resolved_ns,
                "incident_then": story.then,
            }
            for story in one.stories
        ],
        "not_raised": [
            {"incident": incident.pk, "paged": incident.opened_at is not None, "summary": incident.summary}
            for incident in one.missed
        ],
        "paged": one.pages,
        "paged_then": one.pages_then,
    }
