"""Which slots of the map a job sits on."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from clusterwatch.fleet.models import Slot
from clusterwatch.jobs.models import Job
from clusterwatch.jobs.queries import current_ranks


@dataclass(frozen=True, slots=True)
class JobSlots:
    """Slots of a job's newest attempt in the order of its ranks, each once."""

    slots: NDArray[np.int64]
    ranks: int
    """ranks of the attempt; those without a GPU of their own have no slot"""


def slots_of(job: Job) -> JobSlots:
    """The GPUs of a job, running or ended. Cost: two queries, linear in ranks."""
    places = list(current_ranks(job).values_list("node_id", "gpu_index"))
    nodes = {node_id for node_id, _ in places}
    # A GPU that was replaced since leaves a closed slot; the newest one of a place stands last.
    known = Slot.objects.filter(node_id__in=nodes).order_by("number")
    by_place = {
        (node, gpu): number for node, gpu, number in known.values_list("node_id", "gpu_index", "number")
    }
    found = dict.fromkeys(by_place[place] for place in places if place in by_place)
    return JobSlots(np.fromiter(found, np.int64, len(found)), len(places))
