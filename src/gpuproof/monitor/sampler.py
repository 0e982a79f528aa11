"""Main loop of the sampling process: reads the devices and the host at every tick.

Input: open devices, the host reader, a plan, and the clock, recorder and listener to use. Output: the records
of one recording, from `Recording` to `RecordingEnd`. The fast and slow lanes use absolute deadlines on the
monotonic clock; the loop sleeps in between, and records how late it was, which ticks it missed and how much
CPU time it used. Ticks may be dithered: each tick then occurs at a random time within its interval, so that
activity synchronised with the ticks is not always sampled at the same point of its cycle.
"""

from __future__ import annotations

import os
import platform
import random
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Protocol

from gpuproof import __version__
from gpuproof.devices.base import DeviceProcess, Readout
from gpuproof.monitor.host import boot_id
from gpuproof.monitor.kernel_log import KernelLog
from gpuproof.monitor.listener import Listener
from gpuproof.monitor.process_owners import Describe
from gpuproof.monitor.recorder import RecordSink
from gpuproof.records.ports import PortTotals
from gpuproof.records.readings import (
    DRIVER_EVENTS,
    Counters,
    DeviceIdentity,
    DeviceProcesses,
    DevicesAppeared,
    DriverEvent,
    Lane,
    Mark,
    PhysicalIndex,
    Recording,
    RecordingEnd,
    Sample,
    UnavailableMetrics,
)

LONGEST_SLEEP_S = 1.0
"""Maximum time until the parent's exit is noticed."""
TOLERANCE_S = 1e-6
PORT_INTERVAL_S = 10.0
"""Interval between port readings: a card's firmware may need a millisecond per counter."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SamplingPlan:
    """How often and how long to read."""

    interval_s: float = 0.2
    slow_interval_s: float = 1.0
    duration_s: float | None = None
    command: tuple[str, ...] | None = None
    """The workload's command line, stored in the recording's first line; None unless requested."""
    host_interval_s: float | None = None
    """Interval for the host; if None, the host is read only with the slow lane."""
    dither_seed: int | None = None
    """Seed for the random offset of each tick in its interval; None puts each tick at the interval's
    start."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Clock:
    """The clocks of a sampler; tests provide their own."""

    monotonic: Callable[[], float] = time.monotonic
    wall: Callable[[], float] = time.time
    process_cpu: Callable[[], float] = time.process_time


class Schedule:
    """One tick per interval, counted from the start; a tick is missed if its interval ends first.

    A tick occurs at the start of its interval or, with `dither`, at a uniformly random time within it, drawn
    anew for every tick but the first, so that periodic activity is sampled equally at all points of its
    cycle. Interval boundaries are absolute, so neither late readings nor the random offsets shift later
    intervals.

    >>> schedule = Schedule(start_s=100.0, interval_s=0.5)
    >>> schedule.advance(now_s=100.1), schedule.deadline_s, schedule.missed_ticks
    (None, 100.5, 0)
    >>> schedule.advance(now_s=101.7), schedule.deadline_s, schedule.missed_ticks
    (None, 101.5, 1)
    """

    def __init__(self, *, start_s: float, interval_s: float, dither: random.Random | None = None) -> None:
        self._start_s = start_s
        self._interval_s = interval_s
        self._dither = dither
        self._tick = 0
        self._delay_s = 0.0
        self.missed_ticks = 0

    @property
    def begin_s(self) -> float:
        """When the interval of the next tick starts, on the clock of `start_s`."""
        return self._start_s + self._tick * self._interval_s

    @property
    def deadline_s(self) -> float:
        """When the next tick is due, on the clock of `start_s`."""
        return self.begin_s + self._delay_s

    def is_due(self, now_s: float) -> bool:
        """Check whether the next tick is due, ignoring rounding of the deadlines."""
        return now_s >= self.deadline_s - TOLERANCE_S

    def advance(self, now_s: float) -> None:
        """Advance to the next tick after one was sampled; ticks entirely in the past count as missed."""
        following = self._tick + 1
        latest = int((now_s - self._start_s + TOLERANCE_S) / self._interval_s)
        self._tick = max(following, latest)
        self.missed_ticks += self._tick - following
        if self._dither is not None:
            self._delay_s = self._dither.random() * self._interval_s


class Devices(Protocol):
    """Interface that a sampler needs from the devices; implemented by `devices.guard.GuardedDevices`."""

    @property
    def absent(self) -> Mapping[str, str]:
        """Vendor → why none of its devices are available."""

    @property
    def events_unavailable(self) -> Mapping[PhysicalIndex, str]:
        """Device → why its events cannot be received, so that silence is not mistaken for health."""

    @property
    def identities(self) -> tuple[DeviceIdentity, ...]:
        """Every device, by physical index."""

    def arrivals(self) -> tuple[DeviceIdentity, ...]:
        """Add devices with drivers that have responded since the last call, and return them."""

    def read(self, lane: Lane) -> Mapping[PhysicalIndex, Readout]:
        """Read every device."""

    def counters(self) -> Mapping[PhysicalIndex, Readout]:
        """Read every running total."""

    def processes(self) -> Mapping[PhysicalIndex, tuple[DeviceProcess, ...] | str]:
        """List the processes that use the devices."""

    def poll_events(self) -> tuple[DriverEvent, ...]:
        """Return the events reported by drivers."""


class SampledHost(Protocol):
    """Interface that a sampler needs from the host; implemented by `monitor.host.HostReader`."""

    def read(self) -> dict[str, float]:
        """Read the host now."""

    def facts(self) -> dict[str, Any]:
        """Describe this machine."""


ReadPorts = Callable[[float, str], PortTotals]
"""Read every port, given wall-clock and monotonic time; implemented by `monitor.ports.PortReader`."""


class Sampler:
    """One recording: create it, run it once, then discard it."""

    def __init__(
        self,
        devices: Devices,
        *,
        host: SampledHost,
        recorder: RecordSink,
        listener: Listener,
        plan: SamplingPlan,
        clock: Clock,
        kernel_log: KernelLog,
        describe: Describe = lambda _: {},
        ports: ReadPorts | None = None,
    ) -> None:
        self._devices = devices
        self._kernel_log = kernel_log
        self._describe = describe
        self._host = host
        self._recorder = recorder
        self._listener = listener
        self._plan = plan
        self._clock = clock
        self._samples = 0
        self._missed_ticks = 0
        self._max_jitter_s = 0.0
        self._reasons: dict[PhysicalIndex, dict[str, str]] = {}
        self._processes: dict[str, dict[str, Any]] = {}
        self._ports = ports
        self._ports_due_s = 0.0
        self._port_errors: list[Any] = []

    def run(self) -> RecordingEnd:
        """Record until a signal arrives, the parent exits or time is up; return the last record.

        Raises:
            OSError: the recording can no longer be written; its last line says so if there is space.
        """
        try:
            self._begin()
            reason = self._loop()
            self._sample("slow", reads_host=True)
            self._count("end")
            self._count_ports("end")
        except OSError as error:
            self._recorder.append_last_words(self._end(f"cannot write: {error.strerror}"))
            raise
        end = self._end(reason)
        self._recorder.append_last_words(end)
        return end

    def _begin(self) -> None:
        self._recorder.append(
            Recording(
                host=platform.node(),
                pid=os.getpid(),
                boot_id=boot_id(),
                gpuproof_version=__version__,
                unix_s=self._clock.wall(),
                monotonic_s=self._clock.monotonic(),
                fast_interval_s=self._plan.interval_s,
                slow_interval_s=self._plan.slow_interval_s,
                devices=self._devices.identities,
                host_facts={**self._host.facts(), "vendors_absent": dict(self._devices.absent)},
                command=self._plan.command,
                dither_seed=self._plan.dither_seed,
            )
        )
        self._count("start")
        self._count_ports("start")
        self._listener.ready()

    def _loop(self) -> str:
        start_s = self._clock.monotonic()
        seed = self._plan.dither_seed
        dither = None if seed is None else random.Random(seed)  # noqa: S311  # keeps no secret
        fast = Schedule(start_s=start_s, interval_s=self._plan.interval_s, dither=dither)
        slow = Schedule(start_s=start_s, interval_s=self._plan.slow_interval_s)
        host = Schedule(start_s=start_s, interval_s=self._plan.host_interval_s or self._plan.slow_interval_s)
        end_s = float("inf") if self._plan.duration_s is None else start_s + self._plan.duration_s
        while True:
            reason = self._sleep_until(min(fast.deadline_s, end_s))
            if reason is not None:
                return reason
            now_s = self._clock.monotonic()
            if now_s >= end_s:
                return "duration"
            self._max_jitter_s = max(self._max_jitter_s, now_s - fast.deadline_s)
            is_slow, is_of_host = slow.is_due(fast.begin_s), host.is_due(fast.begin_s)
            self._sample("slow" if is_slow else "fast", reads_host=is_slow or is_of_host)
            if is_slow:
                slow.advance(fast.begin_s)
            if is_of_host:
                host.advance(fast.begin_s)
            fast.advance(self._clock.monotonic())
            self._missed_ticks = fast.missed_ticks

    def _sleep_until(self, deadline_s: float) -> str | None:
        """Sleep until the deadline, writing marks as they arrive; return the reason to stop, if any."""
        while True:
            now_s = self._clock.monotonic()
            for published_s, metadata in self._listener.marks(now_s):
                self._recorder.append(Mark(monotonic_s=published_s, metadata=metadata))
            reason = self._listener.stop_reason()
            if reason is not None or now_s >= deadline_s:
                return reason
            self._listener.wait(min(deadline_s - now_s, LONGEST_SLEEP_S))

    def _sample(self, lane: Lane, *, reads_host: bool) -> None:
        # the devices that were added, and the values of their running totals
        if arrived := self._devices.arrivals():
            self._recorder.append(DevicesAppeared(monotonic_s=self._clock.monotonic(), devices=arrived))
            self._count("appeared")
        now_s, unix_s = self._clock.monotonic(), self._clock.wall()
        readouts = self._devices.read(lane)
        self._note_reasons(now_s, readouts)
        self._recorder.append(
            Sample(
                monotonic_s=now_s,
                unix_s=unix_s,
                lane=lane,
                devices={str(index): readout.reading for index, readout in readouts.items()},
                host=self._host.read() if reads_host else {},
            )
        )
        self._samples += 1
        if lane == "slow":
            lines = self._kernel_log.poll(now_s, self._devices.identities)
            # at every tick, this would slow down fast readings by a third
            for event in (
                *self._devices.poll_events(),
                *lines,
            ):
                self._recorder.append(event)
            self._note_processes(now_s)
            if now_s >= self._ports_due_s:
                self._count_ports("change")

    def _note_reasons(self, now_s: float, readouts: Mapping[PhysicalIndex, Readout]) -> None:
        """Write a device's map of missing metrics whenever it changes."""
        unheard = self._devices.events_unavailable
        for index, readout in readouts.items():
            before = self._reasons.get(index, {})
            values = readout.reading.values
            now = {name: why for name, why in before.items() if name not in values} | dict(
                readout.unavailable
            )
            now |= {DRIVER_EVENTS: unheard[index]} if index in unheard else {}
            if now != before:
                self._reasons[index] = now
                self._recorder.append(
                    UnavailableMetrics(monotonic_s=now_s, physical_index=index, reasons=now)
                )

    def _note_processes(self, now_s: float) -> None:
        """Record which processes use the devices, whenever that changes."""
        listed = self._devices.processes()
        now = {str(index): _process_entry(users, self._describe) for index, users in listed.items()}
        if now != self._processes:
            self._processes = now
            self._recorder.append(DeviceProcesses(monotonic_s=now_s, devices=now))

    def _count(self, at: str) -> None:
        now_s = self._clock.monotonic()
        readouts = self._devices.counters()
        totals = {str(index): dict(readout.reading.values) for index, readout in readouts.items()}
        self._recorder.append(Counters(monotonic_s=now_s, at=at, devices=totals))

    def _count_ports(self, at: str) -> None:
        """Write port counters at the start and end, and whenever anything but plain traffic changed."""
        if self._ports is None:
            return
        now_s = self._clock.monotonic()
        totals = self._ports(now_s, at)
        errors = [(port.name, port.state, port.rate, port.without_traffic()) for port in totals.ports]
        if at != "change" or errors != self._port_errors:
            self._recorder.append(totals)
        self._port_errors, self._ports_due_s = errors, now_s + PORT_INTERVAL_S

    def _end(self, reason: str) -> RecordingEnd:
        return RecordingEnd(
            monotonic_s=self._clock.monotonic(),
            unix_s=self._clock.wall(),
            samples=self._samples,
            missed_ticks=self._missed_ticks,
            max_jitter_s=self._max_jitter_s,
            own_cpu_s=self._clock.process_cpu(),
            reason=reason,
            exit_code=self._listener.exit_code,
            bad_marks=self._listener.bad_marks,
        )


def _process_entry(users: tuple[DeviceProcess, ...] | str, describe: Describe) -> dict[str, Any]:
    """Write process IDs and bytes, plus whatever `describe` adds: nothing by default, for privacy."""
    if isinstance(users, str):
        return {"unavailable": users}
    return {
        "processes": [
            {"pid": user.pid, "mem_used_bytes": user.mem_used_bytes, "kind": user.kind, **describe(user.pid)}
            for user in users
        ]
    }
