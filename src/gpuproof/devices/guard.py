"""All devices of a host behind one object, each isolated from the failures of the others.

If a device is lost, its driver is unloaded, or a call to its driver hangs (see `deadline`), the device
returns reasons instead of values, while everything else continues. `open_devices` in `discovery` creates a
`GuardedDevices`, which returns readouts by physical index, and an event for each change of state.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TypeVar

from gpuproof.devices.base import (
    DeviceAdapter,
    DeviceError,
    DeviceHungError,
    DeviceLostError,
    DeviceProcess,
    DriverSilentError,
    Gathered,
    Readout,
)
from gpuproof.devices.deadline import CallGuard
from gpuproof.records.metrics import names
from gpuproof.records.readings import (
    DeviceIdentity,
    DeviceReading,
    DriverEvent,
    Lane,
    PhysicalIndex,
    VendorIndex,
)

T = TypeVar("T")
_EVENTS: Mapping[type[DeviceError], str] = {
    DeviceLostError: "lost",
    DeviceHungError: "hung",
    DriverSilentError: "not_answering",
}
"""The event reported for a device that cannot be read."""


@dataclass(frozen=True, slots=True, kw_only=True)
class OpenDevice:
    """A device with its index on the host and the adapter that reads it."""

    identity: DeviceIdentity
    adapter: DeviceAdapter

    @property
    def physical_index(self) -> PhysicalIndex:
        """The device's key in all results from `GuardedDevices`."""
        return PhysicalIndex(self.identity.physical_index)

    @property
    def vendor_index(self) -> VendorIndex:
        """The device's key in its adapter."""
        return VendorIndex(self.identity.vendor_index)


class GuardedDevices:
    """Every device of the host, read with a deadline. Not safe for concurrent use by several threads."""

    def __init__(
        self,
        devices: Sequence[OpenDevice],
        *,
        absent: Mapping[str, str],
        guard: CallGuard,
        clock: Callable[[], float] = time.monotonic,
        late: Callable[[], Sequence[OpenDevice] | None] = lambda: None,
    ) -> None:
        self._devices = tuple(devices)
        self._adapters = _adapters(devices)
        self._late = late
        self._chosen: Collection[int] | None = None
        self._guard = guard
        self._clock = clock
        self._trouble: dict[PhysicalIndex, str] = {}
        self._events: list[DriverEvent] = []
        self.absent = absent
        """Vendor → why it has no device here, or how long its driver has been unresponsive."""
        self.events_unavailable: dict[PhysicalIndex, str] = {}
        """Device → why its events cannot be received at the moment."""

    @property
    def identities(self) -> tuple[DeviceIdentity, ...]:
        """Every device, by physical index."""
        return tuple(device.identity for device in self._devices)

    def select(self, chosen: Collection[int]) -> None:
        """Restrict readings and events to the devices with these physical indices from now on."""
        self._chosen = chosen
        self._devices = tuple(device for device in self._devices if device.physical_index in chosen)

    def arrivals(self) -> tuple[DeviceIdentity, ...]:
        """Add devices whose drivers have responded since the last call; return and announce them."""
        listed = self._late()
        if listed is None:
            return ()
        identities = {device.physical_index: device.identity for device in self._devices}
        self._adapters = _adapters(listed)
        self._devices = tuple(d for d in listed if self._chosen is None or d.physical_index in self._chosen)
        arrived = [d for d in self._devices if identities.get(d.physical_index) != d.identity]
        for device in arrived:
            self._trouble.pop(device.physical_index, None)
            self._events.append(self._event(device, "appeared", f"{device.identity.name} answers"))
        return tuple(device.identity for device in arrived)

    def read(self, lane: Lane) -> dict[PhysicalIndex, Readout]:
        """Read every device; in the slow lane, read both the fast and the slow metrics.

        A device that cannot be read now has an empty reading, with a reason for each metric of the lane.
        """
        expected = names(lane="fast") + (names(lane="slow") if lane == "slow" else ())
        return self._readouts(lambda device: partial(_read, device, lane), expected)

    def counters(self) -> dict[PhysicalIndex, Readout]:
        """Read every counter of every device."""
        return self._readouts(
            lambda device: partial(device.adapter.counters, device.vendor_index), names(kind="counter")
        )

    def gather(self, wanted: tuple[str, ...]) -> dict[PhysicalIndex, Gathered]:
        """Read these metrics from every device once, with a reason for each missing one."""
        listed = self._asked(lambda device: partial(device.adapter.gather, device.vendor_index, wanted))
        return {
            i: ({}, dict.fromkeys(wanted, answer.cause)) if isinstance(answer, DeviceError) else answer
            for i, answer in listed.items()
        }

    def processes(self) -> dict[PhysicalIndex, tuple[DeviceProcess, ...] | str]:
        """List the processes on every device, or report why they are unknown."""
        listed = self._asked(lambda device: partial(device.adapter.processes, device.vendor_index))
        return {
            i: answer.cause if isinstance(answer, DeviceError) else answer for i, answer in listed.items()
        }

    def poll_events(self) -> tuple[DriverEvent, ...]:
        """Return driver events since the last call, including which devices were lost or came back."""
        self.events_unavailable = {}
        for adapter in self._adapters:
            devices = {d.vendor_index: d for d in self._devices if d.adapter is adapter}
            try:
                announced = self._guard.call(f"events of {adapter.vendor}", adapter.poll_events)
                unheard = adapter.unheard
            except DeviceError as error:
                announced, unheard = (), dict.fromkeys(devices, error.cause)
            self.events_unavailable |= {
                devices[index].physical_index: cause for index, cause in unheard.items() if index in devices
            }
            self._events += [
                self._event(devices[event.vendor_index], event.event, event.message, code=event.code)
                for event in announced
                if event.vendor_index in devices
            ]
        events, self._events = tuple(self._events), []
        return events

    def close(self) -> None:
        """Release every driver, each within the deadline."""
        for adapter in self._adapters:
            with contextlib.suppress(DeviceError):
                self._guard.call(f"close {adapter.vendor}", adapter.close)
        self._guard.close()

    def _readouts(
        self, ask: Callable[[OpenDevice], Callable[[], Readout]], expected: tuple[str, ...]
    ) -> dict[PhysicalIndex, Readout]:
        answers = self._asked(ask)
        return {
            device.physical_index: self._readout(device, answers[device.physical_index], expected)
            for device in self._devices
        }

    def _asked(self, ask: Callable[[OpenDevice], Callable[[], T]]) -> dict[PhysicalIndex, T | DeviceError]:
        calls = {f"device {device.physical_index}": ask(device) for device in self._devices}
        answers = self._guard.call_all(calls)
        return {d.physical_index: answers[f"device {d.physical_index}"] for d in self._devices}

    def _readout(
        self, device: OpenDevice, answer: Readout | DeviceError, expected: tuple[str, ...]
    ) -> Readout:
        if isinstance(answer, DeviceError):
            self._note(device, answer)
            missing = dict.fromkeys(expected, answer.cause)
            return Readout(reading=DeviceReading(values={}), unavailable=missing)
        if self._trouble.pop(device.physical_index, None) is not None:
            self._events.append(self._event(device, "recovered", "the device responds again"))
        return answer

    def _note(self, device: OpenDevice, error: DeviceError) -> None:
        if self._trouble.get(device.physical_index) == error.cause:
            return
        self._trouble[device.physical_index] = error.cause
        event = _EVENTS.get(type(error), "unreadable")
        self._events.append(self._event(device, event, error.cause))

    def _event(self, device: OpenDevice, event: str, message: str, code: int | None = None) -> DriverEvent:
        now_s, index = self._clock(), device.physical_index
        return DriverEvent(monotonic_s=now_s, physical_index=index, event=event, code=code, message=message)


def _adapters(devices: Sequence[OpenDevice]) -> tuple[DeviceAdapter, ...]:
    return tuple({id(d.adapter): d.adapter for d in devices}.values())


def _read(device: OpenDevice, lane: Lane) -> Readout:
    fast = device.adapter.read(device.vendor_index, lane="fast")
    if lane == "fast":
        return fast
    slow = device.adapter.read(device.vendor_index, lane="slow")
    return Readout(
        reading=DeviceReading(
            values={**fast.reading.values, **slow.reading.values},
            throttle_reasons=fast.reading.throttle_reasons,
        ),
        unavailable={**fast.unavailable, **slow.unavailable},
    )
