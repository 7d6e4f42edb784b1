"""`bench ingest --curve`: cost per GPU over sizes, and what a larger fleet would need.

Each size is a run of its own, one after the other. The projection takes the cost per GPU of the largest size
as it is, since the curve falls or stays flat; `assumptions` says what else it rests on.
"""

from __future__ import annotations

import json
import math
import subprocess
import sys
from collections.abc import Mapping, Sequence
from typing import Any, Final

from clusterwatch.ops.errors import OpsError

SIZES: Final = (64, 512, 3_072)
"""Nodes of 8 GPUs: 512, 4,096 and 24,576 GPUs."""
GPUS_PER_NODE: Final = 8
METRICS: Final = 20
FLEET_GPUS: Final = 350_000
GATEWAY_LOAD_MAX: Final = 0.5
"""Share of a core at which a gateway is given company: the other half is for a restart of a neighbour."""
CONNECTIONS_MAX: Final = 8_000
"""Nodes of one gateway; what its limit of open files and one event loop stand with room."""
BYTES_PER_VALUE: Final = {"raw_block": 0.89, "node_minute": 0.34, "fleet_minute": 0.084}
"""Measured by `bench store` on 2026-12-02."""
ASSUMPTIONS: Final = (
    f"{GPUS_PER_NODE} GPUs a node and {METRICS} metrics a GPU at 1 Hz, 8 ranks in 8 groups a node",
    "cost per GPU of the largest size measured",
    f"a gateway takes {GATEWAY_LOAD_MAX} of a core and {CONNECTIONS_MAX} nodes at most; one more is spare",
    f"bytes per value on disk {json.dumps(BYTES_PER_VALUE)}, measured by `bench store`",
)
_SHARES: Final = ("gateway", "pulse", "postgresql", "valkey")


def run(seconds: int) -> dict[str, Any]:
    """The curve and its projection. Raises ``OpsError`` when a run fails."""
    runs = [_measure(nodes, seconds) for nodes in SIZES]
    return {
        "bench": "ingest",
        "curve": [cost(run) for run in runs],
        "projection": project(runs[-1], FLEET_GPUS),
    }


def cost(run: Mapping[str, Any]) -> dict[str, Any]:
    """CPU of each process per GPU, in us of one core per second, and gateway memory."""
    gpus = run["nodes"] * GPUS_PER_NODE
    per_gpu = {f"{name}_us_per_gpu_s": round(run[f"{name}_core_ratio"] / gpus * 1e6, 1) for name in _SHARES}
    return {"gpus": gpus, **per_gpu, "gateway_memory_mb": run["gateway_memory_mb"]}


def project(run: Mapping[str, Any], gpus: int) -> dict[str, Any]:
    """What ``gpus`` GPUs would need, by the cost per GPU of one run."""
    factor = gpus / (run["nodes"] * GPUS_PER_NODE)
    cores = {name: run[f"{name}_core_ratio"] * factor for name in _SHARES}
    by_load = cores["gateway"] / GATEWAY_LOAD_MAX
    by_nodes = gpus / GPUS_PER_NODE / CONNECTIONS_MAX
    values_per_day = gpus * METRICS * 86_400
    return {
        "gpus": gpus,
        "gateways": math.ceil(max(by_load, by_nodes)) + 1,
        **{f"{name}_cores": round(share, 2) for name, share in cores.items()},
        "gb_a_day": {table: round(values_per_day * size / 1e9) for table, size in BYTES_PER_VALUE.items()},
        "assumptions": ASSUMPTIONS,
    }


def _measure(nodes: int, seconds: int) -> dict[str, Any]:
    print(f"{nodes * GPUS_PER_NODE} GPUs", flush=True)
    command: Sequence[str] = (
        sys.executable, "-m", "clusterwatch.cli.main", "bench", "ingest",
        "--nodes", str(nodes), "--seconds", str(seconds), "--records", "1000",
    )  # fmt: skip
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=False)
    if done.returncode:
        raise OpsError(f"the run with {nodes} nodes ended with {done.returncode}; its words stand above")
    figures: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return figures
