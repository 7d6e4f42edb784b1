"""Which nodes are of one kind: those with as many GPUs of one model, as they said at their last hello."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from django.db.models import Count, Max

from clusterwatch.fleet.models import Slot

UNKNOWN: Final = "of a kind that was not told"


def kinds(cluster_id: int) -> dict[int, str]:
    """The kind of each node that ever said hello, in words. One query."""
    slots = Slot.objects.filter(cluster_id=cluster_id, until__isnull=True).values("node_id")
    rows = slots.annotate(gpus=Count("gpu_index"), model=Max("gpu_model"))
    return {node: _words(gpus, model) for node, gpus, model in rows.values_list("node_id", "gpus", "model")}


def kind_of(slots: Iterable[Slot]) -> str:
    """The kind of the node that has these slots now."""
    held = list(slots)
    gpus = [slot for slot in held if slot.gpu_index is not None]
    return _words(len(gpus), max((slot.gpu_model for slot in gpus), default="")) if held else UNKNOWN


def _words(gpus: int, model: str | None) -> str:
    return f"with {gpus} × {model or 'GPU'}" if gpus else "without GPUs"
