"""A node with AMD's GPUs: what amd-smi says of them, by its documentation."""

from __future__ import annotations

import json
from typing import Any

UUIDS = tuple(f"{number:08x}-0000-1000-80aa-0123456789ab" for number in (0xA1, 0xB2, 0xC3))
A, B, C = (f"gpu/{uuid}" for uuid in UUIDS)
NA = "N/A"
Json = dict[str, Any]


def unit(value: object, name: object) -> Json:
    return {"value": value, "unit": name}


def listed(*gpus: int, functions: bool = False) -> list[Json]:
    """``amd-smi list``: the index is the place in the list."""
    return [
        {
            "gpu": index,
            "bdf": f"0000:05:00.{gpu}" if functions else f"0000:{gpu + 5:02x}:00.0",
            "uuid": UUIDS[gpu],
            "kfd_id": 27_000 + gpu,
            "node_id": gpu + 2,
            "partition_id": 0,
        }
        for index, gpu in enumerate(gpus)
    ]


def static(gpu: int = 0, **blocks: Any) -> Json:
    limit = {
        "max_power": unit(750, "W"),
        "socket_power": unit(700, "W"),
        "slowdown_hotspot_temperature": unit(100, "C"),
        "shutdown_hotspot_temperature": unit(110, "C"),
    }
    return {"gpu": gpu, "asic": {"market_name": "AMD Instinct MI300X"}, "limit": limit, **blocks}


def metric(gpu: int = 0, **blocks: Any) -> Json:
    """An MI300X that works, in the words of ROCm 6.4."""
    die = {"min_clk": unit(500, "MHz"), "max_clk": unit(2_100, "MHz"), "clk_locked": "DISABLED"}
    violations = {f"{cause}_violation_status": "NOT ACTIVE" for cause in ("ppt", "prochot", "socket_thermal")}
    return {
        "gpu": gpu,
        "usage": {"gfx_activity": unit(97, "%"), "umc_activity": unit(40, "%"), "vcn_activity": [NA, NA]},
        "power": {"socket_power": unit(640, "W"), "gfx_voltage": NA, "throttle_status": NA},
        "clock": {
            "gfx_0": die | {"clk": unit(2_050, "MHz")},
            "gfx_1": die | {"clk": unit(1_980, "MHz")},
            "gfx_2": die | {"clk": NA},
            "mem_0": {"clk": unit(1_300, "MHz")},
            "vclk_0": {"clk": unit(29, "MHz")},
        },
        "temperature": {"edge": NA, "hotspot": unit(72, "C"), "mem": unit(61, "C")},
        "pcie": {"width": 16, "speed": unit(32, "GT/s"), "replay_count": 3, "l0_to_recovery_count": 1},
        "ecc": {"total_correctable_count": 5, "total_uncorrectable_count": 0, "total_deferred_count": 2},
        "xgmi_err": NA,
        "energy": {"total_energy_consumption": unit(1_500.75, "J")},
        "mem_usage": {"total_vram": unit(196_592, "MB"), "used_vram": unit(1_000, "MB"), "free_vram": NA},
        "throttle": violations
        | {"ppt_violation_activity": unit(12, "%"), "hbm_thermal_violation_activity": unit(3, "%")},
        **blocks,
    }


def files(values: Any, gpus: Any = None, limits: Any = None) -> dict[str, str]:
    answers = {"list": listed(0) if gpus is None else gpus, "metric": values, "static": limits}
    return {
        f"commands/amd-smi_{name}.json": answer if isinstance(answer, str) else json.dumps(answer)
        for name, answer in answers.items()
        if answer is not None
    }
