"""All addresses: screens, REST v1."""

from django.urls import include, path

urlpatterns = [
    path("api/v1/", include("clusterwatch.api.urls")),
    path("", include("clusterwatch.web.urls")),
]
