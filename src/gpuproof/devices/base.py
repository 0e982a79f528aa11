"""What a device adapter is, what it returns, and which errors it raises.

An adapter reads one vendor's driver. It knows its devices by `VendorIndex` only; `discovery` orders the
devices of all adapters by PCI address, and `guard` runs their calls so that a hanging one stops its own
device only. A sampler uses `discovery.open_devices`, never an adapter. Every metric named in
`gpuproof.records.metrics` is either in a readout's values or in its `unavailable` map with a reason.
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
from gpuproof.records.readings import DeviceReading, Lane, Vendor, VendorIndex

THROTTLE_REASONS = "throttle_reasons"
"""What holds a device back, asked for beside metrics."""
Gathered = tuple[dict[str, Any], dict[str, str]]
"""Metric → value, and metric → why there is none."""


class DeviceError(EnvironmentUnfitError):
    """A driver, a library or a device does not give what was asked of it."""


class LibraryMissingError(DeviceError):
    """The vendor's library, or its Python binding, is not installed."""


class DriverMissingError(DeviceError):
    """The kernel driver is not loaded, or has no device."""


class DeviceLostError(DeviceError):
    """The device fell off the bus, was reset, or its files are gone."""


class DeviceHungError(DeviceError):
    """A driver call has not returned in the time that it was given."""


class DriverSilentError(DeviceError):
    """The driver is still being opened: it wakes its devices, or hangs."""


class NotSupportedError(DeviceError):
    """This device or driver does not offer what was asked, now or ever."""


@dataclass(frozen=True, slots=True, kw_only=True)
class VendorDevice:
    """A device as its adapter lists it, before it has a place among all devices of the host."""

    vendor_index: VendorIndex
    uuid: str | None
    pci_bus_id: str | None
    """`domain:bus:device.function` in lower case with a domain of four digits or more: 0000:65:00.0."""
    name: str
    mig_parent: VendorIndex | None = None
    """The GPU that this MIG instance is a part of; None for a whole GPU."""
    static: Mapping[str, Any] = field(default_factory=dict)
    unavailable: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Readout:
    """One reading and, for each metric of the lane that is not in it, why (`throttle_reasons` among them)."""

    reading: DeviceReading
    unavailable: Mapping[str, str]


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceProcess:
    """A process that holds a context on a device."""

    pid: int
    mem_used_bytes: int | None
    """None where the driver does not say (containers, WDDM, MIG without rights)."""
    kind: str
    """`compute` or `graphics`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class VendorEvent:
    """Something that a driver announced about one of an adapter's devices."""

    vendor_index: VendorIndex
    event: str
    code: int | None
    message: str


class DeviceAdapter(ABC):
    """One vendor's driver. Opened by its module's `open_adapter`, which raises a `DeviceError` if it cannot.

    Calls may block as long as the driver does; `guard` is what bounds them.
    """

    vendor: Vendor
    """Whose devices these are."""
    unknown: ClassVar[str]
    """Why a metric is missing that this vendor's driver has nowhere."""
    unheard: Mapping[VendorIndex, str] = MappingProxyType({})
    """Devices whose announcements `poll_events` cannot hear, each with the reason."""

    @abstractmethod
    def identities(self) -> tuple[VendorDevice, ...]:
        """List the devices with their static facts, in the vendor's order."""

    @abstractmethod
    def gather(self, vendor_index: VendorIndex, wanted: tuple[str, ...]) -> Gathered:
        """Read the wanted metrics of one device now, `throttle_reasons` (a tuple of names) among them.

        Raises:
            DeviceLostError: the device is gone; the other devices are not affected.
            DriverMissingError: the driver was unloaded. A later call tries again.
        """

    @abstractmethod
    def processes(self, vendor_index: VendorIndex) -> tuple[DeviceProcess, ...]:
        """List the processes on one device.

        Raises:
            NotSupportedError: this driver does not list them.
            DeviceLostError: as `gather`.
        """

    @abstractmethod
    def poll_events(self) -> tuple[VendorEvent, ...]:
        """Return what the driver announced since the last call, without waiting for more."""

    @abstractmethod
    def close(self) -> None:
        """Release the driver. Closing twice is harmless."""

    def read(self, vendor_index: VendorIndex, *, lane: Lane) -> Readout:
        """Read one lane. The slow lane carries the slow metrics only, not the fast ones again.

        Raises:
            DeviceError: as `gather`.
        """
        reasons = (THROTTLE_REASONS,) if lane == "fast" else ()
        return self._readout(vendor_index, (*names(lane=lane), *reasons))

    def counters(self, vendor_index: VendorIndex) -> Readout:
        """Read every running total of one device, for the two ends of a recording.

        Raises:
            DeviceError: as `gather`.
        """
        return self._readout(vendor_index, names(kind="counter"))

    def _readout(self, vendor_index: VendorIndex, wanted: tuple[str, ...]) -> Readout:
        """Account for every wanted metric; an H200's NVML gives nan as a mean between samples too near."""
        values, missing = self.gather(vendor_index, wanted)
        for name in [n for n, value in values.items() if isinstance(value, float) and not isfinite(value)]:
            missing[name] = f"the driver gave {values.pop(name)}, which is no number"
        unavailable = {name: missing.get(name, self.unknown) for name in wanted if name not in values}
        reasons = values.pop(THROTTLE_REASONS, None)
        return Readout(
            reading=DeviceReading(values=values, throttle_reasons=reasons), unavailable=unavailable
        )
