"""Which part sits where: gathers what a cluster's nodes and devices tell by serial, and keeps histories.

In: a cluster's id, now (ns UTC). Out: rows of ``fleet.parts``. A node or device that is not heard says
nothing of its parts; they stay where they were seen last.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from clusterwatch.fleet.models import Node, Slot
from clusterwatch.fleet.parts import Seen, Taken, kind_of, take
from clusterwatch.incidents.services import moment
from clusterwatch.store import hot, part_words

HEARD_NS: Final = 60 * 10**9
"""A node whose last frame is older says nothing of its GPUs."""


def look(cluster_id: int, now_ns: int) -> Taken:
    """Brings the histories of a cluster up to date.

    Cost: a query per 256 nodes and per 256 devices, and those of ``fleet.parts.take``.
    """
    names = dict(Node.objects.filter(cluster_id=cluster_id).values_list("pk", "name"))
    gpus, of_nodes = _gpus(cluster_id, names, now_ns), _of_nodes(names, now_ns)
    seen = [*gpus, *of_nodes, *_of_devices(cluster_id, names, now_ns)]
    return take(cluster_id, seen, moment(now_ns))


def _gpus(cluster_id: int, names: dict[int, str], now_ns: int) -> Iterator[Seen]:
    """GPUs of nodes that are heard; one that tells no serial is known by its UUID."""
    nodes = hot.read_nodes()
    heard = set(nodes.node_id[now_ns - nodes.seen_ns < HEARD_NS].tolist())
    slots = Slot.objects.filter(cluster_id=cluster_id, until__isnull=True, gpu_index__isnull=False)
    rows = slots.values_list("node_id", "gpu_index", "gpu_serial", "gpu_uuid", "gpu_model")
    for node_id, index, serial, uuid, model in rows.iterator():
        if node_id in heard:
            yield Seen("gpu", serial or uuid, names[node_id], f"gpu/{index}", node_id, model, uuid)


def _of_nodes(names: dict[int, str], now_ns: int) -> Iterator[Seen]:
    for node_id, words in part_words.of_nodes(sorted(names), now_ns):
        for word in words:
            yield _seen(word, names[node_id], node_id)


def _of_devices(cluster_id: int, names: dict[int, str], now_ns: int) -> Iterator[Seen]:
    """What belongs to a node is told as the node's; the GPUs of a BMC are known better from inside."""
    ids = {name: pk for pk, name in names.items()}
    for device in part_words.of_devices(cluster_id, now_ns):
        host = device.host if device.host in ids else f"{device.kind}/{device.name}"
        for word in device.words:
            yield _seen(word, host, ids.get(host))


def _seen(word: part_words.PartWord, host: str, node_id: int | None) -> Seen:
    labels = word.labels
    part = labels.get("part", "")
    slot = f"{word.entity} {part}" if part else word.entity
    model = labels.get("model") or labels.get("part_number", "")
    return Seen(kind_of(word.entity, part), labels["serial"], host, slot, node_id, model)
