"""Cards of the page: groups by shape, open calls, merged stacks, remarks on the input."""

from __future__ import annotations

from typing import Final

from clusterwatch.analysis.model import Diagnosis, MergedStack
from clusterwatch.analysis.overview import GroupState, OpenCall, Overview, Shape
from clusterwatch.analysis.sentence import count, noun, number
from clusterwatch.analysis.stacks import RECORDER
from clusterwatch.cli.report import words
from clusterwatch.cli.report.dom import Markup, el, join

_CALLS_SHOWN: Final = 12
_SHAPES_SHOWN: Final = 40
_WELL_SHOWN: Final = 3
"""More kinds of groups without an open call than this are folded away."""
_STACKS_SHOWN: Final = 24
_FRAMES_SHOWN: Final = 40
_PROBLEMS_SHOWN: Final = 40
_RANKS_TOLD: Final = 12

_DISC: Final = '<circle class="solid" cx="6" cy="6" r="4.5"/>'
_HALF: Final = '<circle cx="6" cy="6" r="4.4"/><path class="solid" d="M6 1.5a4.5 4.5 0 0 0 0 9z"/>'
_CROSS: Final = '<path d="M2.4 2.4l7.2 7.2M9.6 2.4L2.4 9.6"/>'
_QUESTION: Final = (
    '<path d="M3.6 4.1a2.45 2.45 0 1 1 3.7 2.1c-.9.6-1.3 1-1.3 2"/>'
    '<circle class="solid" cx="6" cy="10.5" r="1.15"/>'
)
_GLYPHS: Final = {"ok": _DISC, "degraded": _HALF, "failed": _CROSS, "unknown": _QUESTION}

_SQUARES: Final = "".join(
    f'<rect class="q{number}" x="{x}" y="{y}" width="5" height="5" rx="1"/>'
    for number, (x, y) in enumerate((x, y) for y in (2, 8.5, 15) for x in (2, 8.5, 15))
)
MARK: Final = Markup(f'<svg class="mark" viewBox="0 0 22 22" aria-hidden="true">{_SQUARES}</svg>')

_CALL_WORDS: Final = {
    GroupState.STUCK: ("failed", "stuck"),
    GroupState.WAITING: ("degraded", "waiting"),
    GroupState.OK: ("ok", "ok"),
}


def glyph(state: str) -> Markup:
    """The sign of a state: never colour alone."""
    return Markup(f'<svg class="g" viewBox="0 0 12 12" aria-hidden="true">{_GLYPHS[state]}</svg>')


def _card(title: str, hint: str, *body: Markup | None) -> Markup:
    head = el("header", el("h2", title), el("span", hint, cls="s") if hint else None)
    return el("section", head, *body, cls="card")


def shapes(view: Overview) -> Markup | None:
    """Groups by role and size, each with its share of ok, waiting and stuck."""
    if not view.shapes:
        return None
    odd = [shape for shape in view.shapes if shape.stuck or shape.waiting]
    odd.sort(key=lambda shape: not shape.stuck)
    well = [shape for shape in view.shapes if not (shape.stuck or shape.waiting)]
    shown, folded = (odd, well) if odd and len(well) > _WELL_SHOWN else ([*odd, *well], [])
    more = None
    if folded:
        groups = count(sum(shape.count for shape in folded), "group")
        summary = f"{groups} of {count(len(folded), 'more kind')}: all ok"
        more = el("details", el("summary", summary), _shape_table(folded), cls="more")
    total = sum(shape.count for shape in view.shapes)
    return _card("Groups by shape", f"{count(total, 'group')} in all", _shape_table(shown), more)


def _shape_table(shapes: list[Shape]) -> Markup:
    heads = el("tr", *(el("th", head, scope="col") for head in ("Groups", "State", "Which")))
    rows = [_shape(shape) for shape in shapes[:_SHAPES_SHOWN]]
    left = len(shapes) - len(rows)
    note = el("p", f"and {count(left, 'more kind')} of groups", cls="note") if left > 0 else None
    table = el("table", el("thead", heads), el("tbody", *rows), cls="grid-table cells")
    return join(el("div", table, cls="scroll"), note)


def _shape(shape: Shape) -> Markup:
    parts = [(shape.ok, "ok", "ok"), (shape.waiting, "wait", "waiting"), (shape.stuck, "failed", "stuck")]
    told = ", ".join(f"{number(many)} {word}" for many, _, word in parts if many)
    bar = el(
        "div",
        *(el("i", cls=cls, style=f"flex:{many}") for many, cls, _ in parts if many),
        cls="bar",
        aria_hidden="true",
    )
    odd = shape.stuck or shape.waiting
    names = "; ".join(f"{group.name}: {noun(group.members, 4)}" for group in shape.named[:4])
    more = f"; and {number(odd - 4)} more" if odd > 4 else ""
    return el(
        "tr",
        el("td", el("b", words.shape_name(shape))),
        el("td", told, bar, cls="nw"),
        el("td", names + more if odd else ""),
        cls="failed" if shape.stuck else None,
    )


def open_calls(view: Overview) -> Markup | None:
    """Per group the oldest call that some member has not finished."""
    if not view.open_calls:
        return None
    total = len(view.open_calls) + view.open_left
    first, rest = view.open_calls[:_CALLS_SHOWN], view.open_calls[_CALLS_SHOWN:]
    more = None
    if rest:
        more = el(
            "details", el("summary", f"{count(len(rest), 'more group')}"), _calls(rest, view), cls="more"
        )
    left = None
    if view.open_left:
        left = el("p", f"and {count(view.open_left, 'more group')} with newer open calls", cls="note")
    hint = f"the oldest unfinished call of each group; {count(total, 'group')} have one"
    return _card("Open calls", hint, _calls(first, view), more, left)


def _calls(calls: tuple[OpenCall, ...], view: Overview) -> Markup:
    names = ("State", "Group", "Call", "Issued by", "Not issued by", "Since")
    heads = el("tr", *(el("th", name, scope="col") for name in names))
    rows = [_call(call, view) for call in calls]
    return el(
        "div", el("table", el("thead", heads), el("tbody", *rows), cls="grid-table cells"), cls="scroll"
    )


def _call(call: OpenCall, view: Overview) -> Markup:
    state, word = _CALL_WORDS[call.state]
    group, size = call.group, len(call.group.members)
    absent = [noun(call.missing, _RANKS_TOLD)] if call.missing else []
    absent += [f"not told: {noun(call.silent, _RANKS_TOLD)}"] if call.silent else []
    running = [f"{call.started} running"] if call.started else []
    running += [f"{call.timed_out} timed out"] if call.timed_out else []
    issued = f"{number(len(call.joined))} of {number(size)}"
    if 0 < len(call.joined) < size:
        issued += f": {noun(call.joined, _RANKS_TOLD)}"
    sequence = "" if call.seq is None else f" {call.seq}"
    return el(
        "tr",
        el("td", el("span", glyph(state), word, cls=f"plain {state}"), cls="nw"),
        el("td", el("b", group.role if group.desc else f"group {group.name}"), f" {noun(group.members, 4)}"),
        el("td", el("code", f"{call.op or 'call'}{sequence}"), cls="nw"),
        el("td", ", ".join([issued, *running]), data_h="issued by"),
        el("td", "; ".join(absent), data_h="not issued by"),
        el("td", _since(call, view), cls="nw", data_h="since"),
        cls="failed" if call.state is GroupState.STUCK else None,
    )


def _since(call: OpenCall, view: Overview) -> str:
    if call.since_ns is None:
        return "not told"
    clock = words.utc(call.since_ns)
    age_s = 0.0 if view.newest_ns is None else (view.newest_ns - call.since_ns) / 1e9
    return f"{clock}, {words.lasting(age_s)} before the newest" if age_s >= 0.001 else f"{clock}, the newest"


def stacks(diagnosis: Diagnosis) -> Markup | None:
    """Identical stacks once: the named ranks' first, then the fewest ranks first."""
    if not diagnosis.stacks:
        return None
    shown = diagnosis.stacks[:_STACKS_SHOWN]
    left = len(diagnosis.stacks) - len(shown)
    recorded = all(stack.source == RECORDER for stack in diagnosis.stacks)
    hint = (
        "where each rank made its newest recorded call" if recorded else "main threads, innermost call last"
    )
    note = el("p", f"and {count(left, 'more stack')}", cls="note") if left > 0 else None
    return _card(_stack_title(diagnosis), hint, *map(_stack, shown), note)


def _stack_title(diagnosis: Diagnosis) -> str:
    different = len({stack.frames for stack in diagnosis.stacks})
    return "One stack, all alike" if different == 1 else f"{different} different stacks"


def _stack(stack: MergedStack) -> Markup:
    state = {"culprit": "failed", "suspect": "degraded"}.get(stack.role)
    frames = [words.frame(frame) for frame in stack.frames]
    cut = len(frames) - _FRAMES_SHOWN
    if cut > 0:
        frames = [f"{count(cut, 'outer frame')} left out", *frames[cut:]]
    who = f"{stack.role}: {noun(stack.ranks, _RANKS_TOLD)}"
    tail = " > ".join([frame.partition(" (")[0] for frame in frames[-4:-1]] + frames[-1:])
    summary = el(
        "summary",
        el("span", count(len(stack.ranks), "rank"), cls="n"),
        el("span", who, cls="where"),
        el("code", tail, cls="last"),
    )
    lines = el("ul", *(el("li", frame) for frame in frames), cls="frames mono")
    return el("details", summary, lines, cls=state, open="" if stack.role == "culprit" else None)


def problems(diagnosis: Diagnosis) -> Markup:
    """Files that were named but not used, told once per reason; and what the coverage is."""
    folds = words.folded(diagnosis.problems)
    if not folds:
        line = el("span", glyph("ok"), "every file could be used", cls="plain ok")
        return _card("Remarks on the input", "", el("p", line))
    lines = []
    for fold in folds[:_PROBLEMS_SHOWN]:
        more = len(fold.sources) - 1
        also = el("span", f" and {count(more, 'more file')} alike", cls="s") if more else None
        lines.append(el("li", el("code", fold.sources[0]), f": {fold.reason}", also))
    left = sum(len(fold.sources) for fold in folds[_PROBLEMS_SHOWN:])
    lines += [el("li", f"and {count(left, 'file')} more")] if left else []
    total = count(len(diagnosis.problems), "file")
    return _card("Remarks on the input", total, join(el("ul", *lines, cls="lines")))
