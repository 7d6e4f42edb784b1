"""Where things stand in a simulated cluster: racks, leaves, nodes and GPUs, the same for one seed.

The building is the one published for Llama 3: racks of two Grand Teton chassis with 8 H100s each, one rack
switch (the leaf) to a rack. Source: "The Llama 3 Herd of Models", section 3.3.1.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from typing import Final
from uuid import UUID

from collectors.wire.records import GpuIdentity

GPUS_PER_NODE: Final = 8
NODES_PER_RACK: Final = 2
GPU_MODEL: Final = "NVIDIA H100 80GB HBM3"
CPU_COUNT: Final = 128
MEMORY_BYTES: Final = 2 * 1024**4


@dataclass(frozen=True, slots=True)
class SimulatedNode:
    """One chassis."""

    name: str
    machine_id: str
    rack: str
    leaf: str
    gpus: tuple[GpuIdentity, ...]


def build(gpu_count: int, seed: int) -> tuple[SimulatedNode, ...]:
    """The nodes of a cluster; the last one is full, too.

    Raises:
        ValueError: no GPU at all.
    """
    if gpu_count < 1:
        raise ValueError("a cluster has at least one GPU")
    count = -(-gpu_count // GPUS_PER_NODE)
    return tuple(_node(place, seed) for place in range(count))


def _node(place: int, seed: int) -> SimulatedNode:
    rack, position = divmod(place, NODES_PER_RACK)
    name = f"gpu-r{rack + 1:03d}-n{position + 1:02d}"
    gpus = tuple(_gpu(name, index, seed) for index in range(GPUS_PER_NODE))
    return SimulatedNode(name, _digest(seed, name).hex(), f"r{rack + 1:03d}", f"rsw-r{rack + 1:03d}", gpus)


def _gpu(node: str, index: int, seed: int) -> GpuIdentity:
    digest = _digest(seed, f"{node}/{index}")
    return GpuIdentity(
        index=index,
        uuid=f"GPU-{UUID(bytes=digest)}",
        serial=f"165{int.from_bytes(digest[:5], 'big') % 10**10:010d}",
        model=GPU_MODEL,
        pci=f"00000000:{0x19 + 0x11 * index:02X}:00.0",
        nvlink_domain=node,
    )


def _digest(seed: int, name: str) -> bytes:
    return hashlib.blake2b(f"{seed}/{name}".encode(), digest_size=16).digest()
