"""HTML from calls: text is escaped unless this module made it, so nothing from a dump becomes markup."""

from __future__ import annotations

from html import escape
from typing import Final

from clusterwatch.cli.report.words import printable

TEXT_MAX_CHARS: Final = 400
"""Longest text of one place; names and paths from outside are cut there."""

_VOID: Final = frozenset({"meta", "br"})


class Markup(str):
    """Text that is HTML already."""

    __slots__ = ()


Child = str | Markup | None


def text(value: str) -> Markup:
    """``value`` as text of a page: printable, bounded, escaped."""
    cut = value if len(value) <= TEXT_MAX_CHARS else value[: TEXT_MAX_CHARS - 1] + "\N{HORIZONTAL ELLIPSIS}"
    return Markup(escape(printable(cut)))


def el(tag: str, /, *children: Child, **attributes: str | int | None) -> Markup:
    """One element. Attributes: ``cls`` is class, ``_`` is ``-``, None leaves the attribute out."""
    parts = [f"<{tag}"]
    for key, value in attributes.items():
        if value is not None:
            word = "class" if key == "cls" else key.rstrip("_").replace("_", "-")
            parts.append(f' {word}="{text(str(value))}"')
    if tag in _VOID:
        return Markup("".join(parts) + ">")
    return Markup(f"{''.join(parts)}>{join(*children)}</{tag}>")


def join(*children: Child) -> Markup:
    """Children in a row; plain text is escaped, None is nothing."""
    return Markup("".join(part if isinstance(part, Markup) else text(part) for part in children if part))


def drawing(data: str, cls: str) -> Markup:
    """A path of an SVG from numbers this program computed."""
    return Markup(f'<path class="{cls}" d="{data}"/>')
