"""Template filters and tags: numbers, ages and times as HTML that ticks, states as colour, glyph and word."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from datetime import UTC, datetime
from typing import Any

from django import template
from django.utils.html import conditional_escape, format_html
from django.utils.safestring import SafeString, mark_safe

from clusterwatch.web import numbers, payloads, words

register = template.Library()

register.filter("grouped", numbers.grouped)
register.filter("lasting", numbers.lasting)
register.filter("rank_runs", numbers.rank_runs)
register.filter("bytes_size", numbers.size)
register.simple_tag(numbers.share, name="share")
register.simple_tag(payloads.payload_table, name="payload_table")
register.simple_tag(words.verdict_badge, name="verdict_badge")
register.simple_tag(words.incident_badge, name="incident_badge")
register.simple_tag(words.job_badge, name="job_badge")

ICONS = {
    "cluster": "M2.5 2.5h4v4h-4zM9.5 2.5h4v4h-4zM2.5 9.5h4v4h-4zM9.5 9.5h4v4h-4z",
    "jobs": "M2.5 4h11M2.5 8h11M2.5 12h7",
    "incidents": "M8 2L14.5 13.5h-13zM8 6.5v3.200M8 11.6v.2",
    "collectors": "M2.5 11.5h11M4.5 11.5V7.500M8 11.5V3.500M11.5 11.5V6",
    "copy": "M5.5 5.5h8v8h-8zM3 10.5h-.5v-8h8V3",
    "table": "M2.5 3h11v10h-11zM2.5 6.5h11M2.5 9.8h11M6.5 3v10",
    "csv": "M8 2.5v7.500M5 7.5l3 3 3-3M3 13.5h10",
    "close": "M3.5 3.5l9 9M12.5 3.5l-9 9",
    "rail": "M2.5 3h11v10h-11zM6 3v10",
    "theme": "M8 2a6 6 0 1 0 0 12zM8 2a6 6 0 0 1 0 12",
    "help": "M6 6.100a2.1 2.1 0 1 1 3.1 1.900c-.8.5-1.1.9-1.1 1.700M8 12v.1",
    "out": "M6.5 2.5h-4v11h4M6 8h7.500M10.5 5l3 3-3 3",
    "search": "M7 2.500a4.5 4.5 0 1 0 0 9 4.5 4.5 0 0 0 0-9zM10.4 10.4l3.4 3.4",
    "dense": "M2.5 3.5h11M2.5 6.5h11M2.5 9.5h11M2.5 12.5h11",
    "down": "M4.5 6.5L8 10l3.5-3.5",
}
_BAR = (
    '<svg class="fill" width="{0}" height="4" aria-hidden="true">'
    '<rect class="rest" width="{0}" height="4" rx="2"/>'
    '<rect class="part" width="{1}" height="4" rx="2"/></svg>'
)


@register.simple_tag
def icon(name: str, size: int = 16) -> SafeString:
    """A line drawing of 16 x 16 units in the text's colour."""
    return format_html(
        '<svg width="{0}" height="{0}" viewBox="0 0 16 16" fill="none" stroke="currentColor"'
        ' stroke-width="1.4" stroke-linecap="round" stroke-linejoin="round" aria-hidden="true">'
        '<path d="{1}"/></svg>',
        size,
        ICONS[name],
    )


@register.simple_tag
def bar(value: float | None, width: int = 40) -> SafeString:
    """A quiet bar filled to ``value`` (0..1)."""
    part = round(width * min(1.0, max(0.0, value or 0.0)), 1)
    return format_html(_BAR, width, part)


@register.simple_tag
def pill(badge: words.Badge, kind: str = "") -> SafeString:
    """State as tint, glyph and word; ``kind`` "plain" has no tint."""
    return format_html(
        '<span class="pill {0} {1}"><i class="g" aria-hidden="true"></i>{2}</span>',
        badge.state,
        kind,
        badge.word,
    )


@register.simple_tag
def dash(reason: str) -> SafeString:
    """What is not known, with the reason why, for eyes and for ears."""
    return format_html(
        '<span class="t3" title="{0}">{1}<span class="vh"> {0}</span></span>', reason, numbers.DASH
    )


@register.filter
def at(moment: datetime | None, reason: str = "not known") -> SafeString:
    """A UTC time; scripts put the viewer's own time on hover."""
    if moment is None:
        return dash(reason)
    utc = moment.astimezone(UTC)
    return format_html(
        '<time datetime="{}" title="{} UTC">{}</time>',
        utc.isoformat(timespec="milliseconds"),
        utc.strftime("%Y-%m-%d %H:%M:%S"),
        numbers.clock(utc),
    )


@register.filter
def ago(moment: datetime | None, reason: str = "never seen") -> SafeString:
    """How long since ``moment``; scripts let it tick."""
    if moment is None:
        return dash(reason)
    seconds = (datetime.now(UTC) - moment).total_seconds()
    return format_html(
        '<time data-age datetime="{}" title="{} UTC">{}</time>',
        moment.astimezone(UTC).isoformat(timespec="milliseconds"),
        moment.astimezone(UTC).strftime("%Y-%m-%d %H:%M:%S"),
        numbers.lasting(seconds),
    )


@register.filter
def known(value: Any, reason: str) -> Any:
    """The value itself, or a dash with its reason where it is None or empty."""
    return dash(reason) if value is None or value == "" else value


@register.filter
def named(sentence: str, culprits: Iterable[Mapping[str, Any]]) -> SafeString:
    """The sentence with each culprit's rank and host in the state's colour; everything else escaped."""
    names = {str(c["host"]) for c in culprits if c.get("host")}
    names |= {f"rank {c['rank']}" for c in culprits if c.get("rank") is not None}
    if not names:
        return SafeString(conditional_escape(sentence))
    choice = "|".join(re.escape(name) for name in sorted(names, key=len, reverse=True))
    parts = re.split(rf"(?<![\w.-])({choice})(?![\w-])", sentence, flags=re.IGNORECASE)
    html = "".join(
        format_html("<em>{}</em>", part) if index % 2 else conditional_escape(part)
        for index, part in enumerate(parts)
    )
    return mark_safe(html)  # noqa: S308  every part above is escaped


@register.simple_tag(takes_context=True)
def with_query(context: template.Context, **changes: Any) -> str:
    """The page's own query string with ``changes``; None takes a key out."""
    query = context["request"].GET.copy()
    for key, value in changes.items():
        if value is None:
            query.pop(key, None)
        else:
            query[key] = str(value)
    text = query.urlencode()
    return f"?{text}" if text else "?"


@register.simple_tag
def coverage_bar(reported: int, expected: int, width: int = 34) -> SafeString:
    """Reported nodes solid, missing ones as unknown; a single missing one is always seen."""
    part = 0.0 if expected <= 0 else width * reported / expected
    if reported < expected:
        part = min(part, width - 4.0)
    return format_html(
        '<svg class="fill cover" width="{0}" height="6" aria-hidden="true"><rect class="rest" width="{0}"'
        ' height="6" rx="3"/><rect class="part" width="{1}" height="6" rx="3"/></svg>',
        width,
        round(max(0.0, part), 1),
    )


@register.simple_tag
def share_between(low: float | None, high: float | None) -> str:
    """A share, or its bounds where it is not known exactly."""
    if low is None or high is None:
        return numbers.DASH
    least, most = numbers.share(low, 1), numbers.share(high, 1)
    return least if least == most else f"{least} to {most}"


@register.filter
def seconds_short(seconds: float) -> str:
    """Seconds below ten with two digits, else as a duration."""
    return f"{seconds:.2f}{numbers.THIN}s" if seconds < 10 else numbers.lasting(seconds)


@register.simple_tag
def lost_hours(hours: float | None) -> str:
    """GPU-hours whole, below ten with two digits; a dash where nobody knows."""
    if hours is None:
        return numbers.DASH
    return numbers.grouped(hours, 0 if hours >= 10 else 2)


@register.simple_tag
def burn_rate(count: float | None, live: bool, unit: str, slow: bool = False) -> str:
    """What each minute more costs."""
    if count is None:
        return "its share of a step is not known"
    if not count:
        return "nobody counted"
    if not live:
        digits = 1 if slow else 0
        return f"{numbers.grouped(count, digits)} {unit}s {'burnt for nothing' if slow else 'stood'}"
    per_minute = count / 60
    return f"{numbers.grouped(per_minute, 0 if per_minute >= 10 else 2)} {unit}-h each minute"


@register.simple_tag
def between(start: datetime, end: datetime) -> str:
    """How long from one time to the other."""
    return numbers.lasting((end - start).total_seconds())


@register.simple_tag
def ms_at(at_ms: int) -> SafeString:
    """A UTC time given in ms."""
    return at(datetime.fromtimestamp(at_ms / 1000, UTC))


@register.simple_tag
def change_words(change: Any, slow: bool = False, fault_class: str = "") -> dict[str, str]:
    """A change as a bold first word and the rest; the sentence of a suspicion stands above already."""
    reason = "slower than the job's own spread allows" if slow else "no advance between two looks"
    reason = "told by its sources" if fault_class in ("health", "blind") else reason
    head, colon, rest = change.text.partition(": ")
    if change.kind != "state" or not colon or len(head) > 20:
        return {"head": "", "text": change.text}
    return {"head": head, "text": reason if change.after == "suspected" else rest}
