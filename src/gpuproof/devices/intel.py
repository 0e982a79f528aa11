"""Intel GPUs, read from the files of the xe and i915 drivers, without a library or privileges.

Power is computed from the energy counter over the time between two readings, and utilisation from the time
for which the compute unit (GT) was not idle, so both need two readings. Power limits are the sustained ones
(PL1); `power1_crit` limits current, not power. `LAYOUTS` lists where each driver exposes the same values.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from gpuproof.devices.base import (
    THROTTLE_REASONS,
    DeviceAdapter,
    DeviceError,
    DeviceProcess,
    DriverMissingError,
    Gathered,
    NotSupportedError,
    VendorDevice,
    VendorEvent,
)
from gpuproof.devices.sources import collect
from gpuproof.devices.sysfs import Card, Sensors, SysfsFiles, driver_version, find_cards, pcie_generation
from gpuproof.records.metrics import names
from gpuproof.records.readings import ThrottleReason, VendorIndex

_FIRST_READING = "needs two readings to compare, and this is the first one"
THROTTLE_FILES: dict[str, ThrottleReason] = {
    "pl1": "power_cap",
    "pl2": "power_cap",
    "pl4": "current_limit",
    "thermal": "thermal_hardware",
    "prochot": "hardware_slowdown",
    "ratl": "thermal_hardware",
    "vr_thermalert": "voltage_regulator",
    "vr_tdc": "current_limit",
}


def open_adapter(sysfs_root: Path, *, clock: Callable[[], float] = time.monotonic) -> IntelAdapter:
    """Find the cards bound to xe or i915.

    Raises:
        DriverMissingError: neither driver is loaded, or no card is bound to them.
    """
    cards = find_cards(sysfs_root, LAYOUTS)
    if not cards:
        loaded = [driver for driver in LAYOUTS if (sysfs_root / "module" / driver).exists()]
        cause = f"{' and '.join(loaded)} has no card" if loaded else "neither xe nor i915 is loaded"
        raise DriverMissingError(cause)
    return IntelAdapter(cards, sysfs_root, clock)


class IntelAdapter(DeviceAdapter):
    """The device protocol, implemented with the files of xe and i915."""

    vendor = "intel"
    unknown = "not supported by Intel's drivers: they have no file for it"

    def __init__(self, cards: tuple[Card, ...], root: Path, clock: Callable[[], float]) -> None:
        self._root = root
        self._cards = {card.vendor_index: _IntelCard(card, clock) for card in cards}

    def identities(self) -> tuple[VendorDevice, ...]:
        """List the cards by DRM card number."""
        return tuple(card.describe(self._root) for card in self._cards.values())

    def gather(self, vendor_index: VendorIndex, wanted: tuple[str, ...]) -> Gathered:
        """Read the requested metrics.

        Raises:
            DeviceLostError: the card is gone.
        """
        return self._cards[vendor_index].read(wanted)

    def processes(self, vendor_index: VendorIndex) -> tuple[DeviceProcess, ...]:
        """Raise an error: processes are only visible through their own file descriptors.

        Raises:
            NotSupportedError: always.
        """
        raise NotSupportedError("Intel's drivers list no processes in /sys")

    def poll_events(self) -> tuple[VendorEvent, ...]:
        """Raise an error: resets appear only in the kernel log.

        Raises:
            NotSupportedError: always.
        """
        raise NotSupportedError("Intel's drivers report resets in the kernel log only")

    def close(self) -> None:
        """Close the files."""
        for card in self._cards.values():
            card.close()


class _Rate:
    """The increase of a counter per second since the last reading."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._last: tuple[float, float] | None = None

    def step(self, total: float) -> float:
        last, self._last = self._last, (self._clock(), total)
        if last is None or self._last[0] <= last[0]:
            raise DeviceError(_FIRST_READING)
        if total < last[1]:
            raise DeviceError("the driver's counter went backwards: it was reset or wrapped around")
        return (total - last[1]) / (self._last[0] - last[0])


class _IntelCard:
    """The files of one card, and the metrics in them."""

    def __init__(self, card: Card, clock: Callable[[], float]) -> None:
        self._card = card
        self._layout = LAYOUTS[card.driver]
        self._files = SysfsFiles(card.device_dir)
        self._gt = SysfsFiles(card.card_dir if self._layout.gt_of_card else card.device_dir)
        sensors = Sensors(self._files)
        self._sensors = sensors
        self._energies = sensors.by_label("energy")
        self._temperatures = sensors.by_label("temp")
        self._power, self._idle = _Rate(clock), _Rate(clock)
        switch = _slot_switch(card.device_dir)
        self._link = self._files if switch is None else SysfsFiles(switch)
        self._sources = self._metrics() | self._limits()

    def read(self, wanted: Collection[str]) -> Gathered:
        self._files.require_card()
        return collect({name: self._sources[name] for name in wanted if name in self._sources})

    def describe(self, root: Path) -> VendorDevice:
        values, missing = self.read((*names(kind="static"), "power_limit_w"))
        version = driver_version(root, self._card.driver)
        return VendorDevice(
            vendor_index=self._card.vendor_index,
            uuid=None,
            pci_bus_id=self._card.pci_bus_id,
            name=f"Intel GPU {self._files.text('device')}",
            static=values | version | {"driver": self._card.driver},
            unavailable=missing | {"uuid": "Intel's drivers report no UUID; identified by PCI address"},
        )

    def close(self) -> None:
        for files in (self._files, self._gt, self._link):
            files.close()

    def _metrics(self) -> dict[str, Callable[[], Any]]:
        return {
            "util_gpu_percent": self._utilisation,
            "power_w": lambda: self._power.step(self._energy_j()),
            "energy_j": self._energy_j,
            "temp_gpu_c": partial(self._temperature, "pkg"),
            "temp_mem_c": partial(self._temperature, "vram"),
            "clock_sm_mhz": partial(self._gt.number, self._layout.actual_clock),
            THROTTLE_REASONS: self._throttle_reasons,
            "fan_rpm": lambda: self._files.number(self._sensors.path("fan1_input")),
            "pcie_gen": partial(pcie_generation, self._link, "current_link_speed"),
            "pcie_width": partial(self._link.number, "current_link_width"),
        }

    def _limits(self) -> dict[str, Callable[[], float]]:
        return {
            "power_limit_w": partial(self._power_limit, "power1_max"),
            "power_limit_default_w": partial(self._power_limit, "power1_rated_max"),
            "clock_sm_max_mhz": partial(self._gt.number, self._layout.highest_clock),
            "clock_sm_min_mhz": partial(self._gt.number, self._layout.lowest_clock),
            "temp_slowdown_c": partial(self._temperature, "pkg", "_crit"),
            "temp_shutdown_c": partial(self._temperature, "pkg", "_emergency"),
            "temp_mem_max_c": partial(self._temperature, "vram", "_crit"),
            "pcie_gen_max": partial(pcie_generation, self._link, "max_link_speed"),
            "pcie_width_max": partial(self._link.number, "max_link_width"),
        }

    def _utilisation(self) -> float:
        idle_s = self._gt.number(self._layout.idle_ms, 1e-3)
        return max(0.0, 100 * (1 - self._idle.step(idle_s)))

    def _energy_j(self) -> float:
        """Read the energy of the card, or else of the package; i915 has one counter without a label."""
        for label in ("card", "pkg"):
            if label in self._energies:
                return self._files.number(self._energies[label] + "_input", 1e-6)
        return self._files.number(self._sensors.path("energy1_input"), 1e-6)

    def _temperature(self, label: str, suffix: str = "_input") -> float:
        if label in self._temperatures:
            return self._files.number(self._temperatures[label] + suffix, 1e-3)
        if label == "pkg" and not self._temperatures:
            return self._files.number(self._sensors.path("temp1" + suffix), 1e-3)
        raise NotSupportedError(f"this card or kernel has no {label} temperature")

    def _power_limit(self, name: str) -> float:
        watts = self._files.number(self._sensors.path(name), 1e-6)
        if watts == 0:
            raise NotSupportedError(f"{name} is 0, so the limit is disabled")
        return watts

    def _throttle_reasons(self) -> tuple[str, ...]:
        prefix = self._layout.throttle_prefix
        if self._gt.number(prefix + "status") == 0:
            return ()
        active = [self._gt.number(prefix + self._layout.reason_prefix + name) for name in THROTTLE_FILES]
        named = dict.fromkeys(r for r, on in zip(THROTTLE_FILES.values(), active, strict=True) if on)
        return tuple(named) or ("other",)


def _slot_switch(device_dir: Path) -> Path | None:
    """Find the switch on a discrete card that connects it to the slot; None if there is none.

    Behind that switch, the GPU reports a generation 1 link, which does not limit transfers.
    """
    switch = device_dir.resolve().parent.parent
    vendor = switch / "vendor"
    is_intel_bridge = vendor.exists() and vendor.read_text().strip() == "0x8086"
    behind_port = (switch.parent / "current_link_speed").exists()
    return switch if is_intel_bridge and behind_port and (switch / "current_link_speed").exists() else None


@dataclass(frozen=True, slots=True, kw_only=True)
class IntelLayout:
    """Names of the files of the first GT, which runs compute work."""

    gt_of_card: bool
    """Whether the files are below cardN itself, not below its PCI device."""
    actual_clock: str
    """File with the actual clock, not the requested one."""
    highest_clock: str
    lowest_clock: str
    idle_ms: str
    throttle_prefix: str
    reason_prefix: str


LAYOUTS = {
    "xe": IntelLayout(
        gt_of_card=False,
        actual_clock="tile0/gt0/freq0/act_freq",
        highest_clock="tile0/gt0/freq0/rp0_freq",
        lowest_clock="tile0/gt0/freq0/rpn_freq",
        idle_ms="tile0/gt0/gtidle/idle_residency_ms",
        throttle_prefix="tile0/gt0/freq0/throttle/",
        reason_prefix="reason_",
    ),
    "i915": IntelLayout(
        gt_of_card=True,
        actual_clock="gt/gt0/rps_act_freq_mhz",
        highest_clock="gt/gt0/rps_RP0_freq_mhz",
        lowest_clock="gt/gt0/rps_RPn_freq_mhz",
        idle_ms="gt/gt0/rc6_residency_ms",
        throttle_prefix="gt/gt0/throttle_reason_",
        reason_prefix="",
    ),
}
