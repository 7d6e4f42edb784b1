"""A node of GPUs cut into instances, with blanks of each type, a dead sampler, throttling and odd tables."""

# ruff: noqa: E501  lines are as tools print them
from __future__ import annotations

from tests.collectors.trap_nodes import Node, base, event, uuid

HOST = "gtn-0420"
BUSES = ("0F", "1C", "2A", "3E", "8A", "97", "A5", "B8")


def labels(number: int, more: str = "") -> str:
    return (
        f'{{gpu="{number}",UUID="{uuid(number)}",pci_bus_id="00000000:{BUSES[number]}:00.0",'
        f'device="nvidia{number}",modelName="NVIDIA \\"H100\\", 80GB}} HBM3",Hostname="{HOST}"{more}}}'
    )


def metric(name: str, *values: tuple[int, object] | tuple[int, object, str]) -> str:
    rows = "".join(f"DCGM_FI_{name}{labels(v[0], v[2] if len(v) > 2 else '')} {v[1]}\n" for v in values)
    return f"# HELP DCGM_FI_{name} Text.\n# TYPE DCGM_FI_{name} counter\n{rows}"


MIG_1 = ',GPU_I_PROFILE="3g.40gb",GPU_I_ID="1"'
MIG_2 = ',GPU_I_PROFILE="3g.40gb",GPU_I_ID="2"'


def dcgm(later: bool) -> str:
    return "".join(
        (
            metric("DEV_GPU_TEMP", (0, 55), (1, 2_147_483_632), (2, 9_223_372_036_854_775_793), (3, 44),
                   (4, 51, MIG_1), (4, 51, MIG_2)),
            metric("DEV_MEMORY_TEMP", (0, 9_223_372_036_854_775_794), (1, 2_147_483_635),
                   (2, "<<<NOT_SUPPORTED>>>"), (3, 0)),
            # 0 W, milliwatts, and 1.4073748835533100e+14 as a float prints it.
            metric("DEV_POWER_USAGE", (0, "535.250000"), (1, "140737488355328.000000"), (2, 0),
                   (3, 535_250), (4, "410.5", MIG_1), (4, "410.5", MIG_2), (5, "1.40737488355331e+14"),
                   (6, "NaN"), (7, 690)),
            metric("DEV_GPU_UTIL", (0, 97), (1, 4_294_967_295), (2, 1_500), (3, 100), (7, 100)),
            metric("PROF_GR_ENGINE_ACTIVE", (0, 0.945), (1, "140737488355330.000000"), (4, 0.25, MIG_1),
                   (4, 0.5, MIG_2), (7, "0.000000")),
            metric("PROF_PIPE_TENSOR_ACTIVE", (0, 0.3), (4, 0.1, MIG_1), (4, 0.2, MIG_2), (7, "0.000000")),
            metric("DEV_XID_ERRORS", (0, 0), (2, 94)),
            metric("DEV_NVLINK_BANDWIDTH_TOTAL", (0, 98_000 if later else 99_000), (1, "Inf")),
            metric("DEV_ECC_DBE_VOL_TOTAL", (0, 3 if later else 1), (2, 9_223_372_036_854_775_792)),
            metric("DEV_ROW_REMAP_PENDING", (0, 0), (5, 1)),
            metric("DEV_ROW_REMAP_FAILURE", (0, 0), (6, 1)),
            metric("DEV_UNCORRECTABLE_REMAPPED_ROWS", (0, 2), (2, "-1")),
            metric("DEV_CLOCK_THROTTLE_REASONS", (0, 4), (1, 256), (2, 0x40), (3, 0x80 | 0x100), (4, 1, MIG_1)),
            metric("DEV_PCIE_LINK_WIDTH", (0, 16), (1, 8)),
            metric("DEV_SM_CLOCK_MHZ", (0, 1_830), (1, "garbage")),
            "DCGM_FI_DEV_SM_CLOCK{gpu=\"2\",UUID=\"GPU-\n",
            "DCGM_FI_DEV_SM_CLOCK 12\n",
            f"DCGM_FI_DEV_SM_CLOCK{labels(3)} 1200 1798000000000\n",
        )
    )  # fmt: skip


SMI = """\
index, uuid, pci.bus_id, temperature.gpu, power.draw [W], clocks_event_reasons.active, pcie.link.gen.current, \
pcie.link.gen.max, pcie.link.width.current, ecc.errors.uncorrected.volatile.total, utilization.gpu [%]
""" + "".join(
    f"{number}, {uuid(number)}, 00000000:{bus}:00.0, {rest}\n"
    for number, (bus, rest) in enumerate(
        zip(
            BUSES,
            (
                "55, 535.25 W, 0x0000000000000004, 1, 5, 16, 3, 97 %",
                "[N/A], [Unknown Error], [N/A], 1, 5, 8, [N/A], 0 %",
                "[Not Supported], N/A, 0x0000000000000040, 5, 5, 16, N/A, ERR!",
                "44, 120.00 W, 0x0000000000000180, 5, 5, 16, 0, 100 %",
                "51, 410.50 W, 0x0000000000000001, 1, 5, 16, 0, [N/A]",
                "40, 100.00 W, 0x0000000000000001, 1, 5, 16, 0, 0 %",
                "40, 100.00 W, 0x0000000000000001, 5, 5, 16, 0, 0 %",
                "40, 690.00 W, 0x0000000000000000, 5, 5, 16, 0, 100 %",
            ),
            strict=True,
        )
    )
)

NVLINK_A = f"""\
GPU 0: NVIDIA H100 80GB HBM3 (UUID: {uuid(0)})
\t Link 0: Replay Errors: 0
\t Link 0: Recovery Errors: 500
\t Link 0: CRC Errors: 0
\t Link 17: Replay Errors: N/A
\t Link 17: Recovery Errors: 4
\t Link 17: CRC Errors: 0
GPU 1: NVIDIA H100 80GB HBM3 (UUID: {uuid(1)})
\t Link 0: Replay Errors: 7
"""
NVLINK_B = f"""\
GPU 0: NVIDIA H100 80GB HBM3 (UUID: {uuid(0)})
\t Link 0: Replay Errors: 0
\t Link 0: Recovery Errors: 505
\t Link 0: CRC Errors: 60
\t Link 17: Replay Errors: N/A
\t Link 17: Recovery Errors: 1
\t Link 17: CRC Errors: 0
GPU 1: NVIDIA H100 80GB HBM3 (UUID: {uuid(1)})
NVML: Unable to retrieve NVLink information as all links are inActive
"""


def node() -> Node:
    inventory = "".join(f'  "{uuid(number)}",\n' for number in range(8))
    files = base(HOST) | {
        "etc/clusterwatch/agent.toml": f"[gpu]\nuuids = [\n{inventory}]\npcie_width = 16\npcie_gen = 5\n",
        "commands/nvidia-smi_query-gpu.csv": SMI,
    }
    before = files | {
        "commands/dcgm_metrics.prom": dcgm(later=False),
        "commands/nvidia-smi_nvlink_-e.txt": NVLINK_A,
    }
    after = files | {
        "commands/dcgm_metrics.prom": dcgm(later=True),
        "commands/nvidia-smi_nvlink_-e.txt": NVLINK_B,
    }
    return Node(before, after, SAMPLES, EVENTS, SILENT, UNLESS, LABELLED)


def gpu(number: int, name: str) -> str:
    return f"gpu/{uuid(number)} {name}"


SAMPLES = {
    gpu(0, "temperature_c"): (55, "ok"),
    gpu(0, "memory_temperature_c"): (None, "blank_sentinel"),
    gpu(0, "power_w"): (535.25, "ok"),
    gpu(0, "util_ratio"): (0.97, "ok"),
    gpu(0, "gr_engine_active_ratio"): (0.945, "ok"),
    gpu(0, "throttle_reasons_mask"): (4, "ok"),
    gpu(0, "nvlink_throughput_bytes_per_s"): (98_000 * 1_048_576, "ok"),
    gpu(0, "ecc_dbe_volatile_total"): (3, "ok"),
    gpu(0, "row_remap_uncorrectable_total"): (2, "ok"),
    gpu(0, "row_remap_pending_count"): (0, "ok"),
    gpu(0, "sm_clock_mhz"): (1_830, "ok"),
    gpu(1, "temperature_c"): (None, "blank_sentinel"),
    gpu(1, "memory_temperature_c"): (None, "blank_sentinel"),
    gpu(1, "power_w"): (None, "blank_sentinel"),
    gpu(1, "util_ratio"): (0.0, "ok"),  # by nvidia-smi: the exporter's 4294967295 is none
    gpu(1, "gr_engine_active_ratio"): (None, "blank_sentinel"),
    gpu(1, "pcie_width_count"): (8, "ok"),
    gpu(2, "temperature_c"): (None, "blank_sentinel"),
    gpu(2, "memory_temperature_c"): (None, "blank_sentinel"),
    gpu(2, "power_w"): (None, "out_of_range"),
    gpu(2, "util_ratio"): (None, "out_of_range"),
    gpu(2, "ecc_dbe_volatile_total"): (None, "blank_sentinel"),
    gpu(2, "row_remap_uncorrectable_total"): (None, "out_of_range"),
    gpu(2, "throttle_reasons_mask"): (0x40, "ok"),
    gpu(3, "power_w"): (120.0, "ok"),  # the exporter says milliwatts
    gpu(3, "sm_clock_mhz"): (1_200, "ok"),
    gpu(3, "throttle_reasons_mask"): (0x180, "ok"),
    gpu(4, "temperature_c"): (51, "ok"),
    gpu(4, "power_w"): (410.5, "ok"),
    gpu(7, "util_ratio"): (1.0, "ok"),
    gpu(7, "gr_engine_active_ratio"): (None, "dead_sampler"),
    gpu(7, "tensor_active_ratio"): (None, "dead_sampler"),
    f"nvlink/{uuid(0)}/0 recovery_errors_total": (505, "ok"),
    f"nvlink/{uuid(0)}/0 recovery_errors_delta_count": (5, "ok"),
    f"nvlink/{uuid(0)}/0 crc_errors_per_s": (1.0, "ok"),
    f"nvlink/{uuid(0)}/17 replay_errors_total": (None, "not_available"),
    f"nvlink/{uuid(0)}/17 recovery_errors_total": (1, "ok"),
    f"nvlink/{uuid(0)}/17 recovery_errors_delta_count": (None, "reset"),
    f"nvlink/{uuid(1)}/0 replay_errors_total": (None, "link_down"),
}
LABELLED = {
    gpu(4, "gr_engine_active_ratio"): {"1": 0.25, "2": 0.5},
    gpu(4, "tensor_active_ratio"): {"1": 0.1, "2": 0.2},
}
EVENTS = (
    event(f"gpu/{uuid(2)}", "throttle", severity="warning"),
    event(f"gpu/{uuid(3)}", "throttle", severity="critical"),
    event(f"gpu/{uuid(5)}", "ecc"),
    event(f"gpu/{uuid(6)}", "ecc", severity="critical"),
    event(f"gpu/{uuid(1)}", "pcie_degraded"),
    event(f"gpu/{uuid(0)}", "pcie_degraded"),  # generation 1 while it works
    event(f"gpu/{uuid(1)}", "link_down"),
)
SILENT = (
    gpu(3, "memory_temperature_c"),
    gpu(6, "gr_engine_active_ratio"),
    gpu(1, "nvlink_throughput_bytes_per_s"),
    gpu(1, "sm_clock_mhz"),
    gpu(2, "sm_clock_mhz"),
    gpu(0, "nvlink_throughput_bytes_per_s_per_s"),
)
UNLESS = (
    lambda one: one["kind"] == "xid",  # the exporter's gauge is no event
    lambda one: one["kind"] == "throttle" and one["entity"][-36:] in (uuid(0)[4:], uuid(1)[4:], uuid(4)[4:]),
    lambda one: one["kind"] == "pcie_degraded" and one["entity"] in (f"gpu/{uuid(4)}", f"gpu/{uuid(5)}"),
    lambda one: one["kind"] == "gpu_lost",
)
