"""Puts the end of a job from outside into a finding: by the scheduler, or by somebody who sent a signal.

A job that hangs is ended by its time limit or by a user who lost patience: a long silence before tells it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Final

from clusterwatch.analysis.log_actors import Told
from clusterwatch.analysis.log_wording import LINES_QUOTED, NO_RANK, SURE, UNORDERED, finding_of, quote
from clusterwatch.analysis.model import Finding, Owner
from clusterwatch.analysis.sentence import duration, sentence
from collectors.formats.job_log_prefix import UTC

if TYPE_CHECKING:
    from clusterwatch.analysis.log_judge import LogVerdict

SILENT_MIN_S: Final = 1_800.0
"""Half an hour, the longest default time-out of torch.distributed: a job that trains logs more often."""
_ZONES_MAX_S: Final = 14 * 3_600.0
_ZONE_STEP_S: Final = 1_800.0
_ZONE_SLACK_S: Final = 300.0
"""Zones lie half hours apart, up to 14 hours from UTC; a job logs within some minutes of its end."""
_REASONS: Final = {
    "TIME LIMIT": ("time_limit", "at its time limit"),
    "PREEMPTION": ("preempted", "to make room for another job (preemption)"),
    "NODE FAILURE": ("node_failure", "because a node failed"),
    "JOB REQUEUE": ("requeued", "to requeue it"),
    "evict": ("evicted", "by evicting its pod"),
    "preempt": ("preempted", "to make room for another job (preemption)"),
}  # fmt: skip


def ended(told: Told, verdict: LogVerdict) -> Finding:
    """The scheduler ended the job; nothing of the job failed before, as far as the logs tell."""
    key = reason(told)
    cause, words = _REASONS[key] if key else ("cancelled", "on request (cancelled)")
    silent_s = _silent_s(told, verdict)
    zone = silent_s is not None and told.stamp is not None and told.stamp.clock != UTC
    zone = zone and _may_be_a_zone(silent_s or 0.0)
    tail = "; no failure of its own is in the logs."
    if silent_s is not None and not zone:
        tail = f"; nothing was logged for {duration(silent_s)} before: it probably hung."
    finding = finding_of(
        "ended_by_scheduler",
        summary=sentence(f"The scheduler ended the job {words}{tail}"),
        confidence=UNORDERED if silent_s is not None else SURE if key else NO_RANK,
        verdict=verdict,
        cause=cause,
        owner=Owner.INFRA if cause == "node_failure" else Owner.SCHEDULER,
        why=[quote(told)],
    )
    if silent_s is None:
        return finding
    if zone:
        doubt = "by its own clock, which may be of another time zone"
        return replace(finding, why=(*finding.why, f"the newest line is {duration(silent_s)} older {doubt}"))
    return replace(
        finding,
        owner=Owner.UNKNOWN,
        why=(*finding.why, f"the newest line before it is {duration(silent_s)} older"),
        recommended_action="Find out why it stood still before you requeue it: look for dumps of the flight "
        "recorder, or take dumps and stacks when it is silent again.",
    )


def _silent_s(told: Told, verdict: LogVerdict) -> float | None:
    """How long the job had logged nothing when it was ended, where that is long and every file tells."""
    last = verdict.story.last
    if last is None or told.stamp is None or last.clock != told.stamp.clock:
        return None
    silent_s = (told.stamp.ns - last.ns) / 1e9
    return silent_s if silent_s >= SILENT_MIN_S else None


def _may_be_a_zone(silent_s: float) -> bool:
    """Whether two clocks without a told zone can make the gap: containers often run on UTC."""
    return silent_s <= _ZONES_MAX_S and silent_s % _ZONE_STEP_S < _ZONE_SLACK_S


def reason(told: Told) -> str | None:
    """Why the scheduler ended the job, as far as its line says."""
    what = (told.event.word("what") or "").lower()
    return next((key for key in _REASONS if key.lower() in what), None)


def stopped(lines: Sequence[Told], verdict: LogVerdict) -> Finding:
    """Every process was told to end, and none had failed: somebody outside wanted that; who, is not told."""
    return finding_of(
        "ended_by_scheduler",
        summary="The job was told to end from outside (SIGTERM); no failure of its own is in the logs.",
        confidence=UNORDERED,
        verdict=verdict,
        cause="terminated",
        owner=Owner.SCHEDULER,
        why=[quote(one) for one in lines[:LINES_QUOTED]],
    )
