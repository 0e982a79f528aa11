"""The metric catalogue: every name that a reading may carry, with its meaning, kind, lane and unit.

A name ends in its unit (`_bytes`, `_w`, `_j`, `_mhz`, `_c`, `_percent`, `_s`) or says what it counts. A
`gauge` is a value of the moment, a `counter` only grows (until a driver reload), a `static` fact is read
once and stands in `DeviceIdentity.static`.

>>> METRICS["energy_j"].kind, METRICS["energy_j"].lane
('counter', 'fast')
"""

from __future__ import annotations

import functools
from dataclasses import dataclass
from typing import Final, Literal, get_args

from gpuproof.records.readings import Lane, ThrottleReason

MetricKind = Literal["gauge", "counter", "static"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Metric:
    """What one name means."""

    name: str
    description: str
    kind: MetricKind
    lane: Lane | None
    """How often it is read; None for static facts."""


_FAST_GAUGES: Final = {
    "util_gpu_percent": "share of time in which at least one kernel ran; a duty cycle, not efficiency",
    "util_mem_ctrl_percent": "share of time in which device memory was read or written",
    "mem_used_bytes": "device memory in use by all processes, without the driver's reserved block if known",
    "mem_reserved_bytes": "device memory held back by driver and firmware",
    "mem_host_mapped_bytes": "host memory mapped for the device (GTT)",
    "power_w": "board or socket power, as averaged by the device (one second on many NVIDIA parts)",
    "power_instant_w": "board power without the device's averaging",
    "temp_gpu_c": "temperature of the GPU: NVIDIA's GPU sensor, AMD's edge, else junction, Intel's package",
    "temp_hotspot_c": "hottest point of the die (AMD's junction)",
    "temp_mem_c": "temperature of device memory",
    "clock_sm_mhz": "clock of the compute units (SM, gfx, GT)",
    "clock_mem_mhz": "clock of device memory",
    "pstate_level": "NVIDIA performance state, 0 the highest",
}
_SLOW_GAUGES: Final = {
    "power_limit_w": "power cap in force",
    "fan_percent": "fan speed, share of its maximum",
    "fan_rpm": "fan speed, revolutions a minute",
    "pcie_gen": "PCIe generation of the link now; falls when idle, so judge it under load only",
    "pcie_width": "PCIe lanes in use now",
    "temp_margin_c": "kelvin left before the device slows itself down",
    "nvlink_links_active": "NVLink or xGMI links that are up",
    "sm_active_percent": "share of time a multiprocessor had a warp, averaged over all (NVIDIA GPM)",
    "sm_occupancy_percent": "resident warps, share of the maximum (NVIDIA GPM)",
    "tensor_active_percent": "share of time the tensor pipe was busy (NVIDIA GPM)",
    "dram_active_percent": "share of time the memory interface was busy (NVIDIA GPM)",
    "remapped_rows_pending": "1 if memory rows (AMD: pages) wait for a reset to be remapped, else 0",
    "remapped_rows_failed": "1 if a row (AMD: page) could not be remapped, else 0",
    "retired_pages_pending": "1 if memory pages wait for a reset to be retired, else 0",
    "pcie_tx_bytes_per_s": "bytes a second sent over PCIe, where the driver does not count them",
    "pcie_rx_bytes_per_s": "bytes a second received over PCIe, where the driver does not count them",
}
_FAST_COUNTERS: Final = {"energy_j": "energy used since the driver was loaded"}
_SLOW_COUNTERS: Final = {
    "pcie_tx_bytes": "bytes sent over PCIe",
    "pcie_rx_bytes": "bytes received over PCIe",
    "pcie_replay_count": "PCIe packets sent again after an error",
    "nvlink_tx_bytes": "bytes sent over NVLink or xGMI, all links, payload",
    "nvlink_rx_bytes": "bytes received over NVLink or xGMI, all links, payload",
    "ecc_corrected_count": "memory errors corrected by ECC since the driver was loaded",
    "ecc_uncorrected_count": "memory errors that ECC could not correct since the driver was loaded",
    "remapped_rows_corrected_count": "memory rows remapped after corrected errors, over the device's life",
    "remapped_rows_uncorrected_count": "memory rows (AMD: pages) remapped after uncorrected errors, ever",
    "retired_pages_corrected_count": "memory pages retired after corrected errors, ever",
    "retired_pages_uncorrected_count": "memory pages retired after uncorrected errors, ever",
}
_STATICS: Final = {
    "mem_total_bytes": "device memory installed",
    "power_limit_default_w": "power cap as shipped",
    "power_limit_min_w": "lowest power cap that may be set",
    "power_limit_max_w": "highest power cap that may be set",
    "temp_slowdown_c": "temperature at which hardware slows the device",
    "temp_shutdown_c": "temperature at which the device turns itself off",
    "temp_max_c": "highest temperature that the device is meant to work at",
    "temp_mem_max_c": "temperature at which memory is critical",
    "clock_sm_max_mhz": "highest clock of the compute units",
    "clock_sm_min_mhz": "lowest clock that the compute units may be asked for",
    "clock_sm_application_mhz": "application clock that was set for the compute units",
    "clock_mem_max_mhz": "highest clock of device memory",
    "clock_mem_application_mhz": "application clock that was set for device memory",
    "pcie_gen_max": "highest PCIe generation of this device in this slot",
    "pcie_width_max": "most PCIe lanes of this device in this slot",
}


def _catalogue() -> dict[str, Metric]:
    groups: tuple[tuple[dict[str, str], MetricKind, Lane | None], ...] = (
        (_FAST_GAUGES, "gauge", "fast"),
        (_SLOW_GAUGES, "gauge", "slow"),
        (_FAST_COUNTERS, "counter", "fast"),
        (_SLOW_COUNTERS | _throttle_times(), "counter", "slow"),
        (_STATICS, "static", None),
    )
    metrics = {}
    for group, kind, lane in groups:
        for name, description in group.items():
            metrics[name] = Metric(name=name, description=description, kind=kind, lane=lane)
    return metrics


def _throttle_times() -> dict[str, str]:
    return {
        f"{throttle_time_name(reason)}": f"time held below the asked clock: {reason.replace('_', ' ')}"
        for reason in get_args(ThrottleReason)
    }


def throttle_time_name(reason: ThrottleReason) -> str:
    """Name the counter of seconds that a reason held a device back."""
    return f"throttle_time_{reason}_s"


METRICS: Final[dict[str, Metric]] = _catalogue()

THROTTLE_COUNTERS: Final = {
    metric: metric.removeprefix("throttle_time_").removesuffix("_s")
    for metric in METRICS
    if metric.startswith("throttle_time_")
}
"""Counter of throttled time → its reason."""


@functools.cache
def names(*, lane: Lane | None = None, kind: MetricKind | None = None) -> tuple[str, ...]:
    """List the metric names of a lane, a kind, or both, in the order of the catalogue."""
    return tuple(
        metric.name
        for metric in METRICS.values()
        if (lane is None or metric.lane == lane) and (kind is None or metric.kind == kind)
    )
