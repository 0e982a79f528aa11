"""AMD GPUs, read through AMD's library, and from the files of the amdgpu driver for what it does not give.

Without the library (the package amdsmi, or a user who may not open the devices) the files are all there is:
they need no ROCm and no rights. A card that is asleep is left asleep.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

from gpuproof.devices.amd import kfd
from gpuproof.devices.amd.card import NOT_IN_SYSFS, AmdCard
from gpuproof.devices.amd.events import SmiEvents
from gpuproof.devices.amd.library import SmiLibrary
from gpuproof.devices.base import (
    DeviceAdapter,
    DeviceError,
    DeviceProcess,
    DriverMissingError,
    Gathered,
    NotSupportedError,
    VendorDevice,
    VendorEvent,
)
from gpuproof.devices.sysfs import Card, driver_version, find_cards
from gpuproof.records.readings import VendorIndex


def open_adapter(sysfs_root: Path, *, open_library: Callable[[], SmiLibrary] | None = None) -> AmdAdapter:
    """Find the cards that the amdgpu driver has bound; without `open_library` their files are all there is.

    Raises:
        DriverMissingError: the driver is not loaded, or has no card.
    """
    cards = find_cards(sysfs_root, {"amdgpu"})
    if not cards:
        loaded = (sysfs_root / "module/amdgpu").exists()
        raise DriverMissingError("amdgpu has no card" if loaded else "the amdgpu driver is not loaded")
    return AmdAdapter(cards, sysfs_root, open_library)


class AmdAdapter(DeviceAdapter):
    """AMD's library and the amdgpu driver's files behind the device protocol."""

    vendor = "amd"
    unknown = NOT_IN_SYSFS

    def __init__(
        self, cards: tuple[Card, ...], root: Path, open_library: Callable[[], SmiLibrary] | None
    ) -> None:
        nodes = kfd.find_nodes(root)
        self._root = root
        self._cards = {card.vendor_index: AmdCard(card, nodes.get(card.pci_bus_id)) for card in cards}
        self._library, self._library_missing = self._opened(open_library)
        self._events: SmiEvents | None = None
        for card in self._cards.values():
            card.attach(self._library, otherwise=self._library_missing)
        if self._library is not None:
            listed = {c.pci_bus_id: index for index, c in self._cards.items() if c.library is not None}
            self._events = SmiEvents(self._library, listed)
            unlisted = dict.fromkeys(self._cards.keys() - listed.values(), "AMD's library does not list it")
            self.unheard = {**unlisted, **self._events.unheard}

    def identities(self) -> tuple[VendorDevice, ...]:
        """List the cards by DRM card number."""
        version = driver_version(self._root, "amdgpu")
        return tuple(card.describe(version) for card in self._cards.values())

    def gather(self, vendor_index: VendorIndex, wanted: tuple[str, ...]) -> Gathered:
        """Read the wanted metrics.

        Raises:
            DeviceLostError: the card is gone.
        """
        return self._cards[vendor_index].read(wanted)

    def processes(self, vendor_index: VendorIndex) -> tuple[DeviceProcess, ...]:
        """List ROCm's processes, without this one: listening for events makes ROCm list it too.

        Raises:
            DeviceError: neither ROCm's kernel side nor the library lists them.
        """
        card = self._cards[vendor_index]
        if card.node is None:
            return card.library_processes()
        listed = kfd.list_processes(self._root, card.node)
        return tuple(process for process in listed if process.pid != os.getpid())

    def poll_events(self) -> tuple[VendorEvent, ...]:
        """Return the faults, resets and thermal throttling that AMD's library holds for us.

        Raises:
            NotSupportedError: there is no library.
        """
        if self._events is None:
            why = f" ({self._library_missing})" if self._library_missing else ""
            raise NotSupportedError(f"amdgpu announces events through amdsmi or the kernel log only{why}")
        return self._events.poll()

    def close(self) -> None:
        """Close the files and release the library."""
        for card in self._cards.values():
            card.files.close()
        if self._events is not None:
            self._events.close()
        if self._library is not None:
            self._library.close()

    def _opened(self, open_library: Callable[[], SmiLibrary] | None) -> tuple[SmiLibrary | None, str]:
        """Open the library, which opens every card and so would wake one that is asleep."""
        if open_library is None:
            return None, ""
        if any(card.files.is_asleep() for card in self._cards.values()):
            return None, "not opened: a card is asleep, and AMD's library would wake it"
        try:
            return open_library(), ""
        except DeviceError as error:
            return None, error.cause
