"""REST v1 of series: each view checks its parameters, asks the store once, and names what is missing."""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from collections.abc import Iterable
from typing import Any, Final

import numpy as np
from drf_spectacular.utils import OpenApiParameter, extend_schema
from numpy.typing import NDArray
from rest_framework.exceptions import ValidationError
from rest_framework.request import Request
from rest_framework.response import Response
from rest_framework.views import APIView

from clusterwatch.api import arrays, filters, scopes, series_shapes, windows
from clusterwatch.fleet import places
from clusterwatch.jobs.places import slots_of
from clusterwatch.store import fleet_minutes, fleet_queries, node_series, past_states
from clusterwatch.store.answers import SECOND_NS, Reason
from clusterwatch.store.fleet_minutes import By
from collectors.wire.metrics import METRICS

ORDERS: Final = ("largest", "smallest")
SCOPES: Final = ("fleet", "job", "rack", "node")
AGE_MAX_S: Final = 86_400
GPU_PLACES_MAX: Final = 1_024


class SeriesView(APIView, ABC):
    """A resource whose answer holds arrays; refusals of the store become answers with words."""

    renderer_classes = (arrays.ArrayRenderer,)

    def get(self, request: Request, **kwargs: Any) -> Response:
        with windows.refusals():
            return Response(self.answer(request, **kwargs))

    @abstractmethod
    def answer(self, request: Request, **kwargs: Any) -> Any:
        """What the answer holds."""


def chosen(request: Request, name: str, allowed: Iterable[str], default: str) -> str:
    """One word of a few. Raises ``ValidationError``."""
    value = request.query_params.get(name, default)
    if value not in allowed:
        raise ValidationError({name: [f"one of {', '.join(allowed)}"]})
    return value


def word(name: str, allowed: Iterable[str], text: str) -> OpenApiParameter:
    return OpenApiParameter(name, str, enum=list(allowed), description=text)


class MetricList(SeriesView):
    @extend_schema(summary="The catalogue of metrics", responses=series_shapes.MetricShape(many=True))
    def get(self, request: Request, **kwargs: Any) -> Response:
        return super().get(request, **kwargs)

    def answer(self, request: Request, **kwargs: Any) -> Any:
        return [
            windows.described(one.name)
            | {"resolution": one.resolution, "part": one.part, "highest": one.highest, "text": one.text}
            for one in METRICS.values()
        ]


class SlotList(SeriesView):
    @extend_schema(summary="What each open slot of a cluster is", responses=series_shapes.SlotsShape)
    def get(self, request: Request, **kwargs: Any) -> Response:
        return super().get(request, **kwargs)

    def answer(self, request: Request, **kwargs: Any) -> Any:
        cluster = scopes.cluster(request, kwargs["pk"])
        named = places.names(cluster.pk)
        return {
            "slots_version": cluster.slots_version,
            "places": [place(slot, named) for slot in named],
        }


def place(slot: int, named: dict[int, places.SlotName]) -> dict[str, Any]:
    """A slot in words; nulls for one nobody remembers."""
    known = named.get(slot)
    return {
        "slot": slot,
        "node": known.node_id if known else None,
        "node_name": known.node if known else None,
        "gpu": known.gpu if known else None,
    }


# --- one GPU --------------------------------------------------------------------------------------------


class NodeSeries(SeriesView):
    @extend_schema(
        summary="Metrics of one GPU of a node over time",
        parameters=[
            OpenApiParameter("gpu", int, description="index on the node, default 0"),
            windows.MANY_METRICS,
            *windows.WINDOW,
            windows.resolution(node_series.STEPS_S),
        ],
        responses=series_shapes.NodeSeriesShape,
    )
    def get(self, request: Request, **kwargs: Any) -> Response:
        return super().get(request, **kwargs)

    def answer(self, request: Request, **kwargs: Any) -> Any:
        node = scopes.node(request, kwargs["pk"])
        gpu = gpu_place(request)
        found = node_series.gpu_series(
            node.pk,
            gpu,
            windows.chosen_window(request),
            metrics=windows.metrics(request),
            step_s=windows.step(request),
        )
        return {
            "node": node.pk,
            "gpu": gpu,
            **arrays.grid(found.grid),
            "source": found.source,
            "damaged_blocks": found.damaged,
            "series": [_one_series(one, found) for one in found.series],
        }


def gpu_place(request: Request) -> int:
    """``gpu``: the index on its node. Raises ``ValidationError``."""
    value = filters.number(request, "gpu") or 0
    if value >= GPU_PLACES_MAX:
        raise ValidationError({"gpu": [f"less than {GPU_PLACES_MAX}"]})
    return value


def _one_series(one: node_series.Series, found: node_series.NodeAnswer) -> dict[str, Any]:
    is_sample = found.grid.step_s == 1
    shown = arrays.numbers if found.source == "raw_block" else arrays.float32
    described = windows.described(one.metric)
    return {
        **described,
        "unit": one.unit or described["unit"],
        "of_node": one.of_node,
        "coverage": arrays.coverage(one.coverage),
        **arrays.gaps(one.gaps),
        "mean": shown(one.mean),
        "low": None if is_sample else shown(one.low),
        "high": None if is_sample else shown(one.high),
    }


# --- all GPUs -------------------------------------------------------------------------------------------


class Latest(SeriesView):
    @extend_schema(
        summary="Newest value of a metric on every GPU",
        parameters=[
            windows.METRIC,
            OpenApiParameter("max_age_s", int, description="older values are null, default 10"),
        ],
        responses={200: series_shapes.LatestShape, 503: series_shapes.AwayShape},
    )
    def get(self, request: Request, **kwargs: Any) -> Response:
        return super().get(request, **kwargs)

    def answer(self, request: Request, **kwargs: Any) -> Any:
        cluster = scopes.cluster(request, kwargs["pk"])
        metric = windows.metric(request)
        max_age_s = windows.whole(request, "max_age_s", int(fleet_queries.FRESH_S), AGE_MAX_S)
        now_ns = time.time_ns()
        found = fleet_queries.latest(
            cluster.pk, metric, cluster.slot_count, max_age_s=max_age_s, now_ns=now_ns
        )
        heard = found.seen_ns > 0
        age_s = np.where(heard, (now_ns - found.seen_ns) / SECOND_NS, np.nan)
        return {
            "cluster": cluster.pk,
            "slots_version": cluster.slots_version,
            **windows.described(metric),
            "max_age_s": max_age_s,
            "coverage": arrays.coverage(found.coverage),
            "slots": np.arange(cluster.slot_count),
            "values": arrays.numbers(found.values),
            "age_s": arrays.numbers(np.round(np.maximum(age_s, 0), 3)),
            "missing": _missing(found, heard),
        }


def _missing(found: fleet_queries.Latest, heard: NDArray[np.bool_]) -> dict[str, int]:
    empty = np.isnan(found.values)
    counts = {
        Reason.SILENT: int(found.silent.sum()),
        Reason.NOT_COLLECTED: int((~heard).sum()),
        Reason.NO_DATA: int((empty & heard & ~found.silent).sum()),
    }
    return {str(reason): count for reason, count in counts.items() if count}


class FleetPercentiles(SeriesView):
    @extend_schema(
        summary="Percentiles of a metric over time: of a cluster, a job, a rack or a node",
        description="Of a cluster and a job every 10 s as pulse keeps them; with a coarser resolution a"
        " percentile is the mean of those. Of a rack and a node they are exact: below 60 s over every sample,"
        " from 60 s on over the minute means of the GPUs.",
        parameters=[
            windows.METRIC,
            word("scope", SCOPES, "default fleet"),
            OpenApiParameter("job", int, description="our id, with scope=job"),
            OpenApiParameter("rack", str, description="its name, with scope=rack"),
            OpenApiParameter("node", int, description="our id, with scope=node"),
            *windows.WINDOW,
            windows.resolution(fleet_queries.GROUP_STEPS_S),
        ],
        responses=series_shapes.PercentilesShape,
    )
    def get(self, request: Request, **kwargs: Any) -> Response:
        return super().get(request, **kwargs)

    def answer(self, request: Request, **kwargs: Any) -> Any:
        cluster = scopes.cluster(request, kwargs["pk"])
        scope, found = percentiles_asked(request, cluster.pk)
        return {
            **windows.described(windows.metric(request)),
            "scope": scope,
            **arrays.grid(found.grid),
            "source": found.source,
            "coverage": arrays.coverage(found.coverage),
            **arrays.gaps(found.gaps),
            "values": found.count,
            **{name: arrays.float32(values) for name, values in found.columns.items()},
        }


def percentiles_asked(request: Request, cluster_id: int) -> tuple[str, fleet_queries.Percentiles]:
    """The scope's name and its percentiles, as the parameters say."""
    metric, window, step_s = windows.metric(request), windows.chosen_window(request), windows.step(request)
    scope = chosen(request, "scope", SCOPES, "fleet")
    if scope in ("fleet", "job"):
        name = stored_scope(request, cluster_id, scope)
        return name, fleet_queries.stored_percentiles(cluster_id, name, metric, window, step_s=step_s)
    name, node_ids = nodes_asked(request, cluster_id, scope)
    slots = places.slots_of_nodes(node_ids)
    return name, fleet_queries.group_percentiles(cluster_id, metric, node_ids, slots, window, step_s=step_s)


def stored_scope(request: Request, cluster_id: int, scope: str) -> str:
    """The name of a scope whose percentiles pulse keeps: ``fleet`` or ``job``."""
    if scope == "fleet":
        return fleet_queries.FLEET
    job = scopes.job(request, needed(request, "job"))
    if job.cluster_id != cluster_id:
        raise ValidationError({"job": ["it ran on another cluster"]})
    return fleet_queries.scope_of_job(job.pk)


def needed(request: Request, name: str) -> int:
    """A number that must be given. Raises ``ValidationError``."""
    value = filters.number(request, name)
    if value is None:
        raise ValidationError({name: ["is needed here"]})
    return value


def nodes_asked(request: Request, cluster_id: int, scope: str) -> tuple[str, list[int]]:
    """(name of the scope, its nodes) for ``rack`` or ``node``. Raises ``ValidationError``, ``Http404``."""
    if scope == "node":
        node = scopes.node(request, needed(request, "node"))
        if node.cluster_id != cluster_id:
            raise ValidationError({"node": ["it belongs to another cluster"]})
        return f"node:{node.name}", [node.pk]
    rack = filters.text(request, "rack")
    nodes = places.nodes_of_rack(cluster_id, rack, past_states.NODES_MAX) if rack else []
    if not nodes:
        raise ValidationError({"rack": ["no rack of this cluster has that name"]})
    return f"rack:{rack}", nodes


class Top(SeriesView):
    @extend_schema(
        summary="GPUs with the largest mean, or the largest growth, of a metric",
        description="Growth of a gauge is its newest minute mean less its oldest; that of a counter is what"
        " it counted. The window is widened to whole minutes.",
        parameters=[
            windows.METRIC,
            word("by", [by.value for by in By], "default mean"),
            word("order", ORDERS, "default largest"),
            OpenApiParameter("job", int, description="only GPUs of this job, our id"),
            OpenApiParameter("limit", int, description=f"1 to {fleet_minutes.TOP_MAX}, default 10"),
            *windows.WINDOW,
        ],
        responses=series_shapes.TopShape,
    )
    def get(self, request: Request, **kwargs: Any) -> Response:
        return super().get(request, **kwargs)

    def answer(self, request: Request, **kwargs: Any) -> Any:
        cluster = scopes.cluster(request, kwargs["pk"])
        metric, by = windows.metric(request), By(chosen(request, "by", [one.value for one in By], "mean"))
        described = windows.described(metric)
        if described["kind"] == "flags":
            raise ValidationError({"metric": ["a bit mask has no mean and no growth"]})
        job = filters.number(request, "job")
        found = fleet_minutes.top_k(
            cluster.pk,
            metric,
            windows.chosen_window(request),
            windows.whole(request, "limit", 10, fleet_minutes.TOP_MAX),
            by=by,
            is_counter=described["kind"] == "counter",
            largest=chosen(request, "order", ORDERS, ORDERS[0]) == ORDERS[0],
            slots=None if job is None else slots_of(scopes.job(request, job)).slots,
            slot_count=cluster.slot_count,
        )
        slots, values = found.slots.tolist(), np.round(found.values, 6).tolist()
        named = places.names(cluster.pk, slots)
        return {
            **described,
            "by": by.value,
            **arrays.window(found.window),
            "coverage": arrays.coverage(found.coverage),
            "minutes": arrays.coverage(found.minutes),
            **arrays.gaps(found.gaps),
            "results": [
                place(slot, named) | {"value": value} for slot, value in zip(slots, values, strict=True)
            ],
        }
