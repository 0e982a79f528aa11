"""Read a graphics card's files under /sys: cards by driver, cached descriptors, clear errors.

A sysfs file is reread through the same descriptor, which takes a tenth of the time needed to open it. The
result is text or a number; a value that cannot be read raises a `DeviceError` with the file's name. The root
is a parameter.
"""

from __future__ import annotations

import errno
import os
import re
from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path

from gpuproof.devices.base import DeviceError, DeviceLostError, NotSupportedError
from gpuproof.records.readings import VendorIndex

_READ_BYTES = 8192
_GONE = "the card is gone: its directory in /sys has disappeared"
_RIGHTS = {errno.EACCES, errno.EPERM}


@dataclass(frozen=True, slots=True, kw_only=True)
class Card:
    """A DRM card bound to one of the drivers of interest."""

    vendor_index: VendorIndex
    """The N in cardN, which need not start at 0."""
    driver: str
    card_dir: Path
    device_dir: Path
    pci_bus_id: str


def find_cards(root: Path, drivers: Collection[str]) -> tuple[Card, ...]:
    """List the PCI cards that use these drivers, sorted by card number."""
    cards = [
        _card(path, drivers)
        for path in sorted((root / "class/drm").glob("card*"))
        if re.fullmatch(r"card\d+", path.name)
    ]
    return tuple(sorted((card for card in cards if card is not None), key=lambda card: card.vendor_index))


def _card(path: Path, drivers: Collection[str]) -> Card | None:
    device = path / "device"
    driver = (device / "driver").resolve().name
    slot = re.search(r"^PCI_SLOT_NAME=(.+)$", _text_or_empty(device / "uevent"), re.MULTILINE)
    if driver not in drivers or slot is None:
        return None
    return Card(
        vendor_index=VendorIndex(int(path.name.removeprefix("card"))),
        driver=driver,
        card_dir=path,
        device_dir=device,
        pci_bus_id=slot.group(1).lower(),
    )


def _text_or_empty(path: Path) -> str:
    return path.read_text() if path.is_file() else ""


class SysfsFiles:
    """The files below one directory, each opened only once."""

    def __init__(self, base: Path) -> None:
        self.base = base
        self._descriptors: dict[str, int] = {}

    def require_card(self) -> None:
        """Check that the card still exists, which a cached descriptor would not reveal.

        Raises:
            DeviceLostError: the card's directory has disappeared.
        """
        if not self.base.exists():
            raise DeviceLostError(_GONE)

    def read(self, name: str) -> bytes:
        """Read a file from the start.

        Raises:
            NotSupportedError: this card has no such file.
            DeviceLostError: the whole card has disappeared.
            DeviceError: the file exists, but cannot be read now.
        """
        try:
            return self._pread(name)
        except OSError as error:
            if error.errno == errno.ENODEV and name in self._descriptors:
                return self._reopened(name)
            raise self._explained(name, error) from error

    def text(self, name: str) -> str:
        """Read a file as one stripped string; raises the same errors as `read`."""
        return self.read(name).decode(errors="replace").strip()

    def number(self, name: str, scale: float = 1.0) -> float:
        """Read a decimal number in our unit; raises like `read`, and also if it is not a number."""
        text = self.text(name)
        try:
            return int(text) * scale
        except ValueError as error:
            raise DeviceError(f"{name} contains {text!r}, not a number") from error

    def has(self, name: str) -> bool:
        """Return whether the card has this file."""
        return (self.base / name).exists()

    def glob(self, pattern: str) -> list[str]:
        """List the matching files, sorted and relative to the base."""
        return sorted(str(path.relative_to(self.base)) for path in self.base.glob(pattern))

    def close(self) -> None:
        """Close every descriptor."""
        for descriptor in self._descriptors.values():
            os.close(descriptor)
        self._descriptors.clear()

    def _pread(self, name: str) -> bytes:
        if name not in self._descriptors:
            self._descriptors[name] = os.open(self.base / name, os.O_RDONLY | os.O_CLOEXEC)
        return os.pread(self._descriptors[name], _READ_BYTES, 0)

    def _reopened(self, name: str) -> bytes:
        """Reopen the file: after a driver reload, reading the old descriptor always fails with ENODEV."""
        os.close(self._descriptors.pop(name))
        try:
            return self._pread(name)
        except OSError as error:
            raise self._explained(name, error) from error

    def _explained(self, name: str, error: OSError) -> DeviceError:
        if not self.base.exists():
            return DeviceLostError(_GONE)
        if error.errno == errno.ENOENT:
            return NotSupportedError(f"this card or kernel has no {name}")
        if error.errno in _RIGHTS:
            return DeviceError(f"this user may not read {name}, or the card is suspended")
        return DeviceError(f"{name}: {os.strerror(error.errno or 0)}")


def driver_version(root: Path, module: str) -> dict[str, str]:
    """Read the version of a driver's module; in-tree modules do not have one."""
    version = _text_or_empty(root / "module" / module / "version").strip()
    return {"driver_version": version} if version else {}


class Sensors:
    """The hwmon channels of a card, looked up by label and never by number."""

    def __init__(self, files: SysfsFiles) -> None:
        directories = files.glob("hwmon/hwmon*")
        self._files = files
        self.prefix = f"{directories[0]}/" if directories else None

    def by_label(self, kind: str) -> dict[str, str]:
        """Map the label of each `kind` channel (temp, freq, energy, power) to its path without suffix."""
        paths = {}
        for name in self._files.glob(f"{self.prefix}{kind}*_label") if self.prefix else []:
            paths[self._files.text(name)] = name.removesuffix("_label")
        return paths

    def path(self, name: str) -> str:
        """Return the path to a file in the card's hwmon directory.

        Raises:
            NotSupportedError: the card has no hwmon directory.
        """
        if self.prefix is None:
            raise NotSupportedError("this card or kernel has no hwmon directory")
        return self.prefix + name


_PCIE_GENERATIONS = {2.5: 1, 5.0: 2, 8.0: 3, 16.0: 4, 32.0: 5, 64.0: 6}


def pcie_generation(files: SysfsFiles, name: str) -> int:
    """Parse a link speed such as `16.0 GT/s PCIe` into a generation; raises like `SysfsFiles.read`."""
    text = files.text(name)
    speed = re.match(r"[\d.]+", text)
    generation = pcie_generation_at(float(speed.group())) if speed else None
    if generation is None:
        raise DeviceError(f"{name} contains {text!r}, not a known link speed")
    return generation


def pcie_generation_at(gigatransfers_per_s: float) -> int | None:
    """Return the PCIe generation with this link speed; None if there is none."""
    return _PCIE_GENERATIONS.get(gigatransfers_per_s)
