"""What NVML lists: GPUs, MIG instances, the processes on each, and facts that are read only once.

Input: the binding's module. Output: `NvmlDevice`s, each with a handle that may change after a driver reload
and an identity that must not, and facts (limits, maxima, versions, modes) under their catalogue names, with a
reason for each missing one.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

from gpuproof.devices.base import DeviceProcess
from gpuproof.devices.nvidia import nvml as nvml_border
from gpuproof.devices.nvidia.fields import CLOCK_MEM, CLOCK_SM
from gpuproof.devices.nvidia.nvml import ask
from gpuproof.devices.sources import collect
from gpuproof.records.readings import VendorIndex

_Read = Callable[[Any, Any], Any]
_SHUTDOWN, _SLOWDOWN, _MEM_MAX, _GPU_MAX = 0, 1, 2, 3


@dataclass(slots=True, kw_only=True)
class NvmlDevice:
    """One NVML device, with its current handle."""

    vendor_index: VendorIndex
    handle: Any
    """None while the driver does not list the device."""
    uuid: str | None
    mig_parent: VendorIndex | None = None


def list_devices(nvml: Any) -> tuple[NvmlDevice, ...]:
    """List whole GPUs by NVML index, then the MIG instances of each."""
    count = nvml.nvmlDeviceGetCount()
    whole = [_device(nvml, VendorIndex(index), _by_index(nvml, index)) for index in range(count)]
    devices = list(whole)
    for gpu in whole:
        for handle in _mig_handles(nvml, gpu.handle):
            devices.append(_device(nvml, VendorIndex(len(devices)), handle, gpu.vendor_index))
    return tuple(devices)


def find_handle(nvml: Any, device: NvmlDevice) -> Any:
    """Look up a device again after a driver reload; None if the driver does not list it."""
    if device.uuid is None:
        return _by_index(nvml, device.vendor_index)
    return _or_none(nvml, lambda: nvml.nvmlDeviceGetHandleByUUID(device.uuid))


def handle_address(handle: Any) -> int | None:
    """Return the value that distinguishes one NVML handle from another."""
    return ctypes.cast(handle, ctypes.c_void_p).value


def list_processes(nvml: Any, handle: Any) -> tuple[DeviceProcess, ...]:
    """List compute and graphics processes; a process in both lists counts as compute."""
    processes: dict[int, DeviceProcess] = {}
    for kind, name in (("compute", "Compute"), ("graphics", "Graphics")):
        for process in _running(nvml, name)(handle):
            processes.setdefault(
                process.pid,
                DeviceProcess(pid=process.pid, mem_used_bytes=process.usedGpuMemory, kind=kind),
            )
    return tuple(processes.values())


def _running(nvml: Any, kind: str) -> Callable[[Any], Any]:
    newest = getattr(nvml, f"nvmlDeviceGet{kind}RunningProcesses_v3", None)
    function: Callable[[Any], Any] = newest or getattr(nvml, f"nvmlDeviceGet{kind}RunningProcesses")
    return function


def _by_index(nvml: Any, index: int) -> Any:
    return _or_none(nvml, lambda: nvml.nvmlDeviceGetHandleByIndex(index))


def _device(nvml: Any, index: VendorIndex, handle: Any, parent: VendorIndex | None = None) -> NvmlDevice:
    uuid = None if handle is None else _or_none(nvml, lambda: text(nvml.nvmlDeviceGetUUID(handle)))
    return NvmlDevice(vendor_index=index, handle=handle, uuid=uuid, mig_parent=parent)


def _mig_handles(nvml: Any, handle: Any) -> list[Any]:
    """Return the handles of a GPU's MIG instances; empty if the driver or GPU has no MIG."""
    if handle is None:
        return []
    mode = _or_none(nvml, lambda: nvml.nvmlDeviceGetMigMode(handle))
    if not mode or not mode[0]:
        return []
    places = range(nvml.nvmlDeviceGetMaxMigDeviceCount(handle))
    by_index = partial(partial, nvml.nvmlDeviceGetMigDeviceHandleByIndex, handle)
    handles = (_or_none(nvml, by_index(place)) for place in places)
    return [instance for instance in handles if instance is not None]


def _or_none(nvml: Any, ask: Callable[[], Any]) -> Any:
    """Query something that a healthy machine may not have; a missing driver is still an error."""
    try:
        return ask()
    except nvml.NVMLError as error:
        if nvml_border.error_code(error) in nvml_border.DRIVER_CODES:
            raise
        return None


def describe(nvml: Any, handle: Any) -> tuple[dict[str, Any], dict[str, str]]:
    """Read every static fact that this driver and GPU report.

    Raises:
        DeviceLostError: the GPU has disappeared.
        DriverMissingError: the driver is no longer loaded.
    """
    return collect({fact: partial(ask, nvml, partial(read, nvml, handle)) for fact, read in _FACTS.items()})


def versions(nvml: Any) -> tuple[dict[str, str], dict[str, str]]:
    """Read the driver's version and the newest CUDA version it supports, and why either is missing."""
    readers = {
        "driver_version": lambda nvml: text(nvml.nvmlSystemGetDriverVersion()),
        "cuda_version": _cuda_version,
    }
    return collect({name: partial(ask, nvml, partial(read, nvml)) for name, read in readers.items()})


def text(value: str | bytes) -> str:
    """Decode values that older bindings return as bytes."""
    return value.decode() if isinstance(value, bytes) else value


def mig_instance(nvml: Any, handle: Any) -> dict[str, int]:
    """Read the GPU instance and compute instance of a MIG handle."""
    return {
        "mig_gpu_instance_id": nvml.nvmlDeviceGetGpuInstanceId(handle),
        "mig_compute_instance_id": nvml.nvmlDeviceGetComputeInstanceId(handle),
    }


def _cuda_version(nvml: Any) -> str:
    number = nvml.nvmlSystemGetCudaDriverVersion()
    return f"{number // 1000}.{number % 1000 // 10}"


def _number(function: str, *arguments: int, scale: float = 1) -> _Read:
    return lambda nvml, handle: getattr(nvml, function)(handle, *arguments) * scale


def _limit(place: int) -> _Read:
    """Read the lower or upper end of the power limit range."""
    return lambda nvml, handle: nvml.nvmlDeviceGetPowerManagementLimitConstraints(handle)[place] / 1000


def _mode(function: str) -> _Read:
    """Read an on/off mode; for functions that return (current, pending), use the current one."""

    def read(nvml: Any, handle: Any) -> str:
        value = getattr(nvml, function)(handle)
        present = value[0] if isinstance(value, (list, tuple)) else value
        return "enabled" if present else "disabled"

    return read


def _capability(nvml: Any, handle: Any) -> str:
    major, minor = nvml.nvmlDeviceGetCudaComputeCapability(handle)
    return f"{major}.{minor}"


def _fabric_state(nvml: Any, handle: Any) -> str:
    """Report a GPU's progress in joining its NVLink fabric (nvmlGpuFabricInfo_t.state)."""
    info = nvml.c_nvmlGpuFabricInfo_t()
    nvml.nvmlDeviceGetGpuFabricInfo(handle, ctypes.byref(info))
    return dict(enumerate(_FABRIC_STATES)).get(info.state, f"unknown ({info.state})")


_FABRIC_STATES = ("not supported", "not started", "in progress", "completed")
_FACTS: dict[str, _Read] = {
    "mem_total_bytes": lambda nvml, handle: nvml.nvmlDeviceGetMemoryInfo(handle).total,
    "power_limit_w": _number("nvmlDeviceGetEnforcedPowerLimit", scale=1e-3),
    "power_limit_default_w": _number("nvmlDeviceGetPowerManagementDefaultLimit", scale=1e-3),
    "power_limit_min_w": _limit(0),
    "power_limit_max_w": _limit(1),
    "temp_shutdown_c": _number("nvmlDeviceGetTemperatureThreshold", _SHUTDOWN),
    "temp_slowdown_c": _number("nvmlDeviceGetTemperatureThreshold", _SLOWDOWN),
    "temp_mem_max_c": _number("nvmlDeviceGetTemperatureThreshold", _MEM_MAX),
    "temp_max_c": _number("nvmlDeviceGetTemperatureThreshold", _GPU_MAX),
    "clock_sm_max_mhz": _number("nvmlDeviceGetMaxClockInfo", CLOCK_SM),
    "clock_mem_max_mhz": _number("nvmlDeviceGetMaxClockInfo", CLOCK_MEM),
    "clock_sm_application_mhz": _number("nvmlDeviceGetApplicationsClock", CLOCK_SM),
    "clock_mem_application_mhz": _number("nvmlDeviceGetApplicationsClock", CLOCK_MEM),
    "pcie_gen_max": _number("nvmlDeviceGetMaxPcieLinkGeneration"),
    "pcie_width_max": _number("nvmlDeviceGetMaxPcieLinkWidth"),
    "vbios_version": lambda nvml, handle: text(nvml.nvmlDeviceGetVbiosVersion(handle)),
    "compute_capability": _capability,
    "fabric_state": _fabric_state,
    "ecc_mode": _mode("nvmlDeviceGetEccMode"),
    "mig_mode": _mode("nvmlDeviceGetMigMode"),
    "persistence_mode": _mode("nvmlDeviceGetPersistenceMode"),
}
