"""Who may ask about which cluster, node and job; one place for every resource."""

from __future__ import annotations

from django.db.models import QuerySet
from django.shortcuts import get_object_or_404
from rest_framework.request import Request

from clusterwatch.accounts.models import Token
from clusterwatch.fleet.models import Cluster, Node
from clusterwatch.jobs.models import Job
from clusterwatch.jobs.queries import for_user


def of_token(request: Request, prefix: str = "cluster") -> dict[str, object]:
    """A token of one cluster sees that cluster only."""
    token = request.auth
    return {f"{prefix}__name": token.cluster} if isinstance(token, Token) and token.cluster else {}


def clusters(request: Request) -> QuerySet[Cluster]:
    """Clusters this caller may see."""
    token = request.auth
    found = Cluster.objects.all()
    return found.filter(name=token.cluster) if isinstance(token, Token) and token.cluster else found


def cluster(request: Request, pk: int) -> Cluster:
    """Raises ``Http404`` for one that is not there or not for this caller."""
    return get_object_or_404(clusters(request), pk=pk)


def node(request: Request, pk: int) -> Node:
    """Raises ``Http404`` for one that is not there or not for this caller."""
    return get_object_or_404(Node.objects.select_related("cluster").filter(**of_token(request)), pk=pk)


def jobs(request: Request) -> QuerySet[Job]:
    """Jobs this caller may see."""
    return for_user(request.user).filter(**of_token(request))


def job(request: Request, pk: int) -> Job:
    """Raises ``Http404`` for one that is not there or not for this caller."""
    return get_object_or_404(jobs(request), pk=pk)
