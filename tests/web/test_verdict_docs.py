"""Pages that explain verdicts: they answer, they are linked, and Markdown cannot bring in HTML."""

from __future__ import annotations

import os
import re
from pathlib import Path

import pytest
from django.http import HttpResponse, HttpResponseBase
from django.test import Client
from django.utils.html import escape

from clusterwatch.analysis.verdicts import CATALOGUE
from clusterwatch.web import verdict_docs
from tests.web.conftest import SignIn
from tests.web.seed import Seeded

pytestmark = pytest.mark.stack


def html_of(answer: HttpResponseBase) -> str:
    assert isinstance(answer, HttpResponse) and answer.status_code == 200
    return answer.content.decode()


@pytest.fixture
def pages(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder of pages of its own."""
    folder = tmp_path / "templates" / "docs" / "verdicts"
    folder.mkdir(parents=True)
    monkeypatch.setattr(verdict_docs, "folder", lambda: folder)
    return folder


def test_every_page_answers_and_every_link_between_pages_leads_to_one(
    seeded: Seeded, sign_in: SignIn
) -> None:
    client = sign_in("vera")
    assert verdict_docs.words()
    for word in verdict_docs.words():
        html = html_of(client.get(verdict_docs.address(word)))
        assert "<h1>" in html and ".md" not in html
        doc = verdict_docs.find(word)
        assert doc is not None and doc.lead and doc.title
        for other in re.findall(r'href="(/docs/verdicts/[^"#]*)', doc.body):
            assert client.get(other).status_code == 200, f"{word} links to {other}"


def test_every_verdict_is_explained_in_four_parts(seeded: Seeded, sign_in: SignIn) -> None:
    client = sign_in("vera")
    for word, row in CATALOGUE.items():
        address = verdict_docs.address(word)
        assert address == f"/docs/{row.doc}/"
        html = html_of(client.get(address))
        parts = ["How we know", "What to do", "When we would be wrong"]
        assert all(f"<h2>{part}</h2>" in html for part in parts), word
        assert escape(row.action) in html


def test_the_list_holds_every_page(seeded: Seeded, sign_in: SignIn) -> None:
    html = html_of(sign_in("vera").get("/docs/verdicts/"))
    assert all(f'href="/docs/verdicts/{word}/"' in html for word in verdict_docs.words())


def test_the_incident_links_to_the_page_of_its_verdict(seeded: Seeded, sign_in: SignIn) -> None:
    client = sign_in("vera")
    address = verdict_docs.address(seeded.incident.verdict)
    assert address and f'<a class="s" href="{address}">' in html_of(
        client.get(f"/incidents/{seeded.incident.pk}")
    )
    assert client.get(address).status_code == 200


def test_an_incident_whose_verdict_has_no_page_has_no_link(
    seeded: Seeded, sign_in: SignIn, pages: Path
) -> None:
    assert "What is this" not in html_of(sign_in("vera").get(f"/incidents/{seeded.incident.pk}"))


@pytest.mark.parametrize("word", ["nothing", "..", "base", "missing_rank.md", "UPPER"])
def test_other_words_are_not_found(seeded: Seeded, sign_in: SignIn, word: str) -> None:
    assert sign_in("vera").get(f"/docs/verdicts/{word}/").status_code == 404


@pytest.mark.django_db
def test_pages_ask_for_a_session(client: Client) -> None:
    for path in ("/docs/verdicts/", "/docs/verdicts/missing_rank/"):
        answer = client.get(path)
        assert answer.status_code == 302 and answer["Location"].startswith("/login/")


def test_html_in_a_page_is_shown_as_text(pages: Path) -> None:
    source = (
        "# A <b>title</b>\n\nLead <img src=x onerror=alert(1)>.\n\n<script>alert(1)</script>\n\n"
        "[go](javascript:alert(1)) [other](missing_rank.md) [none](nothing.md) [out](https://example.org)\n\n"
        "| a | b |\n| --- | ---: |\n| 1 | 2 |\n"
    )
    (pages / "op_mismatch.md").write_text(source)
    (pages / "missing_rank.md").write_text("# M\n\nText.\n")
    doc = verdict_docs.find("op_mismatch")
    assert doc is not None
    assert "<script" not in doc.body and "<img" not in doc.body and "&lt;script&gt;" in doc.body
    assert 'href="javascript' not in doc.body and "style=" not in doc.body
    assert 'href="/docs/verdicts/missing_rank/"' in doc.body and 'rel="noreferrer noopener"' in doc.body
    assert "<a>none</a>" in doc.body
    assert doc.verdict is not None and doc.badge.word.startswith("Hang")


def test_the_lead_is_the_first_paragraph_in_one_line(pages: Path) -> None:
    (pages / "no_fault.md").write_text("# One\n\nText that goes\non in `code`.\n\nMore.\n")
    doc = verdict_docs.find("no_fault")
    assert doc is not None and doc.lead == "Text that goes on in code."


def test_a_changed_page_is_rendered_anew(pages: Path) -> None:
    path = pages / "no_fault.md"
    path.write_text("# One\n\nText.\n")
    first = verdict_docs.find("no_fault")
    path.write_text("# Two\n\nText.\n")
    os.utime(path, ns=(1, 1))
    second = verdict_docs.find("no_fault")
    assert first is not None and second is not None and (first.title, second.title) == ("One", "Two")
