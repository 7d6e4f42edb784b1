"""REST v1 of devices: switches, BMCs, racks, asked by pollers from one place."""

from __future__ import annotations

from typing import Any

from django.db.models import QuerySet
from django.http import Http404
from drf_spectacular.utils import OpenApiParameter, extend_schema
from rest_framework import generics
from rest_framework.exceptions import ValidationError
from rest_framework.request import Request
from rest_framework.response import Response
from rest_framework.views import APIView

from clusterwatch.api import filters, scopes, serializers
from clusterwatch.api.device_shapes import DeviceDetailShape, DeviceShape
from clusterwatch.api.paging import ByName
from clusterwatch.jobs import device_view
from clusterwatch.store.device_readings import host_of
from clusterwatch.store.models import Device


def _clusters(request: Request) -> list[int]:
    """Ids of the clusters asked for that this caller may see."""
    chosen = {
        name.replace("cluster__", "").replace("cluster_", ""): value
        for name, value in filters.by_cluster(request).items()
    }
    return list(scopes.clusters(request).filter(**chosen).values_list("pk", flat=True))


@extend_schema(
    summary="Switches, BMCs, racks: how each was reached",
    parameters=[
        filters.CLUSTER,
        OpenApiParameter("kind", str, description="switch, bmc, rack, ..."),
        OpenApiParameter("name", str, description="the whole name"),
        OpenApiParameter("node", str, description="the host it belongs to"),
        OpenApiParameter("state", str, description="ok, or failed: what gave nothing at the last look",
                         enum=["failed", "ok"]),
    ],
)  # fmt: skip
class DeviceList(generics.ListAPIView[Device]):
    serializer_class = DeviceShape
    pagination_class = ByName

    def get_queryset(self) -> QuerySet[Device]:
        found = device_view.devices_of(_clusters(self.request))
        for field in ("kind", "name"):
            if (word := filters.text(self.request, field)) is not None:
                found = found.filter(**{field: word})
        if (host := filters.text(self.request, "node")) is not None:
            found = found.filter(node_host=host_of(host)).exclude(node_host="")
        states = filters.chosen_words(self.request, "state", ("failed", "ok"))
        if len(set(states)) == 1:
            found = found.filter(state="ok") if states[0] == "ok" else found.exclude(state="ok")
        return found

    def get_serializer(self, *args: Any, **kwargs: Any) -> Any:
        devices = args[0] if args else []
        return DeviceShape(device_view.lines(devices), many=True)


class DeviceDetail(APIView):
    @extend_schema(
        summary="One device: everything it told last, who its ports see, what happened",
        parameters=[filters.CLUSTER],
        responses={
            200: DeviceDetailShape, 400: serializers.ErrorSerializer, 404: serializers.ErrorSerializer,
        },
    )  # fmt: skip
    def get(self, request: Request, kind: str, name: str) -> Response:
        found = device_view.find(_clusters(request), kind, name)
        if not found:
            raise Http404
        if len(found) > 1:
            raise ValidationError({"cluster": ["several clusters have a device of this name"]})
        return Response(DeviceDetailShape(device_view.view(found[0])).data)
