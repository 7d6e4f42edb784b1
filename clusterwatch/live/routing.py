"""Websocket addresses for browsers."""

from django.urls import URLPattern

websocket_urlpatterns: list[URLPattern] = []
