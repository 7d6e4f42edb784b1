"""Where parts are and who runs on them, and a signal in its place: which part of which host it is about.

In: ``Held`` signals, nodes, ranks. Out: ``Case``s. A GPU has many names (UUID, PCI address, the root that an
echo names), a link two ends; here each gets one.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Final

from clusterwatch.analysis import health_kinds as kinds
from clusterwatch.analysis.signals import Signal
from clusterwatch.analysis.standing import Held

FAMILIES: Final = {
    "gpu_lost": "gpu", "gpu_fault": "gpu", "link_down": "link", "link_degraded": "link",
    "power_fault": "power", "cooling_fault": "cooling", "storage_stalled": "storage", "node_fault": "node",
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class NodePlace:
    """Where a node is; empty where it is not told."""

    host: str
    rack: str = ""
    leaf: str = ""
    gpus: Mapping[str, int] = field(default_factory=dict)
    """GPU index by UUID"""
    uuids: Mapping[str, str] = field(default_factory=dict)
    """GPU UUID by PCI address, in lower case"""
    is_paused: bool = False
    """its GPUs are not looked at now, on purpose"""
    drained: str | None = None
    """why its scheduler gives it no work; None: it does"""


@dataclass(frozen=True, slots=True)
class RankPlace:
    """Ranks of one job on one node: those of one GPU where that is known, else a count."""

    job_key: str
    """empty where not everybody may know it"""
    job_id: int
    gpu_uuid: str = ""
    gpu_index: int | None = None
    count: int = 1


@dataclass(frozen=True, slots=True)
class Cast:
    """All that is known of the places that signals are about."""

    places: Mapping[int, NodePlace]
    ranks: Mapping[int, Sequence[RankPlace]] = field(default_factory=dict)
    """of running jobs, by node"""
    rack_nodes: Mapping[str, int] = field(default_factory=dict)
    leaf_nodes: Mapping[str, int] = field(default_factory=dict)
    """how many nodes each has"""


@dataclass(frozen=True, slots=True)
class Case:
    """A signal in its place.

    Attributes:
        verdict: None for an echo.
        part: of the host, under the one name that it has here.
        far_end: of a link, as its switch tells it: switch and port.
        far_switch: the switch alone.
    """

    held: Held
    verdict: str | None
    family: str
    node_id: int | None
    host: str
    part: str
    far_end: str = ""
    far_switch: str = ""

    @property
    def signal(self) -> Signal:
        return self.held.signal

    @property
    def key(self) -> str:
        """Of the fault that it would be alone."""
        return f"{self.family}/{self.host}/{self.part}".rstrip("/")


def placed(held: Iterable[Held], cast: Cast) -> list[Case]:
    """Signals in their places, without those that are expected. Cost: linear."""
    made = [_case(one, cast) for one in held if not _is_expected(one.signal, cast)]
    return _joined_ends(made, cast)


def _is_expected(signal: Signal, cast: Cast) -> bool:
    """A GPU that is paused on purpose answers nobody."""
    place = cast.places.get(signal.node_id or 0)
    return place is not None and place.is_paused and signal.kind == "gpu_read_hung"


def _case(held: Held, cast: Cast) -> Case:
    signal = held.signal
    verdict = kinds.verdict_of(signal)
    place = cast.places.get(signal.node_id or 0)
    host = place.host if place is not None else signal.host
    by_verdict = FAMILIES[verdict] if verdict is not None else "gpu"
    of_gpu = kinds.is_of_gpu(signal) and by_verdict in ("gpu", "link")
    family = "gpu" if of_gpu else "link" if verdict is None and _is_port(signal) else by_verdict
    part = ""
    if family == "gpu":
        part = _gpu(signal, place)
    elif family == "link":
        part = _link(signal)
    elif family == "storage":
        part = signal.part if signal.part != "host" else ""
    elif place is None and family in ("power", "cooling"):
        host, part = signal.host, ""
    return Case(held, verdict, family, signal.node_id, host, part)


def _is_port(signal: Signal) -> bool:
    return signal.part.startswith(("port/", "nic/"))


def uuid_of(signal: Signal, place: NodePlace | None) -> str:
    """UUID of the GPU that a signal is about; of an echo, that of its root."""
    root = signal.fields.get("root_entity", "")
    for entity in (root, signal.part, f"gpu/{signal.fields.get('gpu_uuid', '')}"):
        kind, _, name = entity.partition("/")
        if kind in ("gpu", "nvlink") and name:
            return name.partition("/")[0]
        if kind == "pci" and place is not None and (uuid := place.uuids.get(name.lower())):
            return uuid
    return ""


def _gpu(signal: Signal, place: NodePlace | None) -> str:
    uuid = uuid_of(signal, place)
    if place is not None and uuid in place.gpus:
        return str(place.gpus[uuid])
    return uuid or signal.fields.get("root_entity") or (signal.part if signal.part != "host" else "")


def _link(signal: Signal) -> str:
    """RDMA device and port where they are told: a network device and its RDMA device are one link."""
    kind, _, name = signal.part.partition("/")
    if kind == "port" and name:
        return name
    if rdma := signal.fields.get("rdma_device", ""):
        return f"{rdma}/1"
    if signal.fields.get("switch"):
        return f"{signal.fields['switch']} {signal.fields.get('switch_port', '')}".strip()
    return name or signal.part


# --- both ends of a link -----------------------------------------------------------------------------------


def _joined_ends(made: list[Case], cast: Cast) -> list[Case]:
    """A switch's port belongs to the host at its far end, and is that host's link where it can be told."""
    from_switch = [one for one in made if one.family == "link" and one.signal.fields.get("peer")]
    if not from_switch:
        return made
    by_name = {_short(place.host): node for node, place in cast.places.items()}
    mine: dict[int, list[Case]] = defaultdict(list)
    for one in made:
        if one.family == "link" and one.node_id is not None:
            mine[one.node_id].append(one)
    toward: dict[int, list[Case]] = defaultdict(list)
    for one in from_switch:
        node = by_name.get(_short(one.signal.fields["peer"]))
        if node is not None:
            toward[node].append(one)
    moved = {
        id(one): _at_host(one, node, cast.places[node], mine[node], len(told))
        for node, told in toward.items()
        for one in told
    }
    ends = {(one.node_id, one.part): one for one in moved.values()}
    return [moved.get(id(one)) or _with_end(one, ends.get((one.node_id, one.part))) for one in made]


def _with_end(case: Case, other: Case | None) -> Case:
    if other is None or case.family != "link":
        return case
    return replace(case, far_end=other.far_end, far_switch=other.far_switch)


def _at_host(case: Case, node: int, place: NodePlace, mine: Sequence[Case], told_count: int) -> Case:
    fields = case.signal.fields
    switch = fields.get("switch", "")
    far_end = f"{switch} {fields.get('switch_port', '')}".strip()
    wanted = fields.get("peer_port", "")
    labels = {alias: one.part for one in mine for alias in _aliases(one)}
    part = labels.get(wanted) if wanted else None
    own = {one.part for one in mine}
    if part is None and told_count == 1 and len(own) == 1:
        part = own.pop()  # one link of the host is down, and one port that leads to it
    return replace(
        case, node_id=node, host=place.host, part=part or far_end, far_end=far_end, far_switch=switch
    )


def _aliases(case: Case) -> Iterable[str]:
    yield case.part
    yield case.part.partition("/")[0]
    yield case.signal.part.partition("/")[2]
    yield case.signal.fields.get("rdma_device", "")


def _short(name: str) -> str:
    return name.partition(".")[0].lower()
