"""What a GPU's fields mean: our own table of names, units and sane bounds, never the exporter's word.

Fields of DCGM go by their name without ``DCGM_FI_``, old and new (4.6 renamed most); columns of nvidia-smi by
their name without unit. Blanks are huge numbers. Source: dcgm_fields.h and dcgm_structs.h; nvidia-smi(1).
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Final

from collectors.sources.base import OK

MIB: Final = 1_048_576
BLANK: Final = "blank_sentinel"
OUT_OF_RANGE: Final = "out_of_range"
_INT64_BLANKS: Final = range(2**63 - 16, 2**63)
_INT32_BLANKS: Final = range(2_147_483_632, 2_147_483_648)
_FLOAT_BLANKS: Final = range(140_737_488_355_328, 140_737_488_355_332)


@dataclass(frozen=True, slots=True)
class Field:
    """One field.

    Attributes:
        metric: our name; of a counter without ``_total``.
        factor: to our unit.
        low, high: sane values in the field's own unit.
        counts: a counter, so its change is told as well.
        of_instance: measured per MIG instance; other values are the GPU's and repeat on each row.
    """

    metric: str
    high: float
    low: float = 0.0
    factor: float = 1.0
    counts: bool = False
    of_instance: bool = False

    def value(self, raw: float) -> tuple[float | None, str]:
        """(value in our unit, quality)."""
        if not math.isfinite(raw):
            return None, BLANK
        if is_blank(raw):
            return None, BLANK
        if not self.low <= raw <= self.high:
            return None, OUT_OF_RANGE
        return raw * self.factor if self.factor != 1.0 else raw, OK


def is_blank(raw: float) -> bool:
    """Whether a number stands for no value."""
    number = int(raw)
    return number == raw and (number in _INT64_BLANKS or number in _INT32_BLANKS or number in _FLOAT_BLANKS)


_COUNT: Final = 2.0**62
_TEMPERATURE: Final = Field("temperature_c", 150, -40)
_MEMORY_TEMPERATURE: Final = Field("memory_temperature_c", 150, -40)
_POWER: Final = Field("power_w", 2_500)
_SM_CLOCK: Final = Field("sm_clock_mhz", 5_000)
_UTIL: Final = Field("util_ratio", 100, factor=0.01, of_instance=True)
_THROTTLE: Final = Field("throttle_reasons_mask", 2.0**32)
_WIDTH: Final = Field("pcie_width_count", 32, 1)
_GEN: Final = Field("pcie_gen_count", 8, 1)
_DBE: Final = Field("ecc_dbe_volatile", _COUNT, counts=True)
_SBE: Final = Field("ecc_sbe_volatile", _COUNT, counts=True)
_REMAP_BAD: Final = Field("row_remap_uncorrectable", 65_536, counts=True)
_REMAP_GOOD: Final = Field("row_remap_correctable", 65_536, counts=True)
_REMAP_PENDING: Final = Field("row_remap_pending_count", 65_536)
_REMAP_FAILURE: Final = Field("row_remap_failure_count", 65_536)
_USED: Final = Field("memory_used_bytes", 4_000_000, factor=MIB, of_instance=True)
_FREE: Final = Field("memory_free_bytes", 4_000_000, factor=MIB, of_instance=True)
_NVLINK: Final = Field("nvlink_throughput_bytes_per_s", 4_000_000, factor=MIB)
_RECOVERY: Final = Field("recovery_action_count", 16)
_REPLAYS: Final = Field("pcie_replay", _COUNT, counts=True)

DCGM: Final[dict[str, Field]] = {
    "DEV_SM_CLOCK": _SM_CLOCK,
    "DEV_SM_CLOCK_MHZ": _SM_CLOCK,
    "DEV_MEM_CLOCK": Field("memory_clock_mhz", 20_000),
    "DEV_GPU_TEMP": _TEMPERATURE,
    "DEV_GPU_TEMP_CELSIUS": _TEMPERATURE,
    "DEV_MEMORY_TEMP": _MEMORY_TEMPERATURE,
    "DEV_MEMORY_TEMP_CELSIUS": _MEMORY_TEMPERATURE,
    "DEV_POWER_USAGE": _POWER,
    "DEV_BOARD_POWER_WATTS": _POWER,
    "DEV_POWER_USAGE_INSTANT": Field("power_instant_w", 2_500),
    "DEV_TOTAL_ENERGY_CONSUMPTION": Field("energy_joules", _COUNT, factor=0.001, counts=True),
    "DEV_GPU_UTIL": _UTIL,
    "DEV_MEM_COPY_UTIL": Field("memory_util_ratio", 100, factor=0.01, of_instance=True),
    "PROF_GR_ENGINE_ACTIVE": Field("gr_engine_active_ratio", 1, of_instance=True),
    "PROF_SM_ACTIVE": Field("sm_active_ratio", 1, of_instance=True),
    "PROF_SM_OCCUPANCY": Field("sm_occupancy_ratio", 1, of_instance=True),
    "PROF_PIPE_TENSOR_ACTIVE": Field("tensor_active_ratio", 1, of_instance=True),
    "PROF_DRAM_ACTIVE": Field("dram_active_ratio", 1, of_instance=True),
    "PROF_PCIE_TX_BYTES": Field("pcie_tx_bytes_per_s", 256e9, of_instance=True),
    "PROF_PCIE_RX_BYTES": Field("pcie_rx_bytes_per_s", 256e9, of_instance=True),
    "PROF_NVLINK_TX_BYTES": Field("nvlink_tx_bytes_per_s", 4e12, of_instance=True),
    "PROF_NVLINK_RX_BYTES": Field("nvlink_rx_bytes_per_s", 4e12, of_instance=True),
    "DEV_CLOCK_THROTTLE_REASONS": _THROTTLE,
    "DEV_CLOCKS_EVENT_REASONS": _THROTTLE,
    "DEV_POWER_VIOLATION": Field("power_violation_ns", _COUNT, counts=True),
    "DEV_THERMAL_VIOLATION": Field("thermal_violation_ns", _COUNT, counts=True),
    "DEV_RELIABILITY_VIOLATION": Field("reliability_violation_ns", _COUNT, counts=True),
    "DEV_ECC_SBE_VOL_TOTAL": _SBE,
    "DEV_ECC_DBE_VOL_TOTAL": _DBE,
    "DEV_ECC_SBE_AGG_TOTAL": Field("ecc_sbe_aggregate", _COUNT, counts=True),
    "DEV_ECC_DBE_AGG_TOTAL": Field("ecc_dbe_aggregate", _COUNT, counts=True),
    "DEV_UNCORRECTABLE_REMAPPED_ROWS": _REMAP_BAD,
    "DEV_ROW_REMAP_UNCORRECTABLE_TOTAL": _REMAP_BAD,
    "DEV_CORRECTABLE_REMAPPED_ROWS": _REMAP_GOOD,
    "DEV_ROW_REMAP_CORRECTABLE_TOTAL": _REMAP_GOOD,
    "DEV_ROW_REMAP_FAILURE": _REMAP_FAILURE,
    "DEV_ROW_REMAP_PENDING": _REMAP_PENDING,
    "DEV_RETIRED_SBE": Field("retired_pages_sbe_count", 65_536),
    "DEV_RETIRED_DBE": Field("retired_pages_dbe_count", 65_536),
    "DEV_RETIRED_PENDING": Field("retired_pages_pending_count", 65_536),
    "DEV_PCIE_LINK_GEN": _GEN,
    "DEV_PCIE_LINK_WIDTH": _WIDTH,
    "DEV_PCIE_REPLAY_COUNTER": _REPLAYS,
    "DEV_PCIE_REPLAY_TOTAL": _REPLAYS,
    "DEV_NVLINK_BANDWIDTH_TOTAL": _NVLINK,
    "DEV_NVLINK_THROUGHPUT_TOTAL": _NVLINK,
    "DEV_NVLINK_CRC_FLIT_ERROR_COUNT_TOTAL": Field("nvlink_crc_flit_errors", _COUNT, counts=True),
    "DEV_NVLINK_CRC_DATA_ERROR_COUNT_TOTAL": Field("nvlink_crc_data_errors", _COUNT, counts=True),
    "DEV_NVLINK_REPLAY_ERROR_COUNT_TOTAL": Field("nvlink_replay_errors", _COUNT, counts=True),
    "DEV_NVLINK_RECOVERY_ERROR_COUNT_TOTAL": Field("nvlink_recovery_errors", _COUNT, counts=True),
    "DEV_FB_USED": _USED,
    "DEV_FB_FREE": _FREE,
    "DEV_FABRIC_MANAGER_STATUS": Field("fabric_manager_status_count", 16),
    "DEV_GET_GPU_RECOVERY_ACTION": _RECOVERY,
    "DEV_GPU_RECOVERY_ACTION": _RECOVERY,
}
"""Field without ``DCGM_FI_`` -> meaning. XID_ERRORS is not here: it keeps the last Xid, and is no event."""

SMI: Final[dict[str, Field]] = {
    "temperature.gpu": _TEMPERATURE,
    "temperature.memory": _MEMORY_TEMPERATURE,
    "power.draw": _POWER,
    "power.draw.average": _POWER,
    "power.draw.instant": Field("power_instant_w", 2_500),
    "clocks.sm": _SM_CLOCK,
    "clocks.current.sm": _SM_CLOCK,
    "clocks.mem": Field("memory_clock_mhz", 20_000),
    "clocks.current.memory": Field("memory_clock_mhz", 20_000),
    "utilization.gpu": _UTIL,
    "utilization.memory": Field("memory_util_ratio", 100, factor=0.01),
    "clocks_event_reasons.active": _THROTTLE,
    "clocks_throttle_reasons.active": _THROTTLE,
    "pcie.link.gen.current": _GEN,
    "pcie.link.width.current": _WIDTH,
    "ecc.errors.corrected.volatile.total": _SBE,
    "ecc.errors.uncorrected.volatile.total": _DBE,
    "remapped_rows.correctable": _REMAP_GOOD,
    "remapped_rows.uncorrectable": _REMAP_BAD,
    "remapped_rows.pending": _REMAP_PENDING,
    "remapped_rows.failure": _REMAP_FAILURE,
    "memory.used": _USED,
    "memory.free": _FREE,
}
"""Column without its unit -> meaning."""

REASONS: Final = {
    0x1: "idle",
    0x2: "application_clocks",
    0x4: "sw_power_cap",
    0x8: "hw_slowdown",
    0x10: "sync_boost",
    0x20: "sw_thermal_slowdown",
    0x40: "hw_thermal_slowdown",
    0x80: "hw_power_brake_slowdown",
    0x100: "display_clocks",
}
"""Bit -> why a clock is low. Source: nvmlClocksEventReasons."""


def reasons(mask: int) -> list[str]:
    """The reasons in a mask, by rising bit."""
    return [name for bit, name in REASONS.items() if mask & bit]
