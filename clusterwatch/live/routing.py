"""Websocket addresses for browsers."""

from django.urls import URLPattern, path

from clusterwatch.live.consumer import LiveConsumer

websocket_urlpatterns: list[URLPattern] = [path("ws/live/", LiveConsumer.as_asgi())]
