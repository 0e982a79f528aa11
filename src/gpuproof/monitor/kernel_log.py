"""Reads the device drivers' new lines in the kernel log (/dev/kmsg), unmodified.

Input: the log, and the recorded devices. Output: an event for each line that comes from a device's driver,
from the PCIe port above a device, or from a switch between devices; `hardware/events.py` defines the meaning
of each line. Lines logged before the first reading are ignored, so none can be from an earlier boot. If the
log could not be read completely, the reason is reported.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final

from gpuproof.records.readings import KERNEL_LOG, UNREAD, DeviceIdentity, DriverEvent, short_address

KMSG: Final = Path("/dev/kmsg")
PCI: Final = Path("/sys/bus/pci/devices")
DRIVERS: Final = re.compile(
    r"NVRM|SXid|\bamdgpu\b|\bxe [0-9a-f]{4}:|Bus Error: severity"
    r"|\[ ?\d{1,2}\] [A-Z][A-Za-z]+ *(?:\(First\)|$)"
)
"""Pattern that identifies lines from a driver or from the bus."""
ADDRESS: Final = re.compile(r"\b([0-9a-f]{4,8}:[0-9a-f]{2}:[0-9a-f]{2})(?:\.[0-7])?\b", re.IGNORECASE)
MOST_LINES: Final = 10_000
"""Maximum number of lines stored in a recording. The number of dropped lines is reported, because the absence
of a line then proves nothing."""


class KernelLog:
    """The kernel log, from now on."""

    def __init__(self, path: Path = KMSG, *, pci: Path = PCI) -> None:
        self._pci = pci
        self._num_lines = 0
        self._unread: list[str] = []
        self._file: int | None = None
        try:
            self._file = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
            os.lseek(self._file, 0, os.SEEK_END)
        except OSError as error:
            self._stop(f"{path}: {error.strerror}")

    def poll(self, now_s: float, devices: Sequence[DeviceIdentity]) -> Iterator[DriverEvent]:
        """Yield what was logged since the last call for these devices; `now_s` is monotonic time.

        If part of the log was not read, this is reported once, with the reason, as a line for the host that
        starts with `UNREAD`.
        """
        places: dict[str, int] = {}
        num_left_out = 0
        for line in filter(DRIVERS.search, self._lines()):
            places = places or self._places(devices)
            address = ADDRESS.search(line)
            place = None if address is None else places.get(short_address(address[1]))
            if address is not None and place is None and "SXid" not in line:
                continue  # from a network card or a device that is not recorded, and not from an NVSwitch
            self._num_lines += 1
            num_left_out += self._num_lines > MOST_LINES
            if self._num_lines <= MOST_LINES:
                yield _event(now_s, place, line)
        if num_left_out:
            self._unread.append(f"{num_left_out} driver lines beyond {MOST_LINES}")
        yield from (_event(now_s, None, f"{UNREAD}{reason}") for reason in self._unread)
        self._unread.clear()

    def _lines(self) -> Iterator[str]:
        while self._file is not None:
            try:
                data = os.read(self._file, 8192)  # a buffer shorter than a record is rejected
            except BlockingIOError:
                return
            except BrokenPipeError:
                self._unread.append("lines that were overwritten before they could be read")
                continue
            except OSError as error:
                return self._stop(str(error.strerror))
            if not data:
                return
            yield from data.decode(errors="replace").splitlines()

    def _stop(self, reason: str) -> None:
        self._unread.append(reason)
        if self._file is not None:
            os.close(self._file)
        self._file = None

    def _places(self, devices: Sequence[DeviceIdentity]) -> dict[str, int]:
        """Map addresses of devices, and of ports with only one device below them, to device indices.

        PCIe errors may name the port instead of the device. A port with several devices below it does not
        identify one of them.
        """
        places: dict[str, int] = {}
        ports: dict[str, set[int]] = {}
        for device in devices:
            if device.pci_bus_id is not None:
                places.setdefault(short_address(device.pci_bus_id), device.physical_index)
        for address, place in places.items():
            for above in (self._pci / f"{address}.0").resolve().parent.parts:
                if ADDRESS.fullmatch(above):
                    ports.setdefault(short_address(above), set()).add(place)
        return {port: min(below) for port, below in ports.items() if len(below) == 1} | places


def _event(now_s: float, place: int | None, line: str) -> DriverEvent:
    return DriverEvent(monotonic_s=now_s, physical_index=place, event=KERNEL_LOG, code=None, message=line)
