"""Intel GPUs, read from the files of the xe and i915 drivers: no library and no rights needed.

Watts come from the energy counter over the time between two readings, and utilisation from the time that
the compute unit (GT) was not in its idle state: both need two readings. Power limits are the
sustained ones (PL1); `power1_crit` is a current limit and no cap.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

from gpuproof.devices.base import (
    DeviceError,
    DeviceProcess,
    DriverMissingError,
    NotSupportedError,
    Readout,
    VendorDevice,
    VendorEvent,
    complete_readout,
)
from gpuproof.devices.intel.layout import LAYOUTS, THROTTLE_FILES
from gpuproof.devices.sources import collect
from gpuproof.devices.sysfs import Card, Sensors, SysfsFiles, find_cards, pcie_generation
from gpuproof.records.metrics import names
from gpuproof.records.readings import Lane, Vendor, VendorIndex

_Sources = dict[str, Callable[[], float]]
_NOT_IN_SYSFS = "Intel's drivers have no file for it"
_FIRST_READING = "a difference between two readings; this is the first"


def open_adapter(sysfs_root: Path, *, clock: Callable[[], float] = time.monotonic) -> IntelAdapter:
    """Find the cards that xe or i915 has bound.

    Raises:
        DriverMissingError: neither driver is loaded, or they have no card.
    """
    cards = find_cards(sysfs_root, LAYOUTS)
    if not cards:
        loaded = [driver for driver in LAYOUTS if (sysfs_root / "module" / driver).exists()]
        cause = f"{' and '.join(loaded)} has no card" if loaded else "neither xe nor i915 is loaded"
        raise DriverMissingError(cause)
    return IntelAdapter(cards, sysfs_root, clock)


class IntelAdapter:
    """The files of xe and i915 behind the device protocol."""

    def __init__(self, cards: tuple[Card, ...], root: Path, clock: Callable[[], float]) -> None:
        self._root = root
        self._cards = {card.vendor_index: _IntelCard(card, clock) for card in cards}

    @property
    def vendor(self) -> Vendor:
        """Whose devices these are."""
        return "intel"

    def identities(self) -> tuple[VendorDevice, ...]:
        """List the cards by DRM card number."""
        return tuple(card.describe(self._root) for card in self._cards.values())

    def read(self, vendor_index: VendorIndex, *, lane: Lane) -> Readout:
        """Read one lane's files.

        Raises:
            DeviceLostError: the card is gone.
        """
        return self._cards[vendor_index].read(lane)

    def counters(self, vendor_index: VendorIndex) -> Readout:
        """Read the energy counter, the only running total of these drivers.

        Raises:
            DeviceLostError: the card is gone.
        """
        return self._cards[vendor_index].counters()

    def processes(self, vendor_index: VendorIndex) -> tuple[DeviceProcess, ...]:
        """Refuse: only each process's own file descriptors tell.

        Raises:
            NotSupportedError: always.
        """
        raise NotSupportedError("Intel's drivers list no processes in /sys")

    def poll_events(self) -> tuple[VendorEvent, ...]:
        """Refuse: resets stand in the kernel log only.

        Raises:
            NotSupportedError: always.
        """
        raise NotSupportedError("Intel's drivers announce resets in the kernel log only")

    def close(self) -> None:
        """Close the files."""
        for card in self._cards.values():
            card.close()


class _Rate:
    """A counter's growth per second since the last reading."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._last: tuple[float, float] | None = None

    def step(self, total: float) -> float:
        last, self._last = self._last, (self._clock(), total)
        if last is None or self._last[0] <= last[0]:
            raise DeviceError(_FIRST_READING)
        if total < last[1]:
            raise DeviceError("the driver's counter went back: it was reset or wrapped round")
        return (total - last[1]) / (self._last[0] - last[0])


class _IntelCard:
    """One card's files, and the metrics that are in them."""

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

    def read(self, lane: Lane) -> Readout:
        self._files.require_card()
        sources = self._fast() if lane == "fast" else self._slow()
        values, missing = collect(sources)
        reasons = None
        if lane == "fast":
            reasons, missing["throttle_reasons"] = self._throttle_reasons()
        return complete_readout(
            values,
            unavailable=missing,
            expected=names(lane=lane),
            otherwise=_NOT_IN_SYSFS,
            throttle_reasons=reasons,
        )

    def counters(self) -> Readout:
        self._files.require_card()
        values, missing = collect({"energy_j": self._energy_j})
        return complete_readout(
            values, unavailable=missing, expected=names(kind="counter"), otherwise=_NOT_IN_SYSFS
        )

    def describe(self, root: Path) -> VendorDevice:
        values, missing = collect(self._static())
        module = SysfsFiles(root / "module" / self._card.driver)
        version = {"driver_version": module.text("version")} if module.has("version") else {}
        module.close()
        return VendorDevice(
            vendor_index=self._card.vendor_index,
            uuid=None,
            pci_bus_id=self._card.pci_bus_id,
            name=f"Intel GPU {self._files.text('device')}",
            static=values | version | {"driver": self._card.driver},
            unavailable=missing | {"uuid": "Intel's drivers give none; known by PCI address"},
        )

    def close(self) -> None:
        for files in (self._files, self._gt, self._link):
            files.close()

    def _fast(self) -> _Sources:
        return {
            "util_gpu_percent": self._utilisation,
            "power_w": lambda: self._power.step(self._energy_j()),
            "energy_j": self._energy_j,
            "temp_gpu_c": partial(self._temperature, "pkg"),
            "temp_mem_c": partial(self._temperature, "vram"),
            "clock_sm_mhz": partial(self._gt.number, self._layout.actual_clock),
        }

    def _slow(self) -> _Sources:
        return {
            "power_limit_w": partial(self._power_limit, "power1_max"),
            "fan_rpm": lambda: self._files.number(self._sensors.path("fan1_input")),
            "pcie_gen": partial(pcie_generation, self._link, "current_link_speed"),
            "pcie_width": partial(self._link.number, "current_link_width"),
        }

    def _static(self) -> _Sources:
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
        """Read the whole card's energy, else the package's; i915 has one counter without a label."""
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
            raise DeviceError(f"{name} is 0: the limit is turned off")
        return watts

    def _throttle_reasons(self) -> tuple[tuple[str, ...] | None, str]:
        try:
            if self._gt.number(self._layout.throttle_prefix + "status") == 0:
                return (), ""
            active = [
                self._gt.number(self._layout.throttle_prefix + self._layout.reason_prefix + name)
                for name in THROTTLE_FILES
            ]
        except NotSupportedError as error:
            return None, error.cause
        named = dict.fromkeys(r for r, on in zip(THROTTLE_FILES.values(), active, strict=True) if on)
        return tuple(named) or ("other",), ""


def _slot_switch(device_dir: Path) -> Path | None:
    """Find the switch of a discrete card, whose link goes to the slot; None where there is none.

    Behind that switch the GPU itself reports a link of generation 1 that no data is bound by.
    """
    switch = device_dir.resolve().parent.parent
    vendor = switch / "vendor"
    is_intel_bridge = vendor.exists() and vendor.read_text().strip() == "0x8086"
    behind_port = (switch.parent / "current_link_speed").exists()
    return switch if is_intel_bridge and behind_port and (switch / "current_link_speed").exists() else None
