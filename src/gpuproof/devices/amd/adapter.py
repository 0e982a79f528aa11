"""AMD GPUs, read through AMD's library or, failing that, from the amdgpu driver's files.

Without the library (no amdsmi package, or a user who may not open the devices), only the files are available,
which need neither ROCm nor privileges. A sleeping card is not woken. Faults, resets and thermal throttling
are events, which the kernel queues for each card after registration. Registering opens /dev/kfd, which
requires the user to be in the `render` group; ROCm then lists the monitor itself as a process, which
`processes` omits. Not tested on AMD hardware.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from gpuproof.devices.amd import kfd
from gpuproof.devices.amd.card import NOT_IN_SYSFS, AmdCard
from gpuproof.devices.amd.library import NO_DATA, SmiLibrary, device_error
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

EVENTS = {
    "VMFAULT": ("vm_fault", "a page fault in a GPU program"),
    "THERMAL_THROTTLE": ("thermal_throttle", "the card is thermally throttled"),
    "GPU_PRE_RESET": ("gpu_pre_reset", "the driver is about to reset the card"),
    "GPU_POST_RESET": ("gpu_post_reset", "the driver has reset the card"),
}
"""The library's name for an event → our name, and its meaning."""
_MOST_EVENTS_A_POLL = 64


def open_adapter(sysfs_root: Path, *, open_library: Callable[[], SmiLibrary] | None = None) -> AmdAdapter:
    """Find the cards bound to the amdgpu driver; without `open_library`, use only the driver's files.

    Raises:
        DriverMissingError: the driver is not loaded, or has no cards.
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
        """Read the requested metrics.

        Raises:
            DeviceLostError: the card has disappeared.
        """
        return self._cards[vendor_index].read(wanted)

    def processes(self, vendor_index: VendorIndex) -> tuple[DeviceProcess, ...]:
        """List ROCm's processes, except this one, which ROCm lists because it listens for events.

        Raises:
            DeviceError: neither ROCm's kernel driver nor the library lists them.
        """
        card = self._cards[vendor_index]
        if card.node is None:
            return card.library_processes()
        listed = kfd.list_processes(self._root, card.node)
        return tuple(process for process in listed if process.pid != os.getpid())

    def poll_events(self) -> tuple[VendorEvent, ...]:
        """Return the faults, resets and thermal throttling events that AMD's library has queued.

        Raises:
            NotSupportedError: the library is not available.
        """
        if self._events is None:
            why = f" ({self._library_missing})" if self._library_missing else ""
            raise NotSupportedError(f"amdgpu only announces events through amdsmi or the kernel log{why}")
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
        """Open the library; this opens every card, and so would wake a sleeping one."""
        if open_library is None:
            return None, ""
        if any(card.files.is_asleep() for card in self._cards.values()):
            return None, "not opened: a card is asleep, and AMD's library would wake it"
        try:
            return open_library(), ""
        except DeviceError as error:
            return None, error.cause


class SmiEvents:
    """The event queues of all cards that provide events."""

    def __init__(self, library: SmiLibrary, cards: Mapping[str, VendorIndex]) -> None:
        self._library = library
        self.unheard: dict[VendorIndex, str] = {}
        """Cards for which events are not queued, each with the reason."""
        self._readers: dict[int, tuple[VendorIndex, Any]] = {}
        for address, vendor_index in cards.items():
            self._register(library.handles[address], vendor_index)

    def poll(self) -> tuple[VendorEvent, ...]:
        """Fetch the queued events; return nothing if no card here provides events.

        Raises:
            DeviceError: the library cannot provide events at the moment.
        """
        if not self._readers:
            return ()
        reader = next(iter(self._readers.values()))[1]  # one call reads the queues of all cards
        smi = self._library.amdsmi
        try:
            announced = reader.read(0, num_elem=_MOST_EVENTS_A_POLL)
        except smi.AmdSmiLibraryException as error:
            if error.get_error_code() == NO_DATA:
                return ()
            raise device_error(error) from error
        return tuple(self._event(event) for event in announced if event["event"] in EVENTS)

    def close(self) -> None:
        """Release the queues; if the library has already released them, that is not an error."""
        for _, reader in self._readers.values():
            with contextlib.suppress(DeviceError):
                self._library.ask(reader.stop)
        self._readers.clear()

    def _register(self, handle: Any, vendor_index: VendorIndex) -> None:
        smi = self._library.amdsmi
        try:
            kinds = [getattr(smi.AmdSmiEvtNotificationType, name) for name in EVENTS]
            reader = self._library.ask(lambda: smi.AmdSmiEventReader(handle, kinds))
        except DeviceError as error:
            self.unheard[vendor_index] = error.cause
            return
        self._readers[handle.value] = (vendor_index, reader)

    def _event(self, event: dict[str, Any]) -> VendorEvent:
        reader = self._readers.get(event["processor_handle"].value)
        if reader is None:
            raise DeviceError("AMD's library announced an event for a card that it does not list")
        name, meaning = EVENTS[event["event"]]
        message = event["message"].strip()
        return VendorEvent(
            vendor_index=reader[0],
            event=name,
            code=None,
            message=f"{meaning}: {message}" if message else meaning,
        )
