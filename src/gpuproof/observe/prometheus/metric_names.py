"""What is a metric called in Prometheus, and under which name do DCGM dashboards look for it?

In: the catalogue of `gpuproof.records.metrics`. Out: for each metric a Prometheus name in base units
(bytes, watts, joules, hertz, seconds, ratios of 0 to 1) with its factor, and, where DCGM has the same
quantity, its classic name with the factor to DCGM's unit. DCGM's names are exported as untyped metrics:
its counters lack the `_total` that Prometheus' own rules ask of a counter.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from gpuproof.records.metrics import METRICS, THROTTLE_COUNTERS, MetricKind

_PREFIX: Final = "gpuproof_gpu_"


@dataclass(frozen=True, slots=True, kw_only=True)
class ExportedName:
    """One metric under its name in Prometheus."""

    metric: str
    name: str
    factor: float
    """What a reading is multiplied by."""
    kind: MetricKind
    help: str


_UNITS: Final[dict[str, tuple[str, float]]] = {
    "_percent": ("_ratio", 0.01),
    "_bytes_per_s": ("_bytes_per_second", 1.0),
    "_bytes": ("_bytes", 1.0),
    "_mhz": ("_hertz", 1e6),
    "_rpm": ("_revolutions_per_minute", 1.0),
    "_w": ("_watts", 1.0),
    "_j": ("_joules", 1.0),
    "_c": ("_celsius", 1.0),
    "_s": ("_seconds", 1.0),
    "_count": ("_events", 1.0),
}
_STEMS: Final = {
    "util_gpu": "utilization",
    "util_mem_ctrl": "memory_controller_utilization",
    "mem_used": "memory_used",
    "mem_total": "memory_total",
    "mem_reserved": "memory_reserved",
    "mem_host_mapped": "host_memory_mapped",
    "temp_gpu": "temperature",
    "temp_hotspot": "hotspot_temperature",
    "temp_mem": "memory_temperature",
    "temp_margin": "temperature_margin",
    "temp_slowdown": "slowdown_temperature",
    "temp_shutdown": "shutdown_temperature",
    "temp_max": "maximum_temperature",
    "temp_mem_max": "memory_maximum_temperature",
    "ecc_corrected": "ecc_corrected_errors",
    "ecc_uncorrected": "ecc_uncorrected_errors",
    "pcie_replay": "pcie_replays",
    "remapped_rows_corrected": "remapped_rows_corrected",
    "remapped_rows_uncorrected": "remapped_rows_uncorrected",
}

DCGM: Final[dict[str, tuple[str, float]]] = {
    "util_gpu_percent": ("DCGM_FI_DEV_GPU_UTIL", 1.0),
    "util_mem_ctrl_percent": ("DCGM_FI_DEV_MEM_COPY_UTIL", 1.0),
    "sm_active_percent": ("DCGM_FI_PROF_SM_ACTIVE", 0.01),
    "sm_occupancy_percent": ("DCGM_FI_PROF_SM_OCCUPANCY", 0.01),
    "tensor_active_percent": ("DCGM_FI_PROF_PIPE_TENSOR_ACTIVE", 0.01),
    "dram_active_percent": ("DCGM_FI_PROF_DRAM_ACTIVE", 0.01),
    "mem_used_bytes": ("DCGM_FI_DEV_FB_USED", 2.0**-20),
    "mem_reserved_bytes": ("DCGM_FI_DEV_FB_RESERVED", 2.0**-20),
    "mem_total_bytes": ("DCGM_FI_DEV_FB_TOTAL", 2.0**-20),
    "power_w": ("DCGM_FI_DEV_POWER_USAGE", 1.0),
    "power_instant_w": ("DCGM_FI_DEV_POWER_USAGE_INSTANT", 1.0),
    "power_limit_w": ("DCGM_FI_DEV_ENFORCED_POWER_LIMIT", 1.0),
    "power_limit_default_w": ("DCGM_FI_DEV_POWER_MGMT_LIMIT_DEF", 1.0),
    "power_limit_min_w": ("DCGM_FI_DEV_POWER_MGMT_LIMIT_MIN", 1.0),
    "power_limit_max_w": ("DCGM_FI_DEV_POWER_MGMT_LIMIT_MAX", 1.0),
    "energy_j": ("DCGM_FI_DEV_TOTAL_ENERGY_CONSUMPTION", 1e3),
    "temp_gpu_c": ("DCGM_FI_DEV_GPU_TEMP", 1.0),
    "temp_mem_c": ("DCGM_FI_DEV_MEMORY_TEMP", 1.0),
    "temp_slowdown_c": ("DCGM_FI_DEV_SLOWDOWN_TEMP", 1.0),
    "temp_shutdown_c": ("DCGM_FI_DEV_SHUTDOWN_TEMP", 1.0),
    "temp_max_c": ("DCGM_FI_DEV_GPU_MAX_OP_TEMP", 1.0),
    "temp_mem_max_c": ("DCGM_FI_DEV_MEM_MAX_OP_TEMP", 1.0),
    "temp_margin_c": ("DCGM_FI_DEV_GPU_TEMP_LIMIT", 1.0),
    "clock_sm_mhz": ("DCGM_FI_DEV_SM_CLOCK", 1.0),
    "clock_mem_mhz": ("DCGM_FI_DEV_MEM_CLOCK", 1.0),
    "clock_sm_max_mhz": ("DCGM_FI_DEV_MAX_SM_CLOCK", 1.0),
    "clock_sm_application_mhz": ("DCGM_FI_DEV_APP_SM_CLOCK", 1.0),
    "clock_mem_max_mhz": ("DCGM_FI_DEV_MAX_MEM_CLOCK", 1.0),
    "clock_mem_application_mhz": ("DCGM_FI_DEV_APP_MEM_CLOCK", 1.0),
    "pstate_level": ("DCGM_FI_DEV_PSTATE", 1.0),
    "pcie_gen": ("DCGM_FI_DEV_PCIE_LINK_GEN", 1.0),
    "pcie_width": ("DCGM_FI_DEV_PCIE_LINK_WIDTH", 1.0),
    "pcie_gen_max": ("DCGM_FI_DEV_PCIE_MAX_LINK_GEN", 1.0),
    "pcie_width_max": ("DCGM_FI_DEV_PCIE_MAX_LINK_WIDTH", 1.0),
    "ecc_corrected_count": ("DCGM_FI_DEV_ECC_SBE_VOL_TOTAL", 1.0),
    "ecc_uncorrected_count": ("DCGM_FI_DEV_ECC_DBE_VOL_TOTAL", 1.0),
    "remapped_rows_corrected_count": ("DCGM_FI_DEV_CORRECTABLE_REMAPPED_ROWS", 1.0),
    "remapped_rows_uncorrected_count": ("DCGM_FI_DEV_UNCORRECTABLE_REMAPPED_ROWS", 1.0),
    "remapped_rows_pending": ("DCGM_FI_DEV_ROW_REMAP_PENDING", 1.0),
    "remapped_rows_failed": ("DCGM_FI_DEV_ROW_REMAP_FAILURE", 1.0),
    "retired_pages_corrected_count": ("DCGM_FI_DEV_RETIRED_SBE", 1.0),
    "retired_pages_uncorrected_count": ("DCGM_FI_DEV_RETIRED_DBE", 1.0),
    "retired_pages_pending": ("DCGM_FI_DEV_RETIRED_PENDING", 1.0),
    "fan_percent": ("DCGM_FI_DEV_FAN_SPEED", 1.0),
}
"""Metric → DCGM's name and the factor to DCGM's unit (MiB for memory, mJ for energy).

Left out: DCGM_FI_DEV_PCIE_REPLAY_COUNTER, as `promtool check metrics` refuses a type in a name; what DCGM
gives as a rate and we as a total (PCIe, NVLink); violation times, whose unit differs between its versions.
"""


def exported_name(metric: str) -> ExportedName:
    """Give a metric's name, unit factor and kind in Prometheus; counters without their `_total`.

    >>> exported_name("power_w").name, exported_name("util_gpu_percent").factor
    ('gpuproof_gpu_power_watts', 0.01)

    Raises:
        KeyError: the catalogue has no such metric.
    """
    known = METRICS[metric]
    end = next((end for end in _UNITS if metric.endswith(end)), "")
    unit, factor = _UNITS.get(end, ("", 1.0))
    stem = metric.removesuffix(end)
    if end == "_count":
        unit = ""
    name = f"{_PREFIX}{_STEMS.get(stem, stem)}{unit}"
    return ExportedName(metric=metric, name=name, factor=factor, kind=known.kind, help=known.description)


EXPORTED: Final = {metric: exported_name(metric) for metric in METRICS if metric not in THROTTLE_COUNTERS}
"""Every metric but the times of throttling, which are one metric with a label `reason`."""
