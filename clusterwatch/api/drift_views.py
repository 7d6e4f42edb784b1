"""REST v1 of nodes that differ from their peers."""

from __future__ import annotations

from drf_spectacular.utils import extend_schema
from rest_framework.request import Request
from rest_framework.response import Response
from rest_framework.views import APIView

from clusterwatch.api import scopes, serializers
from clusterwatch.api.drift_shapes import DriftShape
from clusterwatch.jobs import drift


class ClusterDrift(APIView):
    @extend_schema(
        summary="Nodes of a cluster that differ from their peers, in what and how surely",
        description="Compared each minute: nodes with equal GPUs, and those of one job for what NCCL chose.",
        responses={200: DriftShape, 404: serializers.ErrorSerializer},
    )
    def get(self, request: Request, pk: int) -> Response:
        cluster = scopes.cluster(request, pk)
        found = drift.view(cluster.pk, request.user)
        run = found.run if found is not None else None
        told = {
            "cluster": cluster.name,
            "state": found.state if found is not None else drift.NOT_ENOUGH,
            "ran_at": run.ran_at if run is not None else None,
            "stale": found is not None and found.is_old,
            "took_s": run.took_s if run is not None else None,
            "window_s": run.window_s if run is not None else None,
            "coverage": run,
            "left_out": run.left_out_count if run is not None else 0,
            "groups": found.groups if found is not None else (),
        }
        return Response(DriftShape(told).data)
