"""REST v1 of one node: who may see it, which one is meant."""

from __future__ import annotations

from django.http import Http404
from drf_spectacular.utils import OpenApiParameter, extend_schema
from rest_framework.exceptions import ValidationError
from rest_framework.request import Request
from rest_framework.response import Response
from rest_framework.views import APIView

from clusterwatch.api import filters, scopes, serializers
from clusterwatch.api.node_shapes import NodeDetailShape
from clusterwatch.fleet.models import Node
from clusterwatch.jobs import node_view


class NodeDetail(APIView):
    @extend_schema(
        summary="One node: how it is heard, what it knows of its parts now, what happened on it",
        parameters=[
            OpenApiParameter("name", str, OpenApiParameter.PATH, description="host name, or our id"),
            filters.CLUSTER,
        ],
        responses={
            200: NodeDetailShape, 400: serializers.ErrorSerializer, 404: serializers.ErrorSerializer,
        },
    )  # fmt: skip
    def get(self, request: Request, name: str) -> Response:
        nodes = Node.objects.select_related("cluster").filter(**filters.by_cluster(request))
        found = node_view.find(nodes.filter(**scopes.of_token(request)), name)
        if not found:
            raise Http404
        if len(found) > 1:
            clusters = ", ".join(node.cluster.name for node in found)
            raise ValidationError({"cluster": [f"several clusters have a node of this name: {clusters}"]})
        view = node_view.view(found[0], request.user)
        context = {"view": view, "links": {view.node.pk: view.link}}
        return Response(NodeDetailShape(view.node, context=context).data)
