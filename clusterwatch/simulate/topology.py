"""Where things stand in a simulated cluster: racks, switches, pods, nodes and GPUs, the same for one seed.

The building is the one published for Llama 3: racks of two Grand Teton chassis with 8 H100s each, 192 racks
to a pod. On RoCE one rack switch is the leaf of all ports of its rack; on InfiniBand leaves are
rail-optimised: port *i* of 32 nodes goes to one leaf. Nodes of other sizes and NVLink domains over several
nodes (72 GPUs on 18 trays of 4) follow from ``Shape``. Source: "The Llama 3 Herd of Models", section 3.3.1;
NVIDIA DGX SuperPOD reference architecture.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from typing import Final, Literal
from uuid import UUID

from collectors.wire.records import GpuIdentity

GPUS_PER_NODE: Final = 8
NODES_PER_RACK: Final = 2
RACKS_PER_POD: Final = 192
NODES_PER_RAIL_GROUP: Final = 32
SPINES_PER_POD: Final = 8
STORAGE_SERVICES: Final = ("checkpoints-nfs", "datasets-fuse")
CPU_COUNT: Final = 128
MEMORY_BYTES: Final = 2 * 1024**4
GPUS_PER_NODE_MAX: Final = 128

Fabric = Literal["roce", "infiniband"]
FABRICS: Final[tuple[Fabric, ...]] = ("roce", "infiniband")


@dataclass(frozen=True, slots=True)
class Shape:
    """How nodes are made.

    Raises:
        ValueError: a size below one, or an NVLink domain that no whole number of nodes makes up.
    """

    gpus_per_node: int = GPUS_PER_NODE
    nvlink_domain: int = 0
    """GPUs joined by NVLink; 0: those of one node"""
    fabric: Fabric = "roce"

    def __post_init__(self) -> None:
        if not 0 < self.gpus_per_node <= GPUS_PER_NODE_MAX:
            raise ValueError(f"a node has 1 to {GPUS_PER_NODE_MAX} GPUs")
        if self.nvlink_domain % self.gpus_per_node or self.nvlink_domain < 0:
            raise ValueError(
                f"an NVLink domain of {self.nvlink_domain} GPUs is not made of nodes of {self.gpus_per_node}"
            )
        if self.fabric not in FABRICS:
            raise ValueError(f"the fabric is one of {', '.join(FABRICS)}")

    @property
    def domain_nodes(self) -> int:
        """Nodes in one NVLink domain."""
        return max(1, self.nvlink_domain // self.gpus_per_node)

    @property
    def nodes_per_rack(self) -> int:
        """A domain over several nodes is a rack, as in an NVL72."""
        return max(NODES_PER_RACK, self.domain_nodes) if self.domain_nodes > 1 else NODES_PER_RACK

    @property
    def gpu_model(self) -> str:
        return "NVIDIA GB200" if self.domain_nodes > 1 else "NVIDIA H100 80GB HBM3"


@dataclass(frozen=True, slots=True)
class SimulatedNode:
    """One chassis."""

    name: str
    place: int
    """its number in the cluster"""
    machine_id: str
    rack: str
    pod: str
    leaves: tuple[str, ...]
    """leaf switch of each GPU's port"""
    spines: tuple[str, ...]
    nvlink_domain: str
    gpus: tuple[GpuIdentity, ...]

    @property
    def leaf(self) -> str | None:
        """The leaf of the whole node; None where its ports go to several (rails)."""
        return self.leaves[0] if len(set(self.leaves)) == 1 else None


def build(gpu_count: int, seed: int, shape: Shape | None = None) -> tuple[SimulatedNode, ...]:
    """The nodes of a cluster; the last one is full, too.

    Raises:
        ValueError: no GPU at all.
    """
    if gpu_count < 1:
        raise ValueError("a cluster has at least one GPU")
    form = shape or Shape()
    count = -(-gpu_count // form.gpus_per_node)
    return tuple(_node(place, seed, form) for place in range(count))


def _node(place: int, seed: int, shape: Shape) -> SimulatedNode:
    rack, position = divmod(place, shape.nodes_per_rack)
    name = f"gpu-r{rack + 1:03d}-n{position + 1:02d}"
    domain_place = place // shape.domain_nodes
    domain = name if shape.domain_nodes == 1 else f"nvl-{domain_place + 1:03d}"
    gpus = tuple(_gpu(name, index, seed, domain, shape) for index in range(shape.gpus_per_node))
    pod = rack // RACKS_PER_POD
    spines = tuple(f"ssw-p{pod + 1:02d}-{number + 1:02d}" for number in range(SPINES_PER_POD))
    return SimulatedNode(
        name, place, _digest(seed, name).hex(), f"r{rack + 1:03d}", f"p{pod + 1:02d}",
        _leaves(place, rack, shape), spines, domain, gpus,
    )  # fmt: skip


def _leaves(place: int, rack: int, shape: Shape) -> tuple[str, ...]:
    if shape.fabric == "roce":
        return (f"rsw-r{rack + 1:03d}",) * shape.gpus_per_node
    group = place // NODES_PER_RAIL_GROUP
    return tuple(f"ibl-s{group + 1:03d}-rail{rail}" for rail in range(shape.gpus_per_node))


def _gpu(node: str, index: int, seed: int, domain: str, shape: Shape) -> GpuIdentity:
    digest = _digest(seed, f"{node}/{index}")
    return GpuIdentity(
        index=index,
        uuid=f"GPU-{UUID(bytes=digest)}",
        serial=f"165{int.from_bytes(digest[:5], 'big') % 10**10:010d}",
        model=shape.gpu_model,
        pci=f"{index // 14:08X}:{0x19 + 0x11 * (index % 14):02X}:00.0",
        nvlink_domain=domain,
    )


def _digest(seed: int, name: str) -> bytes:
    return hashlib.blake2b(f"{seed}/{name}".encode(), digest_size=16).digest()
