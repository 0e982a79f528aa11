"""Which handles does NVML have: whole GPUs, their MIG instances, and the processes on each.

In comes the binding's module; out come `NvmlDevice`s, whose handle may be replaced after a driver reload
and whose identity may not.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from gpuproof.devices.base import DeviceProcess
from gpuproof.devices.nvidia import nvml as nvml_border
from gpuproof.devices.nvidia.static import text
from gpuproof.records.readings import VendorIndex


@dataclass(slots=True, kw_only=True)
class NvmlDevice:
    """One device of NVML as it stands now."""

    vendor_index: VendorIndex
    handle: Any
    """None while the driver does not list it."""
    uuid: str | None
    mig_parent: VendorIndex | None = None


def list_devices(nvml: Any) -> tuple[NvmlDevice, ...]:
    """List whole GPUs by NVML's index, then the MIG instances of each in turn."""
    count = nvml.nvmlDeviceGetCount()
    whole = [_device(nvml, VendorIndex(index), _by_index(nvml, index)) for index in range(count)]
    devices = list(whole)
    for gpu in whole:
        for handle in _mig_handles(nvml, gpu.handle):
            devices.append(_device(nvml, VendorIndex(len(devices)), handle, gpu.vendor_index))
    return tuple(devices)


def find_handle(nvml: Any, device: NvmlDevice) -> Any:
    """Look a device up again after a driver reload; None if it is not listed."""
    if device.uuid is None:
        return _by_index(nvml, device.vendor_index)
    return _or_none(nvml, lambda: nvml.nvmlDeviceGetHandleByUUID(device.uuid))


def handle_address(handle: Any) -> int | None:
    """Return what tells one NVML handle from another."""
    return ctypes.cast(handle, ctypes.c_void_p).value


def list_processes(nvml: Any, handle: Any) -> tuple[DeviceProcess, ...]:
    """List compute and graphics processes; one that is both is listed as compute."""
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
    """Return the handles of a GPU's MIG instances; a driver or GPU without MIG has none."""
    if handle is None:
        return []
    mode = _or_none(nvml, lambda: nvml.nvmlDeviceGetMigMode(handle))
    if not mode or not mode[0]:
        return []
    places = range(nvml.nvmlDeviceGetMaxMigDeviceCount(handle))
    handles = (_mig_handle(nvml, handle, place) for place in places)
    return [instance for instance in handles if instance is not None]


def _mig_handle(nvml: Any, handle: Any, place: int) -> Any:
    return _or_none(nvml, lambda: nvml.nvmlDeviceGetMigDeviceHandleByIndex(handle, place))


def _or_none(nvml: Any, ask: Callable[[], Any]) -> Any:
    """Ask for something that a healthy machine may lack; a driver that is gone is still an error."""
    try:
        return ask()
    except nvml.NVMLError as error:
        if nvml_border.error_code(error) in nvml_border.DRIVER_CODES:
            raise
        return None
