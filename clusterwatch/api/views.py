"""REST v1: each view reads through queries, filters by who asks, and writes through acts."""

from __future__ import annotations

from typing import Any

from django.db.models import QuerySet
from django.shortcuts import get_object_or_404
from drf_spectacular.utils import OpenApiParameter, OpenApiResponse, extend_schema
from rest_framework import generics
from rest_framework.pagination import BasePagination
from rest_framework.permissions import AllowAny
from rest_framework.request import Request
from rest_framework.response import Response
from rest_framework.views import APIView

import clusterwatch
from clusterwatch.api import filters, health, scopes, serializers
from clusterwatch.api.paging import ByName, ByRank
from clusterwatch.fleet.links import read_links
from clusterwatch.fleet.models import Cluster, Node
from clusterwatch.incidents import acts
from clusterwatch.incidents import queries as incident_queries
from clusterwatch.incidents.models import Incident
from clusterwatch.jobs import progress
from clusterwatch.jobs.models import Group, Job, Rank
from clusterwatch.jobs.queries import current_ranks, groups_of

_INCIDENT_STATES = Incident.State.values
_JOB_STATES = Job.State.values


def _incidents(request: Request) -> QuerySet[Incident]:
    return incident_queries.for_user(request.user).filter(**scopes.of_token(request))


@extend_schema(summary="Clusters")
class ClusterList(generics.ListAPIView[Cluster]):
    serializer_class = serializers.ClusterSerializer
    pagination_class = ByName

    def get_queryset(self) -> QuerySet[Cluster]:
        return scopes.clusters(self.request)


@extend_schema(summary="Nodes and when they were heard", parameters=[filters.CLUSTER])
class NodeList(generics.ListAPIView[Node]):
    serializer_class = serializers.NodeSerializer
    pagination_class = ByName

    def get_queryset(self) -> QuerySet[Node]:
        nodes = Node.objects.select_related("cluster").filter(**filters.by_cluster(self.request))
        return nodes.filter(**scopes.of_token(self.request))

    def get_serializer_context(self) -> dict[str, Any]:
        return {**super().get_serializer_context(), "links": read_links()}


class _JobContext(generics.GenericAPIView[Job]):
    """Adds live progress of the jobs shown."""

    serializer_class = serializers.JobSerializer

    def get_queryset(self) -> QuerySet[Job]:
        return scopes.jobs(self.request)

    def get_serializer(self, *args: Any, **kwargs: Any) -> Any:
        shown = args[0] if args else []
        jobs = shown if isinstance(shown, list) else [shown]
        live = progress.job_live(job.pk for job in jobs if isinstance(job, Job) and job.ended_at is None)
        kwargs["context"] = {**self.get_serializer_context(), "live": live}
        return self.serializer_class(*args, **kwargs)


@extend_schema(
    summary="Jobs, newest first",
    parameters=[
        filters.words("state", _JOB_STATES),
        filters.CLUSTER,
        OpenApiParameter("key", str, description="the scheduler's id"),
    ],
)
class JobList(_JobContext, generics.ListAPIView[Job]):
    def get_queryset(self) -> QuerySet[Job]:
        jobs = scopes.jobs(self.request).filter(**filters.by_cluster(self.request))
        states = filters.chosen_words(self.request, "state", _JOB_STATES)
        jobs = jobs.filter(state__in=states) if states else jobs
        key = filters.text(self.request, "key")
        return jobs.filter(key=key) if key is not None else jobs


@extend_schema(
    summary="One job", responses={200: serializers.JobSerializer, 404: serializers.ErrorSerializer}
)
class JobDetail(_JobContext, generics.RetrieveAPIView[Job]):
    pass


@extend_schema(
    summary="Ranks of the newest attempt with their newest word",
    responses={200: serializers.RankSerializer(many=True), 404: serializers.ErrorSerializer},
)
class RankList(generics.ListAPIView[Rank]):
    queryset = Rank.objects.none()
    serializer_class = serializers.RankSerializer
    pagination_class: type[BasePagination] = ByRank

    def list(self, request: Request, *args: Any, **kwargs: Any) -> Response:
        job = scopes.job(request, kwargs["pk"])
        page = self.paginate_queryset(current_ranks(job))
        views = progress.rank_views(job, page or [])
        return self.get_paginated_response(serializers.RankSerializer(views, many=True).data)


@extend_schema(
    summary="Process groups of the newest attempt, and who joined their newest call",
    responses={200: serializers.GroupSerializer(many=True), 404: serializers.ErrorSerializer},
)
class GroupList(generics.ListAPIView[Group]):
    queryset = Group.objects.none()
    serializer_class = serializers.GroupSerializer

    def list(self, request: Request, *args: Any, **kwargs: Any) -> Response:
        job = scopes.job(request, kwargs["pk"])
        page = self.paginate_queryset(groups_of(job)) or []
        wanted = {rank for group in page for rank in group.ranks}
        ranks = list(current_ranks(job).filter(rank__in=wanted))
        views = progress.group_views(job, page, ranks)
        return self.get_paginated_response(serializers.GroupSerializer(views, many=True).data)


@extend_schema(
    summary="Incidents, newest first",
    parameters=[
        filters.words("state", _INCIDENT_STATES),
        filters.CLUSTER,
        OpenApiParameter("job", int, description="our id of a job"),
        OpenApiParameter("job_key", str, description="the scheduler's id of a job"),
    ],
)
class IncidentList(generics.ListAPIView[Incident]):
    serializer_class = serializers.IncidentSerializer

    def get_queryset(self) -> QuerySet[Incident]:
        incidents = _incidents(self.request).filter(**filters.by_cluster(self.request))
        states = filters.chosen_words(self.request, "state", _INCIDENT_STATES)
        incidents = incidents.filter(state__in=states) if states else incidents
        job, key = filters.number(self.request, "job"), filters.text(self.request, "job_key")
        incidents = incidents.filter(job_id=job) if job is not None else incidents
        return incidents.filter(job__key=key) if key is not None else incidents


@extend_schema(
    summary="One incident with its changes, notes and frozen evidence",
    responses={200: serializers.IncidentDetailSerializer, 404: serializers.ErrorSerializer},
)
class IncidentDetail(generics.RetrieveAPIView[Incident]):
    serializer_class = serializers.IncidentDetailSerializer

    def get_queryset(self) -> QuerySet[Incident]:
        return _incidents(self.request).prefetch_related("changes", "notes", "evidence")


class _Act(APIView):
    """Something an operator does with an incident."""

    def incident(self, request: Request, pk: int) -> Incident:
        return get_object_or_404(_incidents(request), pk=pk)

    def acted(self, incident: Incident, changed: bool) -> Response:
        incident.refresh_from_db(fields=["state"])
        return Response({"changed": changed, "state": incident.state})


_ACT_ANSWERS = {
    200: serializers.ActedSerializer,
    403: serializers.ErrorSerializer,
    404: serializers.ErrorSerializer,
}


class IncidentAcknowledge(_Act):
    @extend_schema(summary="Acknowledge an incident", request=None, responses=_ACT_ANSWERS)
    def post(self, request: Request, pk: int) -> Response:
        incident = self.incident(request, pk)
        return self.acted(incident, acts.acknowledge(incident.pk, request.user.get_username()))


class IncidentResolve(_Act):
    @extend_schema(
        summary="Close an incident by hand", request=serializers.ResolveSerializer, responses=_ACT_ANSWERS
    )
    def post(self, request: Request, pk: int) -> Response:
        incident = self.incident(request, pk)
        wanted = serializers.ResolveSerializer(data=request.data)
        wanted.is_valid(raise_exception=True)
        reason = wanted.validated_data["reason"]
        return self.acted(incident, acts.resolve(incident.pk, request.user.get_username(), reason))


class IncidentNotes(_Act):
    @extend_schema(
        summary="Write a note on an incident",
        request=serializers.NoteSerializer,
        responses={201: serializers.NoteSerializer, 403: serializers.ErrorSerializer},
    )
    def post(self, request: Request, pk: int) -> Response:
        incident = self.incident(request, pk)
        wanted = serializers.NoteSerializer(data=request.data)
        wanted.is_valid(raise_exception=True)
        note = acts.add_note(incident.pk, request.user.get_username(), wanted.validated_data["text"])
        return Response(serializers.NoteSerializer(note).data, status=201)


class Health(APIView):
    """Whether what the pages show is fresh. Needs no token and tells no names."""

    authentication_classes = ()
    permission_classes = (AllowAny,)

    @extend_schema(
        summary="Whether clusterwatch itself is well",
        responses={
            200: OpenApiResponse(serializers.HealthSerializer, "everything fresh"),
            503: OpenApiResponse(serializers.HealthSerializer, "something is stale or away"),
        },
    )
    def get(self, request: Request) -> Response:
        reasons = health.reasons()
        body = {
            "status": "stale" if reasons else "ok",
            "reasons": reasons,
            "version": getattr(clusterwatch, "__version__", "unknown"),
        }
        return Response(body, status=503 if reasons else 200)
