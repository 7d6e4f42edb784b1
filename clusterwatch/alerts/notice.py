"""What a receiver is told of an incident: one notice, in words and as data.

In: an incident as it is now and what changed. Out: ``Notice``. Texts come from nodes: whoever writes
them into a mail or a page escapes them; here they are bounded and without control characters.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Final

from clusterwatch.incidents.models import Incident

VERSION: Final = 1
OPENED: Final = "opened"
CHANGED: Final = "verdict_changed"
RESOLVED: Final = "resolved"
TEST: Final = "test"
_LINES_MAX: Final = 8


@dataclass(frozen=True, slots=True)
class Notice:
    """``event``: opened, verdict_changed, resolved or test. ``subject`` is one line."""

    event: str
    subject: str
    lines: tuple[str, ...]
    url: str
    thread: str
    """the same for all notices of an incident"""
    payload: dict[str, Any]


def of_incident(incident: Incident, event: str, was: str, public_url: str) -> Notice:
    """A notice of what is true now. Args: ``was``: the verdict before, where it changed."""
    url = f"{public_url.rstrip('/')}/incidents/{incident.pk}"
    told = incident.diagnosis if isinstance(incident.diagnosis, dict) else {}
    summary = clean(incident.summary)
    words = {OPENED: "Open", CHANGED: "Changed", RESOLVED: "Resolved"}
    lines = [summary, *_facts(incident, told)]
    if event == CHANGED and was:
        lines.append(f"Was: {clean(was)}; now: {incident.verdict}")
    if event == RESOLVED:
        lines.append(f"Resolved: {clean(incident.resolution) or 'no reason given'}")
    lines += [f"Why: {clean(str(line))}" for line in list(told.get("why") or ())[:_LINES_MAX]]
    if event != RESOLVED and told.get("recommended_action"):
        lines.append(f"Do this: {clean(str(told['recommended_action']))}")
    return Notice(
        event=event,
        subject=f"[{words[event]}] {incident.cluster.name}: {summary}"[:300],
        lines=tuple(lines),
        url=url,
        thread=f"incident-{incident.pk}",
        payload=_payload(incident, told, event, was, url),
    )


def of_test(receiver: str, actor: str, public_url: str) -> Notice:
    """A notice that says that it is a test."""
    url = f"{public_url.rstrip('/')}/alerts"
    line = f"{actor} tries receiver {receiver}: whoever reads this would be told of incidents."
    return Notice(
        TEST, f"[Test] clusterwatch reaches {receiver}", (line,), url, f"test-{receiver}",
        {"version": VERSION, "event": TEST, "text": line, "url": url},
    )  # fmt: skip


def clean(text: str) -> str:
    """One line without control characters, at most 1,000 characters."""
    return " ".join("".join(c if c.isprintable() else " " for c in text).split())[:1_000]


def _facts(incident: Incident, told: dict[str, Any]) -> list[str]:
    since = incident.since.astimezone(UTC)
    confidence = told.get("confidence")
    coverage = told.get("coverage")
    job = f"Job {clean(incident.job.key)}; " if incident.job else ""
    sure = f"confidence {confidence:.2f}" if isinstance(confidence, int | float) else "no confidence told"
    heard = ""
    if isinstance(coverage, dict) and coverage:
        heard = f"; {coverage.get('reported', 0)} of {coverage.get('expected', 0)} ranks reported"
    return [
        f"{job}{incident.verdict}, {incident.severity}, owner {incident.owner}",
        f"Since {since:%Y-%m-%d %H:%M:%S} UTC; {sure}{heard}",
    ]


def _payload(
    incident: Incident, told: dict[str, Any], event: str, was: str, url: str
) -> dict[str, Any]:
    return {
        "version": VERSION,
        "event": event,
        "incident": {
            "id": incident.pk,
            "url": url,
            "cluster": incident.cluster.name,
            "job": incident.job.key if incident.job else None,
            "state": incident.state,
            "severity": incident.severity,
            "verdict": incident.verdict,
            "was": was or None,
            "class": incident.fault_class,
            "owner": incident.owner,
            "summary": clean(incident.summary),
            "since": _iso(incident.since),
            "opened_at": _iso(incident.opened_at),
            "resolved_at": _iso(incident.resolved_at),
            "resolution": clean(incident.resolution),
            "confidence": told.get("confidence"),
            "coverage": told.get("coverage"),
            "culprit_ranks": told.get("culprit_ranks"),
            "culprits": told.get("culprits"),
            "recommended_action": told.get("recommended_action"),
        },
    }


def _iso(at: datetime | None) -> str | None:
    return None if at is None else at.astimezone(UTC).isoformat().replace("+00:00", "Z")
