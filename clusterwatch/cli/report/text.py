"""The verdict as lines for a terminal: the sentence first, then who, where, since when, why, what to do.

Lines are wrapped to the width of the terminal with a hanging indent. Colour marks only what words say too.
"""

from __future__ import annotations

import os
import shutil
import textwrap
from collections.abc import Mapping
from dataclasses import dataclass
from typing import IO, Final

from clusterwatch.analysis.model import Diagnosis, Finding, MergedStack, Severity
from clusterwatch.analysis.overview import Overview, Shape, open_call_of
from clusterwatch.analysis.sentence import count, noun
from clusterwatch.analysis.stacks import RECORDER
from clusterwatch.cli.report import words

_LABEL: Final = 10
_INDENT: Final = 2
_WIDTH_MIN: Final = 40
_WIDTH_MAX: Final = 110
_FINDINGS_SHOWN: Final = 8
_CULPRITS_SHOWN: Final = 8
_SHAPES_SHOWN: Final = 12
_PROBLEMS_SHOWN: Final = 10
_STACKS_SHOWN: Final = 12

_BOLD: Final = "1"
_DIM: Final = "2"
_RED: Final = "31"
_YELLOW: Final = "33"
_GREEN: Final = "32"
_SENTENCES: Final = {
    Severity.CRITICAL: f"{_BOLD};{_RED}",
    Severity.WARNING: f"{_BOLD};{_YELLOW}",
    Severity.UNKNOWN: f"{_BOLD};{_YELLOW}",
    Severity.INFO: f"{_BOLD};{_GREEN}",
}


@dataclass(frozen=True, slots=True)
class Style:
    """Width in columns, and whether escape sequences may be written."""

    width: int = 80
    colour: bool = False

    def paint(self, text: str, code: str) -> str:
        return f"\x1b[{code}m{text}\x1b[0m" if self.colour and code else text


def style_of(stream: IO[str], environment: Mapping[str, str] = os.environ) -> Style:
    """Colour on a terminal unless NO_COLOR is set (no-color.org) or the terminal is dumb."""
    terminal = stream.isatty()
    allowed = not environment.get("NO_COLOR") and environment.get("TERM") != "dumb"
    width = shutil.get_terminal_size((80, 24)).columns
    return Style(min(max(width, _WIDTH_MIN), _WIDTH_MAX), terminal and allowed)


def report(diagnosis: Diagnosis, view: Overview, style: Style = Style(), stacks: bool = False) -> list[str]:
    """All lines. Names from dumps are made printable before colour is added."""
    lines: list[str] = []
    for finding in diagnosis.findings[:_FINDINGS_SHOWN]:
        lines += [*_finding(finding, view, style), ""]
    left = len(diagnosis.findings) - _FINDINGS_SHOWN
    if left > 0:
        lines += [f"and {count(left, 'more finding')}; --json lists them", ""]
    for number, shape in enumerate(_shapes(view)):
        lines += _row("" if number else "groups", shape, style)
    lines += _row("coverage", words.coverage(diagnosis), style)
    lines += _problems(diagnosis, style)
    return lines + (_stacks(diagnosis.stacks, style) if stacks else [])


def _finding(finding: Finding, view: Overview, style: Style) -> list[str]:
    call = open_call_of(finding, view.open_calls)
    head = [finding.verdict, words.confidence(finding.confidence), words.owner(finding)]
    named = [(("culprit", _RED), words.place(one)) for one in finding.culprits[:_CULPRITS_SHOWN]]
    left = len(finding.culprits) - _CULPRITS_SHOWN
    rows = [
        (("verdict", ""), ", ".join(part for part in head if part)),
        *named,
        (("", ""), _more(finding, left)),
        (("suspects", _YELLOW), noun(finding.suspect_ranks) if finding.suspect_ranks else ""),
        (("where", ""), words.where(finding)),
        (("since", ""), words.since(call, view) if call is not None else ""),
        (("joined", ""), words.joined(finding)),
        (("waiting", ""), words.waiting(finding)),
        *((("evidence", ""), f"- {line}") for line in finding.why),
        (("next", _BOLD), finding.recommended_action),
    ]
    sentence = _wrapped(words.printable(finding.summary), style.width, 0, 0)
    lines = [style.paint(line, _SENTENCES[finding.severity]) for line in sentence]
    before = ""
    for (label, code), text in rows:
        if text:
            lines += _row("" if label == before else label, text, style, code)
            before = label
    return lines


def _more(finding: Finding, left: int) -> str:
    """Culprits that have no line of their own."""
    ranks = f": {noun(finding.culprit_ranks)}" if finding.culprit_ranks else ""
    return f"and {left} more{ranks}" if left > 0 else ""


def _row(label: str, text: str, style: Style, code: str = "") -> list[str]:
    """One labelled row; what does not fit goes on under the text, of a ``- `` line behind its dash."""
    indent = _INDENT + _LABEL
    hanging = indent + 2 if text.startswith("- ") else indent
    wrapped = _wrapped(words.printable(text), style.width, indent, hanging)
    body = [style.paint(line[indent:], code) for line in wrapped]
    label_text = style.paint(f"{label:<{_LABEL}}", _DIM)
    return [f"{' ' * _INDENT}{label_text}{body[0]}", *(f"{' ' * indent}{line}" for line in body[1:])]


def _wrapped(text: str, width: int, first: int, rest: int) -> list[str]:
    return textwrap.wrap(
        text,
        width,
        initial_indent=" " * first,
        subsequent_indent=" " * rest,
        break_long_words=True,
        break_on_hyphens=False,
    ) or [" " * first]


def _shapes(view: Overview) -> list[str]:
    """Groups by shape, the stuck ones first; kinds in which nothing is open are only counted."""
    order = sorted(view.shapes, key=lambda shape: (not shape.stuck, not shape.waiting))
    shown = [shape for shape in order if _interesting(shape) or len(order) <= 4][:_SHAPES_SHOWN]
    lines = [f"{words.shape_name(shape)}: {words.shape_counts(shape)}" for shape in shown]
    left = order[len(shown) :]
    if left:
        odd = sum(shape.waiting + shape.stuck for shape in left)
        rest = f"{odd} of them waiting" if odd else "all ok"
        lines.append(f"{count(sum(shape.count for shape in left), 'group')} of other kinds: {rest}")
    return lines


def _interesting(shape: Shape) -> bool:
    return bool(shape.stuck or shape.waiting)


def _problems(diagnosis: Diagnosis, style: Style) -> list[str]:
    lines: list[str] = []
    folds = words.folded(diagnosis.problems)
    for fold in folds[:_PROBLEMS_SHOWN]:
        more = len(fold.sources) - 1
        also = f" (and {more} more files alike)" if more > 1 else " (and one more file alike)" if more else ""
        lines += _row("" if lines else "inputs", f"{fold.sources[0]}: {fold.reason}{also}", style)
    left = sum(len(fold.sources) for fold in folds[_PROBLEMS_SHOWN:])
    return [*lines, *_row("", f"and {count(left, 'file')} more; --json lists them", style)] if left else lines


def _stacks(merged: tuple[MergedStack, ...], style: Style) -> list[str]:
    """Identical stacks once, the named ranks' first, then the fewest ranks first; innermost frame last."""
    if not merged:
        missing = "the dumps hold none: they are recorded with TORCH_INCLUDE_STACK_TRACE=1"
        return ["", *_row("stacks", missing, style)]
    lines = [""]
    for stack in merged[:_STACKS_SHOWN]:
        code = {"culprit": _RED, "suspect": _YELLOW}.get(stack.role, _BOLD)
        taken = "where the newest recorded call was made" if stack.source == RECORDER else stack.source
        head = f"{stack.role}: {noun(stack.ranks)} ({taken})"
        lines += [style.paint(line, code) for line in _wrapped(words.printable(head), style.width, 0, 2)]
        lines += [f"    {words.frame(frame)}" for frame in stack.frames]
    left = len(merged) - _STACKS_SHOWN
    return [*lines, f"and {count(left, 'more stack')}; --json lists them"] if left > 0 else lines
