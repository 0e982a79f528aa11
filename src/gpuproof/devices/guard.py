"""All devices of a host behind one object, each guarded against the others.

A driver call that hangs cannot be stopped, only left behind: it keeps its thread, its device is not asked
again until that call returns, and a fresh thread serves the others. A device that is lost or whose driver
is unloaded answers with reasons instead of values, and everything else goes on. `open_devices` in
`discovery` makes a `GuardedDevices`; what comes out are readouts by physical index.
"""

from __future__ import annotations

import queue
import threading
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
    Readout,
    VendorEvent,
)
from gpuproof.records.metrics import names
from gpuproof.records.readings import (
    DeviceEvent,
    DeviceIdentity,
    DeviceReading,
    Lane,
    PhysicalIndex,
    VendorIndex,
)

T = TypeVar("T")
_Answer = tuple[bool, object]


class CallGuard:
    """Runs calls one at a time on a thread of its own, and leaves that thread behind when one hangs."""

    def __init__(self, deadline_s: float) -> None:
        self.deadline_s = deadline_s
        self._runner: _Runner | None = None
        self._stuck: dict[str, _Runner] = {}

    def call(self, key: str, function: Callable[[], T]) -> T:
        """Run `function` within the deadline; `key` names what it touches.

        Raises:
            DeviceHungError: it did not return in time, or an earlier call for `key` still has not.
        """
        if key in self._stuck:
            if not self._stuck[key].has_answered():
                raise self._hung()
            self._stuck.pop(key).stop()
        if self._runner is None:
            self._runner = _Runner()
        try:
            return self._runner.call(function, self.deadline_s)
        except queue.Empty:
            self._stuck[key] = self._runner
            self._runner = None
            raise self._hung() from None

    def close(self) -> None:
        """Let the thread end. Threads in hanging calls are daemons and end with the process."""
        for runner in (self._runner, *self._stuck.values()):
            if runner is not None:
                runner.stop()
        self._runner = None

    def _hung(self) -> DeviceHungError:
        return DeviceHungError(
            f"the driver call did not return within {self.deadline_s:g} s; not read again until it does"
        )


class _Runner:
    """A daemon thread that answers one call at a time."""

    def __init__(self) -> None:
        self._calls: queue.SimpleQueue[Callable[[], object] | None] = queue.SimpleQueue()
        self._answers: queue.SimpleQueue[_Answer] = queue.SimpleQueue()
        threading.Thread(target=self._serve, daemon=True, name="gpuproof-driver").start()

    def call(self, function: Callable[[], T], deadline_s: float) -> T:
        self._calls.put(function)
        good, value = self._answers.get(timeout=deadline_s)
        if not good:
            assert isinstance(value, BaseException)
            raise value
        return value  # type: ignore[return-value]  # the queue holds what `function` returned

    def has_answered(self) -> bool:
        return not self._answers.empty()

    def stop(self) -> None:
        self._calls.put(None)

    def _serve(self) -> None:
        while (function := self._calls.get()) is not None:
            self._answers.put(_outcome(function))


def _outcome(function: Callable[[], object]) -> _Answer:
    try:
        return True, function()
    except BaseException as error:  # noqa: BLE001  # handed to the caller, who raises it
        return False, error


@dataclass(frozen=True, slots=True, kw_only=True)
class OpenDevice:
    """A device with its place among all of the host, and the adapter that reads it."""

    identity: DeviceIdentity
    adapter: DeviceAdapter

    @property
    def physical_index(self) -> PhysicalIndex:
        """The device's key in every answer of `GuardedDevices`."""
        return PhysicalIndex(self.identity.physical_index)

    @property
    def vendor_index(self) -> VendorIndex:
        """The device's key in its adapter."""
        return VendorIndex(self.identity.vendor_index)


class GuardedDevices:
    """Every device of the host, read with a deadline. Not for use by several threads at once."""

    def __init__(
        self,
        devices: Sequence[OpenDevice],
        *,
        absent: Mapping[str, str],
        guard: CallGuard,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._devices = tuple(devices)
        self._adapters = tuple({id(d.adapter): d.adapter for d in devices}.values())
        self._guard = guard
        self._clock = clock
        self._trouble: dict[PhysicalIndex, str] = {}
        self._events: list[DeviceEvent] = []
        self.absent = dict(absent)
        """Vendor → why it has no device here."""
        self.events_unavailable: dict[str, str] = {}
        """Vendor → why its announcements cannot be read now."""

    @property
    def identities(self) -> tuple[DeviceIdentity, ...]:
        """Every device, by physical index."""
        return tuple(device.identity for device in self._devices)

    def select(self, chosen: Collection[int]) -> None:
        """From now on read only the devices of these physical indices, and tell only their events."""
        self._devices = tuple(device for device in self._devices if device.physical_index in chosen)

    def read(self, lane: Lane) -> dict[PhysicalIndex, Readout]:
        """Read every device; the slow lane is a fast reading and the slow metrics together.

        A device that cannot be read now has an empty reading and the reason for each metric of the lane.
        """
        expected = names(lane="fast") + (names(lane="slow") if lane == "slow" else ())
        return {
            device.physical_index: self._readout(device, partial(_read, device, lane), expected)
            for device in self._devices
        }

    def counters(self) -> dict[PhysicalIndex, Readout]:
        """Read every running total of every device."""
        expected = names(kind="counter")
        return {
            device.physical_index: self._readout(
                device, partial(device.adapter.counters, device.vendor_index), expected
            )
            for device in self._devices
        }

    def processes(self) -> dict[PhysicalIndex, tuple[DeviceProcess, ...] | str]:
        """List the processes on every device, or say why they are not known."""
        return {device.physical_index: self._processes(device) for device in self._devices}

    def poll_events(self) -> tuple[DeviceEvent, ...]:
        """Return what drivers announced, and which devices were lost or came back, since the last call."""
        for adapter in self._adapters:
            try:
                announced = self._guard.call(f"events of {adapter.vendor}", adapter.poll_events)
                self.events_unavailable.pop(adapter.vendor, None)
            except DeviceError as error:
                self.events_unavailable[adapter.vendor] = error.cause
                continue
            self._events += [
                self._placed(device, event)
                for event in announced
                for device in self._devices
                if device.adapter is adapter and device.vendor_index == event.vendor_index
            ]
        events, self._events = tuple(self._events), []
        return events

    def close(self) -> None:
        """Let go of every driver, within the deadline each."""
        for adapter in self._adapters:
            self._close(adapter)
        self._guard.close()

    def _close(self, adapter: DeviceAdapter) -> None:
        try:
            self._guard.call(f"close {adapter.vendor}", adapter.close)
        except DeviceError as error:
            self.events_unavailable[adapter.vendor] = error.cause

    def _processes(self, device: OpenDevice) -> tuple[DeviceProcess, ...] | str:
        try:
            return self._guard.call(_key(device), partial(device.adapter.processes, device.vendor_index))
        except DeviceError as error:
            return error.cause

    def _readout(self, device: OpenDevice, ask: Callable[[], Readout], expected: tuple[str, ...]) -> Readout:
        try:
            readout = self._guard.call(_key(device), ask)
        except DeviceError as error:
            self._note(device, error)
            return Readout(reading=DeviceReading(values={}), unavailable=dict.fromkeys(expected, error.cause))
        if self._trouble.pop(device.physical_index, None) is not None:
            self._announce(device.physical_index, "recovered", "the device answers again")
        return readout

    def _note(self, device: OpenDevice, error: DeviceError) -> None:
        if self._trouble.get(device.physical_index) == error.cause:
            return
        self._trouble[device.physical_index] = error.cause
        event = {DeviceLostError: "lost", DeviceHungError: "hung"}.get(type(error), "unreadable")
        self._announce(device.physical_index, event, error.cause)

    def _announce(self, index: PhysicalIndex, event: str, message: str) -> None:
        self._events.append(
            DeviceEvent(
                monotonic_s=self._clock(), physical_index=index, event=event, code=None, message=message
            )
        )

    def _placed(self, device: OpenDevice, event: VendorEvent) -> DeviceEvent:
        return DeviceEvent(
            monotonic_s=self._clock(),
            physical_index=device.physical_index,
            event=event.event,
            code=event.code,
            message=event.message,
        )


def _key(device: OpenDevice) -> str:
    return f"device {device.identity.physical_index}"


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
