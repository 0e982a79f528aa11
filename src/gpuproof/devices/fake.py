"""Fake devices, for tests and for trying out the tools: deterministic, and labelled as fake.

`GPUPROOF_FAKE_DEVICES` sets the number of devices and what happens to the last one: `2`, `2:thermal`,
`4:lost`. With `hang_open`, their driver does not respond until the file named by `GPUPROOF_FAKE_RELEASE`
exists. `GPUPROOF_SIMGPU` declares devices that a torch package simulates (`devices.simulated`); their
readings are generated here, with the same faults. All numbers are functions of the clock that is passed in,
so a frozen clock returns the same reading twice.
"""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal, get_args

from gpuproof.base.errors import UsageError
from gpuproof.devices.base import (
    THROTTLE_REASONS,
    DeviceAdapter,
    DeviceLostError,
    DeviceProcess,
    Gathered,
    VendorDevice,
    VendorEvent,
)
from gpuproof.devices.opening import silent_device
from gpuproof.devices.simulated import SimulatedDevices, SimulatedPowerCap, busy_s, read_declaration, uuid_of
from gpuproof.records.readings import VendorIndex

VARIABLE = "GPUPROOF_FAKE_DEVICES"
RELEASE_VARIABLE = "GPUPROOF_FAKE_RELEASE"
Scenario = Literal[
    "normal",
    "thermal",
    "power_cap",
    "lost",
    "hang",
    "hang_open",
    "xid",
    "ecc",
    "mig",
    "na",
    "stuck",
    "idle",
    "memory_bound",
]

_GIB = 2**30
LOST_AFTER_S = 3.0
"""Time after opening, in seconds, during which the lost device still responds."""
EVENT_AFTER_S = 2.0
"""Time from opening until an XID or an ECC error occurs, in seconds."""
_RELEASE_POLL_S = 0.02
CAPPED_W = 150.0
"""Power limit of the device with a reduced limit, in watts."""
_XID_CODE = 79
_PERIOD_S = 10.0
_BUSY_OVER_S = 0.1
"""Minimum averaging time for utilisation, which, as in real drivers, is a fraction of the time since the last
read."""
_STATIC: dict[str, Any] = {
    "mem_total_bytes": 16 * _GIB,
    "power_limit_w": 300.0,
    "power_limit_default_w": 300.0,
    "temp_slowdown_c": 90.0,
    "temp_shutdown_c": 95.0,
    "clock_sm_max_mhz": 1500.0,
    "clock_mem_max_mhz": 1200.0,
    "pcie_gen_max": 4,
    "pcie_width_max": 16,
    "driver_version": "fake",
}
_CLOCK_MHZ = 1500.0
_LOADS: dict[Scenario, dict[str, Any]] = {
    "stuck": {"util_gpu_percent": 100.0, "util_mem_ctrl_percent": 0.0, "power_w": 75.0},
    "idle": {
        "util_gpu_percent": 0.0,
        "util_mem_ctrl_percent": 0.0,
        "power_w": 40.0,
        THROTTLE_REASONS: ("idle",),
    },
    "memory_bound": {"util_gpu_percent": 100.0, "util_mem_ctrl_percent": 95.0, "power_w": 110.0},
}
"""Readings of a device with a hung collective, of an idle device, and of one that copies memory."""
_NOT_GIVEN = (
    "util_gpu_percent",
    "power_w",
    "temp_mem_c",
    "energy_j",
    "ecc_corrected_count",
    THROTTLE_REASONS,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class _DeclaredDevice:
    """A fake device: its name and what happens to it."""

    uuid: str
    name: str = "Fake device"
    scenario: str = "normal"
    mem_total_bytes: int = 16 * _GIB
    throttled_after_s: float | None = None
    """When the device overheats; None means never."""
    event_after_s: float | None = None
    """When the device's error is announced; None means never."""
    slowdown: float = 1.0
    """Factor by which the clock is reduced, without any throttle reason reported."""
    throttled_slowdown: float = _CLOCK_MHZ / 900
    power_cap: SimulatedPowerCap | None = None
    power_limit_w: float = 300.0
    is_alone: bool = False
    """A device that is always equally busy and has no other processes."""


def open_adapter(
    choice: str, *, clock: Callable[[], float] = time.monotonic, released_by: str | None = None
) -> FakeAdapter:
    """Create the devices specified by `choice`, e.g. `2:thermal`.

    With `hang_open`, this blocks until the file `released_by` exists, or forever if no file is given.

    Raises:
        UsageError: the number is invalid, or the scenario does not exist.
    """
    count, _, scenario = choice.partition(":")
    scenario = scenario or "normal"
    if not count.isdigit() or scenario not in get_args(Scenario):
        raise UsageError(
            f"{choice!r} is not a number of devices and a scenario",
            place=VARIABLE,
            next_step=f"Write N or N:SCENARIO; scenarios are {', '.join(get_args(Scenario))}",
        )
    num_devices = int(count)
    while scenario == "hang_open" and not (released_by and Path(released_by).exists()):
        time.sleep(_RELEASE_POLL_S)
    devices = [_DeclaredDevice(uuid=f"FAKE-{index:04d}") for index in range(num_devices)]
    for last in devices[-1:]:
        devices[-1] = replace(
            last,
            scenario=scenario,
            throttled_after_s=0.0 if scenario == "thermal" else None,
            event_after_s=EVENT_AFTER_S if scenario in ("xid", "ecc") else None,
        )
    return FakeAdapter(devices, clock=clock)


def on_the_bus(choice: str) -> list[VendorDevice]:
    """List the devices specified by `choice` as a PCI bus would, without opening them."""
    count = choice.partition(":")[0]
    return [silent_device(index, _address(index)) for index in range(int(count) if count.isdigit() else 0)]


def open_twins(declaration: str, *, clock: Callable[[], float] = time.monotonic) -> FakeAdapter:
    """Generate readings for simulated devices, with their declared faults.

    Raises:
        UsageError: the declaration cannot be read.
    """
    declared = read_declaration(declaration)
    return FakeAdapter(
        [_twin(index, declared) for index in range(declared.devices)],
        clock=clock,
    )


def _twin(index: int, declared: SimulatedDevices) -> _DeclaredDevice:
    fault = declared.fault(index)
    slowdown = 1 + fault.slower_percent / 100
    return _DeclaredDevice(
        uuid=uuid_of(declared.first_card + index),
        name=declared.name,
        scenario="normal" if fault.xid_after_s is None else "xid",
        mem_total_bytes=declared.memory_of(index),
        throttled_after_s=fault.throttled_after_s,
        event_after_s=fault.xid_after_s,
        slowdown=slowdown,
        throttled_slowdown=slowdown * (1 + fault.throttled_percent / 100),
        power_cap=declared.power_cap,
        power_limit_w=declared.power_limit_w,
        is_alone=True,
    )


def _address(index: int) -> str:
    return f"ffff:{0xF0 + index:02x}:00.0"


class FakeAdapter(DeviceAdapter):
    """The fake devices. With `mig`, they are followed by the two instances of the last one."""

    vendor = "fake"
    unknown = "not supported by the fake device"

    def __init__(self, devices: Sequence[_DeclaredDevice], *, clock: Callable[[], float]) -> None:
        self._declared = tuple(devices)
        self._clock = clock
        self._opened_s = clock()
        self._announced: set[int] = set()
        self._closed = threading.Event()
        self._busy: dict[int, tuple[float, float, float]] = {}

    def identities(self) -> tuple[VendorDevice, ...]:
        """List the devices, at PCI bus f0 and up in a domain that no real host has."""
        whole = [self._identity(index) for index in range(len(self._declared))]
        has_instances = bool(self._declared) and self._declared[-1].scenario == "mig"
        return (*whole, *(self._instance(place) for place in range(2 if has_instances else 0)))

    def gather(self, vendor_index: VendorIndex, wanted: tuple[str, ...]) -> Gathered:
        """Compute the requested metrics at the current time.

        Raises:
            DeviceLostError: the scenario is `lost`, and the device is lost by now.
        """
        self._refuse_if_gone(vendor_index)
        missing: dict[str, str] = {}
        if vendor_index >= len(self._declared):
            missing = dict.fromkeys(wanted, "only measured for the whole GPU, not for a MIG instance")
            missing.pop("mem_used_bytes", None)
        elif self._is_scene(vendor_index, "na"):
            missing = dict.fromkeys(_NOT_GIVEN, "[N/A] by scenario")
        values = self._values(vendor_index)
        return {name: values[name] for name in wanted if name in values and name not in missing}, missing

    def processes(self, vendor_index: VendorIndex) -> tuple[DeviceProcess, ...]:
        """List one fictitious process on a device in shared use; no host has PIDs this high."""
        self._refuse_if_gone(vendor_index)
        if vendor_index < len(self._declared) and self._declared[vendor_index].is_alone:
            return ()
        return (DeviceProcess(pid=2**30 + vendor_index, mem_used_bytes=2 * _GIB, kind="compute"),)

    def poll_events(self) -> tuple[VendorEvent, ...]:
        """Announce each device's error once, when it is due."""
        due = [
            index
            for index, device in enumerate(self._declared)
            if index not in self._announced
            and device.event_after_s is not None
            and self._elapsed_s() >= device.event_after_s
        ]
        self._announced.update(due)
        return tuple(map(self._event, due))

    def _event(self, index: int) -> VendorEvent:
        if self._declared[index].scenario == "xid":
            event, code, message = "xid", _XID_CODE, f"XID {_XID_CODE}"
            return VendorEvent(vendor_index=VendorIndex(index), event=event, code=code, message=message)
        message = "a memory error that ECC could not correct"
        return VendorEvent(
            vendor_index=VendorIndex(index), event="ecc_uncorrected", code=None, message=message
        )

    def close(self) -> None:
        """Let hanging calls return."""
        self._closed.set()

    def _identity(self, index: int) -> VendorDevice:
        device = self._declared[index]
        static = dict(_STATIC, mem_total_bytes=device.mem_total_bytes, power_limit_w=device.power_limit_w)
        if device.is_alone:
            static |= {"clock_sm_application_mhz": _CLOCK_MHZ, "ecc_mode": "enabled"}
        if device.scenario == "power_cap":
            static["power_limit_w"] = CAPPED_W
        return VendorDevice(
            vendor_index=VendorIndex(index),
            uuid=device.uuid,
            pci_bus_id=_address(index),
            name=device.name,
            static=static | {"mig_mode": "enabled" if device.scenario == "mig" else "disabled"},
        )

    def _instance(self, place: int) -> VendorDevice:
        parent = len(self._declared) - 1
        return VendorDevice(
            vendor_index=VendorIndex(len(self._declared) + place),
            uuid=f"MIG-FAKE-{parent:04d}-{place}",
            pci_bus_id=_address(parent),
            name="Fake device MIG instance",
            mig_parent=VendorIndex(parent),
            static={"mem_total_bytes": 8 * _GIB, "mig_gpu_instance_id": place, "mig_compute_instance_id": 0},
        )

    def _is_scene(self, index: int, scenario: Scenario) -> bool:
        return index < len(self._declared) and self._declared[index].scenario == scenario

    def _elapsed_s(self) -> float:
        return self._clock() - self._opened_s

    def _refuse_if_gone(self, index: VendorIndex) -> None:
        if self._is_scene(index, "lost") and self._elapsed_s() >= LOST_AFTER_S:
            raise DeviceLostError("the fake GPU is lost")
        if self._is_scene(index, "hang"):
            self._closed.wait()

    def _values(self, index: int) -> dict[str, Any]:
        elapsed_s = self._elapsed_s()
        device = self._declared[min(index, len(self._declared) - 1)]
        angle = 2 * math.pi * elapsed_s / _PERIOD_S
        swing = 0.0 if device.is_alone else 1.0
        values: dict[str, Any] = {
            THROTTLE_REASONS: (),
            "util_gpu_percent": 90 + 10 * math.sin(angle) if swing else self._busy_percent(index),
            "util_mem_ctrl_percent": 40.0,
            "mem_used_bytes": device.mem_total_bytes / 8,
            "mem_reserved_bytes": 0.5 * _GIB,
            "power_w": 200 + 50 * swing * math.sin(angle),
            "energy_j": 200 * elapsed_s + 50 * swing * _PERIOD_S / (2 * math.pi) * (1 - math.cos(angle)),
            "temp_gpu_c": 60.0,
            "temp_mem_c": 70.0,
            "clock_sm_mhz": _CLOCK_MHZ / device.slowdown,
            "clock_mem_mhz": 1200.0,
            "power_limit_w": device.power_limit_w,
            "pcie_gen": 4.0,
            "pcie_width": 16.0,
            "pcie_replay_count": 0.0,
            "ecc_corrected_count": 0.0,
            "ecc_uncorrected_count": 0.0,
            "throttle_time_thermal_software_s": 0.0,
            "throttle_time_power_cap_s": 0.0,
        }
        return values | self._scene(index, elapsed_s)

    def _busy_percent(self, index: int) -> float:
        """Return how busy a simulated device was since the last query; 100 if no work has run yet."""
        now_s = self._clock()
        total_s = busy_s(index, now_s)
        before_s, before_total_s, percent = self._busy.get(index, (now_s, 0.0, 100.0))
        if total_s is not None and now_s - before_s >= _BUSY_OVER_S:
            percent = 100 * min(1.0, max(0.0, (total_s - before_total_s) / (now_s - before_s)))
        elif total_s is not None and index in self._busy:
            return percent
        self._busy[index] = now_s, total_s or 0.0, percent
        return percent

    def _scene(self, index: int, elapsed_s: float) -> dict[str, Any]:
        """Return the readings that the scenario changes."""
        device = self._declared[min(index, len(self._declared) - 1)]
        throttled_s = -1.0 if device.throttled_after_s is None else elapsed_s - device.throttled_after_s
        if throttled_s >= 0:
            return {
                THROTTLE_REASONS: ("thermal_software",),
                "temp_gpu_c": 91.0,
                "clock_sm_mhz": _CLOCK_MHZ / device.throttled_slowdown,
                "throttle_time_thermal_software_s": throttled_s,
            }
        cap = device.power_cap
        if cap is not None and elapsed_s >= cap.settles_after_s:
            share = cap.clock_share(self._clock())
            return {
                THROTTLE_REASONS: ("power_cap",),
                "power_w": device.power_limit_w,
                "energy_j": device.power_limit_w * elapsed_s,
                "clock_sm_mhz": _CLOCK_MHZ / device.slowdown * share,
                "throttle_time_power_cap_s": elapsed_s - cap.settles_after_s,
            }
        if self._is_scene(index, "power_cap"):
            return {
                THROTTLE_REASONS: ("power_cap",),
                "power_limit_w": CAPPED_W,
                "power_w": CAPPED_W,
                "energy_j": CAPPED_W * elapsed_s,
                "clock_sm_mhz": 1100.0,
                "throttle_time_power_cap_s": elapsed_s,
            }
        for scenario, load in _LOADS.items():
            if self._is_scene(index, scenario):
                return {**load, "energy_j": load["power_w"] * elapsed_s}
        if self._is_scene(index, "ecc"):
            uncorrected = 1.0 if elapsed_s >= EVENT_AFTER_S else 0.0
            return {"ecc_corrected_count": float(int(elapsed_s)), "ecc_uncorrected_count": uncorrected}
        return {}
