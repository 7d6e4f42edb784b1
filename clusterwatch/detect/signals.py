"""Signals of a cluster's parts out of its stored events.

In: a cluster, a span (ns UTC). Out: ``Signal``s, the oldest first. Everything in an event comes from a node:
words that mean nothing make no signal.
"""

from __future__ import annotations

import logging
from typing import Final

from clusterwatch.analysis.model import Severity
from clusterwatch.analysis.signals import Signal
from clusterwatch.fleet.models import Node
from clusterwatch.store import queries
from clusterwatch.store.queries import StoredEvent

TEXT_MAX_CHARS: Final = 300
log = logging.getLogger(__name__)


def read(cluster_id: int, from_ns: int, to_ns: int) -> list[Signal]:
    """Signals of events in [from, to). Of more than ``queries.EVENTS_MAX`` the newest; that is logged.

    Cost: two queries.
    """
    told = queries.events(from_ns, to_ns, cluster_id=cluster_id, limit=queries.EVENTS_MAX)
    if len(told) == queries.EVENTS_MAX:
        log.warning("events_left_out cluster=%d from_ns=%d to_ns=%d", cluster_id, from_ns, to_ns)
    nodes = {event.node_id for event in told}
    names = dict(Node.objects.filter(pk__in=nodes).values_list("pk", "name"))
    return [signal_of(event, names.get(event.node_id, "")) for event in reversed(told)]


def signal_of(event: StoredEvent, host: str) -> Signal:
    """One event as a signal. An event of a device that a poller asks is none of the asking node's own."""
    fields = event.fields
    device = fields.get("device", "")
    code = fields.get("code", "")
    part = fields.get("entity") or device or "host"
    return Signal(
        kind=event.kind,
        at_ns=event.t_ns,
        until_ns=None,
        node_id=None if device else event.node_id,
        host=device or host,
        part=part,
        severity=Severity(event.severity) if event.severity in set(Severity) else Severity.UNKNOWN,
        text=event.text[:TEXT_MAX_CHARS],
        source=event.source,
        code=int(code) if code.isascii() and code.isdecimal() and len(code) < 7 else None,
        fields=fields,
    )
