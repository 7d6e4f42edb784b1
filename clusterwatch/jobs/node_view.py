"""One node as its page and REST show it: how it is heard, what it knows of its parts, what happened on it."""

from __future__ import annotations

import time
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Final

import redis
from django.db.models import QuerySet, Sum

from clusterwatch.accounts.models import User
from clusterwatch.analysis.peers import HOST, NODE_CLASS, class_of
from clusterwatch.fleet.kinds import kind_of
from clusterwatch.fleet.links import NOT_HEARD, NodeLink, read_links
from clusterwatch.fleet.models import Node, Slot
from clusterwatch.fleet.queries import slots_of_node
from clusterwatch.jobs import device_view, drift
from clusterwatch.jobs.device_view import NodeDevices
from clusterwatch.jobs.drift import NodeDrift
from clusterwatch.jobs.models import Job
from clusterwatch.jobs.queries import for_user
from clusterwatch.store import gateway_notes, node_readings, queries
from clusterwatch.store.models import IngestCursor
from clusterwatch.store.node_facts import FACT, ROW_STALE_AFTER_S
from clusterwatch.store.node_readings import NodeReadings
from clusterwatch.store.queries import StoredEvent

EVENTS_WITHIN_NS: Final = 7 * 86_400 * 10**9
EVENTS_SHOWN: Final = 50
JOBS_SHOWN: Final = 10
ID_MAX: Final = 2**63 - 1
COUNTS: Final = ("stored", "rejected", "expired", "dropped")


@dataclass(frozen=True, slots=True)
class NodeView:
    """A node for one person: events and jobs of other teams are left out."""

    node: Node
    link: NodeLink
    counts: dict[str, int]
    """stored, rejected, expired and dropped records over all epochs and lanes; empty: none came yet"""
    doubts: list[gateway_notes.NodeNote]
    """why gateways keep it out or do not trust it, newest first"""
    slots: list[Slot]
    readings: NodeReadings | None
    events: list[StoredEvent]
    """of the last week, newest first"""
    jobs: list[Job]
    """that ran here, newest first"""
    around: NodeDevices
    """its BMC, its rack's power, the far ends of its ports"""
    differs: NodeDrift
    """from the nodes of its kind and of its job"""


def find(nodes: QuerySet[Node], word: str) -> list[Node]:
    """Nodes of this name, real clusters first; where there is none, the node of this id."""
    if "\0" in word:
        return []
    named = list(nodes.filter(name=word).order_by("cluster__simulated", "cluster__name")[:50])
    if named or not (word.isascii() and word.isdecimal() and int(word[:20]) <= ID_MAX):
        return named
    return list(nodes.filter(pk=int(word)))


def view(node: Node, user: User | Any) -> NodeView:
    """Everything at once. Cost: eleven queries, four more where devices tell of it; linear in the values."""
    now_ns = time.time_ns()
    readings = node_readings.latest(node.pk, now_ns)
    slots = list(slots_of_node(node.pk))
    return NodeView(
        node=node,
        link=read_links().get(node.pk, NOT_HEARD),
        counts=record_counts(node.cluster.name, [node.name]).get(node.name, {}),
        doubts=_doubts(node),
        slots=slots,
        readings=readings,
        events=_events(node, user, now_ns),
        jobs=list(_jobs_here(node, user)[:JOBS_SHOWN]),
        around=device_view.of_node(node, readings),
        differs=drift.of_node(node, user, _peers_of(slots, readings), _tells_facts(readings)),
    )


def _peers_of(slots: list[Slot], readings: NodeReadings | None) -> str:
    """The name of those that the node should be like."""
    of_host = readings.entities.get(HOST, ()) if readings is not None else ()
    named = (one.labels.get("value", "") for one in of_host if one.labels.get("fact") == NODE_CLASS)
    return class_of(kind_of(slots), next(named, ""))


def _tells_facts(readings: NodeReadings | None) -> bool:
    """Whether a node's facts are compared now."""
    if readings is None or readings.age_s > ROW_STALE_AFTER_S:
        return False
    return any(one.metric == FACT for values in readings.entities.values() for one in values)


def record_counts(cluster: str, names: Iterable[str]) -> dict[str, dict[str, int]]:
    """What became of the records of nodes, by name."""
    rows = (
        IngestCursor.objects.filter(cluster=cluster, node__in=list(names))
        .values("node")
        .annotate(**{name: Sum(f"{name}_count") for name in COUNTS})
    )
    found: list[dict[str, Any]] = [dict(row) for row in rows]
    return {row["node"]: {name: row[name] for name in COUNTS} for row in found}


def _doubts(node: Node) -> list[gateway_notes.NodeNote]:
    try:
        notes = gateway_notes.read()
    except redis.RedisError:
        return []
    of_all = [told for note in notes for told in note.nodes]
    mine = [told for told in of_all if (told.cluster, told.node) == (node.cluster.name, node.name)]
    return sorted(mine, key=lambda told: -told.last_ms)


def _events(node: Node, user: User | Any, now_ns: int) -> list[StoredEvent]:
    """Twice as many are read as shown, since those of jobs of other teams fall out."""
    end_ns = now_ns + EVENTS_WITHIN_NS  # a node's clock may run ahead
    found = queries.events(now_ns - EVENTS_WITHIN_NS, end_ns, node_id=node.pk, limit=2 * EVENTS_SHOWN)
    of_jobs = {event.job_id for event in found if event.job_id is not None}
    seen = set(for_user(user).filter(pk__in=of_jobs).values_list("pk", flat=True)) if of_jobs else set()
    return [event for event in found if event.job_id is None or event.job_id in seen][:EVENTS_SHOWN]


def _jobs_here(node: Node, user: User | Any) -> QuerySet[Job]:
    return for_user(user).filter(ranks__node=node).distinct().order_by("-started_at", "-id")
