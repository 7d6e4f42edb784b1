"""Signing in and out, preferences, liveness for the supervisor, and the pages of errors."""

from __future__ import annotations

import sys
from typing import Final

from django.db import InterfaceError, OperationalError
from django.http import HttpRequest, HttpResponse, JsonResponse
from django.shortcuts import redirect, render
from django.utils.http import url_has_allowed_host_and_scheme
from django.views.decorators.http import require_GET, require_POST

from clusterwatch.web.context import DENSITIES, DENSITY_COOKIE, THEME_COOKIE, THEMES

PREFERENCE_AGE_S = 365 * 24 * 3600
AGAIN_AFTER_S: Final = 5
_AWAY: Final = (
    "The database does not answer",
    "Nothing acknowledged is lost: agents keep the rest for later. This page tries again by itself.",
)
_FAULT: Final = (
    "This page failed",
    "It is a fault of clusterwatch, not of the cluster. The log of the web process says more.",
)


@require_POST
def preferences(request: HttpRequest) -> HttpResponse:
    """Keeps theme and row height in cookies, so that the server draws the page right at once."""
    wanted = request.POST.get("next", "/")
    if not url_has_allowed_host_and_scheme(wanted, allowed_hosts={request.get_host()}):
        wanted = "/"
    response = redirect(wanted)
    for cookie, allowed in ((THEME_COOKIE, THEMES), (DENSITY_COOKIE, DENSITIES)):
        value = request.POST.get(cookie)
        if value in allowed:
            response.set_cookie(
                cookie, value, max_age=PREFERENCE_AGE_S, samesite="Lax", secure=request.is_secure()
            )
        elif value is not None:
            response.delete_cookie(cookie, samesite="Lax")
    return response


@require_GET
def healthz(request: HttpRequest) -> JsonResponse:
    """The process answers; nothing else is asked."""
    return JsonResponse({"status": "ok"})


def error_page(request: HttpRequest, status: int, title: str, text: str) -> HttpResponse:
    return render(request, "web/error.html", {"status": status, "title": title, "text": text}, status=status)


def not_found(request: HttpRequest, exception: Exception) -> HttpResponse:
    if request.path.startswith("/api/"):
        return JsonResponse({"detail": "There is nothing at this address.", "code": "not_found"}, status=404)
    text = "It may have been removed by retention, or it belongs to a team you are not in."
    return error_page(request, 404, "There is nothing here", text)


def forbidden(request: HttpRequest, exception: Exception) -> HttpResponse:
    text = "Viewers look; operators and admins acknowledge, assign, write and close."
    return error_page(request, 403, "You may not do this", text)


def failed(request: HttpRequest) -> HttpResponse:
    """503 while the database is away, else 500; JSON below ``/api/``. It asks no database itself."""
    away = isinstance(sys.exception(), OperationalError | InterfaceError)
    title, text = _AWAY if away else _FAULT
    status = 503 if away else 500
    if request.path.startswith("/api/"):
        code = "database_away" if away else "fault"
        response: HttpResponse = JsonResponse({"detail": f"{title}. {text}", "code": code}, status=status)
    else:
        # Without the request no context processor runs; they read the database.
        words = {"status": status, "title": title, "text": text, "again_s": AGAIN_AFTER_S if away else None}
        response = render(None, "web/failed.html", words, status=status)
    if away:
        response["Retry-After"] = str(AGAIN_AFTER_S)
    return response
