"""Which drivers of this host answer, and which are still being opened?

Each vendor's driver is opened on a thread of its own: one that hangs holds up neither the others nor the
caller. Until it answers, the devices that the PCI bus lists of that vendor stand in for its own: they keep
the places that these will have, and answer every question with "not answering" and since when. `late` takes
in what was opened meanwhile, and asks again for drivers that were not loaded.
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
"""Between two questions for a driver that was not loaded."""
SILENT_NAME = "GPU that does not answer"
_PCI_VENDORS = {"0x10de": "nvidia", "0x1002": "amd", "0x8086": "intel"}
_PCI_CLASSES = ("0x03", "0x12")
"""Display controllers, and processing accelerators (AMD's Instinct cards)."""


def since(unix_s: float) -> str:
    """Say since when something does not answer.

    >>> since(0.0)
    'not answering since 00:00:00 UTC'
    """
    return f"not answering since {time.strftime('%H:%M:%S', time.gmtime(unix_s))} UTC"


def on_the_bus(vendor: str, sysfs_root: Path) -> list[VendorDevice]:
    """List a vendor's GPUs as the kernel found them, which takes no driver: by PCI address alone."""
    devices: list[VendorDevice] = []
    for folder in sorted((sysfs_root / "bus/pci/devices").glob("*")):
        try:
            vendor_id, kind = ((folder / name).read_text().strip() for name in ("vendor", "class"))
        except OSError:
            continue  # gone since it was listed
        if _PCI_VENDORS.get(vendor_id) == vendor and kind.startswith(_PCI_CLASSES):
            devices.append(silent_device(len(devices), folder.name.lower()))
    return devices


def silent_device(index: int, pci_bus_id: str) -> VendorDevice:
    """Describe a device of which only its place is known."""
    return VendorDevice(vendor_index=VendorIndex(index), uuid=None, pci_bus_id=pci_bus_id, name=SILENT_NAME)


class SilentAdapter(DeviceAdapter):
    """Stands in for a driver that has not answered yet."""

    unknown = "its driver does not answer"

    def __init__(self, vendor: Vendor, cause: str) -> None:
        self.vendor = vendor
        self._cause = cause

    def identities(self) -> tuple[VendorDevice, ...]:
        """List nothing: the bus did."""
        return ()

    def gather(self, vendor_index: VendorIndex, wanted: tuple[str, ...]) -> Gathered:
        """Refuse.

        Raises:
            DriverSilentError: always.
        """
        raise DriverSilentError(self._cause)

    def processes(self, vendor_index: VendorIndex) -> tuple[DeviceProcess, ...]:
        """Refuse, as `gather` does."""
        raise DriverSilentError(self._cause)

    def poll_events(self) -> tuple[VendorEvent, ...]:
        """Announce nothing."""
        return ()

    def close(self) -> None:
        """Leave the driver to the thread that opens it."""


class _DriverOpening:
    """One driver on its way."""

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
        """Return the devices, or the state of the driver; raise what is neither."""
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
        """Vendor → why it has no device here, or since when its driver does not answer."""
        self._begun_s: dict[Vendor, float] = {}

    def wait(self, patience_s: float) -> None:
        """Wait for all drivers, at most so long together; for those that do not answer the bus stands in.

        Raises:
            UsageError: a variable that names devices cannot be read.
        """
        end_s = time.monotonic() + patience_s
        for opening in self._openings.values():
            opening.ended.wait(max(0.0, end_s - time.monotonic()))
        self._take()
        for vendor, opening in self._openings.items():
            cause = f"{since(opening.begun_unix_s)}: opening its driver has not returned"
            self.absent[vendor] = cause
            adapter = SilentAdapter(vendor, cause)
            self.listed[vendor] = [(adapter, device) for device in self._on_bus(vendor)]

    def late(self) -> bool:
        """Take in drivers that answered since the last call; tell whether there are any devices of them."""
        now_s = time.monotonic()
        for vendor, begun_s in list(self._begun_s.items()):
            if now_s - begun_s >= ASK_AGAIN_S:
                del self._begun_s[vendor]
                self._openings[vendor] = _DriverOpening(self._openers[vendor])
        return self._take()

    def _take(self) -> bool:
        """Take the devices of the openings that have ended."""
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
