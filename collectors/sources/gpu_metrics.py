"""What a GPU's fields mean: our own table of names, units and sane bounds, never the exporter's word.

Fields of DCGM go by their name without ``DCGM_FI_``, old and new (4.6 renamed most, with the same ids and
values); columns of nvidia-smi by their name without unit. Blanks are huge numbers. Source: dcgm_fields.h and
dcgm_structs.h of DCGM 4.6; nvidia-smi(1).
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Final

from collectors.sources.base import OK

MIB: Final = 1_048_576
BLANK: Final = "blank_sentinel"
OUT_OF_RANGE: Final = "out_of_range"
_INT64_BLANKS: Final = range(2**63 - 16, 2**63 + 1)
"""2**63 itself is what a float makes of them."""
_INT32_BLANKS: Final = range(2_147_483_632, 2_147_483_648)
_FLOAT_BLANKS: Final = range(140_737_488_355_328, 140_737_488_355_332)


@dataclass(frozen=True, slots=True)
class Field:
    """One field.

    Attributes:
        metric: our name; of a counter without ``_total``.
        low, high: sane values in the field's own unit.
        factor, divisor: to our unit.
        counts: a counter, so its change is told as well.
        time: a counter of ns spent in a state, so the share of the time is told as ``<metric>_ratio``.
        of_instance: measured per MIG instance; other values are the GPU's and repeat on each row.
    """

    metric: str
    high: float
    low: float = 0.0
    factor: int = 1
    divisor: int = 1
    counts: bool = False
    time: bool = False
    of_instance: bool = False

    @property
    def sample(self) -> str:
        """The metric of the value itself."""
        return f"{self.metric}_total" if self.counts else self.metric

    def value(self, raw: float) -> tuple[float | None, str]:
        """(value in our unit, quality)."""
        if not math.isfinite(raw):
            return None, BLANK
        if is_blank(raw):
            return None, BLANK
        if not self.low <= raw <= self.high:
            return None, OUT_OF_RANGE
        scaled = raw * self.factor
        return scaled / self.divisor if self.divisor != 1 else scaled, OK


def is_blank(raw: float) -> bool:
    """Whether a number stands for no value."""
    number = int(raw)
    return number == raw and (number in _INT64_BLANKS or number in _INT32_BLANKS or number in _FLOAT_BLANKS)


_COUNT: Final = 2.0**62
_TEMPERATURE: Final = Field("temperature_c", 150, 1)
_MEMORY_TEMPERATURE: Final = Field("memory_temperature_c", 150, 1)
_MARGIN: Final = Field("temperature_margin_c", 150, 1)
"""0 and less is what drivers without a margin say."""
_POWER: Final = Field("power_w", 2_500, 1)
"""A GPU that draws 0 W does not answer; thousands are milliwatts."""
_POWER_NOW: Final = Field("power_instant_w", 2_500, 1)
_POWER_LIMIT: Final = Field("power_limit_w", 2_500, 1)
_SM_CLOCK: Final = Field("sm_clock_mhz", 5_000)
_MEMORY_CLOCK: Final = Field("memory_clock_mhz", 20_000)
_ENERGY: Final = Field("energy_joules", _COUNT, divisor=1_000, counts=True)
_UTIL: Final = Field("util_ratio", 100, divisor=100, of_instance=True)
_MEMORY_UTIL: Final = Field("memory_util_ratio", 100, divisor=100, of_instance=True)
_GR_ENGINE: Final = Field("gr_engine_active_ratio", 1, of_instance=True)
_SM: Final = Field("sm_active_ratio", 1, of_instance=True)
_OCCUPANCY: Final = Field("sm_occupancy_ratio", 1, of_instance=True)
_TENSOR: Final = Field("tensor_active_ratio", 1, of_instance=True)
_DRAM: Final = Field("dram_active_ratio", 1, of_instance=True)
_THROTTLE: Final = Field("throttle_reasons_mask", 2.0**32)
_WIDTH: Final = Field("pcie_width_count", 32, 1)
_GEN: Final = Field("pcie_gen_count", 8, 1)
_DBE: Final = Field("ecc_dbe_volatile", _COUNT, counts=True)
_SBE: Final = Field("ecc_sbe_volatile", _COUNT, counts=True)
_DBE_EVER: Final = Field("ecc_dbe_aggregate", _COUNT, counts=True)
_SBE_EVER: Final = Field("ecc_sbe_aggregate", _COUNT, counts=True)
_REMAP_BAD: Final = Field("row_remap_uncorrectable", 65_536, counts=True)
_REMAP_GOOD: Final = Field("row_remap_correctable", 65_536, counts=True)
_REMAP_PENDING: Final = Field("row_remap_pending_count", 65_536)
_REMAP_FAILURE: Final = Field("row_remap_failure_count", 65_536)
_RETIRED_SBE: Final = Field("retired_pages_sbe_count", 65_536)
_RETIRED_DBE: Final = Field("retired_pages_dbe_count", 65_536)
_RETIRED_PENDING: Final = Field("retired_pages_pending_count", 65_536)
_USED: Final = Field("memory_used_bytes", 4_000_000, factor=MIB, of_instance=True)
_FREE: Final = Field("memory_free_bytes", 4_000_000, factor=MIB, of_instance=True)
_NVLINK: Final = Field("nvlink_throughput_bytes_per_s", 2_000_000, factor=MIB)
_CRC_FLIT: Final = Field("nvlink_crc_flit_errors", _COUNT, counts=True)
_CRC_DATA: Final = Field("nvlink_crc_data_errors", _COUNT, counts=True)
_LINK_CRC: Final = Field("nvlink_crc_errors", _COUNT, counts=True)
_LINK_REPLAY: Final = Field("nvlink_replay_errors", _COUNT, counts=True)
_LINK_RECOVERY: Final = Field("nvlink_recovery_errors", _COUNT, counts=True)
_RECOVERY: Final = Field("recovery_action_count", 16)
_REPLAYS: Final = Field("pcie_replay", _COUNT, counts=True)


def _violation(cause: str) -> Field:
    """The time that clocks were held down for one cause."""
    return Field(f"{cause}_violation", _COUNT, counts=True, time=True)


VIOLATIONS: Final[dict[str, Field]] = {
    "POWER": _violation("power"),
    "THERMAL": _violation("thermal"),
    "SYNC_BOOST": _violation("sync_boost"),
    "BOARD_LIMIT": _violation("board_limit"),
    "LOW_UTIL": _violation("low_util"),
    "RELIABILITY": _violation("reliability"),
}

DCGM: Final[dict[str, Field]] = {
    "DEV_SM_CLOCK": _SM_CLOCK,
    "DEV_SM_CLOCK_MHZ": _SM_CLOCK,
    "DEV_MEM_CLOCK": _MEMORY_CLOCK,
    "DEV_GPU_TEMP": _TEMPERATURE,
    "DEV_GPU_TEMP_CELSIUS": _TEMPERATURE,
    "DEV_MEMORY_TEMP": _MEMORY_TEMPERATURE,
    "DEV_MEMORY_TEMP_CELSIUS": _MEMORY_TEMPERATURE,
    "DEV_GPU_TEMP_LIMIT": _MARGIN,
    "DEV_GPU_TEMP_MARGIN_CELSIUS": _MARGIN,
    "DEV_POWER_USAGE": _POWER,
    "DEV_BOARD_POWER_WATTS": _POWER,
    "DEV_POWER_USAGE_INSTANT": _POWER_NOW,
    "DEV_BOARD_POWER_RAW_WATTS": _POWER_NOW,
    "DEV_ENFORCED_POWER_LIMIT": _POWER_LIMIT,
    "DEV_BOARD_POWER_LIMIT_ENFORCED_WATTS": _POWER_LIMIT,
    "DEV_TOTAL_ENERGY_CONSUMPTION": _ENERGY,
    "DEV_GPU_UTIL": _UTIL,
    "DEV_GPU_UTIL_RATIO": _UTIL,
    "DEV_MEM_COPY_UTIL": _MEMORY_UTIL,
    "PROF_GR_ENGINE_ACTIVE": _GR_ENGINE,
    "PROF_GR_ENGINE_UTIL_RATIO": _GR_ENGINE,
    "PROF_SM_ACTIVE": _SM,
    "PROF_SM_UTIL_RATIO": _SM,
    "PROF_SM_OCCUPANCY": _OCCUPANCY,
    "PROF_SM_OCCUPANCY_RATIO": _OCCUPANCY,
    "PROF_PIPE_TENSOR_ACTIVE": _TENSOR,
    "PROF_TENSOR_UTIL_RATIO": _TENSOR,
    "PROF_DRAM_ACTIVE": _DRAM,
    "PROF_DRAM_UTIL_RATIO": _DRAM,
    "PROF_PCIE_TX_BYTES": Field("pcie_tx_bytes_per_s", 256e9, of_instance=True),
    "PROF_PCIE_RX_BYTES": Field("pcie_rx_bytes_per_s", 256e9, of_instance=True),
    "PROF_NVLINK_TX_BYTES": Field("nvlink_tx_bytes_per_s", 4e12, of_instance=True),
    "PROF_NVLINK_RX_BYTES": Field("nvlink_rx_bytes_per_s", 4e12, of_instance=True),
    "DEV_CLOCK_THROTTLE_REASONS": _THROTTLE,
    "DEV_CLOCKS_EVENT_REASONS": _THROTTLE,
    **{f"DEV_{cause}_VIOLATION": field for cause, field in VIOLATIONS.items()},
    "DEV_ECC_SBE_VOL_TOTAL": _SBE,
    "DEV_ECC_DBE_VOL_TOTAL": _DBE,
    "DEV_ECC_SBE_AGG_TOTAL": _SBE_EVER,
    "DEV_ECC_DBE_AGG_TOTAL": _DBE_EVER,
    "DEV_UNCORRECTABLE_REMAPPED_ROWS": _REMAP_BAD,
    "DEV_ROW_REMAP_UNCORRECTABLE_TOTAL": _REMAP_BAD,
    "DEV_CORRECTABLE_REMAPPED_ROWS": _REMAP_GOOD,
    "DEV_ROW_REMAP_CORRECTABLE_TOTAL": _REMAP_GOOD,
    "DEV_ROW_REMAP_FAILURE": _REMAP_FAILURE,
    "DEV_ROW_REMAP_FAILED": _REMAP_FAILURE,
    "DEV_ROW_REMAP_PENDING": _REMAP_PENDING,
    "DEV_RETIRED_SBE": _RETIRED_SBE,
    "DEV_PAGE_RETIRED_SBE_TOTAL": _RETIRED_SBE,
    "DEV_RETIRED_DBE": _RETIRED_DBE,
    "DEV_PAGE_RETIRED_DBE_TOTAL": _RETIRED_DBE,
    "DEV_RETIRED_PENDING": _RETIRED_PENDING,
    "DEV_PAGE_RETIRED_PENDING": _RETIRED_PENDING,
    "DEV_PCIE_LINK_GEN": _GEN,
    "DEV_PCIE_LINK_WIDTH": _WIDTH,
    "DEV_PCIE_REPLAY_COUNTER": _REPLAYS,
    "DEV_PCIE_REPLAY_TOTAL": _REPLAYS,
    "DEV_NVLINK_BANDWIDTH_TOTAL": _NVLINK,
    "DEV_NVLINK_THROUGHPUT_TOTAL": _NVLINK,
    "DEV_NVLINK_CRC_FLIT_ERROR_COUNT_TOTAL": _CRC_FLIT,
    "DEV_NVLINK_CRC_FLIT_ERROR_TOTAL": _CRC_FLIT,
    "DEV_NVLINK_CRC_DATA_ERROR_COUNT_TOTAL": _CRC_DATA,
    "DEV_NVLINK_CRC_DATA_ERROR_TOTAL": _CRC_DATA,
    "DEV_NVLINK_REPLAY_ERROR_COUNT_TOTAL": _LINK_REPLAY,
    "DEV_NVLINK_REPLAY_ERROR_TOTAL": _LINK_REPLAY,
    "DEV_NVLINK_RECOVERY_ERROR_COUNT_TOTAL": _LINK_RECOVERY,
    "DEV_NVLINK_RECOVERY_ERROR_TOTAL": _LINK_RECOVERY,
    "DEV_NVLINK_ERROR_DL_CRC": _LINK_CRC,
    "DEV_NVLINK_CRC_ERROR_TOTAL": _LINK_CRC,
    "DEV_NVLINK_ERROR_DL_REPLAY": _LINK_REPLAY,
    "DEV_NVLINK_REPLAY_TOTAL": _LINK_REPLAY,
    "DEV_NVLINK_ERROR_DL_RECOVERY": _LINK_RECOVERY,
    "DEV_NVLINK_RECOVERY_TOTAL": _LINK_RECOVERY,
    "DEV_FB_USED": _USED,
    "DEV_FB_FREE": _FREE,
    "DEV_FABRIC_MANAGER_STATUS": Field("fabric_manager_status_count", 16),
    "DEV_FABRIC_HEALTH_SUMMARY": Field("fabric_health_count", 16),
    "DEV_GET_GPU_RECOVERY_ACTION": _RECOVERY,
    "DEV_GPU_RECOVERY_ACTION": _RECOVERY,
}
"""Field without ``DCGM_FI_`` -> meaning. XID_ERRORS is not here: it keeps the last Xid, and is no event.
GPU_UTIL_RATIO is a percentage in spite of its name, as GPU_UTIL was."""

SMI: Final[dict[str, Field]] = {
    "temperature.gpu": _TEMPERATURE,
    "temperature.memory": _MEMORY_TEMPERATURE,
    "power.draw": _POWER,
    "power.draw.average": _POWER,
    "power.draw.instant": _POWER_NOW,
    "enforced.power.limit": _POWER_LIMIT,
    "temperature.gpu.tlimit": _MARGIN,
    "clocks.sm": _SM_CLOCK,
    "clocks.current.sm": _SM_CLOCK,
    "clocks.mem": _MEMORY_CLOCK,
    "clocks.current.memory": _MEMORY_CLOCK,
    "utilization.gpu": _UTIL,
    "utilization.memory": _MEMORY_UTIL,
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
    "ecc.errors.corrected.aggregate.total": _SBE_EVER,
    "ecc.errors.uncorrected.aggregate.total": _DBE_EVER,
    "retired_pages.sbe": _RETIRED_SBE,
    "retired_pages.single_bit_ecc.count": _RETIRED_SBE,
    "retired_pages.dbe": _RETIRED_DBE,
    "retired_pages.double_bit.count": _RETIRED_DBE,
    "retired_pages.pending": _RETIRED_PENDING,
    "memory.used": _USED,
    "memory.free": _FREE,
}
"""Column without its unit -> meaning."""

NVML: Final[dict[str, Field]] = {
    **SMI,
    "energy": _ENERGY,
    "pcie.replays": _REPLAYS,
    "recovery_action": _RECOVERY,
    **{f"violation.{cause.lower()}": field for cause, field in VIOLATIONS.items()},
}
"""What NVML tells, by the worker's names."""

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
