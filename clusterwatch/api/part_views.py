"""REST v1 of parts by serial: where each one sits and sat, and how often incidents named it."""

from __future__ import annotations

from typing import Any

from django.db.models import QuerySet
from django.shortcuts import get_object_or_404
from drf_spectacular.utils import OpenApiParameter, extend_schema
from rest_framework import generics, serializers
from rest_framework.request import Request
from rest_framework.response import Response
from rest_framework.views import APIView

from clusterwatch.api import filters, scopes
from clusterwatch.api.paging import Paging
from clusterwatch.api.serializers import ErrorSerializer
from clusterwatch.fleet import part_history
from clusterwatch.fleet.models import Part
from clusterwatch.incidents import queries, recurrence


class PlacementShape(serializers.Serializer[Any]):
    """A part in a place. ``until`` null: it is there as far as anybody knows."""

    host = serializers.CharField(help_text="the node's name, or kind/name of a device of no node")
    slot = serializers.CharField()
    since = serializers.DateTimeField()
    seen_at = serializers.DateTimeField(help_text="when it was last told to be there")
    until = serializers.DateTimeField(allow_null=True)
    ended = serializers.CharField(help_text="replaced, moved, or empty")


class PartShape(serializers.Serializer[Any]):
    id = serializers.IntegerField()
    cluster = serializers.CharField(source="cluster.name")
    kind = serializers.CharField()
    serial = serializers.CharField()
    model = serializers.CharField()
    gpu_uuid = serializers.CharField()
    first_seen_at = serializers.DateTimeField()


class PartDetailShape(PartShape):
    placements = PlacementShape(many=True, help_text="the newest first, at most 200")
    incidents = serializers.ListField(
        child=serializers.IntegerField(), help_text="that named this GPU, the newest first, at most 100"
    )


@extend_schema(
    summary="Parts by serial: GPUs, optics, power supplies, ...",
    parameters=[
        filters.CLUSTER,
        OpenApiParameter("kind", str, description="gpu, optics, psu, ..."),
        OpenApiParameter("serial", str, description="the whole serial, or the UUID of a GPU"),
        OpenApiParameter("host", str, description="parts that sit there now"),
    ],
)
class PartList(generics.ListAPIView[Part]):
    serializer_class = PartShape
    pagination_class = Paging

    def get_queryset(self) -> QuerySet[Part]:
        found = part_history.of_clusters(scopes.clusters(self.request).values("pk"))
        found = found.filter(**filters.by_cluster(self.request))
        if (kind := filters.text(self.request, "kind")) is not None:
            found = found.filter(kind=kind)
        if (serial := filters.text(self.request, "serial")) is not None:
            found = part_history.exactly(found, serial)
        if (host := filters.text(self.request, "host")) is not None:
            found = part_history.in_host(found, host)
        return found


class PartDetail(APIView):
    @extend_schema(
        summary="One part: where it was, and which incidents named it",
        responses={200: PartDetailShape, 404: ErrorSerializer},
    )
    def get(self, request: Request, pk: int) -> Response:
        mine = part_history.of_clusters(scopes.clusters(request).values("pk"))
        part = get_object_or_404(mine, pk=pk)
        shown = PartShape(part).data | {
            "placements": PlacementShape(part_history.placements(part), many=True).data,
            "incidents": [one.pk for one in recurrence.of_part(part, queries.for_user(request.user))],
        }
        return Response(shown)
