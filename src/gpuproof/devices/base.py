"""The protocol of a device adapter, with the types that it returns and the errors that it raises.

An adapter reads one vendor's driver. It identifies its devices only by `VendorIndex`; `discovery` orders the
devices of all adapters by PCI address, and `guard` runs their calls so that a hanging call only affects its
own device. A sampler uses `discovery.open_devices`, never an adapter directly. Every metric in
`gpuproof.records.metrics` is either in a readout's values or, with a reason, in its `unavailable` map.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, field
from math import isfinite
from types import MappingProxyType
from typing import Any, ClassVar

from gpuproof.base.errors import EnvironmentUnfitError
from gpuproof.records.metrics import names
from gpuproof.records.readings import UNSUPPORTED, DeviceReading, Lane, Vendor, VendorIndex

THROTTLE_REASONS = "throttle_reasons"
"""Name under which throttle reasons are queried, in addition to metrics."""
Gathered = tuple[dict[str, Any], dict[str, str]]
"""Metric → value, and metric → reason why it is missing."""


class DeviceError(EnvironmentUnfitError):
    """A driver, a library or a device did not provide what was requested."""


class LibraryMissingError(DeviceError):
    """The vendor's library, or its Python binding, is not installed."""


class DriverMissingError(DeviceError):
    """The kernel driver is not loaded, or has no device."""


class DeviceLostError(DeviceError):
    """The device fell off the bus, was reset, or no longer has its files."""


class DeviceHungError(DeviceError):
    """A driver call has not returned within its deadline."""


class DriverSilentError(DeviceError):
    """The driver is still being opened: either it is waking its devices, or it hangs."""


class NotSupportedError(DeviceError):
    """The device or driver does not support the request, and never will; the cause says so first."""

    def __init__(self, cause: str, *, place: str | None = None, next_step: str | None = None) -> None:
        cause = cause if cause.startswith(UNSUPPORTED) else f"{UNSUPPORTED}: {cause}"
        super().__init__(cause, place=place, next_step=next_step)


@dataclass(frozen=True, slots=True, kw_only=True)
class VendorDevice:
    """A device as listed by its adapter, before it is ordered among all devices of the host."""

    vendor_index: VendorIndex
    uuid: str | None
    pci_bus_id: str | None
    """PCI address as `domain:bus:device.function`, in lower case, with a domain of four digits or more:
    0000:65:00.0."""
    name: str
    mig_parent: VendorIndex | None = None
    """The GPU that this MIG instance belongs to; None for a whole GPU."""
    static: Mapping[str, Any] = field(default_factory=dict)
    unavailable: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Readout:
    """One reading, with a reason for each metric missing from its lane (including `throttle_reasons`)."""

    reading: DeviceReading
    unavailable: Mapping[str, str]


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceProcess:
    """A process with a context on a device."""

    pid: int
    mem_used_bytes: int | None
    """Memory in use on the device; None if the driver does not report it (containers, WDDM, MIG without
    privileges)."""
    kind: str
    """Kind of context: `compute` or `graphics`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class VendorEvent:
    """An event announced by a driver for one of an adapter's devices."""

    vendor_index: VendorIndex
    event: str
    code: int | None
    message: str


class DeviceAdapter(ABC):
    """One vendor's driver. Opened by its module's `open_adapter`, which raises a `DeviceError` on failure.

    A call may block for as long as the driver does; `guard` limits the time.
    """

    vendor: Vendor
    """The vendor of these devices."""
    unknown: ClassVar[str]
    """The reason given for a metric that this vendor's driver never provides."""
    unheard: Mapping[VendorIndex, str] = MappingProxyType({})
    """Devices for which `poll_events` cannot receive events, each with the reason."""

    @abstractmethod
    def identities(self) -> tuple[VendorDevice, ...]:
        """List the devices with their static facts, in the vendor's order."""

    @abstractmethod
    def gather(self, vendor_index: VendorIndex, wanted: tuple[str, ...]) -> Gathered:
        """Read the requested metrics of one device now; `throttle_reasons` is a tuple of names.

        Raises:
            DeviceLostError: the device has disappeared; the other devices are not affected.
            DriverMissingError: the driver was unloaded. Later calls try again.
        """

    @abstractmethod
    def processes(self, vendor_index: VendorIndex) -> tuple[DeviceProcess, ...]:
        """List the processes on one device.

        Raises:
            NotSupportedError: this driver does not list them.
            DeviceLostError: as for `gather`.
        """

    @abstractmethod
    def poll_events(self) -> tuple[VendorEvent, ...]:
        """Return the driver's events since the last call, without waiting."""

    @abstractmethod
    def close(self) -> None:
        """Release the driver. Closing twice is harmless."""

    def read(self, vendor_index: VendorIndex, *, lane: Lane) -> Readout:
        """Read one lane. The slow lane contains only the slow metrics, not the fast ones again.

        Raises:
            DeviceError: as for `gather`.
        """
        reasons = (THROTTLE_REASONS,) if lane == "fast" else ()
        return self._readout(vendor_index, (*names(lane=lane), *reasons))

    def counters(self, vendor_index: VendorIndex) -> Readout:
        """Read every running total of one device, at the start or end of a recording.

        Raises:
            DeviceError: as for `gather`.
        """
        return self._readout(vendor_index, names(kind="counter"))

    def _readout(self, vendor_index: VendorIndex, wanted: tuple[str, ...]) -> Readout:
        """Account for every requested metric; an H200's NVML returns nan if samples are too frequent."""
        values, missing = self.gather(vendor_index, wanted)
        for name in [n for n, value in values.items() if isinstance(value, float) and not isfinite(value)]:
            missing[name] = f"the driver returned {values.pop(name)}, which is not a number"
        unavailable = {name: missing.get(name, self.unknown) for name in wanted if name not in values}
        reasons = values.pop(THROTTLE_REASONS, None)
        return Readout(
            reading=DeviceReading(values=values, throttle_reasons=reasons), unavailable=unavailable
        )
