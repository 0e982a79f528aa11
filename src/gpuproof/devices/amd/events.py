"""What the amdgpu driver announces through AMD's library: faults, resets and thermal throttling.

The kernel queues events for each card from its registration on; `poll` takes them out without waiting.
Registering opens /dev/kfd, for which a user must be in the `render` group; it makes ROCm list the monitor
itself as a process, which `processes` leaves out. Not tried on AMD hardware.
"""

from __future__ import annotations

import contextlib
from collections.abc import Mapping
from typing import Any

from gpuproof.devices.amd.library import NO_DATA, SmiLibrary, device_error
from gpuproof.devices.base import DeviceError, VendorEvent
from gpuproof.records.readings import VendorIndex

EVENTS = {
    "VMFAULT": ("vm_fault", "a page fault of a GPU program"),
    "THERMAL_THROTTLE": ("thermal_throttle", "the card slows itself down for heat"),
    "GPU_PRE_RESET": ("gpu_pre_reset", "the driver is about to reset the card"),
    "GPU_POST_RESET": ("gpu_post_reset", "the driver has reset the card"),
}
"""The library's name of an event → ours, and what it means."""
_MOST_EVENTS_A_POLL = 64


class SmiEvents:
    """The events of every card that offers them."""

    def __init__(self, library: SmiLibrary, cards: Mapping[str, VendorIndex]) -> None:
        self._library = library
        self.unheard: dict[VendorIndex, str] = {}
        """Cards whose events are not queued, each with the reason."""
        self._readers: dict[int, tuple[VendorIndex, Any]] = {}
        for address, vendor_index in cards.items():
            self._register(library.handles[address], vendor_index)

    def poll(self) -> tuple[VendorEvent, ...]:
        """Take out what is queued; nothing where no card here announces events.

        Raises:
            DeviceError: the library gives no events now.
        """
        if not self._readers:
            return ()
        reader = next(iter(self._readers.values()))[1]  # one reads the queues of all
        smi = self._library.amdsmi
        try:
            announced = reader.read(0, num_elem=_MOST_EVENTS_A_POLL)
        except smi.AmdSmiLibraryException as error:
            if error.get_error_code() == NO_DATA:
                return ()
            raise device_error(error) from error
        return tuple(self._event(event) for event in announced if event["event"] in EVENTS)

    def close(self) -> None:
        """Release the queues; a library that has released them already is no failure."""
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
            raise DeviceError("AMD's library announced an event of a card that it does not list")
        name, meaning = EVENTS[event["event"]]
        message = event["message"].strip()
        return VendorEvent(
            vendor_index=reader[0],
            event=name,
            code=None,
            message=f"{meaning}: {message}" if message else meaning,
        )
