"""REST v1 of time: where a job's GPU-time went, its start-ups and checkpoints, and a cluster by month."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import UTC, datetime, timedelta
from typing import Any, Final

from django.db.models import QuerySet
from drf_spectacular.types import OpenApiTypes
from drf_spectacular.utils import OpenApiParameter, extend_schema
from rest_framework import generics
from rest_framework.exceptions import ValidationError
from rest_framework.request import Request
from rest_framework.response import Response
from rest_framework.views import APIView

from clusterwatch.analysis.checkpoints import Recommended
from clusterwatch.analysis.goodput_model import RULE, Kind
from clusterwatch.api import goodput_shapes, scopes, windows
from clusterwatch.api.paging import Paging
from clusterwatch.api.serializers import ErrorSerializer
from clusterwatch.incidents import queries as incident_queries
from clusterwatch.incidents import standstills
from clusterwatch.jobs import goodput
from clusterwatch.jobs.goodput_ledger import at
from clusterwatch.jobs.models import Checkpoint, StartUp

MONTH: Final = timedelta(days=31)
SPAN_MAX: Final = timedelta(days=3 * 366)
NOT_YET: Final = "not counted yet: time is counted two minutes after it passed"


def _total(of: goodput.Total) -> dict[str, Any]:
    whole, found = of.all_ns, of.ratios
    return {
        "gpu_s": whole / 1e9,
        "goodput_low_ratio": found.goodput_low,
        "goodput_high_ratio": found.goodput_high,
        "ettr_ratio": found.ettr,
        "known_ratio": of.known_ratio,
        "classes": [
            {
                "kind": kind.value,
                "gpu_s": ns / 1e9,
                "gpu_hours": ns / 3.6e12,
                "share_ratio": ns / whole if whole else None,
            }
            for kind, ns in of.ns.items()
        ],
    }


def _causes(told: Iterable[tuple[Kind, str, int]]) -> list[dict[str, Any]]:
    return [{"kind": kind.value, "cause": cause, "gpu_s": ns / 1e9} for kind, cause, ns in told]


def _recommended(found: Recommended | None) -> dict[str, Any] | None:
    if found is None:
        return None
    return {
        "attempt": found.save.attempt,
        "world": found.save.world,
        "step": found.save.step,
        "end_at": at(found.save.end_ns),
        "proven_by_load": found.is_proven,
        "confidence": found.confidence,
        "why": list(found.why),
    }


class JobGoodput(APIView):
    @extend_schema(
        summary="Where the GPU-time of a job went",
        description="Every rank's every nanosecond is in exactly one class. docs/goodput.md defines them.",
        responses={200: goodput_shapes.JobGoodputShape, 404: ErrorSerializer},
    )
    def get(self, request: Request, pk: int) -> Response:
        job = scopes.job(request, pk)
        found = goodput.of_job(job)
        naming = standstills.naming(incident_queries.for_user(request.user), job.pk)
        told: dict[str, Any] = {
            "job": job.pk,
            "rule": RULE,
            "simulated": job.cluster.simulated,
            "reason": None if found else NOT_YET,
            "unit": None,
            "counted_from": None,
            "counted_until": None,
            "total": None,
            "causes": [],
            "attempts": [],
            "hours": [],
            "naming": naming,
            "recommended_checkpoint": _recommended(goodput.recommended(job)),
        }
        if found is not None:
            told |= {
                "unit": "gpu" if found.has_gpus else "process",
                "counted_from": found.since,
                "counted_until": found.until,
                "total": _total(found.total),
                "causes": _causes(found.causes),
                "attempts": [{"attempt": n, "total": _total(of)} for n, of in found.attempts],
                "hours": [{"start_at": start, "total": _total(of)} for start, of in found.hours],
            }
        return Response(goodput_shapes.JobGoodputShape(told).data)


@extend_schema(
    summary="How each attempt of a job started, the newest first",
    responses={200: goodput_shapes.StartUpShape(many=True), 404: ErrorSerializer},
)
class JobStartUps(generics.ListAPIView[StartUp]):
    queryset = StartUp.objects.none()
    serializer_class = goodput_shapes.StartUpShape
    pagination_class = Paging

    def get_queryset(self) -> QuerySet[StartUp]:
        if getattr(self, "swagger_fake_view", False):
            return StartUp.objects.none()
        return goodput.startups(scopes.job(self.request, self.kwargs["pk"]))


@extend_schema(
    summary="Checkpoints of a job, the newest first",
    description="A save is told by the steps of its ranks; one that never ended is not here.",
    responses={200: goodput_shapes.CheckpointShape(many=True), 404: ErrorSerializer},
)
class JobCheckpoints(generics.ListAPIView[Checkpoint]):
    queryset = Checkpoint.objects.none()
    serializer_class = goodput_shapes.CheckpointShape
    pagination_class = Paging

    def get_queryset(self) -> QuerySet[Checkpoint]:
        if getattr(self, "swagger_fake_view", False):
            return Checkpoint.objects.none()
        return goodput.checkpoints(scopes.job(self.request, self.kwargs["pk"]))


def _moment(request: Request, name: str) -> datetime | None:
    found = windows.moment(request, name)
    return None if found is None else datetime.fromtimestamp(found / 1e9, UTC)


class ClusterGoodput(APIView):
    @extend_schema(
        summary="Where the GPU-time of a cluster's jobs went, by month and cause, user and partition",
        description="Whole hours that begin in [from, to), of jobs the caller may see.",
        parameters=[
            OpenApiParameter("from", OpenApiTypes.DATETIME, description="default: 31 days before `to`"),
            OpenApiParameter("to", OpenApiTypes.DATETIME, description="default: now"),
        ],
        responses={200: goodput_shapes.ClusterGoodputShape, 404: ErrorSerializer},
    )
    def get(self, request: Request, pk: int) -> Response:
        cluster = scopes.cluster(request, pk)
        until = _moment(request, "to") or datetime.now(UTC)
        since = _moment(request, "from") or max(until - MONTH, datetime(1970, 1, 1, tzinfo=UTC))
        if since >= until:
            raise ValidationError({"from": ["must be before `to`"]})
        if until - since > SPAN_MAX:
            raise ValidationError({"from": ["at most three years before `to`"]})
        found = goodput.of_cluster(cluster.pk, scopes.jobs(request), since, until)
        told = {
            "cluster": cluster.name,
            "rule": RULE,
            "simulated": cluster.simulated,
            "since": since,
            "until": until,
            "job_count": found.job_count,
            "total": _total(found.total),
            "months": [
                {"month": month.date(), "total": _total(of), "causes": _causes(causes)}
                for month, of, causes in found.months
            ],
            "users": [{"name": name, "total": _total(of)} for name, of in found.users],
            "partitions": [{"name": name, "total": _total(of)} for name, of in found.partitions],
            "left_out_count": found.left_out_count,
        }
        return Response(goodput_shapes.ClusterGoodputShape(told).data)
