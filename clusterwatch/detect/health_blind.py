"""What we cannot see of a cluster becomes an incident of class ``blind``; never a fault of a node.

In: a cluster, now (ns UTC). Out: at most one incident each of silent agents, of gateways that write nothing,
and of GPUs that stall without a hook. An end needs a word: where nothing is known an incident stays as it is.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Final

import msgspec
import numpy as np

from clusterwatch.analysis import health_blind as rules
from clusterwatch.analysis.health_blind import Vitals, Watch
from clusterwatch.analysis.model import Coverage, Diagnosis, Finding
from clusterwatch.detect.scene import BLIND_AFTER_NS
from clusterwatch.fleet.models import Cluster, Slot
from clusterwatch.incidents import services
from clusterwatch.incidents.models import Incident
from clusterwatch.incidents.services import Piece, Sighting
from clusterwatch.jobs.models import Rank
from clusterwatch.store import hot

OPEN_AFTER_S: Final = 30.0
FRESH_NS: Final = 10 * 10**9
NEVER: Final = ("stalled_unnamed",)
"""Pages nobody: it is a guess from outside."""
log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Seen:
    """Of one kind: what is found; ``is_known`` False where nothing can be said either way."""

    found: Finding | None
    is_known: bool
    coverage: Coverage
    since_ns: int


def look(cluster_id: int, now_ns: int) -> list[str]:
    """Looks at a cluster once; returns the verdicts that hold. Cost: some reads of hot state and queries."""
    ingest = _ingest(now_ns)
    seen = {"ingest_down": ingest}
    if ingest.is_known and ingest.found is None:
        seen["agents_silent"] = _agents(cluster_id, now_ns)
        seen["stalled_unnamed"] = _stalls(cluster_id, now_ns)
    for verdict, one in seen.items():
        tell(cluster_id, verdict, one, now_ns)
    return [verdict for verdict, one in seen.items() if one.found is not None]


def fingerprint(cluster_id: int, verdict: str) -> str:
    return f"{cluster_id}/blind/{verdict}"


def _ingest(now_ns: int) -> Seen:
    """Where no gateway ever wrote, as after a restart of Valkey, nothing is known."""
    word_ns = hot.newest_gateway_word_ns()
    if word_ns is None:
        return Seen(None, False, Coverage(), now_ns)
    found = rules.ingest_down((now_ns - word_ns) / 1e9)
    return Seen(found, found is not None or now_ns - word_ns <= BLIND_AFTER_NS, Coverage(), word_ns)


def _agents(cluster_id: int, now_ns: int) -> Seen:
    nodes = hot.read_nodes()
    mine = (nodes.cluster_id == cluster_id) & (now_ns - nodes.word_ns <= BLIND_AFTER_NS)
    mine &= nodes.link != hot.CLOSED_CLEAN
    seen_ns = nodes.seen_ns[mine]
    silent_s = (now_ns - seen_ns) / 1e9
    heard = int((silent_s <= rules.SILENT_AFTER_S).sum())
    found = rules.agents_silent(silent_s, nodes.link[mine] == hot.CLOSED)
    coverage = Coverage(expected=len(seen_ns), reported=heard, stale=len(seen_ns) - heard)
    since_ns = int(seen_ns[silent_s > rules.SILENT_AFTER_S].max(initial=0)) or now_ns
    return Seen(found, len(seen_ns) > 0, coverage, since_ns)


# --- stalls without a hook -------------------------------------------------------------------------------


def _stalls(cluster_id: int, now_ns: int) -> Seen:
    count = Cluster.objects.filter(pk=cluster_id).values_list("slot_count", flat=True).first() or 0
    vitals = _vitals(cluster_id, count, now_ns)
    state = rules.watch(_load(cluster_id, count), vitals, now_ns)
    _save(cluster_id, state)
    coverage = Coverage(expected=count, reported=int((~np.isnan(vitals.power_w)).sum()))
    long = (state.since_ns > 0) & (now_ns - state.since_ns >= rules.STALLED_AFTER_S * 1e9)
    if not long.any():
        return Seen(None, coverage.reported > 0, coverage, now_ns)
    node, hooked = _nodes(cluster_id, count)
    found = rules.stalled_unnamed(state, node, hooked, now_ns)
    return Seen(found, coverage.reported > 0, coverage, int(state.since_ns[long].min()))


def _vitals(cluster_id: int, count: int, now_ns: int) -> Vitals:
    def fresh(name: str) -> rules.Floats:
        array = hot.read_metric(cluster_id, name, count)
        return np.where(now_ns - array.seen_ns < FRESH_NS, array.values, np.float32(np.nan))

    moved = fresh("nic_tx_mib_per_s") + fresh("nic_rx_mib_per_s")
    return Vitals(fresh("gpu_util_ratio"), fresh("gpu_power_w"), moved)


def _nodes(cluster_id: int, count: int) -> tuple[rules.Ints, rules.Bools]:
    """Node of each slot, and whether a rank with a hook is on it."""
    node = np.zeros(count, np.int64)
    slots = Slot.objects.filter(cluster_id=cluster_id, until__isnull=True, gpu_index__isnull=False)
    for number, node_id in slots.values_list("number", "node_id"):
        if number < count:
            node[number] = node_id
    running = Rank.objects.filter(
        job__cluster_id=cluster_id, exited_at__isnull=True, job__ended_at__isnull=True
    )
    ids = list(running.order_by().values_list("node_id", flat=True).distinct())
    return node, np.isin(node, ids)


def _load(cluster_id: int, count: int) -> Watch:
    blob = hot.load_unhooked(cluster_id)
    if blob is not None:
        try:
            raw = msgspec.msgpack.decode(blob, type=tuple[bytes, bytes])
            known = Watch(np.frombuffer(raw[0], np.float32), np.frombuffer(raw[1], np.int64))
            if len(known.working_w) == len(known.since_ns):
                return known.sized(count)
        except (msgspec.MsgspecError, ValueError) as fault:
            log.warning("unhooked_unreadable cluster=%d reason=%s", cluster_id, fault)
    return Watch.empty(count)


def _save(cluster_id: int, state: Watch) -> None:
    packed = (state.working_w.astype(np.float32).tobytes(), state.since_ns.astype(np.int64).tobytes())
    hot.save_unhooked(cluster_id, msgspec.msgpack.encode(packed))


# --- incidents -------------------------------------------------------------------------------------------


def tell(cluster_id: int, verdict: str, seen: Seen, now_ns: int) -> None:
    """Opens, sharpens or ends the incident of one kind of blindness."""
    live = services.live_incident(fingerprint(cluster_id, verdict))
    if seen.found is None:
        if live is not None and seen.is_known:
            services.resolve(live.pk, now_ns, "it is seen again")
        return
    sighting = _sighting(cluster_id, verdict, seen, seen.found)
    if live is None:
        live, _ = services.suspect(sighting, now_ns)
        services.freeze(live.pk, [_piece(seen)], now_ns)
    else:
        services.sharpen(live.pk, sighting, now_ns)
    suspected_at = live.suspected_at
    if live.state != Incident.State.SUSPECTED or suspected_at is None or verdict in NEVER:
        return
    stood_s = now_ns / 1e9 - suspected_at.timestamp()
    if stood_s >= OPEN_AFTER_S:
        services.open_(live.pk, now_ns, f"it stands for {stood_s:.0f} s")


def _piece(seen: Seen) -> Piece:
    heard = seen.coverage
    payload: dict[str, Any] = {
        "known_count": heard.expected,
        "heard_count": heard.reported,
        "silent_count": heard.stale,
        "silent_since": datetime.fromtimestamp(seen.since_ns / 1e9, UTC).isoformat(timespec="seconds"),
    }
    return Piece("signals", "What was not heard", "hot state", payload, 1.0)


def _sighting(cluster_id: int, verdict: str, seen: Seen, found: Finding) -> Sighting:
    pages = verdict not in NEVER
    return Sighting(
        fingerprint=fingerprint(cluster_id, verdict),
        cluster_id=cluster_id,
        diagnosis=Diagnosis((found,), seen.coverage),
        since_ns=seen.since_ns,
        threshold_s=OPEN_AFTER_S if pages else None,
        threshold_source="of standing" if pages else "pages nobody",
    )
