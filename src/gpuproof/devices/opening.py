"""Which drivers of this host respond, and which are still being opened?

Each vendor's driver is opened in a separate thread, so a hanging one blocks neither the others nor the
caller. Until it responds, the vendor's devices listed on the PCI bus act as placeholders. They reserve the
indices of the real devices, and answer every query with "not answering" and the time at which opening their
driver began. `late` adds drivers that have responded in the meantime, and retries drivers that were not
loaded.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping
from pathlib import Path

from gpuproof.devices.base import (
    DeviceAdapter,
    DeviceError,
    DeviceProcess,
    DriverMissingError,
    DriverSilentError,
    Gathered,
    VendorDevice,
    VendorEvent,
)
from gpuproof.records.readings import Vendor, VendorIndex

Listed = tuple[DeviceAdapter, VendorDevice]
Opener = Callable[[], DeviceAdapter]

ASK_AGAIN_S = 30.0
"""Interval between attempts to open a driver that was not loaded."""
SILENT_NAME = "GPU that does not answer"
_PCI_VENDORS = {"0x10de": "nvidia", "0x1002": "amd", "0x8086": "intel"}
_PCI_CLASSES = ("0x03", "0x12")
"""PCI classes of display controllers and of processing accelerators (AMD's Instinct cards)."""


def since(unix_s: float) -> str:
    """Return a text that says since when something has not responded.

    >>> since(0.0)
    'not answering since 00:00:00 UTC'
    """
    return f"not answering since {time.strftime('%H:%M:%S', time.gmtime(unix_s))} UTC"


def on_the_bus(vendor: str, sysfs_root: Path) -> list[VendorDevice]:
    """List a vendor's GPUs as the kernel enumerates them, without a driver: only their PCI addresses."""
    devices: list[VendorDevice] = []
    for folder in sorted((sysfs_root / "bus/pci/devices").glob("*")):
        try:
            vendor_id, kind = ((folder / name).read_text().strip() for name in ("vendor", "class"))
        except OSError:
            continue  # disappeared since the directory was listed
        if _PCI_VENDORS.get(vendor_id) == vendor and kind.startswith(_PCI_CLASSES):
            devices.append(silent_device(len(devices), folder.name.lower()))
    return devices


def silent_device(index: int, pci_bus_id: str) -> VendorDevice:
    """Describe a device for which only the index is available."""
    return VendorDevice(vendor_index=VendorIndex(index), uuid=None, pci_bus_id=pci_bus_id, name=SILENT_NAME)


class SilentAdapter(DeviceAdapter):
    """Placeholder for a driver that has not responded yet."""

    unknown = "its driver does not respond"

    def __init__(self, vendor: Vendor, cause: str) -> None:
        self.vendor = vendor
        self._cause = cause

    def identities(self) -> tuple[VendorDevice, ...]:
        """List nothing: the devices were already listed from the bus."""
        return ()

    def gather(self, vendor_index: VendorIndex, wanted: tuple[str, ...]) -> Gathered:
        """Refuse.

        Raises:
            DriverSilentError: always.
        """
        raise DriverSilentError(self._cause)

    def processes(self, vendor_index: VendorIndex) -> tuple[DeviceProcess, ...]:
        """Raise an error, like `gather`."""
        raise DriverSilentError(self._cause)

    def poll_events(self) -> tuple[VendorEvent, ...]:
        """Report no events."""
        return ()

    def close(self) -> None:
        """Do nothing: the driver is left to the thread that is opening it."""


class _DriverOpening:
    """A driver that is being opened."""

    def __init__(self, opener: Opener) -> None:
        self.begun_unix_s, self.begun_s = time.time(), time.monotonic()
        self.ended = threading.Event()
        self._opener = opener
        self._outcome: list[Listed] | BaseException = []
        threading.Thread(target=self._open, daemon=True, name="gpuproof-opening").start()

    def _open(self) -> None:
        try:
            adapter = self._opener()
            self._outcome = [(adapter, device) for device in adapter.identities()]
        except BaseException as error:  # noqa: BLE001  # handed to the caller, who raises it
            self._outcome = error
        self.ended.set()

    def outcome(self) -> list[Listed] | DeviceError:
        """Return the devices, or why the driver has none; raise any other error."""
        if isinstance(self._outcome, BaseException) and not isinstance(self._outcome, DeviceError):
            raise self._outcome
        return self._outcome


class Drivers:
    """The drivers of a host, by vendor."""

    def __init__(
        self, openers: Mapping[Vendor, Opener], *, on_bus: Callable[[Vendor], list[VendorDevice]]
    ) -> None:
        self._openers = dict(openers)
        self._on_bus = on_bus
        self._openings = {vendor: _DriverOpening(opener) for vendor, opener in openers.items()}
        self.listed: dict[Vendor, list[Listed]] = {}
        self.absent: dict[str, str] = {}
        """Vendor → why it has no device here, or how long its driver has not responded."""
        self._begun_s: dict[Vendor, float] = {}

    def wait(self, patience_s: float) -> None:
        """Wait for all drivers up to a shared deadline; silent drivers' devices are listed from the bus.

        Raises:
            UsageError: a variable that specifies devices cannot be parsed.
        """
        end_s = time.monotonic() + patience_s
        for opening in self._openings.values():
            opening.ended.wait(max(0.0, end_s - time.monotonic()))
        self._take()
        for vendor, opening in self._openings.items():
            cause = f"{since(opening.begun_unix_s)}: the call to open its driver has not returned"
            self.absent[vendor] = cause
            adapter = SilentAdapter(vendor, cause)
            self.listed[vendor] = [(adapter, device) for device in self._on_bus(vendor)]

    def late(self) -> bool:
        """Add drivers that have responded since the last call; return whether they have any devices."""
        now_s = time.monotonic()
        for vendor, begun_s in list(self._begun_s.items()):
            if now_s - begun_s >= ASK_AGAIN_S:
                del self._begun_s[vendor]
                self._openings[vendor] = _DriverOpening(self._openers[vendor])
        return self._take()

    def _take(self) -> bool:
        """Take over the devices of drivers that have been opened."""
        ended = [vendor for vendor, opening in self._openings.items() if opening.ended.is_set()]
        has_devices = False
        for vendor in ended:
            opening = self._openings.pop(vendor)
            devices = opening.outcome()
            if isinstance(devices, DeviceError):
                self.absent[vendor] = devices.cause
                if isinstance(devices, DriverMissingError):
                    self._begun_s[vendor] = opening.begun_s
                continue
            self.absent.pop(vendor, None)
            self.listed[vendor] = devices
            has_devices = has_devices or bool(devices)
        return has_devices
