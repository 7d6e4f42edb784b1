"""Nodes that tell how they are set up, as their agents would have sent it."""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from clusterwatch.fleet.models import Cluster, Node, Slot
from collectors.wire import readings
from tests.web.seed_nodes import Value, know, table_of

Facts = Mapping[str, Mapping[str, str]]
HOST_FACTS = {"nvidia.driver": "550.90.07", "kernel": "6.8.0-45-generic"}


def facts_table(facts: Facts, more: list[Value] | None = None, age_s: float = 2.0) -> readings.Table:
    """``fact_count`` samples by entity, after other values of the same source."""
    told = [(entity, fact, value) for entity, of in facts.items() for fact, value in of.items()]
    others = list(more or ())
    table = table_of(*others, *((entity, "fact_count", 1.0, "ok") for entity, *_ in told), age_s=age_s)
    labels = list(dict.fromkeys((fact, value) for _, fact, value in told))
    places = [0] * len(others) + [labels.index((fact, value)) + 1 for _, fact, value in told]
    return msgspec.structs.replace(
        table, labels=[{}, *({"fact": fact, "value": value} for fact, value in labels)], label=places
    )


def fleet(cluster: Cluster, count: int, gpus: int = 8, prefix: str = "gtn-") -> list[Node]:
    """Nodes of one kind with the slots of their GPUs; without GPUs a node has one of its own."""
    nodes = Node.objects.bulk_create(
        Node(cluster=cluster, name=f"{prefix}{n:04}", machine_id=f"{prefix}{n}") for n in range(count)
    )
    first = Slot.objects.filter(cluster=cluster).count()
    Slot.objects.bulk_create(
        Slot(
            cluster=cluster,
            number=first + place * max(gpus, 1) + (gpu or 0),
            node=node,
            gpu_index=gpu,
            gpu_uuid="" if gpu is None else f"GPU-{node.pk}-{gpu}",
            gpu_model="" if gpu is None else "NVIDIA H100 80GB HBM3",
        )
        for place, node in enumerate(nodes)
        for gpu in (range(gpus) if gpus else (None,))
    )
    return nodes


def tell(node: Node, *changes: Facts, age_s: int = 3) -> None:
    """What every node tells, with ``changes`` by entity."""
    facts: dict[str, dict[str, str]] = {"host": dict(HOST_FACTS)}
    for change in changes:
        for entity, of in change.items():
            facts.setdefault(entity, {}).update(of)
    know(node, facts_table(facts), age_s)


def rank_facts(job: str, rank: int, **facts: str) -> Facts:
    """Of one rank; ``nccl_net`` is ``nccl.net``, a name in capitals a variable of its environment."""
    told = {
        f"env.{name}" if name.isupper() else name.replace("_", ".", 1): value for name, value in facts.items()
    }
    return {f"job/{job}/rank/{rank}": {"env.read": "yes", **told}}
