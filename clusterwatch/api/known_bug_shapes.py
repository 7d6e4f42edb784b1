"""Shapes of known bugs in the answer about an incident."""

from __future__ import annotations

from typing import Any

from rest_framework import serializers

from clusterwatch.analysis.known_bugs_model import Component, Sure


class KnownBugSerializer(serializers.Serializer[Any]):
    """A row of the catalogue that fits the incident, or may fit it."""

    id = serializers.CharField()
    component = serializers.ChoiceField([str(one) for one in Component])
    versions = serializers.CharField()
    title = serializers.CharField()
    fits = serializers.ChoiceField(["yes", "may be"])
    why = serializers.ListField(child=serializers.CharField())
    unknown = serializers.ListField(
        child=serializers.CharField(), help_text="what is not known, so that it only may be"
    )
    action = serializers.CharField()
    source = serializers.CharField(  # type: ignore[assignment]
        help_text="repository and number, or a vendor's document"
    )
    sure = serializers.ChoiceField([str(one) for one in Sure])


class KnownBugsSerializer(serializers.Serializer[Any]):
    """By the versions that the incident's nodes tell now; the verdict does not rest on it."""

    catalogue_version = serializers.CharField()
    rows = KnownBugSerializer(many=True)
    unchecked = serializers.DictField(
        child=serializers.IntegerField(), help_text="by component, rows that could not be checked"
    )
