"""Play back a recording as if its devices were here, to test monitors or reproduce bugs.

`GPUPROOF_REPLAY_DEVICES` specifies a recording (JSON Lines). Each reading is the last one recorded up to the
same elapsed time; when the recording ends, its devices are lost. Devices keep their names and UUIDs, with
`replay` as their vendor.
"""

from __future__ import annotations

import time
from bisect import bisect_right
from collections.abc import Callable
from pathlib import Path
from typing import Any

from gpuproof.base.errors import RecordError, UsageError
from gpuproof.devices.base import (
    THROTTLE_REASONS,
    DeviceAdapter,
    DeviceLostError,
    DeviceProcess,
    Gathered,
    NotSupportedError,
    VendorDevice,
    VendorEvent,
)
from gpuproof.records.journal import read_journal
from gpuproof.records.readings import (
    Counters,
    DeviceIdentity,
    DriverEvent,
    Recording,
    Sample,
    UnavailableMetrics,
    VendorIndex,
)

VARIABLE = "GPUPROOF_REPLAY_DEVICES"


def open_adapter(path: Path, *, clock: Callable[[], float] = time.monotonic) -> ReplayAdapter:
    """Open a recording.

    Raises:
        UsageError: the file cannot be read or is not a recording.
    """
    try:
        records = read_journal(path).records
    except (OSError, RecordError) as error:
        raise UsageError(str(error), place=VARIABLE, next_step="Specify a recording's .jsonl file") from error
    if not records or not isinstance(records[0], Recording):
        raise UsageError(f"{path} is not a recording", place=VARIABLE)
    return ReplayAdapter(records[0], records[1:], clock=clock)


class ReplayAdapter(DeviceAdapter):
    """The devices in a recording, played back at the same pace."""

    vendor = "replay"
    unknown = "not in the recording"

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

    def identities(self) -> tuple[VendorDevice, ...]:
        """List the recorded devices."""
        return tuple(_vendor_device(place, device) for place, device in enumerate(self._recording.devices))

    def gather(self, vendor_index: VendorIndex, wanted: tuple[str, ...]) -> Gathered:
        """Return the last recorded value of each requested metric up to this elapsed time.

        Raises:
            DeviceLostError: the recording has ended.
        """
        device = self._recording.devices[vendor_index]
        key = str(device.physical_index)
        values: dict[str, Any] = {}
        missing = dict(device.unavailable)
        for record in self._past():
            if isinstance(record, Sample) and key in record.devices:
                values |= record.devices[key].values
                values[THROTTLE_REASONS] = record.devices[key].throttle_reasons
            elif isinstance(record, Counters):
                values |= record.devices.get(key, {})
            elif isinstance(record, UnavailableMetrics) and record.physical_index == device.physical_index:
                missing |= record.reasons
        return {name: values[name] for name in wanted if values.get(name) is not None}, missing

    def processes(self, vendor_index: VendorIndex) -> tuple[DeviceProcess, ...]:
        """Raise an error: process ids from the time of the recording mean nothing now.

        Raises:
            NotSupportedError: always.
        """
        raise NotSupportedError("a recording's processes do not belong to this host")

    def poll_events(self) -> tuple[VendorEvent, ...]:
        """Return the recorded events that have become due since the last call."""
        since_s, self._polled_s = self._polled_s, self._now_s()
        return tuple(
            VendorEvent(
                vendor_index=VendorIndex(self._place(record.physical_index)),
                event=record.event,
                code=record.code,
                message=record.message,
            )
            for record in self._timeline
            if isinstance(record, DriverEvent) and since_s < record.monotonic_s <= self._polled_s
            if record.physical_index is not None
        )

    def close(self) -> None:
        """Do nothing: no resources are held."""

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


def _vendor_device(place: int, device: DeviceIdentity) -> VendorDevice:
    return VendorDevice(
        vendor_index=VendorIndex(place),
        uuid=device.uuid,
        pci_bus_id=device.pci_bus_id,
        name=device.name,
        static=dict(device.static, recorded_vendor=device.vendor),
        unavailable={name: why for name, why in device.unavailable.items() if name != "framework_index"},
    )
