"""NVIDIA GPUs and their MIG instances, read through NVML.

MIG instances are separate devices, listed after the whole GPUs; NVML reports only their memory and processes,
so a reason is returned for each of the other metrics. A lost GPU stops only its own readings. After a driver
reload, NVML is restarted and every handle is looked up again by UUID. Values that a device never reports are
queried only once. The utilisation of a GPU's units comes from its performance monitor (GPM, Hopper and
later), as averages between two samples. XIDs and memory errors that ECC could not correct are events, which
NVML queues after registration.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

from gpuproof.devices.base import (
    DeviceAdapter,
    DeviceError,
    DeviceLostError,
    DeviceProcess,
    DriverMissingError,
    Gathered,
    LibraryMissingError,
    VendorDevice,
    VendorEvent,
)
from gpuproof.devices.nvidia import fields
from gpuproof.devices.nvidia import nvml as nvml_border
from gpuproof.devices.nvidia.handles import (
    NvmlDevice,
    describe,
    find_handle,
    handle_address,
    list_devices,
    list_processes,
    mig_instance,
    text,
    versions,
)
from gpuproof.devices.nvidia.nvml import ask
from gpuproof.devices.sources import Answer, Source, SourceReader
from gpuproof.records.metrics import names
from gpuproof.records.readings import VendorIndex

T = TypeVar("T")
_WHOLE_GPU_ONLY = "not supported by MIG instances: only measured for the whole GPU"


JETSON = (
    "this is a Jetson, whose GPU is part of the SoC: gpuproof cannot read it (use tegrastats), "
    "and measures it without clock, power and temperature readings"
)
_METRIC_IDS = {
    "sm_active_percent": 2,
    "sm_occupancy_percent": 3,
    "tensor_active_percent": 5,
    "dram_active_percent": 10,
}
_XID, _DOUBLE_BIT_ECC = 0x8, 0x2
_MAX_EVENTS_A_POLL = 64


def open_here(sysfs_root: Path) -> NvidiaAdapter:
    """Open NVML; on a Jetson, where NVML lists no GPU, report that it is a Jetson.

    Raises:
        DeviceError: as for `open_adapter`.
    """
    try:
        return open_adapter()
    except (LibraryMissingError, DriverMissingError) as error:
        if is_jetson(sysfs_root):
            raise LibraryMissingError(JETSON) from error
        raise


def is_jetson(sysfs_root: Path) -> bool:
    """Detect a Jetson from the device tree (`compatible`: nvidia,tegra234 or similar), without a driver."""
    try:
        compatible = (sysfs_root / "firmware/devicetree/base/compatible").read_bytes()
    except OSError:
        return False
    return b"nvidia,tegra" in compatible


def open_adapter() -> NvidiaAdapter:
    """Start NVML and list its GPUs.

    Raises:
        LibraryMissingError: nvidia-ml-py or libnvidia-ml.so.1 is missing.
        DriverMissingError: the kernel driver is not loaded, or lists no GPU.
    """
    nvml = nvml_border.load_binding()
    nvml_border.initialise(nvml)
    try:
        adapter = NvidiaAdapter(nvml)
    except nvml.NVMLError as error:
        nvml_border.shut_down(nvml)
        raise nvml_border.device_error(error) from error
    if not adapter.has_devices:
        adapter.close()
        raise DriverMissingError("the NVIDIA driver lists no GPU")
    return adapter


class NvidiaAdapter(DeviceAdapter):
    """The device protocol, implemented with NVML."""

    vendor = "nvidia"
    unknown = "not supported by NVML"

    def __init__(self, nvml: Any) -> None:
        self._nvml = nvml
        self._open = True
        self._versions, self._versions_missing = versions(nvml)
        self._devices = list_devices(nvml)
        self._begin()

    @property
    def has_devices(self) -> bool:
        """Whether NVML lists any GPU."""
        return bool(self._devices)

    def identities(self) -> tuple[VendorDevice, ...]:
        """List whole GPUs in NVML's order, then the MIG instances."""
        return tuple(self._identity(device) for device in self._devices)

    def gather(self, vendor_index: VendorIndex, wanted: tuple[str, ...]) -> Gathered:
        """Read the requested metrics.

        Raises:
            DeviceLostError: the GPU has disappeared.
            DriverMissingError: the driver is no longer available.
        """
        return self._ask(vendor_index, lambda device: self._gather(device, wanted))

    def processes(self, vendor_index: VendorIndex) -> tuple[DeviceProcess, ...]:
        """List compute and graphics processes.

        Raises:
            NotSupportedError: this driver does not list them.
            DeviceLostError: the GPU has disappeared.
        """
        return self._ask(vendor_index, lambda device: list_processes(self._nvml, device.handle))

    def poll_events(self) -> tuple[VendorEvent, ...]:
        """Return the XIDs and uncorrected memory errors that NVML has queued."""
        return self._events.poll()

    def close(self) -> None:
        """Release NVML once."""
        if self._open:
            self._open = False
            nvml_border.shut_down(self._nvml)

    def _ask(self, vendor_index: VendorIndex, question: Callable[[NvmlDevice], T]) -> T:
        """Query NVML; if the driver was reloaded since the last call, restart NVML and query again."""
        device = self._devices[vendor_index]
        try:
            return self._ask_once(device, question)
        except DriverMissingError:
            self._reopen()
            return self._ask_once(device, question)

    def _ask_once(self, device: NvmlDevice, question: Callable[[NvmlDevice], T]) -> T:
        if device.handle is None:
            raise DeviceLostError("the driver no longer lists this GPU")
        return ask(self._nvml, partial(question, device))

    def _reopen(self) -> None:
        nvml_border.initialise(self._nvml)
        for device in self._devices:
            device.handle = find_handle(self._nvml, device)
        self._begin()

    def _begin(self) -> None:
        """Create the state that a driver reload resets: unsupported values, GPM samples, events."""
        self._readers = {device.vendor_index: self._reader(device) for device in self._devices}
        self._events = EventQueue(self._nvml, self._devices)
        self.unheard = self._events.unheard

    def _reader(self, device: NvmlDevice) -> SourceReader:
        gpm = GpmSampler()
        whole = (*fields.SOURCES, Source(metrics=gpm.metrics, ask=gpm.ask))
        return SourceReader(
            whole if device.mig_parent is None else (fields.MEMORY,),
            lambda source: ask(self._nvml, partial(source.ask, self._nvml, device.handle)),
        )

    def _gather(self, device: NvmlDevice, wanted: tuple[str, ...]) -> Gathered:
        values, missing = self._readers[device.vendor_index].give(wanted)
        if device.mig_parent is not None:
            missing = {**dict.fromkeys(wanted, _WHOLE_GPU_ONLY), **missing}
        return values, missing

    def _identity(self, device: NvmlDevice) -> VendorDevice:
        try:
            return self._ask_once(device, self._described)
        except DeviceError as error:
            return VendorDevice(
                vendor_index=device.vendor_index,
                uuid=device.uuid,
                pci_bus_id=None,
                name=f"NVIDIA GPU {device.vendor_index}",
                mig_parent=device.mig_parent,
                unavailable=dict.fromkeys(("uuid", "name", "pci_bus_id", *names(kind="static")), error.cause),
            )

    def _described(self, device: NvmlDevice) -> VendorDevice:
        facts, missing = describe(self._nvml, device.handle)
        whole = device if device.mig_parent is None else self._devices[device.mig_parent]
        pci = self._nvml.nvmlDeviceGetPciInfo(whole.handle)
        if device.mig_parent is not None:
            facts.update(mig_instance(self._nvml, device.handle))
        return VendorDevice(
            vendor_index=device.vendor_index,
            uuid=device.uuid,
            pci_bus_id=f"{pci.domain:04x}:{pci.bus:02x}:{pci.device:02x}.0",
            name=text(self._nvml.nvmlDeviceGetName(device.handle)),
            mig_parent=device.mig_parent,
            static={**self._versions, **facts},
            unavailable={**self._versions_missing, **missing},
        )


class GpmSampler:
    """Two GPM samples of one GPU, used alternately."""

    metrics = tuple(_METRIC_IDS)

    def __init__(self) -> None:
        self._previous: Any = None
        self._spare: Any = None

    def ask(self, nvml: Any, handle: Any) -> Answer:
        """Take a sample and return the means since the last sample."""
        if self._spare is None:
            if self._previous is None and not nvml.nvmlGpmQueryDeviceSupport(handle).isSupportedDevice:
                raise nvml.NVMLError(nvml_border.NOT_SUPPORTED)
            self._spare = nvml.nvmlGpmSampleAlloc()
        nvml.nvmlGpmSampleGet(handle, self._spare)
        begin, end = self._previous, self._spare
        self._previous, self._spare = end, begin
        if begin is None:
            return dict.fromkeys(
                self.metrics,
                DeviceError("needs two readings for a mean between them, and this is the first one"),
            )
        return self._means(nvml, begin, end)

    def _means(self, nvml: Any, begin: Any, end: Any) -> Answer:
        request = nvml.c_nvmlGpmMetricsGet_t()
        request.version = 1
        request.numMetrics = len(_METRIC_IDS)
        request.sample1, request.sample2 = begin, end
        for place, metric_id in enumerate(_METRIC_IDS.values()):
            request.metrics[place].metricId = metric_id
        nvml.nvmlGpmMetricsGet(request)
        answer: Answer = {}
        for place, name in enumerate(_METRIC_IDS):
            result = request.metrics[place]
            code = result.nvmlReturn
            answer[name] = result.value if code == 0 else nvml_border.coded_error(code)
        return answer


class EventQueue:
    """One event set for all GPUs that support events."""

    def __init__(self, nvml: Any, devices: Sequence[NvmlDevice]) -> None:
        self._nvml = nvml
        self._devices = devices
        self.unheard: dict[VendorIndex, str] = {}
        """GPUs and MIG instances for which XIDs are not queued, each with the reason."""
        self._set = self._register()

    def poll(self) -> tuple[VendorEvent, ...]:
        """Return the queued events; nothing if no GPU here supports events.

        Raises:
            DriverMissingError: the driver is no longer available.
        """
        events: list[VendorEvent] = []
        try:
            while self._set and len(events) < _MAX_EVENTS_A_POLL and (data := self._next()) is not None:
                events.append(self._event(data))
        except DeviceError:
            if not events:  # otherwise the next call raises it again: these are no longer in the queue
                raise
        return tuple(events)

    def _next(self) -> Any:
        """Return the next event, or None; a lost GPU raises an error on its next reading."""
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
            raise DeviceError("NVML reported an event for a GPU that it does not list")
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
            self.unheard[device.vendor_index] = "not supported: the driver does not report XIDs for this GPU"
        return bool(wanted)
