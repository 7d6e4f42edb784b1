"""Query parameters of lists, checked: a word or number that means nothing is an error, never ignored."""

from __future__ import annotations

from collections.abc import Collection

from drf_spectacular.types import OpenApiTypes
from drf_spectacular.utils import OpenApiParameter
from rest_framework.exceptions import ValidationError
from rest_framework.request import Request

ID_MAX = 2**63 - 1
TEXT_MAX_CHARS = 255

CLUSTER = OpenApiParameter("cluster", str, description="cluster by name or id")


def words(name: str, allowed: Collection[str]) -> OpenApiParameter:
    """A parameter that may be given several times."""
    return OpenApiParameter(name, OpenApiTypes.STR, many=True, enum=sorted(allowed))


def chosen_words(request: Request, name: str, allowed: Collection[str]) -> list[str]:
    """All values of a repeated parameter; raises on one that is not allowed."""
    values = request.query_params.getlist(name)
    wrong = [value for value in values if value not in allowed]
    if wrong:
        raise ValidationError({name: [f"one of {', '.join(sorted(allowed))}"]})
    return values


def text(request: Request, name: str) -> str | None:
    """A plain text parameter; raises on what PostgreSQL cannot hold."""
    value = request.query_params.get(name)
    if value is not None and ("\0" in value or len(value) > TEXT_MAX_CHARS):
        raise ValidationError({name: [f"at most {TEXT_MAX_CHARS} characters, no NUL"]})
    return value


def number(request: Request, name: str) -> int | None:
    """A positive whole number."""
    value = text(request, name)
    if value is None:
        return None
    if not value.isascii() or not value.isdecimal() or int(value[:20]) > ID_MAX:
        raise ValidationError({name: ["a positive whole number"]})
    return int(value)


def by_cluster(request: Request, prefix: str = "cluster") -> dict[str, object]:
    """Filter arguments for ``?cluster=``, by id where it is a number, else by name."""
    value = text(request, "cluster")
    if value is None:
        return {}
    if value.isascii() and value.isdecimal() and int(value[:20]) <= ID_MAX:
        return {f"{prefix}_id": int(value)}
    return {f"{prefix}__name": value}
