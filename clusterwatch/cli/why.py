"""``clusterwatch why JOB``: the live verdict on a job, in one screen.

JOB is the scheduler's id or ours. With CLUSTERWATCH_URL and CLUSTERWATCH_TOKEN it asks that server's REST
API, else the database of this installation.

Exit codes: 0 all well, 1 slow, 2 hang or crash, 3 unknown (also: the data are stale), 64 wrong usage, 66 no
such job.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import Any, Final

from clusterwatch.analysis.model import Culprit, Severity
from clusterwatch.analysis.sentence import count, duration, noun
from clusterwatch.analysis.verdicts import exit_code
from clusterwatch.cli import why_remote
from clusterwatch.cli.report import words

EXIT_UNKNOWN: Final = 3
EXIT_NO_INPUT: Final = 66
_STACKS_SHOWN: Final = 3
_FRAMES_SHOWN: Final = 5
_WHY_SHOWN: Final = 4
_CULPRITS_SHOWN: Final = 4
Json = Mapping[str, Any]


def add_parser(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Adds the command's arguments."""
    parser = subparsers.add_parser("why", description=__doc__)
    parser.add_argument("job", metavar="JOB", help="the scheduler's job id, or ours")
    parser.add_argument("--cluster", default="", help="where several clusters have a job of this id")
    parser.add_argument("--json", action="store_true", help="print the whole answer as one JSON object")
    parser.set_defaults(command="why")


def run(args: argparse.Namespace) -> int:
    """Finds the job, prints its verdict. Returns the verdict's exit code."""
    server, token = os.environ.get("CLUSTERWATCH_URL", ""), os.environ.get("CLUSTERWATCH_TOKEN", "")
    found = why_remote.reports(server, token, args.job) if server and token else _local(args.job)
    found = [report for report in found if args.cluster in ("", report["job"]["cluster"])]
    if not found:
        print(f"clusterwatch: there is no job {args.job!r}", file=sys.stderr)
        return EXIT_NO_INPUT
    if len(found) > 1:
        names = ", ".join(sorted(report["job"]["cluster"] for report in found))
        print(f"clusterwatch: several clusters have a job {args.job!r}: --cluster {names}", file=sys.stderr)
        return EXIT_NO_INPUT
    report = found[0]
    print(json.dumps(as_json(report)) if args.json else "\n".join(screen(report, datetime.now(UTC))))
    return code(report)


def _local(word: str) -> list[Json]:
    from clusterwatch.cli.database import use_database

    use_database()
    # Models may be imported only after Django is set up.
    from clusterwatch.incidents.report import find_jobs, job_report

    return [job_report(job, time.time_ns()) for job in find_jobs(word)]


def _live(report: Json) -> Json | None:
    """The incident, unless it is over."""
    incident: Json | None = report["incident"]
    return incident if incident is not None and incident["state"] != "resolved" else None


def code(report: Json) -> int:
    """The exit code of an answer: what is live decides; stale data are unknown."""
    incident = _live(report)
    if report["stale"] and report["job"]["state"] == "running":
        return EXIT_UNKNOWN
    if incident is not None:
        diagnosis = incident["diagnosis"]
        severity = Severity(diagnosis.get("severity", "unknown"))
        return exit_code(diagnosis["verdict"], diagnosis["class"], severity)
    return EXIT_UNKNOWN if _unknown(report) else 0


def _unknown(report: Json) -> bool:
    """No incident, and nobody who could say that all is well."""
    job = report["job"]
    return bool(job["state"] == "unknown" or (job["state"] == "running" and not job["reported"]))


def as_json(report: Json) -> dict[str, Any]:
    """The diagnosis as ``analyze --json`` gives it, with the job and the incident it belongs to."""
    incident = _live(report)
    verdict = "not_enough_data" if report["stale"] or _unknown(report) else "no_fault"
    diagnosis = incident["diagnosis"] if incident is not None else {"verdict": verdict, "class": "none"}
    return {**diagnosis, **report}


def screen(report: Json, now: datetime) -> list[str]:
    """The answer as lines for a terminal: the sentence first."""
    job, incident = report["job"], _live(report)
    lines = []
    if report["stale"] and job["state"] == "running":
        lines += [f"UNKNOWN: {'; '.join(report['stale'])}. What follows may be over.", ""]
    if incident is None:
        lines += _without_incident(report, now)
    else:
        lines += _with_incident(job, incident, now)
    return [words.printable(line) for line in lines]


def _without_incident(report: Json, now: datetime) -> list[str]:
    job = report["job"]
    name = f"Job {job['key']} ({job['cluster']}, attempt {job['attempt']})"
    lines = []
    if job["state"] in ("ended", "failed"):
        lines.append(f"{name} has {job['state']}. No incident is live.")
    elif report["stale"] or _unknown(report):
        lines.append(f"{name}: nothing is known of its ranks right now.")
    else:
        moved = _ago(job["last_progress_at"], now)
        step = f", step {job['step']}" if job["step"] is not None else ""
        lines.append(f"{name}: all well. Last progress {moved}{step}.")
        expected = f" of {job['expected']}" if job["expected"] is not None else ""
        lines.append(_row("coverage", f"{job['reported']}{expected} ranks reported"))
    if report["incident"] is not None:
        last = report["incident"]
        text = f"incident {last['id']}: {last['summary']} Resolved: {last['resolution']}"
        lines.append(_row("before", text))
    return lines


def _with_incident(job: Json, incident: Json, now: datetime) -> list[str]:
    diagnosis = incident["diagnosis"]
    cover = diagnosis.get("coverage") or {}
    rows = [
        ("job", f"{job['key']} on {job['cluster']}, attempt {job['attempt']}, {job['state']}"),
        ("incident", f"{incident['id']}, {incident['state']}, {incident['severity']}"),
        ("verdict", f"{diagnosis['verdict']}, confidence {diagnosis.get('confidence') or 0:.2f}"
         + (f", cause {diagnosis['cause']}" if diagnosis.get("cause") else "")),
        ("since", f"{_clock(incident['since'])}, {_ago(incident['since'], now)}; {_moves(incident)}"),
        *(("who", _culprit(culprit)) for culprit in (diagnosis.get("culprits") or ())[:_CULPRITS_SHOWN]),
        ("suspects", noun(diagnosis["suspect_ranks"]) if diagnosis.get("suspect_ranks") else ""),
        ("waits", _waiting(diagnosis)),
        ("limit", _limit(incident)),
        ("coverage", f"{cover.get('reported', 0)} of {count(cover.get('expected', 0), 'rank')} reported"),
        *(("why", line) for line in (diagnosis.get("why") or ())[:_WHY_SHOWN]),
    ]  # fmt: skip
    lines = [incident["summary"], *(_row(label, text) for label, text in rows if text)]
    lines += _stacks(diagnosis.get("stacks") or ())
    return [*lines, _row("next", diagnosis.get("recommended_action") or "")]


def _row(label: str, text: str) -> str:
    return f"  {label:<10}{text}"


def _moves(incident: Json) -> str:
    moves = [("suspected", "suspected_at"), ("opened", "opened_at"), ("acknowledged", "acknowledged_at")]
    told = [f"{word} {_clock(incident[name])}" for word, name in moves if incident.get(name)]
    return ", ".join(told) or "just seen"


def _limit(incident: Json) -> str:
    if incident.get("threshold_s") is None:
        return ""
    return f"pages after {duration(incident['threshold_s'])} ({incident.get('threshold_source', '')})"


def _culprit(culprit: Json) -> str:
    known = ("rank", "host", "gpu", "gpu_uuid", "pid")
    return words.place(Culprit(*(culprit.get(name) for name in known)))


def _waiting(diagnosis: Json) -> str:
    downstream = diagnosis.get("downstream") or {}
    ranks, groups = downstream.get("ranks", 0), downstream.get("groups", 0)
    return f"{count(ranks, 'rank')} in {count(groups, 'group')}" if ranks else ""


def _stacks(stacks: Sequence[Json]) -> list[str]:
    lines = []
    for stack in stacks[:_STACKS_SHOWN]:
        lines.append(_row("stack", f"{noun(stack['ranks'])} ({stack['role']}, by {stack['source']})"))
        lines += [_row("", f"  {frame}") for frame in stack["frames"][-_FRAMES_SHOWN:]]
    left = len(stacks) - _STACKS_SHOWN
    return [*lines, _row("", f"and {left} more; --json has them")] if left > 0 else lines


def _parsed(text: str) -> datetime:
    return datetime.fromisoformat(text.replace("Z", "+00:00"))


def _clock(text: str) -> str:
    return f"{_parsed(text):%H:%M:%S} UTC"


def _ago(text: str | None, now: datetime) -> str:
    return "unknown" if text is None else f"{duration(max(0.0, (now - _parsed(text)).total_seconds()))} ago"
