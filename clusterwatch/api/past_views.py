"""REST v1 of what was: heat maps of a job, the map at any kept time, one exact second of a rack or node."""

from __future__ import annotations

from typing import Any, Final

from drf_spectacular.types import OpenApiTypes
from drf_spectacular.utils import OpenApiParameter, extend_schema
from rest_framework.exceptions import ValidationError
from rest_framework.request import Request
from rest_framework.response import Response

from clusterwatch.api import arrays, filters, scopes, series_shapes, series_views, windows
from clusterwatch.jobs.places import slots_of
from clusterwatch.store import fleet_minutes, past_states
from clusterwatch.store.answers import SECOND_NS, Reason
from clusterwatch.store.fleet_minutes import HEAT_COLUMNS_MAX, HEAT_ROWS_MAX, Plane

PLANES: Final = {"mean": Plane.MEAN, "low": Plane.LOW, "high": Plane.HIGH, "last": Plane.LAST}


class JobHeatMap(series_views.SeriesView):
    @extend_schema(
        summary="A metric of every GPU of a job over time",
        description="Where there are more GPUs or minutes than fit, neighbours are gathered into one cell.",
        parameters=[
            windows.METRIC,
            series_views.word("reduce", PLANES, "what a minute is reduced to, default mean"),
            OpenApiParameter("rows", int, description=f"1 to {HEAT_ROWS_MAX}, default 512"),
            OpenApiParameter("columns", int, description=f"1 to {HEAT_COLUMNS_MAX}, default 240"),
            *windows.WINDOW,
        ],
        responses=series_shapes.HeatMapShape,
    )
    def get(self, request: Request, **kwargs: Any) -> Response:
        return super().get(request, **kwargs)

    def answer(self, request: Request, **kwargs: Any) -> Any:
        job = scopes.job(request, kwargs["pk"])
        metric, reduce = windows.metric(request), series_views.chosen(request, "reduce", PLANES, "mean")
        of_job = slots_of(job)
        found = fleet_minutes.heat_map(
            job.cluster_id,
            metric,
            of_job.slots,
            windows.chosen_window(request),
            plane=PLANES[reduce],
            rows_max=windows.whole(request, "rows", 512, HEAT_ROWS_MAX),
            columns_max=windows.whole(request, "columns", 240, HEAT_COLUMNS_MAX),
        )
        return {
            **windows.described(metric),
            **arrays.grid(found.grid),
            "reduce": reduce,
            "ranks": of_job.ranks,
            "coverage": arrays.coverage(found.coverage),
            **arrays.gaps(found.gaps),
            "rows": [
                {"slots": slots, "values": arrays.float32(row)}
                for slots, row in zip(found.groups, found.values, strict=True)
            ],
        }


# --- the past -------------------------------------------------------------------------------------------


def _moment(request: Request) -> int:
    """``at``, which must be given."""
    found = windows.moment(request, "at")
    if found is None:
        raise ValidationError({"at": ["is needed here: ISO 8601 with a time zone"]})
    return found


_AT = OpenApiParameter("at", OpenApiTypes.DATETIME, required=True, description="ISO 8601 with a time zone")


class MapAt(series_views.SeriesView):
    @extend_schema(
        summary="The map of a cluster as it was",
        description="The newest frame kept at or before that time; one is kept every 10 s.",
        parameters=[_AT, OpenApiParameter("mode", str, description="colour mode, default state")],
        responses=series_shapes.MapShape,
    )
    def get(self, request: Request, **kwargs: Any) -> Response:
        return super().get(request, **kwargs)

    def answer(self, request: Request, **kwargs: Any) -> Any:
        cluster = scopes.cluster(request, kwargs["pk"])
        mode = filters.text(request, "mode") or "state"
        found = past_states.map_at(cluster.pk, mode, _moment(request))
        head = {"cluster": cluster.pk, "mode": mode}
        if isinstance(found, Reason):
            return {**head, "at": None, "reason": str(found), "slots_version": None, "slots": None}
        return {
            **head,
            "at": arrays.at(found.t_ns),
            "reason": None,
            "slots_version": found.slots_version,
            "slots": found.slots,
        }


class SecondAt(series_views.SeriesView):
    @extend_schema(
        summary="Every number of a rack or a node in one past second",
        parameters=[
            _AT,
            series_views.word("scope", series_views.SCOPES[2:], "default node"),
            OpenApiParameter("rack", str, description="its name, with scope=rack"),
            OpenApiParameter("node", int, description="our id, with scope=node"),
            windows.MANY_METRICS,
        ],
        responses=series_shapes.SecondsShape,
    )
    def get(self, request: Request, **kwargs: Any) -> Response:
        return super().get(request, **kwargs)

    def answer(self, request: Request, **kwargs: Any) -> Any:
        cluster = scopes.cluster(request, kwargs["pk"])
        t_ns = _moment(request) // SECOND_NS * SECOND_NS
        scope = series_views.chosen(request, "scope", series_views.SCOPES[2:], "node")
        _, node_ids = series_views.nodes_asked(request, cluster.pk, scope)
        found = past_states.second_of_nodes(node_ids, t_ns, metrics=windows.metrics(request))
        return {"at": arrays.at(t_ns), "nodes": [_second(one) for one in found]}


def _second(one: past_states.NodeSecond) -> dict[str, Any]:
    metrics = [
        {"metric": name, "unit": one.units[name], "values": arrays.numbers(values)}
        for name, values in one.values.items()
    ]
    return {"node": one.node_id, "reason": str(one.reason) if one.reason else None, "metrics": metrics}
