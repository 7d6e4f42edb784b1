"""The pages that explain verdicts: Markdown files of the product, rendered without raw HTML.

In: ``templates/docs/verdicts/WORD.md``, one per verdict. Out: ``VerdictDoc`` and its address. The files ship
with the product, yet are rendered as if they did not: HTML in them is shown as text.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from django.conf import settings
from django.urls import reverse
from django.utils.safestring import SafeString, mark_safe
from markdown_it import MarkdownIt
from markdown_it.token import Token

from clusterwatch.analysis.verdicts import CATALOGUE, Verdict
from clusterwatch.web.words import CLASS_WORDS, Badge, verdict_badge

_WORD = re.compile(r"[a-z0-9_]{1,64}")
_OTHER_PAGE = re.compile(r"(?:\./)?([a-z0-9_]{1,64})\.md(#[\w-]*)?")


@dataclass(frozen=True, slots=True)
class VerdictDoc:
    """One page. ``verdict`` is None where the catalogue does not hold the word (yet)."""

    word: str
    title: str
    lead: str
    """first paragraph as plain text, for lists"""
    body: SafeString
    badge: Badge
    verdict: Verdict | None


def folder() -> Path:
    return Path(settings.ASSET_DIR) / "templates" / "docs" / "verdicts"


def words() -> tuple[str, ...]:
    """Verdicts that have a page, sorted."""
    return tuple(sorted(path.stem for path in folder().glob("*.md") if _WORD.fullmatch(path.stem)))


def address(word: str) -> str:
    """Where a verdict is explained; empty where it is not."""
    known = _WORD.fullmatch(word) is not None and (folder() / f"{word}.md").is_file()
    return reverse("verdict_doc", args=[word]) if known else ""


def find(word: str) -> VerdictDoc | None:
    """The page of a verdict."""
    if not address(word):
        return None
    path = folder() / f"{word}.md"
    return _rendered(word, path, path.stat().st_mtime_ns)


def by_class() -> list[tuple[str, list[VerdictDoc]]]:
    """All pages under the word of their class, in the order of the catalogue, then of the alphabet."""
    order = {word: number for number, word in enumerate(CATALOGUE)}
    docs = [doc for word in words() if (doc := find(word)) is not None]
    docs.sort(key=lambda doc: (order.get(doc.word, len(order)), doc.word))
    sections: dict[str, list[VerdictDoc]] = {}
    for doc in docs:
        known = doc.verdict.fault_class if doc.verdict is not None else ""
        sections.setdefault(CLASS_WORDS.get(known, "Other answers"), []).append(doc)
    return list(sections.items())


@functools.lru_cache(maxsize=128)
def _rendered(word: str, path: Path, changed_ns: int) -> VerdictDoc:
    """``changed_ns`` is only there to render anew after a change."""
    source = path.read_text(encoding="utf-8")
    markdown = MarkdownIt("commonmark", {"html": False, "linkify": False}).enable("table")
    tokens = markdown.parse(source)
    verdict = CATALOGUE.get(word)
    title = _first(tokens, "heading_open") or word.replace("_", " ").capitalize()
    for token in tokens:
        if "style" in token.attrs:  # of aligned table cells; the policy of our pages takes no inline style
            del token.attrs["style"]
        for child in token.children or ():
            _lead_on(child)
    body = markdown.renderer.render(_without_title(tokens), markdown.options, {})
    badge = (
        verdict_badge(verdict.fault_class, word, str(verdict.severity))
        if verdict is not None
        else verdict_badge("", word, "unknown")
    )
    safe = mark_safe(body)  # noqa: S308 - made by markdown-it with raw HTML off
    return VerdictDoc(word, title, _first(tokens, "paragraph_open"), safe, badge, verdict)


def _first(tokens: Sequence[Token], kind: str) -> str:
    """Text of the first block of a kind."""
    for token, inline in zip(tokens, tokens[1:], strict=False):
        if token.type == kind:
            parts = [" " if child.type == "softbreak" else child.content for child in inline.children or ()]
            return " ".join("".join(parts).split())
    return ""


def _without_title(tokens: Sequence[Token]) -> Sequence[Token]:
    """The page's own frame shows the title."""
    begins = len(tokens) >= 3 and tokens[0].type == "heading_open" and tokens[0].tag == "h1"
    return tokens[3:] if begins else tokens


def _lead_on(token: Token) -> None:
    """Links between files become links between pages, or plain text where no such page is there."""
    if token.type != "link_open":
        return
    href = str(token.attrGet("href") or "")
    other = _OTHER_PAGE.fullmatch(href)
    if other is not None and (page := address(other[1])):
        token.attrSet("href", page + (other[2] or ""))
    elif other is not None:
        del token.attrs["href"]
    elif "://" in href:
        token.attrSet("rel", "noreferrer noopener")
