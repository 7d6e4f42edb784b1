"""Downloads of series: the same questions as the resources, over longer windows, streamed part by part."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Iterator
from typing import Any, Final

import numpy as np
from asgiref.sync import sync_to_async
from django.http import StreamingHttpResponse
from drf_spectacular.types import OpenApiTypes
from drf_spectacular.utils import OpenApiParameter, OpenApiResponse, extend_schema
from rest_framework.exceptions import APIException
from rest_framework.request import Request
from rest_framework.views import APIView

from clusterwatch.api import (
    arrays,
    export_formats,
    export_tables,
    filters,
    scopes,
    series_shapes,
    series_views,
    windows,
)
from clusterwatch.fleet import places
from clusterwatch.jobs.places import slots_of
from clusterwatch.store import fleet_queries, node_series

_AS = series_views.word("as", export_formats.TYPES, "default csv")
_ANSWERS: Final[dict[Any, Any]] = {
    **{(200, kind.partition(";")[0]): OpenApiTypes.BINARY for kind in export_formats.TYPES.values()},
    501: OpenApiResponse(series_shapes.AwayShape, "this server has no library for that format"),
}


class FormatMissing(APIException):
    """The extra that writes this format is not installed."""

    status_code = 501
    default_code = "format_missing"


class Download(StreamingHttpResponse):
    """A stream whose parts are made in a thread, one at a time, while the event loop serves others.

    Django's own class would make a whole list of a plain iterator before it sends the first byte.
    """

    async def __aiter__(self) -> AsyncIterator[bytes]:
        parts = iter(self)
        take = sync_to_async(_next_of)
        while (part := await take(parts)) is not None:
            yield part


def _next_of(parts: Iterator[bytes]) -> bytes | None:
    return next(parts, None)


class ExportView(APIView, ABC):
    """A table as a file; errors before the first byte are answers as everywhere."""

    renderer_classes = (arrays.ArrayRenderer,)

    def download(self, request: Request, **kwargs: Any) -> StreamingHttpResponse:
        kind = series_views.chosen(request, "as", export_formats.TYPES, "csv")
        with windows.refusals():
            table = export_formats.begun(self.table(request, **kwargs))
            try:
                parts = export_formats.written(table, kind)
            except export_formats.ParquetMissing as missing:
                raise FormatMissing(str(missing)) from missing
            return _streamed(parts, f"{table.name}.{kind}", kind)

    @abstractmethod
    def table(self, request: Request, **kwargs: Any) -> export_formats.Table:
        """What to write."""


def _streamed(parts: Iterator[bytes], name: str, kind: str) -> StreamingHttpResponse:
    safe = "".join(letter if letter.isalnum() or letter in "-_." else "_" for letter in name)
    response = Download(parts, content_type=export_formats.TYPES[kind])
    response["Content-Disposition"] = f'attachment; filename="{safe}"'
    response["X-Content-Type-Options"] = "nosniff"
    return response


class SeriesExport(ExportView):
    @extend_schema(
        summary="Metrics of one GPU as a file",
        description="A row per bucket and metric, up to 62 days; whatever the length, it is streamed.",
        parameters=[
            _AS,
            OpenApiParameter("gpu", int, description="index on the node, default 0"),
            windows.MANY_METRICS,
            *windows.WINDOW,
            windows.resolution(node_series.STEPS_S),
        ],
        responses=_ANSWERS,
    )
    def get(self, request: Request, **kwargs: Any) -> StreamingHttpResponse:
        return self.download(request, **kwargs)

    def table(self, request: Request, **kwargs: Any) -> export_formats.Table:
        node = scopes.node(request, kwargs["pk"])
        window, step_s = windows.chosen_window(request), windows.step(request)
        gpu = series_views.gpu_place(request)
        step_s = node_series.step_of(window, step_s)
        return export_tables.series(node.pk, node.name, gpu, window, windows.metrics(request), step_s)


class PercentilesExport(ExportView):
    @extend_schema(
        summary="Percentiles of a cluster or a job over time as a file",
        parameters=[
            _AS,
            windows.METRIC,
            series_views.word("scope", series_views.SCOPES[:2], "default fleet"),
            OpenApiParameter("job", int, description="our id, with scope=job"),
            *windows.WINDOW,
            windows.resolution(fleet_queries.PERCENTILE_STEPS_S),
        ],
        responses=_ANSWERS,
    )
    def get(self, request: Request, **kwargs: Any) -> StreamingHttpResponse:
        return self.download(request, **kwargs)

    def table(self, request: Request, **kwargs: Any) -> export_formats.Table:
        cluster = scopes.cluster(request, kwargs["pk"])
        kind = series_views.chosen(request, "scope", series_views.SCOPES[:2], "fleet")
        scope = series_views.stored_scope(request, cluster.pk, kind)
        window, metric = windows.chosen_window(request), windows.metric(request)
        return export_tables.percentiles(cluster.pk, scope, metric, window, windows.step(request))


class MinutesExport(ExportView):
    @extend_schema(
        summary="One metric of every GPU by the minute as a file",
        description="A row per minute and GPU that has a number, up to 24 hours: 35 million rows of a cluster"
        " of 24,576 GPUs. With `job` only its GPUs.",
        parameters=[
            _AS,
            windows.METRIC,
            OpenApiParameter("job", int, description="only GPUs of this job, our id"),
            *windows.WINDOW,
        ],
        responses=_ANSWERS,
    )
    def get(self, request: Request, **kwargs: Any) -> StreamingHttpResponse:
        return self.download(request, **kwargs)

    def table(self, request: Request, **kwargs: Any) -> export_formats.Table:
        cluster = scopes.cluster(request, kwargs["pk"])
        job = filters.number(request, "job")
        if job is None:
            named = places.names(cluster.pk)
            slots = np.array(list(named), np.int64)
        else:
            slots = slots_of(scopes.job(request, job)).slots
            named = places.names(cluster.pk, slots.tolist())
        metric, window = windows.metric(request), windows.chosen_window(request)
        return export_tables.minutes(cluster.pk, metric, window, slots, named)
