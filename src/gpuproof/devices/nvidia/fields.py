"""The NVML name and unit of each metric, and an older call to fall back on.

A source is one NVML call that provides one or more metrics. NVML errors are raised unchanged; `nvml` defines
the scope of each error. Field ids are those of `nvml.h`.
"""

from __future__ import annotations

import ctypes
from dataclasses import dataclass
from functools import partial
from typing import Any

from gpuproof.devices.base import DeviceError, NotSupportedError
from gpuproof.devices.nvidia import nvml as nvml_border
from gpuproof.devices.sources import WHOLE_DEVICE_ERRORS, Answer, Source
from gpuproof.records.readings import NVIDIA_REASON_BITS

FIELD_NVLINK_COUNT = 91
ALL_LINKS = 0xFFFFFFFF
OLD_DRIVERS_NVLINKS = 18
"""Number of links to query if the driver does not report their number."""

CLOCK_SM, CLOCK_MEM = 1, 2
SENSOR_GPU = 0
MEMORY_V2 = 0x02000028
ECC_CORRECTED, ECC_UNCORRECTED, ECC_VOLATILE = 0, 1, 0
PSTATE_UNKNOWN = 32
_NO_VERSION_2 = {
    nvml_border.FUNCTION_NOT_FOUND,
    nvml_border.INVALID_ARGUMENT,
    nvml_border.ARGUMENT_VERSION_MISMATCH,
}

_VIOLATION_POLICIES = {
    "throttle_time_power_cap_s": 0,
    "throttle_time_thermal_s": 1,
    "throttle_time_sync_boost_s": 2,
    "throttle_time_board_limit_s": 3,
    "throttle_time_idle_s": 4,
    "throttle_time_reliability_s": 5,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class NvmlField:
    """One entry of `nvmlDeviceGetFieldValues`."""

    metric: str
    field_id: int
    scope_id: int = 0
    scale: float = 1.0


def throttle_reasons(bits: int) -> tuple[str, ...]:
    """Name the reasons in NVML's bitmask; bits that are unknown to this version become `other`.

    >>> throttle_reasons(0x24), throttle_reasons(0), throttle_reasons(0x8000)
    (('power_cap', 'thermal_software'), (), ('other',))
    """
    reasons = tuple(reason for bit, reason in NVIDIA_REASON_BITS.items() if bits & bit)
    unknown = bits & ~sum(NVIDIA_REASON_BITS)
    return (*reasons, "other") if unknown else reasons


def read_fields(nvml: Any, handle: Any, fields: tuple[NvmlField, ...]) -> Answer:
    """Read several field values in one driver call; each has its own value or reason."""
    values = nvml.nvmlDeviceGetFieldValues(handle, [(f.field_id, f.scope_id) for f in fields])
    answer: Answer = {}
    for field, value in zip(fields, values, strict=True):
        if value.nvmlReturn == 0:
            answer[field.metric] = _typed(value) * field.scale
        else:
            answer[field.metric] = nvml_border.coded_error(value.nvmlReturn)
    return answer


def _typed(value: Any) -> float:
    """Return the union member that NVML has set."""
    members = ("dVal", "uiVal", "ulVal", "ullVal", "sllVal", "siVal", "usVal")
    member = members[value.valueType]
    if hasattr(value.value, member):
        return float(getattr(value.value, member))
    raw = bytes(value.value)  # in case the binding lacks the member: siVal and usVal were added late
    wanted = {"siVal": ctypes.c_int32, "usVal": ctypes.c_uint16}[member]
    return float(wanted.from_buffer_copy(raw).value)


def _utilisation(nvml: Any, handle: Any) -> Answer:
    rates = nvml.nvmlDeviceGetUtilizationRates(handle)
    return {"util_gpu_percent": rates.gpu, "util_mem_ctrl_percent": rates.memory}


def memory(nvml: Any, handle: Any) -> Answer:
    """Read memory with v2 of the call if available, since v1 counts the reserved block as used."""
    try:
        info = nvml.nvmlDeviceGetMemoryInfo(handle, MEMORY_V2)
    except nvml.NVMLError as error:
        if nvml_border.error_code(error) not in _NO_VERSION_2:
            raise
        info = nvml.nvmlDeviceGetMemoryInfo(handle)
        return {
            "mem_used_bytes": info.used,
            "mem_reserved_bytes": DeviceError("this driver counts it as used memory"),
        }
    return {"mem_used_bytes": info.used, "mem_reserved_bytes": info.reserved}


def _pstate(nvml: Any, handle: Any) -> Answer:
    level = nvml.nvmlDeviceGetPerformanceState(handle)
    return {"pstate_level": DeviceError("the driver does not know it") if level == PSTATE_UNKNOWN else level}


def _remapped_rows(nvml: Any, handle: Any) -> Answer:
    return dict(zip(_REMAPPED_ROWS, nvml.nvmlDeviceGetRemappedRows(handle), strict=True))


def _pcie_rates(nvml: Any, handle: Any) -> Answer:
    """Measure PCIe throughput if no field counts it: NVML samples each direction for 20 ms, in kB/s."""
    counted = read_fields(nvml, handle, _PCIE_BYTES).values()
    if not any(isinstance(total, DeviceError) for total in counted):
        raise NotSupportedError("this GPU counts bytes instead")
    return {
        metric: 1000 * nvml_border.ask(nvml, partial(nvml.nvmlDeviceGetPcieThroughput, handle, direction))
        for direction, metric in enumerate(_PCIE_RATES)
    }


def _nvlinks_active(nvml: Any, handle: Any) -> Answer:
    """Count the links that are up. A board may connect only some links; the rest return errors."""
    states = [_link_state(nvml, handle, link) for link in range(_num_links(nvml, handle))]
    if all(state is None for state in states):
        raise nvml.NVMLError(nvml_border.NOT_SUPPORTED)
    return {"nvlink_links_active": sum(state or 0 for state in states)}


def _num_links(nvml: Any, handle: Any) -> int:
    count = read_fields(nvml, handle, (NvmlField(metric="links", field_id=FIELD_NVLINK_COUNT),))["links"]
    return OLD_DRIVERS_NVLINKS if isinstance(count, DeviceError) else int(count)


def _link_state(nvml: Any, handle: Any, link: int) -> int | None:
    """Return 1 if the link is up, 0 if it is down, None if it does not exist."""
    try:
        return int(nvml_border.ask(nvml, partial(nvml.nvmlDeviceGetNvLinkState, handle, link)))
    except WHOLE_DEVICE_ERRORS:
        raise
    except DeviceError:
        return None


def _one(metric: str, function: str, *arguments: int, scale: float | None = None) -> Source:
    """Create a source from one NVML function that returns one number."""

    def ask(nvml: Any, handle: Any) -> Answer:
        value = getattr(nvml, function)(handle, *arguments)
        return {metric: value if scale is None else value * scale}

    return Source(metrics=(metric,), ask=ask)


def _violation(metric: str, policy: int) -> Source:
    def ask(nvml: Any, handle: Any) -> Answer:
        return {metric: nvml.nvmlDeviceGetViolationStatus(handle, policy).violationTime * 1e-9}

    return Source(metrics=(metric,), ask=ask)


def _throttle_reasons(function: str) -> Source:
    def ask(nvml: Any, handle: Any) -> Answer:
        return {"throttle_reasons": throttle_reasons(int(getattr(nvml, function)(handle)))}

    return Source(metrics=("throttle_reasons",), ask=ask)


def _fields(*fields: NvmlField) -> Source:
    """Create a source from several field values that are read in one driver call."""
    return Source(metrics=tuple(f.metric for f in fields), ask=partial(read_fields, fields=fields))


_PCIE_BYTES = (
    NvmlField(metric="pcie_tx_bytes", field_id=197),
    NvmlField(metric="pcie_rx_bytes", field_id=198),
)
_REMAPPED_ROWS = (
    "remapped_rows_corrected_count",
    "remapped_rows_uncorrected_count",
    "remapped_rows_pending",
    "remapped_rows_failed",
)
"""The values returned by `nvmlDeviceGetRemappedRows`, in order."""
_PCIE_RATES = ("pcie_tx_bytes_per_s", "pcie_rx_bytes_per_s")
"""The values of `nvmlPcieUtilCounter_t`, in order."""
MEMORY = Source(metrics=("mem_used_bytes", "mem_reserved_bytes"), ask=memory)

# If a metric has two sources, the second is for older drivers and bindings.
SOURCES: tuple[Source, ...] = (
    Source(metrics=("util_gpu_percent", "util_mem_ctrl_percent"), ask=_utilisation),
    MEMORY,
    _one("power_w", "nvmlDeviceGetPowerUsage", scale=1e-3),
    _one("temp_gpu_c", "nvmlDeviceGetTemperatureV", SENSOR_GPU),
    _one("temp_gpu_c", "nvmlDeviceGetTemperature", SENSOR_GPU),
    _fields(
        NvmlField(metric="temp_mem_c", field_id=82),
        NvmlField(metric="power_instant_w", field_id=186, scale=1e-3),
        NvmlField(metric="energy_j", field_id=83, scale=1e-3),
    ),
    _one("energy_j", "nvmlDeviceGetTotalEnergyConsumption", scale=1e-3),
    _one("clock_sm_mhz", "nvmlDeviceGetClockInfo", CLOCK_SM),
    _one("clock_mem_mhz", "nvmlDeviceGetClockInfo", CLOCK_MEM),
    Source(metrics=("pstate_level",), ask=_pstate),
    _throttle_reasons("nvmlDeviceGetCurrentClocksEventReasons"),
    _throttle_reasons("nvmlDeviceGetCurrentClocksThrottleReasons"),
    _one("power_limit_w", "nvmlDeviceGetEnforcedPowerLimit", scale=1e-3),
    _one("fan_percent", "nvmlDeviceGetFanSpeed"),
    _one("pcie_gen", "nvmlDeviceGetCurrPcieLinkGeneration"),
    _one("pcie_width", "nvmlDeviceGetCurrPcieLinkWidth"),
    _one("temp_margin_c", "nvmlDeviceGetMarginTemperature"),
    _one("ecc_corrected_count", "nvmlDeviceGetTotalEccErrors", ECC_CORRECTED, ECC_VOLATILE),
    _one("ecc_uncorrected_count", "nvmlDeviceGetTotalEccErrors", ECC_UNCORRECTED, ECC_VOLATILE),
    _fields(
        NvmlField(metric="pcie_replay_count", field_id=94),
        *_PCIE_BYTES,
        NvmlField(metric="nvlink_tx_bytes", field_id=138, scope_id=ALL_LINKS, scale=1024),
        NvmlField(metric="nvlink_rx_bytes", field_id=139, scope_id=ALL_LINKS, scale=1024),
        NvmlField(metric="nvlink_crc_flit_error_count", field_id=38),
        NvmlField(metric="nvlink_crc_data_error_count", field_id=45),
        NvmlField(metric="nvlink_replay_count", field_id=52),
        NvmlField(metric="nvlink_recovery_count", field_id=59),
        NvmlField(metric="retired_pages_corrected_count", field_id=29),
        NvmlField(metric="retired_pages_uncorrected_count", field_id=30),
        NvmlField(metric="retired_pages_pending", field_id=31),
        NvmlField(metric="throttle_time_thermal_software_s", field_id=269, scale=1e-9),
        NvmlField(metric="throttle_time_thermal_hardware_s", field_id=270, scale=1e-9),
        NvmlField(metric="throttle_time_power_brake_s", field_id=271, scale=1e-9),
    ),
    _one("pcie_replay_count", "nvmlDeviceGetPcieReplayCounter"),
    Source(metrics=_REMAPPED_ROWS, ask=_remapped_rows),
    Source(metrics=_PCIE_RATES, ask=_pcie_rates),
    Source(metrics=("nvlink_links_active",), ask=_nvlinks_active),
    *(_violation(metric, policy) for metric, policy in _VIOLATION_POLICIES.items()),
)
