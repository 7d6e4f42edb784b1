"""Which part a signal is of, and which ranks run on it.

In: places of ranks, signals. Out: a ``Part`` with ranks, or nothing where no rank runs. A part that nothing
ties to one rank (a port of a host whose ranks' ports are not told) stands for the whole host, and says so.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping
from typing import Final

from clusterwatch.analysis.correlate_model import Candidate, Cause, Layer, Part, PartKind, Place
from clusterwatch.analysis.signals import Signal

_NONE: Final[frozenset[int]] = frozenset()
CERTAINTY: Final[Mapping[PartKind, float]] = {
    PartKind.GPU: 1.0, PartKind.PORT: 1.0, PartKind.HOST: 0.95, PartKind.MOUNT: 0.9, PartKind.RACK: 1.0,
    PartKind.LEAF: 0.95, PartKind.SERVER: 1.0, PartKind.SOME_GPU: 0.7, PartKind.SOME_PORT: 0.7,
}  # fmt: skip
"""How sure it is that the ranks use the part. Judgement."""
RACK_HOSTS_MIN: Final = 2
LEAF_HOSTS_MIN: Final = 4
SERVER_HOSTS_MIN: Final = 4
"""From so many hosts on what they share is named, as in ``health``."""
LEAF_RATIO_MIN: Final = 0.5
"""Of the job's hosts behind it: one bad cable each is no switch."""
DEVICES: Final = ("switch", "rack", "bmc")


class Index:
    """Places, found by what signals name. Cost: linear in ranks, once."""

    def __init__(self, places: Iterable[Place]) -> None:
        self.by_rank = {place.rank: place for place in places}
        self._by_uuid: dict[str, set[int]] = defaultdict(set)
        self._by_node: dict[int, set[int]] = defaultdict(set)
        self._by_host: dict[str, set[int]] = defaultdict(set)
        self._by_leaf: dict[str, set[int]] = defaultdict(set)
        self._by_rack: dict[str, set[int]] = defaultdict(set)
        for place in self.by_rank.values():
            for table, key in (
                (self._by_uuid, place.gpu_uuid), (self._by_host, place.host), (self._by_leaf, place.leaf),
                (self._by_rack, place.rack),
            ):  # fmt: skip
                if key:
                    table[key].add(place.rank)
            if place.node_id is not None:
                self._by_node[place.node_id].add(place.rank)

    def hosts_behind(self, leaf: str) -> int:
        """Hosts of the job behind a leaf."""
        return len({self.by_rank[rank].host for rank in self._by_leaf.get(leaf, _NONE)})

    def touched(self, signal: Signal, cause: Cause) -> tuple[Part, frozenset[int]] | None:
        """The part and the ranks on it; None: no rank of the job runs there, or the part is not known."""
        kind, _, name = signal.host.partition("/")
        if signal.node_id is None and kind in DEVICES:
            return self._of_device(kind, name)
        here = self._by_node.get(signal.node_id, set()) if signal.node_id is not None else set()
        here = here or (self._by_host.get(signal.host, set()) if signal.node_id is None else set())
        if not here:
            return None
        if uuid := gpu_uuid(signal):
            return self._of_gpu(signal, uuid, here)
        if cause.layer is Layer.LINK:
            return self._of_port(signal, here)
        if cause.layer is Layer.STORAGE:
            name = signal.part.partition("/")[2] or "storage"
            return Part(PartKind.MOUNT, name, signal.host), frozenset(here)
        if cause.layer is Layer.GPU and cause.word != "pcie_degraded":
            return Part(PartKind.SOME_GPU, "", signal.host), frozenset(here)
        if cause.word == "host_memory":
            return self._of_process(signal, here)
        return Part(PartKind.HOST, signal.host, signal.host), frozenset(here)

    def _of_device(self, kind: str, name: str) -> tuple[Part, frozenset[int]] | None:
        table, part = (self._by_leaf, PartKind.LEAF) if kind == "switch" else (self._by_rack, PartKind.RACK)
        ranks = table.get(name, _NONE) if kind != "bmc" else _NONE
        return (Part(part, name), frozenset(ranks)) if ranks else None

    def _of_gpu(self, signal: Signal, uuid: str, here: set[int]) -> tuple[Part, frozenset[int]] | None:
        ranks = frozenset(self._by_uuid.get(uuid, _NONE) & here)
        if ranks:
            return self._gpu(ranks, uuid, signal.host), ranks
        known = all(self.by_rank[rank].gpu_uuid for rank in here)
        return None if known else (Part(PartKind.SOME_GPU, uuid, signal.host), frozenset(here))

    def _gpu(self, ranks: frozenset[int], uuid: str, host: str) -> Part:
        number = self.by_rank[min(ranks)].gpu
        return Part(PartKind.GPU, uuid if number is None else str(number), host)

    def _of_port(self, signal: Signal, here: set[int]) -> tuple[Part, frozenset[int]] | None:
        device = port_device(signal)
        if not device:
            return Part(PartKind.SOME_PORT, "", signal.host), frozenset(here)
        mine = frozenset(rank for rank in here if device in self.by_rank[rank].ports)
        if mine:
            return Part(PartKind.PORT, device, signal.host), mine
        number = signal.fields.get("gpu_index", "")
        beside = frozenset(rank for rank in here if number and str(self.by_rank[rank].gpu) == number)
        if beside:
            return Part(PartKind.PORT, device, signal.host), beside
        known = all(self.by_rank[rank].ports for rank in here)
        return None if known else (Part(PartKind.SOME_PORT, device, signal.host), frozenset(here))

    def _of_process(self, signal: Signal, here: set[int]) -> tuple[Part, frozenset[int]] | None:
        """Whom the kernel killed: a process of the job, as far as process ids of containers are its own."""
        killed = signal.fields.get("pid", "")
        ranks = frozenset(rank for rank in here if str(self.by_rank[rank].pid) == killed)
        return (Part(PartKind.HOST, signal.host, signal.host), ranks) if ranks else None


def gpu_uuid(signal: Signal) -> str:
    """UUID of the GPU that a signal is of; empty: of none, or none that is told."""
    kind, _, name = signal.part.partition("/")
    if kind in ("gpu", "nvlink"):
        return name.partition("/")[0]
    told = signal.fields.get("gpu_uuid", "")
    return "" if told == "null" else told


def port_device(signal: Signal) -> str:
    """RDMA device of the port that a signal is of; empty: not told."""
    kind, _, name = signal.part.partition("/")
    if kind == "port":
        return name.partition("/")[0]
    told = signal.fields.get("rdma_device") or signal.fields.get("port") or ""
    return "" if told == "null" else told


def shared(candidates: list[Candidate], index: Index) -> list[Candidate]:
    """Candidates with those of one rack, leaf or server made one of what they share."""
    rest = candidates
    for layers, kind, least in (
        ((Layer.POWER,), PartKind.RACK, RACK_HOSTS_MIN),
        ((Layer.LINK,), PartKind.LEAF, LEAF_HOSTS_MIN),
        ((Layer.STORAGE,), PartKind.SERVER, SERVER_HOSTS_MIN),
    ):
        mine = [one for one in rest if one.cause.layer in layers]
        rest = [one for one in rest if one.cause.layer not in layers]
        rest += _lifted(mine, kind, least, index)
    return rest


def _lifted(candidates: list[Candidate], kind: PartKind, least: int, index: Index) -> list[Candidate]:
    by_name: dict[tuple[str, str], list[Candidate]] = defaultdict(list)
    for one in candidates:
        by_name[one.cause.word, _shared_name(one, kind, index)].append(one)
    found: list[Candidate] = []
    for (_, name), mine in by_name.items():
        hosts = {one.part.host for one in mine if one.part.host}
        enough = bool(name) and len(hosts) >= least
        if enough and kind is PartKind.LEAF:
            enough = len(hosts) >= LEAF_RATIO_MIN * index.hosts_behind(name)
        already = any(one.part.kind is kind for one in mine)
        found += [_merged(mine, Part(kind, name))] if enough or (name and already) else mine
    return found


def _shared_name(one: Candidate, kind: PartKind, index: Index) -> str:
    if one.part.kind is kind:
        return one.part.name
    if kind is PartKind.SERVER:
        signal = one.first
        told = signal.fields.get("server", "")
        return f"server {told}" if told and told != "null" else one.part.name
    names = {getattr(index.by_rank[rank], "rack" if kind is PartKind.RACK else "leaf") for rank in one.ranks}
    return names.pop() if len(names) == 1 else ""


def _merged(candidates: list[Candidate], part: Part) -> Candidate:
    best = max(candidates, key=lambda one: one.cause.worth)
    return Candidate(
        cause=best.cause,
        part=part,
        signals=tuple(signal for one in candidates for signal in one.signals),
        ranks=frozenset().union(*(one.ranks for one in candidates)),
        certainty=max(one.certainty for one in candidates),
    )
