"""A recording played back as if its devices were here: the test double for monitors, and for bug reports.

`GPUPROOF_REPLAY_DEVICES` names a recording (JSON Lines). Each reading is the recording's last one at the
same age; when the recording is over, its devices are lost. Devices keep their names and UUIDs, under the
vendor `replay`.
"""

from __future__ import annotations

import time
from bisect import bisect_right
from collections.abc import Callable
from pathlib import Path

from gpuproof.devices.base import (
    DeviceLostError,
    DeviceProcess,
    NotSupportedError,
    Readout,
    VendorDevice,
    VendorEvent,
    complete_readout,
)
from gpuproof.errors import RecordError, UsageError
from gpuproof.records.journal import read_journal
from gpuproof.records.metrics import names
from gpuproof.records.readings import (
    Counters,
    DeviceEvent,
    DeviceIdentity,
    DeviceReading,
    Lane,
    MetricsUnavailable,
    Recording,
    Sample,
    Vendor,
    VendorIndex,
)

VARIABLE = "GPUPROOF_REPLAY_DEVICES"
_NOT_RECORDED = "not in the recording"


def open_adapter(path: Path, *, clock: Callable[[], float] = time.monotonic) -> ReplayAdapter:
    """Open a recording.

    Raises:
        UsageError: the file cannot be read or is no recording.
    """
    try:
        records = read_journal(path).records
    except (OSError, RecordError) as error:
        raise UsageError(str(error), place=VARIABLE, next_step="Name a recording's .jsonl file") from error
    if not records or not isinstance(records[0], Recording):
        raise UsageError(f"{path} does not begin with a recording", place=VARIABLE)
    return ReplayAdapter(records[0], records[1:], clock=clock)


class ReplayAdapter:
    """A recording's devices, as they were at the same age of the recording."""

    def __init__(
        self, recording: Recording, records: tuple[object, ...], *, clock: Callable[[], float]
    ) -> None:
        self._recording = recording
        self._clock = clock
        self._opened_s = clock()
        self._polled_s = recording.monotonic_s
        self._timeline = sorted(
            (r for r in records if hasattr(r, "monotonic_s")), key=lambda record: record.monotonic_s
        )
        self._times = [record.monotonic_s for record in self._timeline]

    @property
    def vendor(self) -> Vendor:
        """Whose devices these are."""
        return "replay"

    def identities(self) -> tuple[VendorDevice, ...]:
        """List the recorded devices."""
        return tuple(_vendor_device(place, device) for place, device in enumerate(self._recording.devices))

    def read(self, vendor_index: VendorIndex, *, lane: Lane) -> Readout:
        """Return the last recorded reading of each metric of the lane at this age.

        Raises:
            DeviceLostError: the recording is over.
        """
        reading = self._latest(vendor_index)
        return complete_readout(
            {name: value for name, value in reading.values.items() if name in names(lane=lane)},
            unavailable=self._reasons(vendor_index),
            expected=names(lane=lane),
            otherwise=_NOT_RECORDED,
            throttle_reasons=reading.throttle_reasons if lane == "fast" else None,
        )

    def counters(self, vendor_index: VendorIndex) -> Readout:
        """Return the last recorded running totals at this age.

        Raises:
            DeviceLostError: the recording is over.
        """
        expected = names(kind="counter")
        values = {n: v for n, v in self._latest(vendor_index).values.items() if n in expected}
        return complete_readout(
            values,
            unavailable=self._reasons(vendor_index),
            expected=expected,
            otherwise=_NOT_RECORDED,
        )

    def processes(self, vendor_index: VendorIndex) -> tuple[DeviceProcess, ...]:
        """Refuse: process ids of another time mean nothing now.

        Raises:
            NotSupportedError: always.
        """
        raise NotSupportedError("a recording's processes are not those of this host")

    def poll_events(self) -> tuple[VendorEvent, ...]:
        """Return the recorded events that came due since the last call."""
        since_s, self._polled_s = self._polled_s, self._now_s()
        return tuple(
            VendorEvent(
                vendor_index=VendorIndex(self._place(record.physical_index)),
                event=record.event,
                code=record.code,
                message=record.message,
            )
            for record in self._timeline
            if isinstance(record, DeviceEvent) and since_s < record.monotonic_s <= self._polled_s
        )

    def close(self) -> None:
        """Nothing is held open."""

    def _now_s(self) -> float:
        return self._recording.monotonic_s + self._clock() - self._opened_s

    def _past(self) -> list[object]:
        now_s = self._now_s()
        if not self._times or now_s > self._times[-1]:
            raise DeviceLostError("the recording is over")
        return list(self._timeline[: bisect_right(self._times, now_s)])

    def _place(self, physical_index: int) -> int:
        (place,) = [i for i, d in enumerate(self._recording.devices) if d.physical_index == physical_index]
        return place

    def _latest(self, vendor_index: VendorIndex) -> DeviceReading:
        key = str(self._recording.devices[vendor_index].physical_index)
        values: dict[str, float] = {}
        reasons = None
        for record in self._past():
            if isinstance(record, Sample) and key in record.devices:
                values |= record.devices[key].values
                reasons = record.devices[key].throttle_reasons
            elif isinstance(record, Counters):
                values |= record.devices.get(key, {})
        return DeviceReading(values=values, throttle_reasons=reasons)

    def _reasons(self, vendor_index: VendorIndex) -> dict[str, str]:
        device = self._recording.devices[vendor_index]
        reasons = dict(device.unavailable)
        for record in self._past():
            if isinstance(record, MetricsUnavailable) and record.physical_index == device.physical_index:
                reasons |= record.reasons
        return reasons


def _vendor_device(place: int, device: DeviceIdentity) -> VendorDevice:
    return VendorDevice(
        vendor_index=VendorIndex(place),
        uuid=device.uuid,
        pci_bus_id=device.pci_bus_id,
        name=device.name,
        static=dict(device.static, recorded_vendor=device.vendor),
        unavailable={name: why for name, why in device.unavailable.items() if name != "framework_index"},
    )
