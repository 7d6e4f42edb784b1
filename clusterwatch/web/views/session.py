"""Signing in and out, preferences, liveness for the supervisor, and the pages of errors."""

from __future__ import annotations

from django.http import HttpRequest, HttpResponse, JsonResponse
from django.shortcuts import redirect, render
from django.utils.http import url_has_allowed_host_and_scheme
from django.views.decorators.http import require_GET, require_POST

from clusterwatch.web.context import DENSITIES, DENSITY_COOKIE, THEME_COOKIE, THEMES

PREFERENCE_AGE_S = 365 * 24 * 3600


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
    """No database here: it may be the reason."""
    return render(None, "web/failed.html", status=500)
