"""The pages that explain verdicts."""

from __future__ import annotations

from django.http import Http404, HttpRequest, HttpResponse
from django.shortcuts import render
from django.views.decorators.http import require_GET

from clusterwatch.web import verdict_docs


@require_GET
def verdicts(request: HttpRequest) -> HttpResponse:
    """All verdicts by class."""
    return render(request, "web/verdict_docs.html", {"sections": verdict_docs.by_class(), "here": "docs"})


@require_GET
def verdict(request: HttpRequest, word: str) -> HttpResponse:
    """What one verdict means, how we know, what to do, when we would be wrong."""
    doc = verdict_docs.find(word)
    if doc is None:
        raise Http404(f"no page explains {word}")
    context = {"doc": doc, "sections": verdict_docs.by_class(), "here": "docs"}
    return render(request, "web/verdict_doc.html", context)
