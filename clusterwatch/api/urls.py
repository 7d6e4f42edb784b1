"""Addresses of REST v1, without a slash at the end; with one they are led to the same place."""

from __future__ import annotations

from django.http import HttpRequest, HttpResponsePermanentRedirect, JsonResponse
from django.urls import path, re_path
from django.views.decorators.csrf import csrf_exempt
from drf_spectacular.views import SpectacularJSONAPIView
from rest_framework.permissions import AllowAny

from clusterwatch.api import (
    device_views,
    drift_views,
    exports,
    goodput_views,
    node_views,
    part_views,
    past_views,
    series_views,
    views,
)


@csrf_exempt
def without_slash(request: HttpRequest, rest: str) -> HttpResponsePermanentRedirect:
    """308 keeps the method and body of a request whose address ends in a slash."""
    query = request.META.get("QUERY_STRING", "")
    response = HttpResponsePermanentRedirect(f"/api/v1/{rest}" + (f"?{query}" if query else ""))
    response.status_code = 308
    return response


@csrf_exempt
def nothing(request: HttpRequest, rest: str) -> JsonResponse:
    """Any other address below /api/v1/."""
    return JsonResponse({"detail": "There is nothing at this address.", "code": "not_found"}, status=404)


urlpatterns = [
    path("schema", SpectacularJSONAPIView.as_view(permission_classes=[AllowAny]), name="api-schema"),
    path("health", views.Health.as_view(), name="api-health"),
    path("clusters", views.ClusterList.as_view(), name="api-clusters"),
    path("metrics", series_views.MetricList.as_view(), name="api-metrics"),
    path("clusters/<int:pk>/slots", series_views.SlotList.as_view(), name="api-slots"),
    path("clusters/<int:pk>/latest", series_views.Latest.as_view(), name="api-latest"),
    path("clusters/<int:pk>/percentiles", series_views.FleetPercentiles.as_view(), name="api-percentiles"),
    path("clusters/<int:pk>/drift", drift_views.ClusterDrift.as_view(), name="api-drift"),
    path("clusters/<int:pk>/goodput", goodput_views.ClusterGoodput.as_view(), name="api-goodput"),
    path("clusters/<int:pk>/top", series_views.Top.as_view(), name="api-top"),
    path("clusters/<int:pk>/map-at", past_views.MapAt.as_view(), name="api-map-at"),
    path("clusters/<int:pk>/second-at", past_views.SecondAt.as_view(), name="api-second-at"),
    path("nodes/<int:pk>/series", series_views.NodeSeries.as_view(), name="api-series"),
    path("nodes/<int:pk>/series/export", exports.SeriesExport.as_view(), name="api-series-export"),
    path(
        "clusters/<int:pk>/percentiles/export",
        exports.PercentilesExport.as_view(),
        name="api-percentiles-export",
    ),
    path("clusters/<int:pk>/minutes/export", exports.MinutesExport.as_view(), name="api-minutes-export"),
    path("jobs/<int:pk>/heatmap", past_views.JobHeatMap.as_view(), name="api-heatmap"),
    path("nodes", views.NodeList.as_view(), name="api-nodes"),
    path("nodes/<str:name>", node_views.NodeDetail.as_view(), name="api-node"),
    path("devices", device_views.DeviceList.as_view(), name="api-devices"),
    path("devices/<str:kind>/<path:name>", device_views.DeviceDetail.as_view(), name="api-device"),
    path("parts", part_views.PartList.as_view(), name="api-parts"),
    path("parts/<int:pk>", part_views.PartDetail.as_view(), name="api-part"),
    path("jobs", views.JobList.as_view(), name="api-jobs"),
    path("jobs/<int:pk>", views.JobDetail.as_view(), name="api-job"),
    path("jobs/<int:pk>/ranks", views.RankList.as_view(), name="api-ranks"),
    path("jobs/<int:pk>/groups", views.GroupList.as_view(), name="api-groups"),
    path("jobs/<int:pk>/goodput", goodput_views.JobGoodput.as_view(), name="api-job-goodput"),
    path("jobs/<int:pk>/startup", goodput_views.JobStartUps.as_view(), name="api-startup"),
    path("jobs/<int:pk>/checkpoints", goodput_views.JobCheckpoints.as_view(), name="api-checkpoints"),
    path("incidents", views.IncidentList.as_view(), name="api-incidents"),
    path("incidents/<int:pk>", views.IncidentDetail.as_view(), name="api-incident"),
    path("incidents/<int:pk>/acknowledge", views.IncidentAcknowledge.as_view(), name="api-acknowledge"),
    path("incidents/<int:pk>/resolve", views.IncidentResolve.as_view(), name="api-resolve"),
    path("incidents/<int:pk>/notes", views.IncidentNotes.as_view(), name="api-notes"),
    re_path(r"^(?P<rest>[\w/-]*\w)/$", without_slash),
    path("<path:rest>", nothing),
]
