"""What does the kernel's log tell of drivers of devices from now on? Lines of /dev/kmsg, as they stand there.

In: the log, and the devices that are recorded. Out: an event for each line of a driver of theirs, of the PCIe
port above one, or of a switch between them; `hardware/events.py` says what a line means. Lines before the
first reading do not count, so none is of another boot. A log that is not read, or not to the end, says why.
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
    r"NVRM|SXid|\bamdgpu\b|\bxe [0-9a-f]{4}:|Bus Error: severity|\] (?:Rx|Bad|Roll|Tim)"
)
"""What a line of a driver, or of the bus, has in it."""
ADDRESS: Final = re.compile(r"\b([0-9a-f]{4,8}:[0-9a-f]{2}:[0-9a-f]{2})(?:\.[0-7])?\b", re.IGNORECASE)
MOST_LINES: Final = 10_000
"""Lines of a recording that are kept; how many were not is said, as silence is then no evidence."""


class KernelLog:
    """The kernel's log from now on."""

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
        """Yield what was written since the last call, of these devices; `now_s` is the monotonic clock's.

        What was not read, and why, is among it: once, as a line of the host's that begins with `UNREAD`.
        """
        places: dict[str, int] = {}
        num_left_out = 0
        for line in filter(DRIVERS.search, self._lines()):
            places = places or self._places(devices)
            address = ADDRESS.search(line)
            place = None if address is None else places.get(short_address(address[1]))
            if address is not None and place is None and "SXid" not in line:
                continue  # of a network card or a device that is not recorded, and of no NVSwitch
            self._num_lines += 1
            num_left_out += self._num_lines > MOST_LINES
            if self._num_lines <= MOST_LINES:
                yield _event(now_s, place, line)
        if num_left_out:
            self._unread.append(f"{num_left_out} lines of drivers beyond {MOST_LINES}")
        yield from (_event(now_s, None, f"{UNREAD}{reason}") for reason in self._unread)
        self._unread.clear()

    def _lines(self) -> Iterator[str]:
        while self._file is not None:
            try:
                data = os.read(self._file, 8192)  # a buffer shorter than a record is refused
            except BlockingIOError:
                return
            except BrokenPipeError:
                self._unread.append("lines that were overwritten before")
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
        """Return the place of each device by its address, and by that of a port above it alone.

        PCIe errors may name the port instead; one above several devices does not say which of them it is.
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
