"""All addresses: screens, REST v1."""

from django.urls import include, path

urlpatterns = [
    path("api/v1/", include("clusterwatch.api.urls")),
    path("", include("clusterwatch.web.urls")),
]

handler404 = "clusterwatch.web.views.session.not_found"
handler403 = "clusterwatch.web.views.session.forbidden"
handler500 = "clusterwatch.web.views.session.failed"
