"""Errors of REST v1: ``detail`` for people, ``code`` for programs, ``fields`` where a value was wrong."""

from __future__ import annotations

from typing import Any

from django.core.exceptions import PermissionDenied
from django.http import Http404
from rest_framework.exceptions import APIException, NotFound, ValidationError
from rest_framework.exceptions import PermissionDenied as ApiPermissionDenied
from rest_framework.response import Response
from rest_framework.views import exception_handler


def handle(error: Exception, context: dict[str, Any]) -> Response | None:
    """One shape for all of them: ``{"detail": str, "code": str}``."""
    if isinstance(error, Http404):
        error = NotFound()
    elif isinstance(error, PermissionDenied):
        error = ApiPermissionDenied()
    response = exception_handler(error, context)
    if response is None or not isinstance(error, APIException):
        return response
    if isinstance(error, ValidationError):
        fields = error.detail if isinstance(error.detail, dict) else {"value": error.detail}
        response.data = {"detail": "a value is not allowed", "code": "invalid", "fields": fields}
        return response
    codes = error.get_codes()
    response.data = {
        "detail": str(error.detail),
        "code": codes if isinstance(codes, str) else error.default_code,
    }
    return response
