"""Faults of a cluster's parts, with or without a job: signals are joined to one finding for each fault.

In: signals that stand, where parts are, which ranks run on them. Out: ``HealthFault``s. A GPU's many signals
are one fault; many nodes of one rack, leaf or storage server with the same trouble are one fault of what they
share, and the nodes are whom it hits. Rules: DESIGN section 4, class ``health``.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from clusterwatch.analysis.model import Coverage, Culprit, Diagnosis, Downstream, Finding, Owner, Severity
from clusterwatch.analysis.signals import Signal
from clusterwatch.analysis.verdicts import CATALOGUE

VERSION: Final = "v1"
SHARED_MIN: Final = 4
"""So many nodes of one leaf, rack or server with one kind of trouble: it is theirs, not the nodes'."""
RACK_MIN: Final = 2
"""A rack holds two nodes where racks are as published; power and cooling are shared by few."""
LOST_XID: Final = 79
WHY_MAX: Final = 8
HOSTS_NAMED: Final = 3
_SEVERITY_ORDER: Final = (Severity.INFO, Severity.UNKNOWN, Severity.WARNING, Severity.CRITICAL)

GPU_LOST: Final = frozenset({"gpu_lost", "gpu_missing"})
GPU_FAULT: Final = frozenset({"xid", "sxid", "ecc", "recovery_action", "gpu_read_hung", "fabric_fault"})
LINK_DOWN: Final = frozenset({"link_down", "port_missing", "rdma_missing", "nic_missing"})
LINK_DEGRADED: Final = frozenset({"rate_degraded", "link_flap", "optics_weak", "pcie_degraded"})
POWER: Final = frozenset(
    {"power_lost", "psu_failed", "bbu_failed", "on_battery", "power_supply_lost", "power_brake"}
)
COOLING: Final = frozenset({"over_temperature", "fan_failed", "thermal"})
STORAGE: Final = frozenset(
    {
        "mount_stall", "nfs_server_stalled", "mount_probe_stuck", "mount_failed", "mount_missing",
        "fuse_daemon_gone", "weka_disconnected", "lustre_evicted", "nfs_not_responding",
    }
)  # fmt: skip
NODE: Final = frozenset({"kernel_panic", "lockup", "fs_error", "disk_error", "nvme_plp_failed", "rcu_stall"})

VERDICT_OF: Final[Mapping[str, str]] = {
    kind: verdict
    for verdict, kinds in (
        ("gpu_lost", GPU_LOST), ("gpu_fault", GPU_FAULT), ("link_down", LINK_DOWN),
        ("link_degraded", LINK_DEGRADED), ("power_fault", POWER), ("cooling_fault", COOLING),
        ("storage_stalled", STORAGE), ("node_fault", NODE),
    )
    for kind in kinds
}  # fmt: skip
"""Kinds of signals that are worth a fault; others are context."""
INSTANT: Final = frozenset(
    {
        "xid", "sxid", "mount_stall", "link_flap", "kernel_panic", "lockup", "fs_error", "disk_error",
        "rcu_stall", "lustre_evicted", "nfs_not_responding",
    }
)  # fmt: skip
"""Told when they happen and never as over: they hold for ``detect.health.INSTANT_HOLDS_S``."""


@dataclass(frozen=True, slots=True)
class NodePlace:
    """Where a node is; empty where it is not told."""

    host: str
    rack: str = ""
    leaf: str = ""
    gpus: Mapping[str, int] = field(default_factory=dict)
    """GPU index by UUID"""
    is_paused: bool = False
    """its GPUs are not looked at now, on purpose"""


@dataclass(frozen=True, slots=True)
class RankPlace:
    """One rank of a running job."""

    rank: int
    job_key: str
    gpu_uuid: str


@dataclass(frozen=True, slots=True)
class HealthFault:
    """``key``: what makes it the same fault at the next look."""

    key: str
    finding: Finding
    since_ns: int
    node_id: int | None
    rank_count: int


@dataclass(frozen=True, slots=True)
class _Group:
    verdict: str
    where: str
    signals: tuple[Signal, ...]
    shared: str = ""
    """what many nodes share: ``rack A12``, ``switch leaf-3``, ``server 10.0.0.1``"""


def judge(
    signals: Iterable[Signal], places: Mapping[int, NodePlace], ranks: Mapping[int, Sequence[RankPlace]]
) -> list[HealthFault]:
    """Independent faults, worst first. Cost: linear in the signals.

    Args:
        signals: those that stand now.
        places: by node.
        ranks: of running jobs, by node.
    """
    mine = [one for one in signals if one.kind in VERDICT_OF and not _is_expected(one, places)]
    groups = _shared(mine, places)
    taken = {id(one) for group in groups for one in group.signals}
    groups += _single([one for one in mine if id(one) not in taken], places)
    faults = [_fault(group, places, ranks) for group in groups]
    return sorted(faults, key=lambda one: (-_SEVERITY_ORDER.index(one.finding.severity), one.key))


def _is_expected(signal: Signal, places: Mapping[int, NodePlace]) -> bool:
    """A GPU that is paused on purpose answers nobody; information is no fault."""
    place = places.get(signal.node_id or 0)
    paused = place is not None and place.is_paused and signal.kind == "gpu_read_hung"
    return paused or signal.severity is Severity.INFO


# --- what many nodes share -------------------------------------------------------------------------------


def _shared(signals: Sequence[Signal], places: Mapping[int, NodePlace]) -> list[_Group]:
    found: list[_Group] = []
    for verdicts, least, of in (
        (("storage_stalled",), SHARED_MIN, lambda one: _server(one)),
        (("power_fault", "cooling_fault"), RACK_MIN, lambda one: _named("rack", one, places)),
        (("link_down",), SHARED_MIN, lambda one: _named("leaf", one, places)),
    ):
        found += _by_shared([one for one in signals if VERDICT_OF[one.kind] in verdicts], least, of)
    return found


def _by_shared(signals: Sequence[Signal], least: int, of: Callable[[Signal], str]) -> list[_Group]:
    by_place: dict[tuple[str, str], list[Signal]] = defaultdict(list)
    for one in signals:
        if shared := of(one):
            by_place[VERDICT_OF[one.kind], shared].append(one)
    return [
        _Group(verdict, shared, tuple(mine), shared)
        for (verdict, shared), mine in by_place.items()
        if len({one.node_id for one in mine}) >= least
    ]


def _server(signal: Signal) -> str:
    told = signal.fields.get("server") or ""
    if told:
        return f"server {told}"
    kind, _, name = signal.part.partition("/")
    return f"{kind.replace('_', ' ')} {name}" if kind in ("nfs_server", "mount", "weka") and name else ""


def _named(what: str, signal: Signal, places: Mapping[int, NodePlace]) -> str:
    place = places.get(signal.node_id or 0)
    name = getattr(place, what) if place is not None else ""
    return f"{'switch' if what == 'leaf' else what} {name}" if name else ""


# --- one part --------------------------------------------------------------------------------------------


def _single(signals: Sequence[Signal], places: Mapping[int, NodePlace]) -> list[_Group]:
    by_part: dict[tuple[int | None, str, str], list[Signal]] = defaultdict(list)
    for one in signals:
        by_part[one.node_id, one.host, _part(one, places)].append(one)
    return [_of_part(host, part, mine) for (_, host, part), mine in by_part.items()]


def _part(signal: Signal, places: Mapping[int, NodePlace]) -> str:
    """GPUs by UUID, and by address where a line tells no more; a host's own faults by class."""
    verdict = VERDICT_OF[signal.kind]
    if verdict in ("gpu_lost", "gpu_fault"):
        uuid = signal.part.removeprefix("gpu/")
        place = places.get(signal.node_id or 0)
        if place is not None and uuid in place.gpus:
            return f"gpu/{place.gpus[uuid]}"
        return signal.fields.get("root_entity") or signal.part
    return signal.part if verdict.startswith("link") else verdict


def _of_part(host: str, part: str, signals: Sequence[Signal]) -> _Group:
    """The worst that its signals say: a GPU that is lost has Xids, too."""
    verdicts = {VERDICT_OF[one.kind] for one in signals}
    if any(one.kind == "xid" and one.code == LOST_XID for one in signals):
        verdicts.add("gpu_lost")
    order = tuple(dict.fromkeys(VERDICT_OF.values()))
    return _Group(min(verdicts, key=order.index), f"{host} {part}".strip(), tuple(signals))


# --- findings --------------------------------------------------------------------------------------------


def _fault(
    group: _Group, places: Mapping[int, NodePlace], ranks: Mapping[int, Sequence[RankPlace]]
) -> HealthFault:
    nodes = sorted({one.node_id for one in group.signals if one.node_id is not None})
    uuids = {one.part.removeprefix("gpu/") for one in group.signals if one.part.startswith("gpu/")}
    hit = [rank for node in nodes for rank in ranks.get(node, ())]
    if group.verdict.startswith("gpu") and uuids and any(rank.gpu_uuid for rank in hit):
        hit = [rank for rank in hit if rank.gpu_uuid in uuids]
    first = min(group.signals, key=lambda one: one.at_ns)
    return HealthFault(
        key=f"{group.verdict}/{group.where}",
        finding=_finding(group, first, places, nodes, hit),
        since_ns=first.at_ns,
        node_id=nodes[0] if len(nodes) == 1 else None,
        rank_count=len(hit),
    )


def _finding(
    group: _Group, first: Signal, places: Mapping[int, NodePlace], nodes: Sequence[int],
    hit: Sequence[RankPlace],
) -> Finding:  # fmt: skip
    row = CATALOGUE[group.verdict]
    severity = max((one.severity for one in group.signals), key=_SEVERITY_ORDER.index)
    hosts = sorted({one.host for one in group.signals if one.host})
    is_gpu = group.verdict.startswith("gpu")
    return Finding(
        verdict=group.verdict,
        fault_class=row.fault_class,
        severity=severity,
        summary=_sentence(group, first, places, hosts, hit)[:200],
        rule=f"health.{group.verdict} {VERSION}",
        confidence=0.9 if severity is Severity.CRITICAL else 0.7,
        cause=_cause(group),
        owner=Owner.INFRA,
        culprits=tuple(_culprits(group, places)) if is_gpu else (),
        node=hosts[0] if len(hosts) == 1 else None,
        link=first.part if group.verdict.startswith("link") and not group.shared else None,
        switch=group.shared.removeprefix("switch ") if group.shared.startswith("switch ") else None,
        downstream=Downstream(0, len(hit)),
        why=tuple(_why(group, nodes)),
        recommended_action=row.action,
        decisive=is_gpu and severity is Severity.CRITICAL,
    )


def _culprits(group: _Group, places: Mapping[int, NodePlace]) -> Iterable[Culprit]:
    for node, part in sorted({(one.node_id or 0, one.part) for one in group.signals}):
        place = places.get(node)
        uuid = part.removeprefix("gpu/")
        if place is not None and part.startswith("gpu/"):
            yield Culprit(None, place.host, place.gpus.get(uuid), uuid)


def _cause(group: _Group) -> str | None:
    """The Xid, where there is one; else the kind that was told first."""
    codes = [one.code for one in group.signals if one.kind in ("xid", "sxid") and one.code is not None]
    if codes:
        return f"xid_{LOST_XID if LOST_XID in codes else codes[0]}"
    return min(group.signals, key=lambda one: one.at_ns).kind


def _sentence(
    group: _Group, first: Signal, places: Mapping[int, NodePlace], hosts: Sequence[str],
    hit: Sequence[RankPlace],
) -> str:  # fmt: skip
    what = _WORDS[group.verdict]
    if group.shared:
        subject = f"{group.shared[0].upper()}{group.shared[1:]}"
        named = f"{len(hosts)} nodes have it"
    else:
        part = group.where.removeprefix(first.host).strip()
        subject = f"{_part_words(part)} of {first.host}" if _part_words(part) else first.host
        named = ""
    codes = sorted({one.code for one in group.signals if one.kind == "xid" and one.code is not None})
    said = f" (Xid {', '.join(map(str, codes[:3]))})" if codes else ""
    tail = f"; {named}" if named else ""
    return f"{subject} {what}{said}{tail}; {_hit_words(hit)}"


_WORDS: Final = {
    "gpu_lost": "is lost: the driver does not see it any more",
    "gpu_fault": "has a fault",
    "link_down": "has no link",
    "link_degraded": "has a degraded link",
    "power_fault": "has a power fault",
    "cooling_fault": "is too hot or lacks cooling",
    "storage_stalled": "answers no storage request",
    "node_fault": "has a fault of its kernel or disks",
}


def _part_words(part: str) -> str:
    kind, _, name = part.partition("/")
    if kind == "gpu":
        return f"GPU {name}"
    if kind in ("port", "nic", "pci"):
        return f"{kind} {name}"
    return ""


def _hit_words(hit: Sequence[RankPlace]) -> str:
    if not hit:
        return "no running job has a rank there"
    jobs = sorted({rank.job_key for rank in hit})
    named = f"job {jobs[0]}" if len(jobs) == 1 else f"{len(jobs)} jobs"
    return f"{named} has {len(hit)} rank{'' if len(hit) == 1 else 's'} there"


def _why(group: _Group, nodes: Sequence[int]) -> Iterable[str]:
    told = sorted(group.signals, key=lambda one: (one.at_ns, one.host, one.kind))
    for one in told[:WHY_MAX]:
        yield f"{one.host or one.source}: {one.text}"[:300]
    if len(told) > WHY_MAX:
        yield f"and {len(told) - WHY_MAX} more signals of {len(nodes)} nodes"


def diagnosis(fault: HealthFault, node_count: int, heard_count: int) -> Diagnosis:
    """The fault as an incident tells it; its coverage counts nodes, not ranks."""
    return Diagnosis((fault.finding,), Coverage(expected=node_count, reported=heard_count))
