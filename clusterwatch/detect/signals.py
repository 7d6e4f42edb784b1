"""Signals of a cluster's parts: out of its stored events, and of what hot frames say of held-down clocks.

In: a cluster, a span (ns UTC). Out: ``Signal``s, the oldest first. Everything in an event comes from a node:
words that mean nothing make no signal. An event of a device that a poller asks belongs to the host that the
device is part of, never to the host that asked.
"""

from __future__ import annotations

import logging
from collections.abc import Collection, Mapping
from typing import Final

import numpy as np

from clusterwatch.analysis import health_kinds
from clusterwatch.analysis.model import Severity
from clusterwatch.analysis.signals import Signal
from clusterwatch.fleet.models import Node, Slot
from clusterwatch.fleet.queries import slot_count
from clusterwatch.store import event_history, hot
from clusterwatch.store.queries import StoredEvent
from collectors.wire.metrics import Throttle

EVENTS_MAX: Final = 100_000
"""of one span; a storm of a whole cluster is a tenth of it"""
TEXT_MAX_CHARS: Final = 300
THROTTLE: Final = "gpu_throttle_reasons"
FRAMES: Final = "hot frames"
FRESH_NS: Final = 10 * 10**9
"""A value that is older says nothing of now."""
_TOLD_BITS: Final = int(Throttle.HW_POWER_BRAKE | Throttle.HW_THERMAL)
"""Hardware slows down by itself; the other reasons are usual under load."""
log = logging.getLogger(__name__)


def read(cluster_id: int, from_ns: int, to_ns: int, kinds: Collection[str] | None = None) -> list[Signal]:
    """Signals of events in [from, to), the oldest first. Cost: a query per 5,000 events, two for names.

    Args:
        kinds: only these; None: all.
    """
    told = list(event_history.in_order(cluster_id, from_ns, to_ns, kinds, EVENTS_MAX))
    if len(told) == EVENTS_MAX:
        log.warning("events_left_out cluster=%d from_ns=%d to_ns=%d", cluster_id, from_ns, to_ns)
    names = dict(Node.objects.filter(pk__in={event.node_id for event in told}).values_list("pk", "name"))
    owners = {owner for event in told if (owner := _owner(event))}
    mine = Node.objects.filter(cluster_id=cluster_id, name__in=owners) if owners else Node.objects.none()
    by_name = dict(mine.values_list("name", "pk"))
    return [signal_of(event, names.get(event.node_id, ""), by_name) for event in told]


def _owner(event: StoredEvent) -> str:
    """Host that a device is part of, or that a scheduler speaks of."""
    if not event.fields.get("device"):
        return ""
    return event.fields.get("device_node") or event.fields.get("node", "")


def signal_of(event: StoredEvent, host: str, by_name: Mapping[str, int]) -> Signal:
    """One event as a signal. ``host``: who told it. ``by_name``: nodes that devices belong to."""
    fields = {name: _printable(value) for name, value in event.fields.items()}
    device, owner = fields.get("device", ""), _owner(event)
    code = fields.get("code") or fields.get("xid", "")
    return Signal(
        kind=event.kind,
        at_ns=event.t_ns,
        until_ns=None,
        node_id=by_name.get(owner) if device else event.node_id,
        host=_printable(owner if owner in by_name else device or host),
        part=fields.get("entity") or device or "host",
        severity=Severity(event.severity) if event.severity in set(Severity) else Severity.UNKNOWN,
        text=_printable(event.text[:TEXT_MAX_CHARS]),
        source=event.source,
        code=int(code) if code.isascii() and code.isdecimal() and len(code) < 7 else None,
        fields=fields,
        stands=fields.get("standing") == "true",
        teller_id=event.node_id,
    )


def _printable(text: str) -> str:
    return text if text.isprintable() else "".join(c if c.isprintable() else "?" for c in text)


# --- hot frames ------------------------------------------------------------------------------------------


def held_down(cluster_id: int, before: Mapping[tuple[int, str], Signal], now_ns: int) -> list[Signal]:
    """GPUs whose hardware holds down their clocks now, and ends of those that it did before.

    Args:
        before: signals of this kind that stand, by node and part.
    Cost: one read of hot state in numpy; two queries where a GPU is held down or was.
    """
    count = slot_count(cluster_id)
    array = hot.read_metric(cluster_id, THROTTLE, count)
    known = ~np.isnan(array.values) & (now_ns - array.seen_ns < FRESH_NS)
    bits = np.where(known, array.values, 0).astype(np.int64) & _TOLD_BITS
    numbers = np.flatnonzero(bits)
    if not len(numbers) and not before:
        return []
    slots = Slot.objects.filter(cluster_id=cluster_id, until__isnull=True, gpu_index__isnull=False)
    rows = slots.filter(number__in=numbers.tolist()).values_list(
        "number", "node_id", "node__name", "gpu_uuid", "gpu_index"
    )
    found = {}
    for number, node_id, host, uuid, index in rows:
        part = f"gpu/{uuid or index}"
        found[node_id, part] = _throttle(node_id, host, part, int(bits[number]), now_ns)
    return [*(one for key, one in found.items() if key not in before), *_ends(before, found, known, now_ns)]


def _throttle(node_id: int, host: str, part: str, bits: int, now_ns: int) -> Signal:
    brake = bool(bits & Throttle.HW_POWER_BRAKE)
    text = f"clocks are held down by the hardware: {'power brake' if brake else 'it is too hot'}"
    return Signal(
        "throttle", now_ns, None, node_id, host, part,
        Severity.CRITICAL if brake else Severity.WARNING, text, FRAMES,
        fields={"mask": str(bits)}, stands=True, teller_id=node_id,
    )  # fmt: skip


def _ends(
    before: Mapping[tuple[int, str], Signal],
    found: Mapping[tuple[int, str], Signal],
    known: np.ndarray[tuple[int], np.dtype[np.bool_]],
    now_ns: int,
) -> list[Signal]:
    """An end needs a value: a GPU that tells nothing is not known to be well."""
    gone = {key: one for key, one in before.items() if key not in found}
    if not gone:
        return []
    slots = Slot.objects.filter(node_id__in={node for node, _ in gone}, until__isnull=True)
    places = slots.exclude(gpu_index=None).values_list("number", "node_id", "gpu_uuid", "gpu_index")
    seen = {
        (node, f"gpu/{uuid or index}")
        for number, node, uuid, index in places
        if number < len(known) and known[number]
    }
    return [
        Signal(
            health_kinds.OVER, now_ns, None, one.node_id, one.host, one.part, Severity.INFO,
            "clocks are free again", FRAMES, fields={"kind": "throttle"}, teller_id=one.teller_id,
        )  # fmt: skip
        for key, one in gone.items()
        if key in seen
    ]
