"""``analyze --html FILE``: the verdict as one page that needs nothing else, to send to a colleague.

The page holds no script and its policy forbids any, so even markup that slipped through could not run. It
opens from a file and from a mail, follows light and dark, and reads on a phone.
"""

from __future__ import annotations

from importlib import resources
from typing import Final

from clusterwatch import __version__
from clusterwatch.analysis.model import Diagnosis, Finding, Severity
from clusterwatch.analysis.overview import Overview, open_call_of
from clusterwatch.analysis.sentence import count, noun, number
from clusterwatch.cli.report import html_parts, matrix, words
from clusterwatch.cli.report.dom import Markup, el, join, text
from clusterwatch.cli.report.html_parts import glyph

_FINDINGS_SHOWN: Final = 20
_CULPRITS_SHOWN: Final = 16
_WHY_SHOWN: Final = 24
_POLICY: Final = (
    "default-src 'none'; style-src 'unsafe-inline'; img-src data:; base-uri 'none'; form-action 'none'"
)

_STATES: Final = {
    Severity.CRITICAL: "failed",
    Severity.WARNING: "degraded",
    Severity.UNKNOWN: "unknown",
    Severity.INFO: "ok",
}


def page(diagnosis: Diagnosis, view: Overview, source: str) -> str:
    """The whole page. Below 2 MB at any number of ranks: lists are bounded, ranks are told as ranges.

    Args:
        source: name of the folder or archive, for the reader.
    """
    worst = diagnosis.worst
    culprits = {rank for finding in diagnosis.findings for rank in finding.culprit_ranks}
    suspects = {rank for finding in diagnosis.findings for rank in finding.suspect_ranks} - culprits
    findings = diagnosis.findings[:_FINDINGS_SHOWN]
    left = len(diagnosis.findings) - len(findings)
    body = join(
        _top(view, source),
        *(_finding(diagnosis, finding, view, low=number > 0) for number, finding in enumerate(findings)),
        el("p", f"and {count(left, 'more finding')}", cls="note") if left > 0 else None,
        _matrix(view, culprits, suspects),
        html_parts.shapes(view),
        html_parts.open_calls(view),
        html_parts.stacks(diagnosis),
        el("div", _known(diagnosis, view), html_parts.problems(diagnosis), cls="cols"),
    )
    head = el(
        "head",
        el("meta", charset="utf-8"),
        el("meta", name="viewport", content="width=device-width,initial-scale=1"),
        el("meta", http_equiv="Content-Security-Policy", content=_POLICY),
        el("meta", name="color-scheme", content="light dark"),
        el("title", f"{words.title(worst.verdict)}: {source}"),
        Markup(f"<style>{_sheet()}</style>"),
    )
    return f"<!doctype html>\n{el('html', head, el('body', el('main', body)), lang='en')}\n"


def _sheet() -> str:
    return resources.files("clusterwatch.cli.report").joinpath("page.css").read_text(encoding="utf-8")


def _top(view: Overview, source: str) -> Markup:
    newest = "" if view.newest_ns is None else f"newest call {words.utc(view.newest_ns)}"
    name = el("span", "analysis of ", el("b", source))
    return el("div", html_parts.MARK, el("b", "clusterwatch"), name, el("span", newest, cls="end"), cls="top")


def _finding(diagnosis: Diagnosis, finding: Finding, view: Overview, low: bool) -> Markup:
    state = _STATES[finding.severity]
    kind = finding.fault_class if finding.fault_class != "none" else ""
    named = (
        f"{kind.capitalize()}: {words.title(finding.verdict)}"
        if kind
        else words.title(finding.verdict).capitalize()
    )
    head = el(
        "div",
        el("span", glyph(state), named, cls=f"pill {state}"),
        el("span", _meter(finding.confidence), words.confidence(finding.confidence)),
        None if low else el("span", _reported(diagnosis)),
        cls="head",
    )
    say = el("div", head, el("h1", _sentence(finding)), _facts(finding, view), cls="say")
    return el("section", say, _advice(finding), cls=f"card verdict {state}{' low' if low else ''}")


def _meter(confidence: float) -> Markup:
    filled = min(4, int(confidence * 4 + 0.25))
    return el(
        "span",
        *(el("i", cls="on" if n < filled else None) for n in range(4)),
        cls="meter",
        aria_hidden="true",
    )


def _reported(diagnosis: Diagnosis) -> str:
    cover = diagnosis.coverage
    return f"{number(cover.reported)} of {count(cover.expected, 'rank')} reported"


def _sentence(finding: Finding) -> Markup:
    """The summary with whom it names in the colour of the state, whom it only suspects in a milder one."""
    for ranks, cls in ((finding.culprit_ranks, None), (finding.suspect_ranks, "maybe")):
        name = noun(ranks, 4)
        for form in (name, name[:1].upper() + name[1:]) if ranks else ():
            before, found, after = finding.summary.partition(form)
            if found:
                return join(text(before), el("em", found, cls=cls), text(after))
    return text(finding.summary)


def _facts(finding: Finding, view: Overview) -> Markup:
    call = open_call_of(finding, view.open_calls)
    left = len(finding.culprits) - _CULPRITS_SHOWN
    places = "; ".join(words.place(culprit) for culprit in finding.culprits[:_CULPRITS_SHOWN])
    rows: list[tuple[str, str, str | Markup]] = [
        ("Culprit", "who", places + (f"; and {left} more" if left > 0 else "")),
        ("Suspects", "who maybe", noun(finding.suspect_ranks, 12) if finding.suspect_ranks else ""),
        ("Where", "", words.where(finding)),
        ("Since", "", words.since(call, view) if call is not None else ""),
        ("Joined", "", words.joined(finding)),
        ("Waiting", "", words.waiting(finding)),
        ("Owner", "", words.owner(finding)),
        ("Evidence", "", _why(finding)),
    ]
    told = [join(el("dt", label), el("dd", value, cls=cls or None)) for label, cls, value in rows if value]
    return el("dl", *told, cls="facts")


def _why(finding: Finding) -> Markup | str:
    if not finding.why:
        return ""
    left = len(finding.why) - _WHY_SHOWN
    more = [el("li", f"and {left} more lines")] if left > 0 else []
    return el("ul", *(el("li", line) for line in finding.why[:_WHY_SHOWN]), *more, cls="why")


def _advice(finding: Finding) -> Markup:
    return el(
        "aside",
        el("h3", "Do this"),
        el("p", finding.recommended_action or "Nothing to do."),
        el("p", f"Rule {finding.rule}. clusterwatch never acts by itself.", cls="note"),
        cls="act",
    )


def _matrix(view: Overview, culprits: set[int], suspects: set[int]) -> Markup | None:
    body = matrix.card(view.lag, culprits, suspects)
    if body is None:
        return None
    hint = "calls that a rank lacks of the newest call of its group, by role; rings mark who is named"
    head = el("header", el("h2", "Who is behind whom"), el("span", hint, cls="s"))
    return el("section", head, body, cls="card")


def _known(diagnosis: Diagnosis, view: Overview) -> Markup:
    """How we know, and what would weaken it."""
    cover = diagnosis.coverage
    lines = [
        f"{words.coverage(diagnosis)}.",
        "Confidence is lower when ranks are missing. It stays at or below 0.50 while this is one look and "
        "nothing proves that time passed: an age, a time-out, a dead process.",
        "Times are those of each host's own clock; offsets between hosts are not known.",
        f"Made by clusterwatch {__version__}. The same dumps give the same page.",
    ]
    if cover.expected > cover.reported:
        silent = count(cover.expected - cover.reported, "rank")
        lines.insert(1, f"{silent} said nothing: a dump of theirs could change the verdict.")
    if view.newest_ns is None:
        lines.insert(1, "No dump holds a call with a time.")
    head = el("header", el("h2", "How we know"))
    return el("section", head, el("ul", *(el("li", line) for line in lines), cls="lines"), cls="card")
