"""Query parameters of series: time ranges, resolutions, metrics. What means nothing is an error."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
from typing import Any, Final

import redis
from drf_spectacular.types import OpenApiTypes
from drf_spectacular.utils import OpenApiParameter
from rest_framework.exceptions import APIException, ValidationError
from rest_framework.request import Request

from clusterwatch.api import filters
from clusterwatch.store.answers import SECOND_NS, QueryRefused, Window
from collectors.wire.metrics import METRICS, Metric

DEFAULT_S: Final = 600
METRICS_MAX: Final = 64

FROM = OpenApiParameter(
    "from", OpenApiTypes.DATETIME, description="ISO 8601 with a time zone; default: ten minutes before `to`"
)
TO = OpenApiParameter("to", OpenApiTypes.DATETIME, description="ISO 8601 with a time zone; default: now")
WINDOW = [FROM, TO]
METRIC = OpenApiParameter("metric", str, required=True, description="name of a metric (GET /metrics)")
MANY_METRICS = OpenApiParameter(
    "metric", OpenApiTypes.STR, many=True, description="names of metrics; default: all that were sent"
)


class TooLarge(APIException):
    """A question over its bound; the text says which smaller one would be answered."""

    status_code = 400
    default_code = "too_large"


class LiveStateAway(APIException):
    """Hot state does not answer; what is stored can still be asked for."""

    status_code = 503
    default_code = "live_state_away"
    default_detail = "live state does not answer; ask again in some seconds, or ask for stored series"


@contextmanager
def refusals() -> Iterator[None]:
    """Turns what the store refuses, or cannot reach, into answers with words."""
    try:
        yield
    except QueryRefused as refused:
        raise TooLarge(str(refused)) from refused
    except redis.RedisError as away:
        raise LiveStateAway from away


def resolution(steps_s: Sequence[int]) -> OpenApiParameter:
    """The parameter of a resource with these steps."""
    return OpenApiParameter(
        "resolution_s",
        int,
        enum=list(steps_s),
        description="seconds to a bucket; default: the finest that fits the window",
    )


def chosen_window(request: Request) -> Window:
    """``from`` and ``to``. Raises ``ValidationError``."""
    end_ns = moment(request, "to") or time.time_ns()
    start_ns = moment(request, "from")
    if start_ns is None:
        start_ns = max(0, end_ns - DEFAULT_S * SECOND_NS)
    if start_ns >= end_ns:
        raise ValidationError({"from": ["must be before `to`"]})
    return Window(start_ns, end_ns)


def moment(request: Request, name: str) -> int | None:
    """A time as ns UTC; None when it is not given. Raises ``ValidationError``."""
    text = filters.text(request, name)
    if text is None:
        return None
    try:
        # A plus sign that was not encoded arrives as a blank.
        found = datetime.fromisoformat(text.replace(" ", "+") if "T" in text.upper() else text)
        if found.tzinfo is None:
            raise ValueError(text)
        seconds = (found.astimezone(UTC) - datetime(1970, 1, 1, tzinfo=UTC)).total_seconds()
    except (ValueError, OverflowError) as fault:
        words = "ISO 8601 with a time zone, as 2026-01-31T08:00:00Z"
        raise ValidationError({name: [words]}) from fault
    if not 0 <= seconds < filters.ID_MAX // SECOND_NS:
        raise ValidationError({name: ["a time between 1970 and 2262"]})
    return round(seconds * 1_000_000) * 1_000


def step(request: Request) -> int | None:
    """``resolution_s``; the store says which ones there are."""
    return filters.number(request, "resolution_s")


def metric(request: Request) -> str:
    """The one metric asked for. Raises ``ValidationError`` without one."""
    name = filters.text(request, "metric")
    if not name:
        raise ValidationError({"metric": ["name one: GET /metrics lists them"]})
    return name


def metrics(request: Request) -> list[str] | None:
    """Metrics asked for; None: all. Raises ``ValidationError``."""
    names = request.query_params.getlist("metric")
    wrong = any("\0" in name or not 0 < len(name) <= filters.TEXT_MAX_CHARS for name in names)
    if wrong or len(names) > METRICS_MAX:
        raise ValidationError({"metric": [f"at most {METRICS_MAX} names"]})
    return list(names) or None


def whole(request: Request, name: str, default: int, most: int) -> int:
    """A whole number from 1 to ``most``."""
    value = filters.number(request, name)
    if value is None:
        return default
    if not 1 <= value <= most:
        raise ValidationError({name: [f"a whole number from 1 to {most}"]})
    return value


def described(name: str) -> dict[str, Any]:
    """Name, unit and kind of a metric; unit and kind are null for one the catalogue does not know."""
    known: Metric | None = METRICS.get(name)
    return {"metric": name, "unit": known.unit if known else None, "kind": known.kind if known else None}
