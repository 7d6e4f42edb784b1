"""Where the parts are that signals are about, and which ranks run there.

In: signals that stand. Out: ``Cast``. Of a job that not everybody may see the name is left out: an incident
of a part belongs to nobody's team.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence

from django.db.models import Count

from clusterwatch.analysis import health_kinds as kinds
from clusterwatch.analysis.health_places import Cast, NodePlace, RankPlace
from clusterwatch.analysis.standing import Held, Standing
from clusterwatch.fleet.models import Node, Slot
from clusterwatch.jobs.models import Rank


def gather(cluster_id: int, standing: Standing, faults: Sequence[Held]) -> Cast:
    """Cost: about seven queries, whatever stands; linear in the nodes and ranks that it is about."""
    told = [held.signal for held in faults]
    peers = {peer for one in told if (peer := one.fields.get("peer"))}
    ids = {one.node_id for one in told if one.node_id is not None}
    if peers:
        ids |= set(Node.objects.filter(cluster_id=cluster_id, name__in=peers).values_list("pk", flat=True))
    with_address = {one.node_id for one in told if one.part.startswith("pci/") and one.node_id is not None}
    places = _places(ids, with_address, standing)
    racks, leaves = {one.rack for one in places.values()}, {one.leaf for one in places.values()}
    of_gpus = {one.node_id for one in told if one.node_id is not None and kinds.is_of_gpu(one)}
    return Cast(
        places,
        _ranks(of_gpus, ids - of_gpus),
        rack_nodes=_counts(cluster_id, "rack", racks),
        leaf_nodes=_counts(cluster_id, "leaf", leaves),
    )


def _places(ids: set[int], with_address: set[int], standing: Standing) -> dict[int, NodePlace]:
    gpus: dict[int, dict[str, int]] = defaultdict(dict)
    slots = Slot.objects.filter(node_id__in=ids, until__isnull=True)
    for node_id, uuid, index in slots.values_list("node_id", "gpu_uuid", "gpu_index"):
        if index is not None:
            gpus[node_id][uuid or str(index)] = index
    inventories = Node.objects.filter(pk__in=with_address).values_list("pk", "inventory")
    uuids = {pk: _addresses(inventory) for pk, inventory in inventories}
    paused, drained = standing.paused, standing.drained
    return {
        pk: NodePlace(
            name, rack, leaf, gpus.get(pk, {}), uuids.get(pk, {}), pk in paused, drained.get(pk)
        )
        for pk, name, rack, leaf in Node.objects.filter(pk__in=ids).values_list("pk", "name", "rack", "leaf")
    }  # fmt: skip


def _addresses(inventory: object) -> dict[str, str]:
    """GPU UUID by PCI address as entities have it: four digits of domain."""
    gpus = inventory.get("gpus") if isinstance(inventory, dict) else None
    found = {}
    for gpu in gpus if isinstance(gpus, list) else []:
        address, uuid = (gpu.get("pci"), gpu.get("uuid")) if isinstance(gpu, dict) else (None, None)
        if isinstance(address, str) and isinstance(uuid, str) and address and uuid:
            found[address.lower()[-12:]] = uuid
    return found


def _ranks(of_gpus: set[int], others: set[int]) -> dict[int, list[RankPlace]]:
    """One row per rank where a GPU is to be found, else one per job and node."""
    found: dict[int, list[RankPlace]] = defaultdict(list)
    running = Rank.objects.filter(exited_at__isnull=True, job__ended_at__isnull=True)
    rows = running.filter(node_id__in=of_gpus).values_list(
        "node_id", "job_id", "job__key", "job__team_id", "gpu_uuid", "gpu_index"
    )
    for node_id, job_id, key, team, uuid, index in rows:
        found[node_id].append(RankPlace("" if team else key, job_id, uuid, index))
    counted = (
        running.filter(node_id__in=others)
        .order_by()
        .values_list("node_id", "job_id", "job__key", "job__team_id")
        .annotate(Count("pk"))
    )
    for node_id, job_id, key, team, count in counted:
        found[node_id].append(RankPlace("" if team else key, job_id, count=count))
    return found


def _counts(cluster_id: int, column: str, names: Iterable[str]) -> dict[str, int]:
    wanted = {name for name in names if name}
    if not wanted:
        return {}
    rows = Node.objects.filter(cluster_id=cluster_id, **{f"{column}__in": wanted}).order_by()
    return dict(rows.values_list(column).annotate(Count("pk")))
