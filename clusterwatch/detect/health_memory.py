"""What is remembered of the faults of a cluster's parts between two looks, and how it is made anew.

In: a cluster. Out: ``Memory``, kept in Valkey. Where that was lost, what stood is taken from the evidence of
live incidents, which outlives every event, and a day of events tells what came and went since.
"""

from __future__ import annotations

import logging
from dataclasses import asdict
from typing import Any, Final

import msgspec

from clusterwatch.analysis.health import HealthFault
from clusterwatch.analysis.standing import Held, Key
from clusterwatch.incidents.models import LIVE_STATES, Evidence
from clusterwatch.incidents.queries import open_evidence
from clusterwatch.incidents.services import Piece
from clusterwatch.store import hot

KIND: Final = "signals"
SIGNALS_KEPT_MAX: Final = 500
"""of one incident, as evidence"""
INCIDENTS_MAX: Final = 500
S_NS: Final = 10**9
FIRST_LOOK_NS: Final = 24 * 3_600 * S_NS
OVERLAP_NS: Final = 120 * S_NS
"""Clocks of nodes differ: so much is read again at each look, and told twice changes nothing."""
LATE: Final = ((3_600 * S_NS, 60 * S_NS), (FIRST_LOOK_NS, 1_800 * S_NS))
"""(how far back, how often): what agents kept while they could not send comes with its own time."""
log = logging.getLogger(__name__)


class Memory(msgspec.Struct):
    """What is remembered of a cluster.

    Attributes:
        read_ns: when each span was read last: the newest, and those of ``LATE``.
        gone_ns: fingerprint of a live incident -> since when its fault is not seen any more.
        told: fingerprint -> digest of what its incident says, and when it was said.
        keys: of the faults of the last look.
    """

    read_ns: list[int] = []
    held: list[tuple[Key, Held]] = []
    gone_ns: dict[str, int] = {}
    told: dict[str, tuple[str, int]] = {}
    keys: list[str] = []

    def span(self, now_ns: int) -> int:
        """From when on events are read now; notes that they were."""
        if not self.read_ns:
            self.read_ns = [now_ns] * (1 + len(LATE))
            return now_ns - FIRST_LOOK_NS
        from_ns = min(self.read_ns[0], now_ns) - OVERLAP_NS
        self.read_ns[0] = now_ns
        for place, (back_ns, every_ns) in enumerate(LATE, 1):
            if now_ns - self.read_ns[place] >= every_ns:
                self.read_ns[place] = now_ns
                from_ns = min(from_ns, now_ns - back_ns)
        return from_ns


def load(cluster_id: int, prefix: str) -> Memory:
    """What is remembered; made anew from evidence where it is lost or cannot be read."""
    blob = hot.load_health(cluster_id)
    if blob is not None:
        try:
            return msgspec.msgpack.decode(blob, type=Memory)
        except msgspec.MsgspecError as fault:
            log.warning("health_unreadable cluster=%d reason=%s", cluster_id, fault)
    return Memory(held=_from_evidence(prefix))


def save(cluster_id: int, memory: Memory) -> None:
    hot.save_health(cluster_id, msgspec.msgpack.encode(memory))


def evidence(fault: HealthFault) -> Piece:
    """What is frozen with the incident: the lines that tell of the fault, and the signals themselves."""
    held = [asdict(one.held) for one in fault.cases[:SIGNALS_KEPT_MAX]]
    payload = {"why": list(fault.finding.why), "held": held, "left_out_count": len(fault.cases) - len(held)}
    return Piece(KIND, "What parts and logs told", "events of nodes and devices", payload, 1.0)


def _from_evidence(prefix: str) -> list[tuple[Key, Held]]:
    """Cost: one query and the newest piece of each live incident."""
    newest = (
        Evidence.objects.filter(
            kind=KIND, incident__state__in=LIVE_STATES, incident__fingerprint__startswith=prefix
        )
        .order_by("incident_id", "-id")
        .distinct("incident_id")[:INCIDENTS_MAX]
    )
    found: dict[Key, Held] = {}
    for piece in newest:
        payload: Any = open_evidence(piece).payload
        for raw in payload.get("held", []) if isinstance(payload, dict) else []:
            try:
                held = msgspec.convert(raw, type=Held)
            except msgspec.ValidationError as fault:
                log.warning("evidence_unreadable incident=%d reason=%s", piece.incident_id, fault)
                break
            one = held.signal
            found[one.node_id or 0, one.part, one.kind, one.code or 0] = held
    return list(found.items())
