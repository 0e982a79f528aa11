"""What NVML announces: XIDs and memory errors that ECC could not correct.

NVML queues events from the moment of registration; `poll` takes them out without waiting.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from gpuproof.devices.base import DeviceError, VendorEvent
from gpuproof.devices.nvidia import nvml as nvml_border
from gpuproof.devices.nvidia.handles import NvmlDevice, handle_address
from gpuproof.records.readings import VendorIndex

_XID, _DOUBLE_BIT_ECC = 0x8, 0x2
_MAX_EVENTS_A_POLL = 64


class EventQueue:
    """One event set over all GPUs that offer events."""

    def __init__(self, nvml: Any, devices: Sequence[NvmlDevice]) -> None:
        self._nvml = nvml
        self._devices = devices
        self.unheard: dict[VendorIndex, str] = {}
        """GPUs, and MIG instances of them, whose XIDs are not queued, each with the reason."""
        self._set = self._register()

    def poll(self) -> tuple[VendorEvent, ...]:
        """Take out what is queued; nothing where no GPU here announces events.

        Raises:
            DriverMissingError: the driver is gone.
        """
        events: list[VendorEvent] = []
        while self._set and len(events) < _MAX_EVENTS_A_POLL and (data := self._next()) is not None:
            events.append(self._event(data))
        return tuple(events)

    def _next(self) -> Any:
        """Return the next event, None when there is no more; a lost GPU is an error of its next reading."""
        try:
            return self._nvml.nvmlEventSetWait(self._set, 0)
        except self._nvml.NVMLError as error:
            if nvml_border.error_code(error) in (nvml_border.TIMEOUT, nvml_border.GPU_IS_LOST):
                return None
            raise nvml_border.device_error(error) from error

    def _event(self, data: Any) -> VendorEvent:
        address = handle_address(data.device)
        index = next(
            (d.vendor_index for d in self._devices if d.handle and handle_address(d.handle) == address), None
        )
        if index is None:
            raise DeviceError("NVML announced an event of a GPU that it does not list")
        if data.eventType == _XID:
            code = int(data.eventData)
            return VendorEvent(vendor_index=index, event="xid", code=code, message=f"XID {code}")
        return VendorEvent(
            vendor_index=index,
            event="ecc_uncorrected",
            code=None,
            message="a memory error that ECC could not correct",
        )

    def _register(self) -> Any:
        whole = [d for d in self._devices if d.mig_parent is None and d.handle is not None]
        try:
            events = self._nvml.nvmlEventSetCreate()
        except self._nvml.NVMLError as error:
            self.unheard = {device.vendor_index: nvml_border.cause(error) for device in self._devices}
            return None
        registered = [d for d in whole if self._registered(d, events)]
        for device in self._devices:
            if device.mig_parent is not None and device.mig_parent in self.unheard:
                self.unheard[device.vendor_index] = self.unheard[device.mig_parent]
        return events if registered else None

    def _registered(self, device: NvmlDevice, events: Any) -> bool:
        try:
            offered = self._nvml.nvmlDeviceGetSupportedEventTypes(device.handle)
            wanted = offered & (_XID | _DOUBLE_BIT_ECC)
            self._nvml.nvmlDeviceRegisterEvents(device.handle, wanted, events)
        except self._nvml.NVMLError as error:
            self.unheard[device.vendor_index] = nvml_border.cause(error)
            return False
        if not wanted & _XID:
            self.unheard[device.vendor_index] = "the driver announces no XID of this GPU"
        return bool(wanted)
