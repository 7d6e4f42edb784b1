"""Addresses of REST v1, without a slash at the end; with one they are led to the same place."""

from __future__ import annotations

from django.http import HttpRequest, HttpResponsePermanentRedirect, JsonResponse
from django.urls import path, re_path
from django.views.decorators.csrf import csrf_exempt
from drf_spectacular.views import SpectacularJSONAPIView
from rest_framework.permissions import AllowAny

from clusterwatch.api import views


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
    path("nodes", views.NodeList.as_view(), name="api-nodes"),
    path("jobs", views.JobList.as_view(), name="api-jobs"),
    path("jobs/<int:pk>", views.JobDetail.as_view(), name="api-job"),
    path("jobs/<int:pk>/ranks", views.RankList.as_view(), name="api-ranks"),
    path("jobs/<int:pk>/groups", views.GroupList.as_view(), name="api-groups"),
    path("incidents", views.IncidentList.as_view(), name="api-incidents"),
    path("incidents/<int:pk>", views.IncidentDetail.as_view(), name="api-incident"),
    path("incidents/<int:pk>/acknowledge", views.IncidentAcknowledge.as_view(), name="api-acknowledge"),
    path("incidents/<int:pk>/resolve", views.IncidentResolve.as_view(), name="api-resolve"),
    path("incidents/<int:pk>/notes", views.IncidentNotes.as_view(), name="api-notes"),
    re_path(r"^(?P<rest>[\w/]*\w)/$", without_slash),
    path("<path:rest>", nothing),
]
