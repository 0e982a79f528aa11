"""AMD GPUs, read from the files of the amdgpu driver: no library, no ROCm, no rights needed.

Sensors are found by their labels, since numbers differ by card. A card that is asleep is left asleep. Where
two files may hold a metric, the first that exists is read, in the order given here.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

from gpuproof.devices import amd_kfd, amd_metrics
from gpuproof.devices.amd_throttle import ResidencyClock
from gpuproof.devices.base import (
    DeviceError,
    DeviceLostError,
    DeviceProcess,
    DriverMissingError,
    NotSupportedError,
    Readout,
    VendorDevice,
    VendorEvent,
    complete_readout,
)
from gpuproof.devices.sysfs import Card, Sensors, SysfsFiles, collect, find_cards, pcie_generation
from gpuproof.records.metrics import names, throttle_time_name
from gpuproof.records.readings import Lane, Vendor, VendorIndex

_Sources = dict[str, Callable[[], float]]
_NOT_IN_SYSFS = "the amdgpu driver has no file for it"
_ASLEEP = "the card is asleep; reading it would wake it"
_NEAR_CRITICAL_C = 5.0
_PWM_MAX = 255


def open_adapter(sysfs_root: Path) -> AmdAdapter:
    """Find the cards that the amdgpu driver has bound.

    Raises:
        DriverMissingError: the driver is not loaded, or has no card.
    """
    cards = find_cards(sysfs_root, {"amdgpu"})
    if not cards:
        loaded = (sysfs_root / "module/amdgpu").exists()
        raise DriverMissingError("amdgpu has no card" if loaded else "the amdgpu driver is not loaded")
    return AmdAdapter(cards, sysfs_root)


class AmdAdapter:
    """The amdgpu driver's files behind the device protocol."""

    def __init__(self, cards: tuple[Card, ...], root: Path) -> None:
        nodes = amd_kfd.find_nodes(root)
        self._root = root
        self._cards = {card.vendor_index: _AmdCard(card, nodes.get(card.pci_bus_id)) for card in cards}

    @property
    def vendor(self) -> Vendor:
        """Whose devices these are."""
        return "amd"

    def identities(self) -> tuple[VendorDevice, ...]:
        """List the cards by DRM card number."""
        driver = SysfsFiles(self._root / "module/amdgpu")
        version = {"driver_version": driver.text("version")} if driver.has("version") else {}
        driver.close()
        return tuple(card.describe(version) for card in self._cards.values())

    def read(self, vendor_index: VendorIndex, *, lane: Lane) -> Readout:
        """Read one lane's files.

        Raises:
            DeviceLostError: the card is gone.
        """
        return self._cards[vendor_index].read(lane)

    def counters(self, vendor_index: VendorIndex) -> Readout:
        """Read every running total.

        Raises:
            DeviceLostError: the card is gone.
        """
        return self._cards[vendor_index].counters()

    def processes(self, vendor_index: VendorIndex) -> tuple[DeviceProcess, ...]:
        """List ROCm's processes.

        Raises:
            NotSupportedError: ROCm's kernel side does not list this card.
        """
        node = self._cards[vendor_index].node
        if node is None:
            raise NotSupportedError("this card is not among ROCm's (no KFD node)")
        return amd_kfd.list_processes(self._root, node)

    def poll_events(self) -> tuple[VendorEvent, ...]:
        """Refuse: events need amdsmi or the kernel log.

        Raises:
            NotSupportedError: always.
        """
        raise NotSupportedError("amdgpu announces events through amdsmi or the kernel log only")

    def close(self) -> None:
        """Close the files."""
        for card in self._cards.values():
            card.files.close()


class _AmdCard:
    """One card's files, and the metrics that are in them."""

    def __init__(self, card: Card, node: amd_kfd.KfdNode | None) -> None:
        self.node = node
        self.files = SysfsFiles(card.device_dir)
        self._card = card
        self._sensors = Sensors(self.files)
        self._temperatures = self._sensors.by_label("temp")
        self._clocks = self._sensors.by_label("freq")
        self._residency = ResidencyClock()

    def read(self, lane: Lane) -> Readout:
        if self._is_asleep():
            return complete_readout({}, unavailable={}, expected=names(lane=lane), otherwise=_ASLEEP)
        table, refusal = self._table()
        if lane == "slow":
            return self._readout(self._slow() | self._residencies(table, refusal), names(lane="slow"))
        reasons, why = self._throttle_reasons(table, refusal)
        return self._readout(
            self._fast() | {"energy_j": partial(_energy_j, table, refusal)},
            names(lane="fast"),
            throttle_reasons=reasons,
            why={"throttle_reasons": why},
        )

    def counters(self) -> Readout:
        if self._is_asleep():
            return complete_readout({}, unavailable={}, expected=names(kind="counter"), otherwise=_ASLEEP)
        table, refusal = self._table()
        sources = self._slow() | self._residencies(table, refusal)
        sources["energy_j"] = partial(_energy_j, table, refusal)
        expected = names(kind="counter")
        return self._readout({name: ask for name, ask in sources.items() if name in expected}, expected)

    def describe(self, version: dict[str, str]) -> VendorDevice:
        values, missing = collect(self._static())
        values |= version | self._texts()
        unique = self._text_or_none("unique_id")
        return VendorDevice(
            vendor_index=self._card.vendor_index,
            uuid=f"GPU-{unique.removeprefix('0x')}" if unique else None,
            pci_bus_id=self._card.pci_bus_id,
            name=self._text_or_none("product_name") or f"AMD GPU {self._text_or_none('device') or 'unknown'}",
            static=values,
            unavailable=missing | ({} if unique else {"uuid": "this card has no unique_id"}),
        )

    def _readout(
        self,
        sources: _Sources,
        expected: tuple[str, ...],
        *,
        throttle_reasons: tuple[str, ...] | None = None,
        why: dict[str, str] | None = None,
    ) -> Readout:
        values, missing = collect(sources)
        return complete_readout(
            values,
            unavailable=missing | (why or {}),
            expected=expected,
            otherwise=_NOT_IN_SYSFS,
            throttle_reasons=throttle_reasons,
        )

    def _is_asleep(self) -> bool:
        self.files.require_card()
        return self._text_or_none("power/runtime_status") == "suspended"

    def _fast(self) -> _Sources:
        files = self.files
        return {
            "util_gpu_percent": partial(files.number, "gpu_busy_percent"),
            "util_mem_ctrl_percent": partial(files.number, "mem_busy_percent"),
            "mem_used_bytes": partial(files.number, "mem_info_vram_used"),
            "mem_host_mapped_bytes": partial(files.number, "mem_info_gtt_used"),
            "power_w": partial(self._first, ("power1_average", "power1_input"), 1e-6),
            "power_instant_w": partial(self._first, ("power1_input",), 1e-6),
            "temp_gpu_c": partial(self._temperature, ("edge", "junction"), "_input"),
            "temp_hotspot_c": partial(self._temperature, ("junction",), "_input"),
            "temp_mem_c": partial(self._temperature, ("mem",), "_input"),
            "clock_sm_mhz": partial(self._clock, "sclk"),
            "clock_mem_mhz": partial(self._clock, "mclk"),
        }

    def _slow(self) -> _Sources:
        files = self.files
        return {
            "power_limit_w": partial(self._first, ("power1_cap",), 1e-6),
            "fan_percent": partial(self._first, ("pwm1",), 100 / _PWM_MAX),
            "fan_rpm": partial(self._first, ("fan1_input",), 1.0),
            "pcie_gen": partial(pcie_generation, files, "current_link_speed"),
            "pcie_width": partial(files.number, "current_link_width"),
            "pcie_replay_count": partial(files.number, "pcie_replay_count"),
            "ecc_corrected_count": partial(self._errors, "ce"),
            "ecc_uncorrected_count": partial(self._errors, "ue"),  # codespell:ignore ue
        }

    def _static(self) -> _Sources:
        files = self.files
        return {
            "mem_total_bytes": partial(files.number, "mem_info_vram_total"),
            "power_limit_w": partial(self._first, ("power1_cap",), 1e-6),
            "power_limit_default_w": partial(self._first, ("power1_cap_default",), 1e-6),
            "power_limit_min_w": partial(self._first, ("power1_cap_min",), 1e-6),
            "power_limit_max_w": partial(self._first, ("power1_cap_max",), 1e-6),
            "temp_slowdown_c": partial(self._temperature, ("edge", "junction"), "_crit"),
            "temp_shutdown_c": partial(self._temperature, ("edge", "junction"), "_emergency"),
            "temp_mem_max_c": partial(self._temperature, ("mem",), "_crit"),
            "clock_sm_max_mhz": partial(self._dpm, "pp_dpm_sclk", max),
            "clock_sm_min_mhz": partial(self._dpm, "pp_dpm_sclk", min),
            "clock_mem_max_mhz": partial(self._dpm, "pp_dpm_mclk", max),
            "pcie_gen_max": partial(pcie_generation, files, "max_link_speed"),
            "pcie_width_max": partial(files.number, "max_link_width"),
        }

    def _texts(self) -> dict[str, Any]:
        """Read the facts that are words, where the card has them."""
        files = {
            "vbios_version": "vbios_version",
            "performance_level": "power_dpm_force_performance_level",
            "compute_partition": "current_compute_partition",
            "memory_partition": "current_memory_partition",
            "numa_node": "numa_node",
        }
        found: dict[str, Any] = {name: self._text_or_none(file) for name, file in files.items()}
        found["kfd_node"] = self.node.number if self.node else None
        return {name: value for name, value in found.items() if value is not None}

    def _text_or_none(self, name: str) -> str | None:
        try:
            return self.files.text(name) or None
        except NotSupportedError:
            return None

    def _first(self, choices: tuple[str, ...], scale: float) -> float:
        paths = [self._sensors.path(name) for name in choices]
        return self.files.number(next(filter(self.files.has, paths), paths[0]), scale)

    def _temperature(self, labels: tuple[str, ...], suffix: str) -> float:
        for label in labels:
            if label in self._temperatures:
                return self.files.number(self._temperatures[label] + suffix, 1e-3)
        raise NotSupportedError(f"this card has no {' or '.join(labels)} temperature")

    def _clock(self, label: str) -> float:
        if label in self._clocks:
            return self.files.number(self._clocks[label] + "_input", 1e-6)
        return self._dpm(f"pp_dpm_{label}", max, active=True)

    def _dpm(self, name: str, pick: Callable[[list[int]], int], *, active: bool = False) -> float:
        """Read a table of clocks such as `1: 2500Mhz *`, whose star marks the one in use."""
        star = r" \*" if active else ""
        steps = [
            int(mhz) for mhz in re.findall(rf"^\w+: (\d+)Mhz{star}", self.files.text(name), re.MULTILINE)
        ]
        if not steps:
            raise DeviceError(f"{name} names no clock")
        return pick(steps)

    def _errors(self, kind: str) -> float:
        text = self.files.text("ras/umc_err_count")
        count = re.search(rf"^{kind}: (\d+)$", text, re.MULTILINE)
        if count is None:
            raise DeviceError(f"ras/umc_err_count holds {text!r}")
        return int(count.group(1))

    def _table(self) -> tuple[dict[str, int], str]:
        """Read gpu_metrics once a reading; without it, an empty table and the reason."""
        try:
            table = amd_metrics.parse(self.files.read("gpu_metrics"))
        except DeviceLostError:
            raise
        except DeviceError as error:
            return {}, error.cause
        self._residency.advance(table)
        return table, ""

    def _residencies(self, table: dict[str, int], refusal: str) -> _Sources:
        return {
            throttle_time_name(reason): partial(self._residency.seconds, field, table, refusal)
            for field, reason in amd_metrics.RESIDENCIES.items()
        }

    def _throttle_reasons(self, table: dict[str, int], refusal: str) -> tuple[tuple[str, ...] | None, str]:
        if not table:
            return None, refusal
        if "indep_throttle_status" in table:
            return amd_metrics.throttle_reasons(self._without_stuck_bit(table["indep_throttle_status"])), ""
        return self._residency.reasons(table)

    def _without_stuck_bit(self, status: int) -> int:
        values, _ = collect(
            {
                "now": partial(self._temperature, ("junction",), "_input"),
                "critical": partial(self._temperature, ("junction",), "_crit"),
            }
        )
        near = len(values) == 2 and values["critical"] - values["now"] <= _NEAR_CRITICAL_C
        return status if near else status & ~(1 << amd_metrics.HOTSPOT_BIT)


def _energy_j(table: dict[str, int], refusal: str) -> float:
    if not table:
        raise NotSupportedError(refusal)
    if table["content"] < 4:
        raise NotSupportedError(f"gpu_metrics 1.{table['content']} does not document its energy unit")
    if "energy_accumulator" not in table:
        raise NotSupportedError("the firmware leaves the energy counter empty")
    return table["energy_accumulator"] * amd_metrics.ENERGY_UNIT_J
